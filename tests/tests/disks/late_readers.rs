//! Replies that lie in a socket while the disk goes on changing: every byte is what it was before,
//! or what an overlapping request made of it, and a byte that was not to be changed never changes.
//!
//! Long replies leave a file as pages of its cache and not as copies. What drops or zeroes pages
//! around the bytes that it was asked to change shows in replies that are read late. Each file
//! system has its own way of doing that, so each is tried, and a block device.

use std::fs;
use std::thread;
use std::time::Duration;

use blackbox::launch::{Serve, Server};
use blackbox::nbd::{cflag, cmd};
use blackbox::session::{Mode, Request, Session};
use blackbox::storage::{Loop, Mounted};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index, length};

const SIZE: u64 = 2 * MIB;
const ROUNDS: u64 = 30;

/// A generator of numbers, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// A request that changes the disk, and the byte that it leaves.
struct Change {
    request: Request,
    byte: u8,
}

impl Change {
    /// Mostly part of a block; now and then whole blocks.
    fn any(dice: &mut Dice) -> Self {
        let (offset, len) = match dice.below(4) {
            0 => (dice.below(SIZE / 4096) * 4096, (1 + dice.below(8)) * 4096),
            1 => (dice.below(SIZE / 512) * 512, 512),
            2 => (dice.below(SIZE), 1 + dice.below(100)),
            _ => (dice.below(SIZE), 1 + dice.below(20_000)),
        };
        let len = len.min(SIZE - offset);
        let (request, byte) = match dice.below(5) {
            0 | 1 => (Request::new(cmd::TRIM, offset, len), 0),
            2 => (Request::new(cmd::WRITE_ZEROES, offset, len), 0),
            3 => (Request::new(cmd::WRITE_ZEROES, offset, len).flags(cflag::NO_HOLE), 0),
            _ => (Request::write(offset, &vec![0xee; index(len)]), 0xee),
        };
        Self { request, byte }
    }

    fn covers(&self, at: u64) -> bool {
        at >= self.request.offset && at - self.request.offset < self.request.length
    }
}

/// Panics unless each byte is what it was, or what one of the changes makes of it.
#[track_caller]
fn assert_possible(got: &[u8], offset: u64, before: &[u8], changes: &[Change], what: &str) {
    let was = &before[index(offset)..][..got.len()];
    let wrong = |i: &usize| {
        let at = offset + length(&got[..*i]);
        got[*i] != was[*i] && !changes.iter().any(|c| c.byte == got[*i] && c.covers(at))
    };
    // Most pieces are as they were, and quickly passed over.
    let changed = (0..got.len()).step_by(512).filter(|i| {
        let end = got.len().min(i + 512);
        got[*i..end] != was[*i..end]
    });
    let wrong: Vec<usize> = changed.flat_map(|i| i..got.len().min(i + 512)).filter(wrong).collect();
    let Some(first) = wrong.first() else { return };
    panic!(
        "{what}: {} bytes of {} from {offset} changed without a request, the first {first} bytes on",
        wrong.len(),
        got.len()
    );
}

/// A read: its cookie and its offset.
type Asked = (u64, u64);

/// Reads in flight: for each connection, what was asked.
struct Readers(Vec<(Session, Vec<Asked>)>);

impl Readers {
    /// Connections that send reads and receive nothing.
    fn start(server: &Server, dice: &mut Dice) -> Self {
        let connection = |_| {
            let mut session = server.session(Mode::Structured, "");
            let asked: Vec<_> = (0..6)
                .map(|_| {
                    let longest = [100, 20_000, 64 << 10, 256 << 10][index(dice.below(4))];
                    let offset = dice.below(SIZE);
                    let len = (1 + dice.below(longest)).min(SIZE - offset);
                    (session.send(&Request::new(cmd::READ, offset, len)), offset)
                })
                .collect();
            (session, asked)
        };
        Self((0..4).map(connection).collect())
    }

    /// Waits until nothing more comes into the sockets.
    fn settle(&self) {
        let waiting = || self.0.iter().map(|(session, _)| session.socket.waiting()).sum::<u64>();
        let mut before = 0;
        loop {
            thread::sleep(Duration::from_millis(20));
            let now = waiting();
            if now == before && now > 0 {
                return;
            }
            before = now;
        }
    }

    fn finish(self, before: &[u8], changes: &[Change], what: &str) {
        for (mut session, asked) in self.0 {
            for (cookie, offset) in asked {
                let answer = session.wait(cookie);
                assert_eq!(answer.error, 0, "{what}: READ at {offset}");
                assert_possible(&answer.data, offset, before, changes, what);
            }
        }
    }
}

fn read_late(serve: Serve, what: &str, seed: u64) {
    let server = serve.start();
    let mut writer = server.session(Mode::Structured, "");
    let mut dice = Dice(seed);
    let content = pattern(0, index(SIZE + ROUNDS * 4096));
    for round in 0..ROUNDS {
        // Clean pages one time, dirty ones the next.
        writer.write(0, &content[index(round * 4096)..][..index(SIZE)]);
        if round % 2 == 0 {
            writer.flush();
        }
        let before = writer.read(0, SIZE).unwrap();
        let changes: Vec<Change> = (0..12).map(|_| Change::any(&mut dice)).collect();
        let late = Readers::start(&server, &mut dice);
        late.settle();
        let sent: Vec<u64> = changes.iter().map(|c| writer.send(&c.request)).collect();
        // These are read while the changes are being made.
        let amid = Readers::start(&server, &mut dice);
        for cookie in sent {
            assert_eq!(writer.wait(cookie).error, 0, "{what}");
        }
        let what = format!("{what}, round {round}");
        late.finish(&before, &changes, &format!("{what}, read late"));
        amid.finish(&before, &changes, &format!("{what}, read meanwhile"));
        let after = writer.read(0, SIZE).unwrap();
        assert_possible(&after, 0, &before, &changes, &format!("{what}, on the disk"));
    }
}

fn on(kind: &str) {
    let Some(fs) = Mounted::new(kind, 400 * MIB) else { return };
    for seed in [1, 0x9e37_79b9_7f4a_7c15] {
        let disk = fs.join("disk");
        // Written in one go: large pages, where the file system has them.
        fs::write(&disk, pattern(7, index(SIZE))).unwrap();
        read_late(Serve::file(&disk), kind, seed);
    }
}

#[test]
fn late_readers_of_a_file_on_ext4_see_no_change_of_a_neighbour() {
    on("ext4");
}

#[test]
fn late_readers_of_a_file_on_xfs_see_no_change_of_a_neighbour() {
    on("xfs");
}

#[test]
fn late_readers_of_a_file_on_btrfs_see_no_change_of_a_neighbour() {
    on("btrfs");
}

#[test]
fn late_readers_of_a_file_on_tmpfs_see_no_change_of_a_neighbour() {
    on("tmpfs");
}

#[test]
fn late_readers_of_a_block_device_see_no_change_of_a_neighbour() {
    let temp = TempDir::new();
    let file = temp.sparse_file("image", SIZE);
    let Some(device) = Loop::over(&file, &[]) else { return };
    read_late(Serve::file(device.path()), "a loop device", 3);
}

#[test]
fn late_readers_of_a_disk_in_memory_see_no_change_of_a_neighbour() {
    read_late(Serve::memory("2M"), "memory", 4);
}
