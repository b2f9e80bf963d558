//! What a test device saw, and what becomes of it.

use device::{
    Error, ErrorKind, Extent, ExtentKind, Fault, Operation, OperationKind, Outcome, Place, Result,
    StatusRun, ZeroFlags,
};

/// What becomes of an operation.
#[derive(Debug)]
pub enum Fate {
    /// The model does it.
    Pass(Operation),
    /// It waits: [`TestDevice::release`](crate::TestDevice::release) gives it to the model.
    Hold(Operation),
    /// It ends with this, and the model does not see it.
    Answer(Result<Outcome>),
    /// It is dropped, and never answered.
    Drop,
}

impl Fate {
    /// It fails with an error of this kind.
    #[must_use]
    pub fn fail(kind: ErrorKind) -> Self {
        Self::Answer(Err(error(kind)))
    }

    /// It succeeds, and the model does not see it: a read returns its buffer as it is, and a map is
    /// all data.
    #[must_use]
    pub fn done(operation: Operation) -> Self {
        Self::Answer(Ok(outcome(operation, None)))
    }
}

pub(super) fn error(kind: ErrorKind) -> Error {
    Error::new(kind, Fault::File, "fail as this test wants it")
}

/// What a device without a disk answers.
pub(super) fn outcome(operation: Operation, flat: Option<&Place>) -> Outcome {
    match operation {
        Operation::Read { buffer, .. } => Outcome::Read(buffer),
        Operation::Resolve { offset, len, .. } => {
            let place = flat.map(|place| place.advanced(offset));
            Outcome::Extents(vec![Extent::new(offset, len, ExtentKind::Data).at(place)])
        }
        Operation::Status { len, .. } => Outcome::Status(vec![StatusRun { len, value: 0 }]),
        Operation::Take { .. } => Outcome::Taken(0),
        Operation::Flush
        | Operation::Prefetch { .. }
        | Operation::Trim { .. }
        | Operation::Write { .. }
        | Operation::Zero { .. } => Outcome::Done,
    }
}

/// An operation as it came. As text: `read 0+4096`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SeenOperation {
    /// What it was.
    pub kind: OperationKind,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub len: u64,
    /// Those of a zero; of a write and a trim only whether it was to be durable.
    pub flags: ZeroFlags,
}

impl SeenOperation {
    pub(super) fn of(operation: &Operation) -> Self {
        let (offset, len) = operation.range().unwrap_or_default();
        let flags = match operation {
            Operation::Zero { flags, .. } => *flags,
            other => ZeroFlags { fua: other.fua(), ..ZeroFlags::default() },
        };
        Self { kind: operation.kind(), offset, len, flags }
    }

    /// The byte after its last.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

impl std::fmt::Display for SeenOperation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            OperationKind::Flush => write!(f, "flush"),
            kind => write!(f, "{} {}+{}", kind.name(), self.offset, self.len),
        }
    }
}
