//! A target that is filled once, from its first byte to its last: a pipe, or an object in a store.
//!
//! Operations may come in any order, as long as they cover all of it without a gap; each ends when
//! its bytes are taken, and not before. Nothing can be read again. The thread that hands bytes on
//! is one of the pool's: it may wait for ever.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use device::{
    Abilities, Device, Done, Error, ErrorKind, Fault, Info, Operation, Order, Outcome, Result,
    Slice,
};
use runtime::{Mutex, WorkPool, to_usize};

use crate::Creation;

/// Zeroes that are written at once, in bytes.
const PIECE: usize = 256 << 10;
/// What has no length yet may become this long.
const LONGEST: u64 = i64::MAX.cast_unsigned();

/// What takes the bytes, in their order.
pub(crate) trait OrderedSink: Send + Sync {
    /// Its name, for people.
    fn name(&self) -> &str;

    /// Takes all of `bytes`, which follow the last ones. May block.
    fn write(&self, bytes: &[u8]) -> Result<()>;

    /// Whether what it took can be made durable.
    fn flushes(&self) -> bool {
        false
    }

    /// Makes durable what it took.
    fn flush(&self) -> Result<()> {
        Err(Error::unsupported("make sent data durable"))
    }

    /// All bytes were taken. May block.
    fn end(&self) -> Result<()> {
        Ok(())
    }
}

struct Upwards {
    info: Info,
    shared: Arc<Shared>,
    pool: WorkPool,
}

struct Shared {
    sink: Box<dyn OrderedSink>,
    /// Bytes that are to go into it.
    length: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The first byte that is neither taken nor being taken.
    next: u64,
    /// What comes behind it, by its first byte.
    waiting: BTreeMap<u64, Waiting>,
    /// A thread writes.
    writing: bool,
    failed: Option<Error>,
}

struct Waiting {
    piece: Piece,
    done: Done,
}

enum Piece {
    Bytes(Slice),
    Zeroes(u64),
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Zeroes(len) => *len,
        }
    }
}

/// A device that hands on what is written to it.
pub(crate) fn upwards(
    sink: Box<dyn OrderedSink>,
    creation: &Creation,
    pool: &WorkPool,
) -> Arc<dyn Device> {
    let size = if creation.grows { LONGEST } else { creation.size };
    let info = Info {
        abilities: Abilities {
            write: true,
            flush: sink.flushes(),
            zero: true,
            multi_conn: false,
            ..Abilities::READ
        },
        order: Order::Upwards,
        ..Info::new(sink.name(), size)
    };
    let shared = Shared { sink, length: size.into(), state: Mutex::default() };
    Arc::new(Upwards { info, shared: Arc::new(shared), pool: pool.for_disk() })
}

impl Upwards {
    fn add(&self, offset: u64, piece: Piece, done: Done) {
        match self.shared.add(offset, Waiting { piece, done }) {
            Ok(false) => {}
            Ok(true) => {
                let shared = self.shared.clone();
                self.pool.run(move || shared.write_out());
            }
            Err((done, e)) => done(Err(e.on(&self.info.name))),
        }
    }
}

impl Shared {
    /// Queues bytes. Returns whether a thread has to begin to write.
    fn add(&self, offset: u64, new: Waiting) -> std::result::Result<bool, (Done, Error)> {
        let len = new.piece.len();
        let state = &mut *self.state.lock();
        if let Some(e) = &state.failed {
            return Err((new.done, e.duplicate()));
        }
        let before = state.waiting.range(..offset).next_back();
        let meets = before.is_some_and(|(at, before)| before.piece.len() > offset - at)
            || state.waiting.range(offset..).next().is_some_and(|(at, _)| at - offset < len);
        if offset < state.next || meets || len == 0 {
            let action = "write data again that was already sent";
            return Err((new.done, Error::unsupported(action).at(offset)));
        }
        state.waiting.insert(offset, new);
        let begins = !state.writing && offset == state.next;
        state.writing |= begins;
        Ok(begins)
    }

    /// Writes until the next bytes are missing.
    fn write_out(&self) {
        while let Some(Waiting { piece, done }) = self.next() {
            match self.write(&piece) {
                Ok(()) => {
                    drop(piece);
                    done(Ok(Outcome::Done));
                }
                Err(e) => {
                    let others = self.fail(&e);
                    others.for_each(|other| (other.done)(Err(e.duplicate())));
                    return done(Err(e));
                }
            }
        }
    }

    fn next(&self) -> Option<Waiting> {
        let state = &mut *self.state.lock();
        let found = state.waiting.remove(&state.next);
        match &found {
            Some(found) => state.next += found.piece.len(),
            None => state.writing = false,
        }
        found
    }

    fn write(&self, piece: &Piece) -> Result<()> {
        let zeroes = [0; PIECE];
        match piece {
            Piece::Bytes(bytes) => self.sink.write(bytes),
            Piece::Zeroes(len) => {
                let mut left = *len;
                while left > 0 {
                    let n = to_usize(left).min(PIECE);
                    self.sink.write(zeroes.get(..n).unwrap_or_default())?;
                    left -= n as u64;
                }
                Ok(())
            }
        }
    }

    fn fail(&self, e: &Error) -> impl Iterator<Item = Waiting> + use<> {
        let state = &mut *self.state.lock();
        state.failed = Some(e.duplicate());
        state.writing = false;
        std::mem::take(&mut state.waiting).into_values()
    }

    /// Whether all went into it.
    fn check(&self) -> Result<()> {
        let (state, length) = (self.state.lock(), self.length.load(SeqCst));
        match &state.failed {
            Some(e) => Err(e.duplicate()),
            None if state.next == length && state.waiting.is_empty() => Ok(()),
            None => {
                let action =
                    format!("is incomplete: {} of {length} bytes were written", state.next);
                Err(Error::new(ErrorKind::Io, Fault::Us, action))
            }
        }
    }
}

impl Device for Upwards {
    fn info(&self) -> &Info {
        &self.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        match operation {
            Operation::Write { offset, data, .. } => self.add(offset, Piece::Bytes(data), done),
            Operation::Zero { flags, .. } if flags.fast_only => done(Err(Error::not_fast())),
            Operation::Zero { offset, len, .. } => self.add(offset, Piece::Zeroes(len), done),
            Operation::Flush => {
                let shared = self.shared.clone();
                let name = self.info.name.clone();
                self.pool.run(move || {
                    done(shared.sink.flush().map(|()| Outcome::Done).map_err(|e| e.on(name)))
                });
            }
            Operation::Take { .. } => done(Ok(Outcome::Taken(0))),
            Operation::Prefetch { .. } | Operation::Trim { .. } => done(Ok(Outcome::Done)),
            Operation::Read { .. } | Operation::Resolve { .. } | Operation::Status { .. } => {
                done(
                    Err(Error::unsupported("read data that was already sent").on(&self.info.name)),
                );
            }
        }
    }

    fn resize(&self, size: u64) -> Result<()> {
        self.shared.length.store(size, SeqCst);
        self.info.keep_size(size)
    }

    fn finish(&self) -> Result<()> {
        let checked = self.shared.check().and_then(|()| self.shared.sink.end());
        checked.map_err(|e| e.on(&self.info.name))
    }
}
