//! Containing a panic: a defect ends the request or the connection that met it, and nothing else.
//!
//! No panic should be reachable from outside; this is the second line of defence. Panics are
//! counted, so that a program can end with a status that says so. The message itself is printed by
//! the panic hook, with the name of the thread.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// The work that panicked.
#[derive(Clone, Debug)]
pub struct Panicked {
    what: String,
}

impl Panicked {
    pub(crate) fn of(what: &str) -> Self {
        Self { what: what.to_owned() }
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: panicked; this is a defect", self.what)
    }
}

impl std::error::Error for Panicked {}

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Runs `work`; if it panics, counts that and returns an error instead of unwinding further. State
/// that `work` was changing stays as it was then: the caller must give up whatever it shared with
/// it.
///
/// # Errors
/// It panicked.
pub fn contained<R>(what: &str, work: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        // The payload's own destructor may panic as well.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(payload)));
        Panicked::of(what)
    })
}

/// How many panics have been contained since the program began.
#[must_use]
pub fn panics() -> u64 {
    PANICS.load(Ordering::SeqCst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_is_counted() {
        let before = panics();
        assert_eq!(contained("add", || 1 + 1).unwrap(), 2);
        let error = contained("read", || panic!("on purpose")).unwrap_err();
        assert!(error.to_string().contains("read: panicked"), "{error}");
        assert!(panics() > before);
    }
}
