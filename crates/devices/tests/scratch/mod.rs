//! What tests share: a directory of a test's own, being alone.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use trial::Scratch;

/// For tests that start programs: one at a time. A lock lives until the last copy of its
/// descriptor is closed, and the child of another thread has one between fork and exec.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
