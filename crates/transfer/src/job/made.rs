//! What a job created for its target: removed unless it is kept, whichever way the job ends.

use std::sync::Arc;

use disk::Made;

/// What was created for the target, if anything: removed when this is dropped, unless it is kept.
#[derive(Clone, Debug)]
pub(super) struct MadeTarget(Option<Arc<Unkept>>);

#[derive(Debug)]
struct Unkept(Box<dyn Made>);

impl Drop for Unkept {
    fn drop(&mut self) {
        self.0.remove();
    }
}

impl MadeTarget {
    pub(super) fn of(made: Option<Box<dyn Made>>) -> Self {
        Self(made.map(|made| Arc::new(Unkept(made))))
    }

    /// What has a name, and can be kept or removed.
    pub(super) fn made(&self) -> Option<&dyn Made> {
        self.0.as_deref().map(|unkept| &*unkept.0)
    }

    /// Removes it, if that is what was created, and is not to be kept.
    pub(super) fn remove(&self) -> bool {
        self.made().is_some_and(Made::remove)
    }
}
