//! One operation on a device as a value, for [`crate::Device::submit`].

use std::sync::Arc;

use crate::{Buffer, Extent, Place, Result, Slice};

/// How a range is to be zeroed (NBD_CMD_WRITE_ZEROES).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ZeroFlags {
    /// The range may become a hole. Otherwise it stays, or becomes, allocated.
    pub may_unmap: bool,
    /// The range ends up written, not only allocated: a later write to it changes no map, so it is
    /// as fast and as durable as one over data. Stronger than what `may_unmap` allows.
    pub written: bool,
    /// Do it only if it is known beforehand to be faster than writing zeroes; otherwise
    /// `NotFast`, at once, with nothing changed.
    pub fast_only: bool,
    /// Be durable before answering.
    pub fua: bool,
}

/// What to do. Ranges are in bytes and inside the device.
#[derive(Debug)]
pub enum Operation {
    /// Make everything durable that was reported complete before.
    Flush,
    /// Prefetch a range.
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
        /// Its length is the length of the read.
        buffer: Buffer,
    },
    /// Say what a range holds; see [`Blocking::resolve`](crate::Blocking::resolve).
    Resolve {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// At most so many extents.
        max: usize,
    },
    /// Say what a range is in a status context; see [`Blocking::status`](crate::Blocking::status).
    Status {
        /// One of [`crate::Info::contexts`].
        context: Arc<str>,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// At most so many runs.
        max: usize,
    },
    /// Make a range the bytes that lie in a file, without moving them; see
    /// [`Blocking::take`](crate::Blocking::take).
    Take {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Where the bytes lie.
        from: Place,
        /// Only by sharing their blocks.
        share_only: bool,
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

/// The kind of an operation, without its parameters.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs, reason = "they are the operations of the same names")]
pub enum OperationKind {
    Flush,
    Prefetch,
    Read,
    Resolve,
    Status,
    Take,
    Trim,
    Write,
    Zero,
}

impl OperationKind {
    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Flush => "flush",
            Self::Prefetch => "prefetch",
            Self::Read => "read",
            Self::Resolve => "resolve",
            Self::Status => "status",
            Self::Take => "take",
            Self::Trim => "trim",
            Self::Write => "write",
            Self::Zero => "zero",
        }
    }

    /// Whether it changes what the disk holds, or may.
    #[must_use]
    pub fn changes(self) -> bool {
        match self {
            Self::Take | Self::Trim | Self::Write | Self::Zero => true,
            Self::Flush | Self::Prefetch | Self::Read | Self::Resolve | Self::Status => false,
        }
    }
}

impl Operation {
    /// What it does.
    #[must_use]
    pub fn kind(&self) -> OperationKind {
        match self {
            Self::Flush => OperationKind::Flush,
            Self::Prefetch { .. } => OperationKind::Prefetch,
            Self::Read { .. } => OperationKind::Read,
            Self::Resolve { .. } => OperationKind::Resolve,
            Self::Status { .. } => OperationKind::Status,
            Self::Take { .. } => OperationKind::Take,
            Self::Trim { .. } => OperationKind::Trim,
            Self::Write { .. } => OperationKind::Write,
            Self::Zero { .. } => OperationKind::Zero,
        }
    }

    /// Offset and length in bytes; `None` for a flush, which is of all.
    #[must_use]
    pub fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Flush => None,
            Self::Prefetch { offset, len }
            | Self::Resolve { offset, len, .. }
            | Self::Status { offset, len, .. }
            | Self::Take { offset, len, .. }
            | Self::Trim { offset, len, .. }
            | Self::Zero { offset, len, .. } => Some((*offset, *len)),
            Self::Read { offset, buffer } => Some((*offset, buffer.len() as u64)),
            Self::Write { offset, data, .. } => Some((*offset, data.len() as u64)),
        }
    }

    /// The same on a range `by` bytes further on, which must not overflow.
    #[must_use]
    pub fn moved(mut self, by: u64) -> Self {
        match &mut self {
            Self::Flush => {}
            Self::Prefetch { offset, .. }
            | Self::Read { offset, .. }
            | Self::Resolve { offset, .. }
            | Self::Status { offset, .. }
            | Self::Take { offset, .. }
            | Self::Trim { offset, .. }
            | Self::Write { offset, .. }
            | Self::Zero { offset, .. } => *offset += by,
        }
        self
    }

    /// Whether it is to be durable before it is answered.
    #[must_use]
    pub fn fua(&self) -> bool {
        match self {
            Self::Trim { fua, .. } | Self::Write { fua, .. } => *fua,
            Self::Zero { flags, .. } => flags.fua,
            Self::Flush
            | Self::Prefetch { .. }
            | Self::Read { .. }
            | Self::Resolve { .. }
            | Self::Status { .. }
            | Self::Take { .. } => false,
        }
    }

    /// Whether it changes what the disk holds, or may.
    #[must_use]
    pub fn changes(&self) -> bool {
        self.kind().changes()
    }

    /// The same operation again, in case this one fails. Nothing is copied; a read gets a buffer of
    /// its own only when it is repeated.
    #[must_use]
    pub fn again(&mut self) -> Again {
        let mut len = 0;
        let same = match self {
            Self::Flush => Self::Flush,
            Self::Prefetch { offset, len } => Self::Prefetch { offset: *offset, len: *len },
            Self::Read { offset, buffer } => {
                len = buffer.len();
                Self::Read { offset: *offset, buffer: Buffer::zeroed(0) }
            }
            Self::Resolve { offset, len, max } => {
                Self::Resolve { offset: *offset, len: *len, max: *max }
            }
            Self::Status { context, offset, len, max } => {
                let context = context.clone();
                Self::Status { context, offset: *offset, len: *len, max: *max }
            }
            Self::Take { offset, len, from, share_only } => {
                let from = from.clone();
                Self::Take { offset: *offset, len: *len, from, share_only: *share_only }
            }
            Self::Trim { offset, len, fua } => Self::Trim { offset: *offset, len: *len, fua: *fua },
            Self::Write { offset, data, fua } => {
                Self::Write { offset: *offset, data: data.same(), fua: *fua }
            }
            Self::Zero { offset, len, flags } => {
                Self::Zero { offset: *offset, len: *len, flags: *flags }
            }
        };
        Again { same, len }
    }
}

/// An operation that may have to be repeated.
#[derive(Debug)]
pub struct Again {
    same: Operation,
    /// Bytes of the buffer of a read.
    len: usize,
}

impl Again {
    /// What it does.
    #[must_use]
    pub fn kind(&self) -> OperationKind {
        self.same.kind()
    }

    /// Whether it is to be durable before it is answered.
    #[must_use]
    pub fn fua(&self) -> bool {
        self.same.fua()
    }

    /// The operation. It can be taken again afterwards.
    #[must_use]
    pub fn operation(&mut self) -> Operation {
        let next = self.same.again().same;
        match std::mem::replace(&mut self.same, next) {
            Operation::Read { offset, .. } => {
                Operation::Read { offset, buffer: Buffer::zeroed(self.len) }
            }
            other => other,
        }
    }

    /// Makes a fast zero an ordinary one. Whether it was fast.
    pub fn slow_down(&mut self) -> bool {
        match &mut self.same {
            Operation::Zero { flags, .. } => std::mem::replace(&mut flags.fast_only, false),
            _ => false,
        }
    }
}

/// A run of bytes that are alike in a status context.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StatusRun {
    /// Length in bytes; never 0.
    pub len: u64,
    /// What they are, in the terms of the context.
    pub value: u64,
}

/// Appends `next` to `list`, joined to the last run when both are alike.
pub fn merge_run(list: &mut Vec<StatusRun>, next: StatusRun) {
    match list.last_mut() {
        Some(last) if last.value == next.value => last.len = last.len.saturating_add(next.len),
        _ => list.push(next),
    }
}

/// The result of an operation that succeeded.
#[derive(Debug)]
pub enum Outcome {
    /// Done; nothing to show.
    Done,
    /// The extents of a resolve.
    Extents(Vec<Extent>),
    /// The buffer of a read, filled.
    Read(Buffer),
    /// The runs of a status.
    Status(Vec<StatusRun>),
    /// How many bytes from the start of a range were taken. 0: none can be, and a caller that wants
    /// them there reads and writes.
    Taken(u64),
}

/// Called once with the result of an operation.
pub type Done = Box<dyn FnOnce(Result<Outcome>) + Send>;
