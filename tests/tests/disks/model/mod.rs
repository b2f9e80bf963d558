//! Many clients on one disk, over every device and stack, on each file system: no byte is ever
//! wrong, no map lies, and what was flushed is in the file.
//!
//! The clients own bytes of the same blocks, so a change that reaches further than asked, or a
//! reply that is changed after it was made, shows. Some read their replies late. The short
//! form counts operations; see `blackbox::dice` for the long one.

mod client;
mod common;
mod layout;
mod stacks;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;

use blackbox::MIB;
use blackbox::dice::{Case, Dice, long_form, seeds};
use blackbox::nbd::{alloc, tflag};
use blackbox::session::Mode;
use blackbox::storage::Mounted;

use client::{Client, Ground};
use common::Common;
use layout::Layout;
use stacks::{Below, STACKS, Stack, check_surroundings};

/// Bytes of the disks, or a little more.
const SIZE: usize = 768 << 10;

#[test]
fn no_byte_is_wrong_on_tmpfs() {
    on("tmpfs");
}

#[test]
fn no_byte_is_wrong_on_ext4() {
    on("ext4");
}

#[test]
fn no_byte_is_wrong_on_xfs() {
    on("xfs");
}

#[test]
fn no_byte_is_wrong_on_btrfs() {
    on("btrfs");
}

fn on(kind: &str) {
    let Some(mounted) = Mounted::new(kind, 320 * MIB) else { return };
    for seed in seeds() {
        for (number, stack) in STACKS.iter().enumerate() {
            // Memory is the same on each.
            if stack.below == Below::Memory && kind != "tmpfs" {
                continue;
            }
            let _case = Case::new(&format!("{} on {}", stack.name(), kind), seed);
            let salt = u64::try_from(number).unwrap();
            trial(stack, &mounted.join("disk"), &Dice::new(seed).with(salt));
        }
    }
}

/// One stack: many clients, then the whole disk, then the file.
fn trial(stack: &Stack, path: &Path, dice: &Dice) {
    let mut choice = dice.with(1);
    let clients = choice.between(4, 8);
    let mut layout = Layout::new(stack.size(SIZE), clients, &mut choice);
    if stack.below == Below::Memory {
        layout.first.fill(0);
    }
    let Some(running) = stack.start(path, &layout.first) else { return };
    let common = Common::new(layout.common.start, &layout.first[layout.common.clone()]);
    let lead = u64::try_from(stack.lead()).unwrap();
    let file = stack.keeps_in_file().then(|| (File::open(path).unwrap(), lead));
    let ground = Arc::new(Ground { layout, common, file, clock: AtomicU64::new(0) });

    let mut all: Vec<Client> = (0..clients)
        .map(|me| {
            let mode = [Mode::Structured, Mode::Extended, Mode::Simple][me % 3];
            let session = running.server.session(mode, "");
            let dice = dice.with(100 + u64::try_from(me).unwrap());
            Client::new(session, me, Arc::clone(&ground), dice)
        })
        .collect();
    by_turns(&mut all, ground.layout.size, &mut choice);
    let operations = if long_form() { 300 } else { 60 };
    let threads: Vec<_> =
        all.into_iter().map(|client| thread::spawn(move || client.run(operations))).collect();
    let ended: Vec<_> = threads.into_iter().map(thread::JoinHandle::join).collect();
    let known: Vec<(usize, u8, bool)> =
        ended.into_iter().flat_map(|end| end.expect("a client failed, see above")).collect();

    let right = |what: &str, bytes: &[u8]| {
        for (at, value, trimmed) in &known {
            let byte = bytes[*at];
            let right = byte == *value || *trimmed && byte == 0;
            assert!(right, "byte {at} is {byte} {what}, and must be {value}");
        }
        let common = ground.layout.common.clone();
        ground.common.begin_read(&common);
        let told: Vec<_> = bytes[common.clone()].iter().copied().map(Some).collect();
        let wrong = ground.common.end_read(&common, &told);
        assert_eq!(wrong, None, "a common byte holds what no client can have left {what}");
    };

    let mut last = running.server.session(Mode::Extended, "");
    let bytes = last.read(0, last.export.size).unwrap();
    right("at the end", &bytes);
    let mut at = 0;
    for (len, flags) in last.map() {
        let end = at + usize::try_from(len).unwrap();
        let zero = bytes[at..end].iter().all(|byte| *byte == 0);
        assert!(zero || flags & alloc::ZERO == 0, "data at {at}..{end}, said to be zero");
        at = end;
    }
    if last.has(tflag::SEND_FLUSH) {
        last.flush();
    }
    last.disconnect();
    let end = stack.lead() + ground.layout.size;
    if stack.keeps_in_file() {
        right("in the file after the flush", &std::fs::read(path).unwrap()[stack.lead()..end]);
    }
    running.stop();
    let file = std::fs::read(path).unwrap();
    check_surroundings(&file, stack);
    match stack.below {
        Below::Memory => {}
        Below::Unchanged => assert!(file == ground.layout.first, "the disk below changed"),
        _ => right("in the file after the end", &file[stack.lead()..end]),
    }
}

/// Replies to one client lie in the socket while the others change bytes of the same blocks.
fn by_turns(clients: &mut [Client], size: usize, dice: &mut Dice) {
    for turn in 0..8 {
        let start = dice.below(size - 60_000);
        let around = start..start + 60_000;
        let reader = turn % clients.len();
        clients[reader].ask_and_look_away(&around);
        // Nothing depends on it, but the replies should be in the socket by then.
        thread::sleep(Duration::from_millis(2));
        for other in (0..clients.len()).filter(|other| *other != reader) {
            clients[other].change_within(&around);
        }
        clients[reader].look_again();
    }
}
