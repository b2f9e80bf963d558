//! Another length for a file. Bytes that it keeps are not touched, and new ones are a hole, or are
//! preallocated, before the length changes.

use std::os::fd::AsFd;

use device::{Error, Params, Result};
use rustix::fs::{FileType, fstat, fsync, ftruncate};

use super::{descriptor, lock, prealloc, transfer};
use crate::OpenOptions;
use crate::preallocation::{Allocation, Preallocation, PreallocationWatch};
use crate::resizing::{Resized, Resizing};

/// Gives the file that the parameters name another length; it is durable when this ends.
pub(crate) fn resize(params: &Params, wish: &Resizing, options: &OpenOptions) -> Result<Resized> {
    let path = descriptor::path_of(params)?;
    let named = |e: Error| e.on(path.display());
    let kept = descriptor::file_options(params, options)?.lock;
    let (fd, _) = descriptor::open_descriptor(&path, options, kept).map_err(named)?;
    if descriptor::kind_of(&fd).map_err(named)? != FileType::RegularFile {
        let action = "resize: the length of a block device is fixed; only a file can be resized";
        return Err(named(Error::unsupported(action)));
    }
    lock::take(fd.as_fd(), true, kept, &path).map_err(named)?;
    let stat = fstat(&fd).map_err(|e| named(Error::os("get the status of the file", e)))?;
    let resized = wish.of(u64::try_from(stat.st_size).unwrap_or(0)).map_err(named)?;
    let Resized { before, after } = resized;
    if after > before && wish.mode != Allocation::Sparse {
        // Its lock is taken again.
        drop(fd);
        let wish = Preallocation {
            size: Some(after),
            offset: before,
            length: Some(after - before),
            mode: wish.mode,
            ..Preallocation::default()
        };
        return prealloc::preallocate(params, &wish, options, &PreallocationWatch::default())
            .map(|_| resized);
    }
    let cut =
        transfer::retry(|| ftruncate(&fd, after)).and_then(|()| transfer::retry(|| fsync(&fd)));
    cut.map_err(|e| named(Error::os(format!("set the length of the file to {after} bytes"), e)))?;
    Ok(resized)
}
