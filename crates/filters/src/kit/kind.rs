//! The kinds of operations that nbdkit tells apart, in reports and parameters.

use std::ops::Index;

use device::{Operation, Result};

/// A kind of operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Read,
    Write,
    Trim,
    Zero,
    Extents,
    Cache,
    Flush,
}

impl Kind {
    /// In the order of reports, and of the numbers.
    pub(crate) const ALL: [Self; 7] =
        [Self::Read, Self::Write, Self::Trim, Self::Zero, Self::Extents, Self::Cache, Self::Flush];

    /// The kind of an operation; one that takes a range from a file writes it.
    pub(crate) fn of(operation: &Operation) -> Self {
        match operation {
            Operation::Flush => Self::Flush,
            Operation::Prefetch { .. } => Self::Cache,
            Operation::Read { .. } => Self::Read,
            Operation::Resolve { .. } | Operation::Status { .. } => Self::Extents,
            Operation::Trim { .. } => Self::Trim,
            Operation::Take { .. } | Operation::Write { .. } => Self::Write,
            Operation::Zero { .. } => Self::Zero,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Trim => "trim",
            Self::Zero => "zero",
            Self::Extents => "extents",
            Self::Cache => "cache",
            Self::Flush => "flush",
        }
    }
}

/// Something for each kind.
#[derive(Debug)]
pub(crate) struct ByKind<T>(Vec<T>);

impl<T> ByKind<T> {
    /// What `make` makes for each.
    ///
    /// # Errors
    /// Its first.
    pub(crate) fn new(make: impl FnMut(Kind) -> Result<T>) -> Result<Self> {
        Kind::ALL.into_iter().map(make).collect::<Result<_>>().map(Self)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Kind, &T)> {
        Kind::ALL.into_iter().zip(&self.0)
    }
}

impl<T: Default> Default for ByKind<T> {
    fn default() -> Self {
        Self(Kind::ALL.map(|_| T::default()).into())
    }
}

impl<T> Index<Kind> for ByKind<T> {
    type Output = T;

    fn index(&self, kind: Kind) -> &T {
        &self.0[kind as usize]
    }
}
