//! A pipe as the target of a copy: every byte goes into it once, in order (`upwards`).
//!
//! An image that cannot be written in that way is made in a nameless temporary file, which is
//! written into the pipe when it is complete.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use device::{Error, Params, Reach, Result, Simple, Use};
use runtime::{Context, to_usize};

use super::descriptor::{path_of, temporary};
use super::inlet::{self, is_inlet};
use super::outlet::{Outlet, is_outlet, is_standard};
use super::{system, transfer};
use crate::upwards::{OrderedSink, upwards};
use crate::{Created, Creation, Holds};

/// Bytes of a file that are written at once.
const PIECE: usize = 256 << 10;

impl OrderedSink for Outlet {
    fn name(&self) -> &str {
        Self::name(self)
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        Self::write(self, bytes)
    }

    fn flushes(&self) -> bool {
        self.file().is_some()
    }

    fn flush(&self) -> Result<()> {
        let Some(file) = self.file() else {
            return Err(Error::unsupported("make the data in a pipe durable"));
        };
        transfer::retry(|| system::make_durable(file)).map_err(|e| Error::os("flush", e))
    }
}

/// Makes a target of it.
pub(super) fn create(outlet: Outlet, creation: &Creation, context: &Context) -> Result<Created> {
    let device = if creation.grows && !creation.upwards {
        let (file, folder) = nameless()?;
        let name = outlet.name();
        context.log.say(format_args!(
            "{name}: this image cannot be written in order: writing it to an unnamed temporary \
             file in {} first, then to the pipe",
            folder.display()
        ));
        Simple::device(temporary(file, outlet)?, &context.pool)
    } else {
        upwards(Box::new(outlet), creation, &context.pool)
    };
    let holds = if creation.grows { Holds::Zeroes } else { Holds::Old };
    Ok(Created::new(device, holds, context))
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
    match outlet.flushes() {
        true => OrderedSink::flush(outlet).map_err(|e| e.on(outlet.name())),
        false => Ok(()),
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
    use device::{Buffer, Edge, Operation, ZeroFlags};
    use runtime::WorkPool;
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
        (Edge::new(upwards(Box::new(outlet), &creation, &pool), pool), read.into())
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
