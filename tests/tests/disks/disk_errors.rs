//! A server whose disk fails: every failure is an error reply, nothing that was not done is
//! acknowledged, and no error is turned into zeroes. System calls on the disk fail at random;
//! what is answered is compared with what can be.

use std::io::Read;
use std::path::Path;
use std::process::Command;

use blackbox::MIB;
use blackbox::dice::{Case, Dice, long_form, seeds};
use blackbox::launch::{Serve, Server};
use blackbox::nbd::{SIMPLE_REPLY, alloc, cflag, cmd, err};
use blackbox::peers::{diskferry, skip_environment};
use blackbox::session::{Mode, Request, Session};
use blackbox::storage::{Loop, Mounted};
use blackbox::temp::TempDir;

const SIZE: usize = 200_000;

/// What each byte may be: a bit for each of 64 values.
struct Known {
    possible: Vec<u64>,
    /// Requests answered with an error, or not at all.
    refused: usize,
}

impl Known {
    /// The first byte that cannot be what it was read as.
    fn wrong(&self, offset: usize, bytes: &[u8]) -> Option<usize> {
        let possible = &self.possible[offset..offset + bytes.len()];
        possible.iter().zip(bytes).position(|(set, byte)| *byte > 63 || set & (1 << byte) == 0)
    }

    /// A change was answered: these bytes now are `value`, or, if it failed, may be.
    fn change(&mut self, offset: usize, len: usize, value: u8, is_certain: bool) {
        self.refused += usize::from(!is_certain && value != 0);
        for set in &mut self.possible[offset..offset + len] {
            *set = if is_certain { 1 << value } else { *set | 1 << value };
        }
    }
}

/// A server under these rules, whose PATH is the disk's directory.
fn start(disk: &Path, seed: u64, rules: &[&str], filters: &[&str]) -> Server {
    let temp = TempDir::new();
    let socket = temp.join("s");
    let serve = Serve::file(disk);
    let serve =
        filters.iter().fold(serve, |serve, filter| serve.option(format!("--filter={filter}")));
    let mut command = Command::new(env!("CARGO_BIN_EXE_faulty"));
    command.arg(seed.to_string());
    let at = disk.parent().unwrap().display();
    command.args(rules.iter().map(|rule| format!("{rule}:{at}")));
    command.arg("--").arg(diskferry()).args(serve.arguments(&socket));
    let mut server = Server::start(command, temp, socket);
    // With a cache, what cannot be written at the end is a failure.
    server.may_end();
    server
}

fn is_impossible_here() -> bool {
    if !cfg!(target_arch = "x86_64") {
        skip_environment("faults are injected on x86_64 only");
    }
    !cfg!(target_arch = "x86_64")
}

fn new_disk(temp: &TempDir) -> std::path::PathBuf {
    temp.file("disk", &vec![1; SIZE])
}

#[test]
fn a_flush_that_failed_once_fails_for_ever_on_every_connection() {
    if is_impossible_here() {
        return;
    }
    for rule in ["fdatasync=EIO@1", "fdatasync=ENOSPC@1"] {
        let temp = TempDir::new();
        let disk = new_disk(&temp);
        let server = start(&disk, 1, &[rule], &[]);
        let mut first = server.session(Mode::Structured, "");
        first.write(0, &[2; 512]);
        for _ in 0..2 {
            assert_ne!(first.error_of(&Request::new(cmd::FLUSH, 0, 0)), 0, "{rule}");
        }
        let mut second = server.session(Mode::Simple, "");
        second.write(512, &[3; 512]);
        assert_ne!(second.error_of(&Request::new(cmd::FLUSH, 0, 0)), 0, "{rule}: another client");
        // Reads still tell what the writes left.
        assert_eq!(second.read(0, 512), Ok(vec![2; 512]));
    }
}

#[test]
fn a_fast_zero_that_a_block_device_refuses_has_changed_nothing() {
    let Some(memory) = Mounted::new("tmpfs", 8 * MIB) else { return };
    let disk = memory.join("disk");
    std::fs::write(&disk, vec![1; 1 << 20]).unwrap();
    let Some(block) = Loop::over(&disk, &[]) else { return };
    let server = Serve::file(block.path()).start();
    let mut session = server.session(Mode::Structured, "");
    // tmpfs refuses this one, and from then on the loop device has no zeroes at all.
    let kept = Request::new(cmd::WRITE_ZEROES, 0, 512).flags(cflag::NO_HOLE);
    assert_eq!(session.error_of(&kept), 0);
    for (command, flags) in [(cmd::WRITE_ZEROES, cflag::FAST_ZERO), (cmd::TRIM, 0)] {
        session.write(8192, &[60; 4096]);
        let error = session.error_of(&Request::new(command, 8704, 2048).flags(flags));
        let bytes = session.read(8192, 4096).unwrap();
        let value = if error == 0 { 0 } else { 60 };
        let right = |byte: &u8| *byte == value || command == cmd::TRIM && *byte == 60;
        assert!(bytes[512..2560].iter().all(right), "error {error}, and other bytes");
        assert!(bytes[..512].iter().chain(&bytes[2560..]).all(|byte| *byte == 60));
    }
}

#[test]
fn nothing_is_acknowledged_that_a_failing_disk_did_not_do() {
    if is_impossible_here() {
        return;
    }
    let faults: &[&[&str]] = &[
        &["pwrite64=EIO@20%", "pwritev2=EIO@20%"],
        &["pwrite64=ENOSPC@5+", "pwritev2=ENOSPC@5+"],
        &["pwrite64=short@50%", "pwritev2=short@50%", "pwrite64=EINTR@20%"],
        &["pread64=EIO@20%", "preadv2=EIO@20%", "sendfile=EIO@5%"],
        &["pread64=short@50%", "preadv2=EAGAIN@50%", "sendfile=short@50%"],
        &["fallocate=EIO@30%", "fallocate=EINTR@30%"],
        &["fallocate=ENOSPC@3+"],
        &["fallocate=EOPNOTSUPP@3+"],
        &["fdatasync=EIO@10%", "fsync=EIO@10%"],
        &["lseek=EIO@20%"],
        &["pwrite64=EIO@10%", "pread64=EIO@10%", "fallocate=EIO@10%", "preadv2=EOPNOTSUPP@1+"],
    ];
    let stacks: &[&[&str]] = &[&[], &["cache?cache-min-block-size=4K"], &["blocksize?minblock=4K"]];
    for seed in seeds() {
        let mut refused = 0;
        for (i, rules) in faults.iter().enumerate() {
            for (j, filters) in stacks.iter().enumerate() {
                let salt = u64::try_from(i * 100 + j).unwrap();
                let _case = Case::new(&format!("{rules:?} under {filters:?}"), seed);
                refused += one(&mut Dice::new(seed).with(salt), rules, filters);
            }
        }
        assert!(refused > 50, "the disk should have failed more often than {refused} times");
    }
}

/// Returns how many requests were refused.
fn one(dice: &mut Dice, rules: &[&str], filters: &[&str]) -> usize {
    let temp = TempDir::new();
    let disk = new_disk(&temp);
    let server = start(&disk, dice.below(1 << 30).try_into().unwrap(), rules, filters);
    let mut session = server.session(Mode::Structured, "");
    let mut reader = server.session(Mode::Simple, "");
    let size = usize::try_from(session.export.size).unwrap();
    let mut known = Known { possible: vec![1 << 1; size], refused: 0 };
    for _ in 0..if long_form() { 1000 } else { 120 } {
        let (offset, len) = range(size, dice);
        if dice.percent(70) {
            operation(&mut session, (offset, len), &mut known, &disk, dice);
        } else if !read(&mut reader, offset, len, &known) {
            known.refused += 1;
            reader = server.session(Mode::Simple, "");
        }
    }
    known.refused
}

/// A first byte and a length.
fn range(size: usize, dice: &mut Dice) -> (usize, usize) {
    let most = dice.pick(&[1, 512, 5000, 60_000]);
    let len = dice.between(1, most);
    (dice.below(size - len + 1), len)
}

/// One request that is no read.
fn operation(
    session: &mut Session,
    (offset, len): (usize, usize),
    known: &mut Known,
    disk: &Path,
    dice: &mut Dice,
) {
    let wide = |number: usize| u64::try_from(number).unwrap();
    let request = |command| Request::new(command, wide(offset), wide(len));
    match dice.below(7) {
        0..3 => {
            let value = u8::try_from(dice.between(1, 63)).unwrap();
            let fua = if dice.percent(10) { cflag::FUA } else { 0 };
            let write = Request::write(wide(offset), &vec![value; len]).flags(fua);
            let error = session.error_of(&write);
            known.change(offset, len, value, error == 0);
        }
        3 => {
            let flags = dice.pick(&[0, cflag::NO_HOLE, cflag::FAST_ZERO]);
            let error = session.error_of(&request(cmd::WRITE_ZEROES).flags(flags));
            if error != err::ENOTSUP {
                known.change(offset, len, 0, error == 0);
            }
        }
        4 => {
            let _ = session.error_of(&request(cmd::TRIM));
            known.change(offset, len, 0, false);
        }
        5 => {
            if let Ok(contexts) = session.status(wide(offset), wide(len), 0) {
                let mut at = offset;
                for (length, flags) in contexts.values().next().unwrap() {
                    let length = usize::try_from(*length).unwrap().min(known.possible.len() - at);
                    let zeroes = vec![0; length];
                    let wrong = known.wrong(at, &zeroes);
                    assert!(flags & alloc::ZERO == 0 || wrong.is_none(), "data at {wrong:?}+{at}");
                    at += length;
                }
            }
        }
        _ => {
            if session.error_of(&Request::new(cmd::FLUSH, 0, 0)) == 0 {
                let file = std::fs::read(disk).unwrap();
                let wrong = known.wrong(0, &file[..known.possible.len()]);
                assert_eq!(
                    wrong,
                    None,
                    "not in the file after a flush: {:?}",
                    file[wrong.unwrap()]
                );
            }
        }
    }
}

/// A read: right, or an error, or (false) the end of the connection, and never other bytes.
fn read(session: &mut Session, offset: usize, len: usize, known: &Known) -> bool {
    let request =
        Request::new(cmd::READ, u64::try_from(offset).unwrap(), u64::try_from(len).unwrap());
    let cookie = session.register(&request);
    let bytes = session.bytes(&request, cookie);
    session.socket.send(&bytes);
    let mut head = [0; 16];
    if session.socket.read_exact(&mut head).is_err() {
        return false;
    }
    assert_eq!(head[..4], SIMPLE_REPLY.to_be_bytes(), "{head:02x?}");
    if head[4..8] != [0; 4] {
        return true;
    }
    let mut bytes = vec![0; len];
    if session.socket.read_exact(&mut bytes).is_err() {
        return false;
    }
    let wrong = known.wrong(offset, &bytes);
    assert_eq!(wrong, None, "{request:?}: byte {wrong:?} of it is wrong");
    true
}
