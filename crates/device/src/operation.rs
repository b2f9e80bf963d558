//! One operation on a device as a value, for the face that does not block.

use crate::{Buffer, Extent, Result, Slice, ZeroFlags};

/// What to do. Ranges are in bytes and inside the device.
#[derive(Debug)]
pub enum Operation {
    /// Make everything durable that was reported complete before.
    Flush,
    /// Bring a range closer.
    Prefetch {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Fill all of `buffer`.
    Read {
        /// First byte.
        offset: u64,
        /// As long as the bytes wanted.
        buffer: Buffer,
    },
    /// Say what a range holds; see [`crate::Device::resolve`].
    Resolve {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// At most so many extents.
        max: usize,
    },
    /// Say that a range is no longer needed.
    Trim {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Be durable before answering.
        fua: bool,
    },
    /// Write all of `data`.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes; a `Buffer` becomes them by `into()`.
        data: Slice,
        /// Be durable before answering.
        fua: bool,
    },
    /// Make a range read as zeroes.
    Zero {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// How.
        flags: ZeroFlags,
    },
}

/// What came of an operation that succeeded.
#[derive(Debug)]
pub enum Outcome {
    /// Done; nothing to show.
    Done,
    /// The extents of a resolve.
    Extents(Vec<Extent>),
    /// The buffer of a read, filled.
    Read(Buffer),
}

/// Called once with what came of an operation.
pub type Done = Box<dyn FnOnce(Result<Outcome>) + Send>;
