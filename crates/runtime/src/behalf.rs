//! On whose behalf work is done.
//!
//! A step of work is what a thread runs in one go: a task until it waits, a job of a pool or of the
//! timers, a server's turn for a connection. Each has an [`Behalf`], which travels in the task or
//! job and not with a thread: whichever thread runs the step, and whatever that ran before. What a
//! step begins has its behalf.
//!
//! It is not an argument of each operation, for those between the server and the device at the
//! bottom (filters, formats, the edge) only pass it on. It is read where it counts: where work is
//! queued (clients take turns), and where work is begun that waited (a requester may have gone).

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(shuttle)]
use crate::sync::RefCellKey;
use crate::sync::{thread_local, with_local};

/// See the module. Cheap to clone.
#[derive(Clone, Default)]
pub struct Behalf {
    client: u64,
    requester: Option<Arc<dyn Wanted>>,
}

/// A requester that may no longer want a result by the time its turn comes.
pub trait Wanted: Send + Sync {
    /// Whether it is still wanted.
    fn is_wanted(&self) -> bool;
}

/// One that is wanted while it is true.
impl Wanted for AtomicBool {
    fn is_wanted(&self) -> bool {
        self.load(Ordering::SeqCst)
    }
}

thread_local! {
    /// Of the step that this thread runs.
    static STEP: RefCell<Behalf> = const { RefCell::new(Behalf { client: 0, requester: None }) };
}

impl Behalf {
    /// Work for a client (a number that the server chooses; 0 is none): at any depth of a stack it
    /// takes turns with that of other clients, and it is always wanted.
    #[must_use]
    pub fn of_client(client: u64) -> Self {
        Self { client, requester: None }
    }

    /// The same, if `requester` still wants it: work that is given to a pool directly need not be
    /// begun otherwise. Tasks go on, for others may depend on them, unless they are spawned by
    /// [`spawn_while_wanted`](crate::spawn_while_wanted).
    #[must_use]
    pub fn wanted_by(self, requester: Arc<dyn Wanted>) -> Self {
        Self { requester: Some(requester), ..self }
    }

    /// The same for work on which others may depend: it is always wanted.
    #[must_use]
    pub fn lasting(self) -> Self {
        Self { requester: None, ..self }
    }

    /// That of the step which asks.
    #[must_use]
    pub fn current() -> Self {
        STEP.with_borrow(Clone::clone)
    }

    /// Runs a step.
    pub fn run<R>(self, step: impl FnOnce() -> R) -> R {
        with_local(&STEP, self, step)
    }

    /// The client; 0 is none.
    #[must_use]
    pub fn client(&self) -> u64 {
        self.client
    }

    /// Whether the requester, if it may stop wanting the result, still wants it.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.requester.as_ref().is_none_or(|requester| requester.is_wanted())
    }
}

crate::debug_as!(Behalf, |behalf| "Behalf(client {})", behalf.client);

/// The client of the step that asks.
pub(crate) fn client() -> u64 {
    STEP.with_borrow(Behalf::client)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contained::contained;

    #[test]
    fn a_step_within_another_has_its_own_behalf_and_the_other_gets_its_own_back() {
        let now = || (Behalf::current().client(), Behalf::current().is_wanted());
        Behalf::of_client(1).wanted_by(Arc::new(AtomicBool::new(false))).run(|| {
            assert_eq!(Behalf::of_client(2).run(now), (2, true));
            let ended = contained("a step", || Behalf::of_client(3).run(|| panic!("on purpose")));
            assert!(ended.is_err());
            assert_eq!((now(), Behalf::current().lasting().is_wanted()), ((1, false), true));
        });
        assert_eq!(now(), (0, true));
    }
}
