//! Clients that do nothing wrong, and see that nothing wrong is done to them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use blackbox::dice::Dice;
use blackbox::haggle::Haggler;
use blackbox::nbd::{cflag, cmd};
use blackbox::run::{ours, run};
use blackbox::session::{Request, Session};
use blackbox::temp::pattern;
use blackbox::{MIB, index};

use super::grounds::{At, Running, SIZE};
use super::{VERIFIED, wide};

/// Bytes of what is written and compared at once.
const BLOCK: u64 = 4096;
/// Blocks that a verifier owns, from the beginning of its part on. No other client writes there.
const BLOCKS: u64 = 256;
/// Where the parts end, and all may write.
pub(crate) const OWNED: u64 = 4 * MIB;

/// One of them.
#[derive(Debug)]
pub(crate) enum Reader {
    Writing(Verifier),
    Fixed(Option<Session>, Dice),
    /// Runs verbs under TLS.
    Secure,
}

fn session(at: &At) -> Session {
    let socket = at.connect().expect("a well-behaved client is accepted");
    let mut haggler = Haggler::new(socket);
    assert!(haggler.structured());
    haggler.go("")
}

impl Reader {
    /// Of a disk that has the pattern.
    pub(crate) fn of_pattern(dice: Dice) -> Self {
        Self::Fixed(None, dice)
    }

    /// Connects, if it is not.
    pub(crate) fn connect(&mut self, running: &Running) {
        match self {
            Self::Writing(Verifier { session: kept, .. }) | Self::Fixed(kept, _) => {
                kept.get_or_insert_with(|| session(running));
            }
            Self::Secure => {}
        }
    }

    /// Works until it is stopped, a little in any case, and leaves.
    pub(crate) fn work(&mut self, running: &Running, stop: &AtomicBool) {
        self.connect(running);
        let least = if matches!(self, Self::Secure) { 1 } else { 20 };
        for step in 1.. {
            match self {
                Self::Writing(verifier) => verifier.step(),
                Self::Fixed(session, dice) => {
                    let offset = wide(dice.below(index(SIZE) - 65_536));
                    let length = wide(dice.between(1, 65_536));
                    let read = session.as_mut().unwrap().read(offset, length);
                    assert!(read == Ok(pattern(offset, index(length))), "wrong bytes at {offset}");
                }
                Self::Secure => compare(running),
            }
            VERIFIED.fetch_add(1, Relaxed);
            if step >= least && stop.load(Relaxed) {
                break;
            }
        }
        if let Self::Writing(Verifier { session, .. }) | Self::Fixed(session, _) = self
            && let Some(session) = session.take()
        {
            session.disconnect();
        }
    }

    /// Reads all that it has written, from a server that was started again.
    pub(crate) fn check_all(&mut self, running: &Running) {
        if let Self::Writing(verifier) = self {
            verifier.session = Some(session(running));
            for block in (0..BLOCKS).step_by(8) {
                verifier.read(block, 8);
            }
            verifier.session.take().unwrap().disconnect();
        }
    }
}

/// All of the disk, by one of our verbs.
fn compare(running: &Running) {
    let (raw, uri) = running.secure();
    run(ours(["compare", "-q"]).arg(raw).arg(uri)).succeeded();
}

/// Owns some blocks, and knows what may be in each.
#[derive(Debug)]
pub(crate) struct Verifier {
    session: Option<Session>,
    base: u64,
    may_fail: bool,
    dice: Dice,
    /// The generations that each block may have; 0 is zeroes.
    blocks: Vec<Vec<u64>>,
    generation: u64,
}

fn content(block: u64, generation: u64) -> Vec<u8> {
    if generation == 0 {
        return vec![0; index(BLOCK)];
    }
    pattern((block << 40) | (generation << 20), index(BLOCK))
}

impl Verifier {
    pub(crate) fn new(number: u64, may_fail: bool, dice: Dice) -> Self {
        let blocks = vec![vec![0]; index(BLOCKS)];
        let base = number * BLOCKS * BLOCK;
        assert!(base + BLOCKS * BLOCK <= OWNED);
        Self { session: None, base, may_fail, dice, blocks, generation: 0 }
    }

    fn ask(&mut self, request: &Request) -> bool {
        let error = self.session.as_mut().unwrap().error_of(request);
        assert!(
            error == 0 || self.may_fail,
            "command {} was answered with {error}",
            request.command
        );
        error == 0
    }

    /// One request, and its result.
    fn step(&mut self) {
        let first = wide(self.dice.below(index(BLOCKS) - 12));
        let count = wide(self.dice.between(1, 12));
        let (offset, length) = (self.base + first * BLOCK, count * BLOCK);
        match self.dice.below(20) {
            0..10 => {
                self.generation += 1;
                let generation = self.generation;
                let bytes: Vec<u8> =
                    (first..first + count).flat_map(|block| content(block, generation)).collect();
                let flags = if self.dice.percent(5) { cflag::FUA } else { 0 };
                let done = self.ask(&Request::write(offset, &bytes).flags(flags));
                self.changed(first, count, generation, done);
            }
            10 => {
                let flags = self.dice.pick(&[0, cflag::NO_HOLE]);
                let done = self.ask(&Request::new(cmd::WRITE_ZEROES, offset, length).flags(flags));
                self.changed(first, count, 0, done);
            }
            11 => _ = self.ask(&Request::new(cmd::FLUSH, 0, 0)),
            _ => self.read(first, count),
        }
    }

    fn changed(&mut self, first: u64, count: u64, generation: u64, done: bool) {
        for known in &mut self.blocks[index(first)..index(first + count)] {
            if done {
                known.clear();
            }
            known.push(generation);
        }
    }

    fn read(&mut self, first: u64, count: u64) {
        let offset = self.base + first * BLOCK;
        let bytes = match self.session.as_mut().unwrap().read(offset, count * BLOCK) {
            Ok(bytes) => bytes,
            Err(error) => {
                assert!(self.may_fail, "a read at {offset} was answered with {error}");
                return;
            }
        };
        for (bytes, block) in bytes.chunks(index(BLOCK)).zip(first..) {
            let known = &self.blocks[index(block)];
            let all: Vec<_> = known.iter().map(|generation| content(block, *generation)).collect();
            // A write that failed may have done a part of it.
            let is_right =
                bytes.iter().enumerate().all(|(i, byte)| all.iter().any(|one| one[i] == *byte));
            assert!(is_right, "wrong bytes in block {block} at {offset}: not of {known:?}");
        }
    }
}
