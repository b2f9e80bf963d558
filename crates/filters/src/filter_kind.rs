//! What a filter declares of itself.

use std::sync::Arc;

use device::{Device, Edge, Param, Params, Reach, Result};
use runtime::Context;

/// A kind of filter.
#[derive(Clone, Copy, Debug)]
pub struct FilterKind {
    /// The word that names it: `delay` in `--filter=delay`.
    pub word: &'static str,
    /// One line on what it does.
    pub summary: &'static str,
    /// Whether it never changes the device below, which then need not be opened for writing.
    pub reads_only: bool,
    /// Whether it keeps bytes of the device below, or depends on what that held when it was opened:
    /// under another name that a client asks for there may be another disk, so there must be one
    /// disk only.
    pub keeps_disk: bool,
    /// All parameters.
    pub params: &'static [Param],
    /// The system resources that it uses. Files that it only looks for, and does not open, are not
    /// in it.
    pub reaches: fn(&Params) -> Reach,
    /// A command that runs as it is, after `diskferry`.
    pub example: &'static str,
    /// Puts it over a device. The keys of the parameters are known ones.
    pub open: fn(&Params, Edge, &Context) -> Result<Arc<dyn Device>>,
}

impl FilterKind {
    /// What a kind is where it says nothing of it: it has no parameters, needs no resources, writes
    /// what it is given to write, and, to be on the safe side, keeps the disk.
    pub(crate) const PLAIN: Self = Self {
        word: "",
        summary: "",
        reads_only: false,
        keeps_disk: true,
        params: &[],
        reaches: Reach::nothing,
        example: "",
        open: |_, below, _| Ok(below.device().clone()),
    };
}
