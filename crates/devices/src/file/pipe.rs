//! A pipe as the target of a copy: every byte goes into it once, in order.
//!
//! Operations may come in any order, as long as they cover all of it without a gap; each ends when
//! its bytes are written, and not before. Nothing can be read again, or be made durable. The thread
//! that writes is one of the pool's: it may wait for a reader for ever.
//!
//! An image that cannot be written in that way is made in a nameless temporary file, which is
//! written into the pipe when it is complete.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use device::{
    Abilities, Device, Done, Error, ErrorKind, Fault, Info, Operation, Order, Outcome, Params,
    Reach, Result, Simple, Slice, Use,
};
use runtime::{Context, Mutex, WorkPool, to_usize};
use rustix::fs::fdatasync;

use super::descriptor::{LONGEST, path_of, temporary};
use super::inlet::{self, is_inlet};
use super::outlet::{Outlet, is_outlet, is_standard};
use super::transfer;
use crate::{Created, Creation, Holds};

/// Bytes that are written at once, of zeroes and of a file.
const PIECE: usize = 256 << 10;

struct Pipe {
    info: Info,
    shared: Arc<Shared>,
    pool: WorkPool,
}

struct Shared {
    outlet: Outlet,
    /// Bytes that are to go into it.
    length: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The first byte that is neither written nor being written.
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

/// Makes a target of it.
pub(super) fn create(outlet: Outlet, creation: &Creation, context: &Context) -> Result<Created> {
    let device = if creation.grows && !creation.upwards {
        let (file, folder) = nameless()?;
        let name = outlet.name();
        context.log.say(format_args!(
            "{name}: such an image is not made in one go: it is made in a nameless temporary file in \
             {}, and then goes to the pipe",
            folder.display()
        ));
        Simple::device(temporary(file, outlet)?, &context.pool)
    } else {
        Pipe::device(outlet, creation, &context.pool)
    };
    let holds = if creation.grows { Holds::Zeroes } else { Holds::Old };
    Ok(Created::new(device, holds, context))
}

impl Pipe {
    fn device(outlet: Outlet, creation: &Creation, pool: &WorkPool) -> Arc<dyn Device> {
        let size = if creation.grows { LONGEST } else { creation.size };
        let info = Info {
            abilities: Abilities {
                write: true,
                flush: outlet.file().is_some(),
                zero: true,
                multi_conn: false,
                ..Abilities::READ
            },
            order: Order::Upwards,
            ..Info::new(outlet.name(), size)
        };
        let shared = Shared { outlet, length: size.into(), state: Mutex::default() };
        Arc::new(Self { info, shared: Arc::new(shared), pool: pool.for_disk() })
    }

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
            let action = "write again what went into a pipe";
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
            Piece::Bytes(bytes) => self.outlet.write(bytes),
            Piece::Zeroes(len) => {
                let mut left = *len;
                while left > 0 {
                    let n = to_usize(left).min(PIECE);
                    self.outlet.write(zeroes.get(..n).unwrap_or_default())?;
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
                    format!("is incomplete: {} of {length} bytes went into it", state.next);
                Err(Error::new(ErrorKind::Io, Fault::Us, action))
            }
        }
    }

    fn flush(&self) -> Result<Outcome> {
        let Some(file) = self.outlet.file() else {
            return Err(Error::unsupported("make durable what went into a pipe"));
        };
        let flushed = transfer::retry(|| fdatasync(file));
        flushed.map(|()| Outcome::Done).map_err(|e| Error::os("flush", e))
    }
}

impl Device for Pipe {
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
                self.pool.run(move || done(shared.flush().map_err(|e| e.on(name))));
            }
            Operation::Take { .. } => done(Ok(Outcome::Taken(0))),
            Operation::Prefetch { .. } | Operation::Trim { .. } => done(Ok(Outcome::Done)),
            Operation::Read { .. } | Operation::Resolve { .. } | Operation::Status { .. } => {
                done(Err(Error::unsupported("read what went into a pipe").on(&self.info.name)));
            }
        }
    }

    fn resize(&self, size: u64) -> Result<()> {
        self.shared.length.store(size, SeqCst);
        self.info.keep_size(size)
    }

    fn finish(&self) -> Result<()> {
        self.shared.check().map_err(|e| e.on(&self.info.name))
    }
}

/// Writes all of a file, which is `length` bytes long, into a pipe.
pub(super) fn pour(file: &OwnedFd, length: u64, outlet: &Outlet) -> Result<()> {
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while at < length {
        let n = to_usize(length - at).min(PIECE);
        let piece = buffer.get_mut(..n).unwrap_or_default();
        let read = transfer::read_exact(std::os::fd::AsFd::as_fd(file), piece, at);
        read.map_err(|e| Error::os("read the temporary file", e).on(outlet.name()).at(at))?;
        outlet.write(piece)?;
        at += n as u64;
    }
    match outlet.file() {
        Some(file) => {
            transfer::retry(|| fdatasync(file)).map_err(|e| Error::os("flush", e).on(outlet.name()))
        }
        None => Ok(()),
    }
}

/// What a file, or a pipe that may need a temporary file, needs of the system.
pub(crate) fn reaches(params: &Params, how: Use) -> Reach {
    let Ok(path) = path_of(params) else { return Reach::default() };
    if how == Use::Read && is_inlet(&path) {
        let own = if inlet::is_standard(&path) { Reach::default() } else { Reach::path(path, how) };
        return own.and(Reach::nameless(folder()));
    }
    if how != Use::Make || !is_outlet(&path) {
        return Reach::path(path, how);
    }
    let own = if is_standard(&path) { Reach::default() } else { Reach::path(path, Use::Write) };
    own.and(Reach::nameless(folder()))
}

/// Where temporary files are.
fn folder() -> PathBuf {
    let set = std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty());
    set.map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

/// A file without a name, and where it is.
pub(super) fn nameless() -> Result<(OwnedFd, PathBuf)> {
    let folder = folder();
    let made = programs::names::nameless_in(&folder);
    let made = made.map_err(|e| Error::os("make a temporary file", e).on(folder.display()))?;
    Ok((made, folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{Buffer, Edge, ZeroFlags};
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::path::Path;
    use std::sync::mpsc::channel;

    fn pipe(size: u64) -> (Edge, std::fs::File) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&write));
        let outlet = Outlet::at(Path::new(&path)).unwrap().unwrap();
        // So that it is opened once, and closed with the device.
        let _ = outlet.write(&[]);
        drop(write);
        let options = crate::OpenOptions::read_write();
        let creation = Creation { upwards: true, ..Creation::of(size, options) };
        let pool = WorkPool::new(4);
        (Edge::new(Pipe::device(outlet, &creation, &pool), pool), read.into())
    }

    #[test]
    fn what_comes_in_any_order_goes_into_it_in_its_order() {
        let (edge, mut reader) = pipe(1 << 20);
        let (tell, told) = channel();
        let pieces: Vec<u64> = (0..16).map(|i| i * 5 % 16).collect();
        for at in pieces {
            let tell = tell.clone();
            let operation = if at == 3 {
                let flags = ZeroFlags::default();
                Operation::Zero { offset: at << 16, len: 1 << 16, flags }
            } else {
                let data = Buffer::copy_of(&[u8::try_from(at).unwrap() + 1; 1 << 16]).into();
                Operation::Write { offset: at << 16, data, fua: false }
            };
            edge.submit(operation, Box::new(move |outcome| tell.send(outcome.is_ok()).unwrap()));
        }
        let mut bytes = vec![0; 1 << 20];
        reader.read_exact(&mut bytes).unwrap();
        for (at, piece) in bytes.chunks(1 << 16).enumerate() {
            let byte = if at == 3 { 0 } else { u8::try_from(at).unwrap() + 1 };
            assert!(piece.iter().all(|b| *b == byte), "{at}");
        }
        assert!((0..16).all(|_| told.recv().unwrap()));
        edge.device().finish().unwrap();
    }

    #[test]
    fn what_is_missing_or_comes_twice_is_no_success() {
        let (edge, _reader) = pipe(8192);
        edge.write(&[1; 4096], 0, false).unwrap();
        assert!(edge.write(&[1; 4096], 0, false).unwrap_err().to_string().contains("again"));
        let error = edge.device().finish().unwrap_err().to_string();
        assert!(error.contains("4096 of 8192 bytes"), "{error}");
        assert!(edge.flush().is_err(), "nothing in a pipe is durable");
    }

    #[test]
    fn a_reader_that_goes_is_an_error_for_waiting_and_for_later_requests() {
        let (edge, reader) = pipe(1 << 20);
        drop(reader);
        let (tell, told) = channel();
        let data = Buffer::copy_of(&[1; 4096]).into();
        edge.submit(
            Operation::Write { offset: 8192, data, fua: false },
            Box::new(move |outcome| tell.send(outcome.unwrap_err().to_string()).unwrap()),
        );
        let error = edge.write(&[1; 8192], 0, false).unwrap_err();
        assert!(error.to_string().contains("the reader has closed it"), "{error}");
        assert!(told.recv().unwrap().contains("the reader has closed it"));
        assert!(edge.write(&[1; 8192], 0, false).is_err());
        assert!(edge.device().finish().is_err());
    }

    #[test]
    fn a_file_is_poured_out_as_it_is() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&write));
        let outlet = Outlet::at(Path::new(&path)).unwrap().unwrap();
        let (file, _) = nameless().unwrap();
        transfer::write_all(file.as_fd(), b"abc", 5).unwrap();
        assert!(pour(&file, 9, &outlet).is_err(), "it is shorter than it is said to be");
        pour(&file, 8, &outlet).unwrap();
        drop((outlet, write));
        let mut bytes = Vec::new();
        std::fs::File::from(read).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"\0\0\0\0\0abc");
    }
}
