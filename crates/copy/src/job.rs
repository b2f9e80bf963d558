//! One pass over the ranges to copy: what its planner and its workers share.

use crate::account::CopyAccount;
use crate::pair::Pair;
use crate::plan::Span;
use crate::sums::Sums;
use crate::witness::Witness;
use crate::zero::Zeroes;

pub(crate) struct Job {
    pub(crate) pair: std::sync::Arc<Pair>,
    /// What is to be copied.
    pub(crate) spans: Vec<Span>,
    /// Whether that is all of the source.
    pub(crate) whole: bool,
    pub(crate) account: CopyAccount,
    pub(crate) zeroes: Zeroes,
    /// The target may take bytes from where they lie in a file.
    pub(crate) takes: bool,
    /// As far as is known, it shares what it takes: runs need not be cut.
    pub(crate) shares: std::sync::atomic::AtomicBool,
    pub(crate) no_extents: bool,
    /// Sees all that is copied.
    pub(crate) witness: Option<std::sync::Arc<dyn Witness>>,
    /// Sums of what is read, if the source may be lost and come back.
    pub(crate) sums: Option<std::sync::Arc<Sums>>,
}
