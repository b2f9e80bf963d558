//! Locks between threads: the standard library's, or, under `--cfg shuttle`, those of a model in
//! which a scheduler tries the orders in which threads may run (CONTRIBUTING.md says how).
//!
//! In the model a wait may last as long as nothing else happens: time passes now and then, but need
//! not, so that nothing depends on it.

use std::cell::RefCell;

#[cfg(not(shuttle))]
pub use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::atomic::{AtomicU8, Ordering},
    thread::LocalKey,
    thread_local,
};

#[cfg(shuttle)]
pub use shuttle::sync::{Mutex, MutexGuard};
#[cfg(shuttle)]
pub(crate) use {
    model::{Condvar, RefCellKey},
    shuttle::{
        sync::atomic::{AtomicU8, Ordering},
        thread::LocalKey,
        thread_local,
    },
};

/// Runs `work` while this thread's `key` is `value`; afterwards, also after a panic, it is what it
/// was.
pub(crate) fn with_local<T: 'static, R>(
    key: &'static LocalKey<RefCell<T>>,
    value: T,
    work: impl FnOnce() -> R,
) -> R {
    let _back = Back(key, Some(key.replace(value)));
    work()
}

/// The value that a key gets back.
struct Back<T: 'static>(&'static LocalKey<RefCell<T>>, Option<T>);

impl<T> Drop for Back<T> {
    fn drop(&mut self) {
        // Dropped when nothing is borrowed: a destructor may look here.
        drop(self.1.take().map(|value| self.0.replace(value)));
    }
}

/// Starts a thread that is never joined.
#[cfg(not(shuttle))]
pub(crate) fn spawn_thread(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

/// Starts a thread that is never joined.
#[cfg(shuttle)]
#[allow(clippy::unnecessary_wraps, reason = "as outside the model")]
pub(crate) fn spawn_thread(
    _name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    // Not one of shuttle's threads: the model ends only when all of those have.
    drop(shuttle::future::spawn(async move { work() }));
    Ok(())
}

/// Types that shuttle lacks.
#[cfg(shuttle)]
mod model {
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, LockResult, PoisonError};
    use std::time::Duration;

    use shuttle::rand::Rng;
    use shuttle::thread::LocalKey;

    use super::{MutexGuard, spawn_thread};

    /// A condition variable whose waits may time out.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(Arc<shuttle::sync::Condvar>);

    /// Whether a wait timed out.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Waited(bool);

    impl Waited {
        pub(crate) fn timed_out(self) -> bool {
            self.0
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        /// One wait in eight may time out, at any moment; others then wake spuriously, as is
        /// allowed.
        pub(crate) fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            _: Duration,
        ) -> LockResult<(MutexGuard<'a, T>, Waited)> {
            let over = Arc::new(AtomicBool::new(false));
            if shuttle::rand::thread_rng().gen_ratio(1, 8) {
                let (condition, over) = (self.0.clone(), over.clone());
                let _ = spawn_thread("clock", move || {
                    over.store(true, Ordering::SeqCst);
                    condition.notify_all();
                });
            }
            let guard = self.0.wait(guard).unwrap_or_else(PoisonError::into_inner);
            Ok((guard, Waited(over.load(Ordering::SeqCst))))
        }
    }

    pub(crate) trait RefCellKey<T> {
        fn set(&'static self, value: T);
        fn replace(&'static self, value: T) -> T;
        fn take(&'static self) -> T
        where
            T: Default;
        fn with_borrow<R>(&'static self, f: impl FnOnce(&T) -> R) -> R;
        fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R;
    }

    impl<T: 'static> RefCellKey<T> for LocalKey<RefCell<T>> {
        fn set(&'static self, value: T) {
            drop(self.replace(value));
        }

        fn replace(&'static self, value: T) -> T {
            self.with(|cell| cell.replace(value))
        }

        fn take(&'static self) -> T
        where
            T: Default,
        {
            self.with(RefCell::take)
        }

        fn with_borrow<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
            self.with(|cell| f(&cell.borrow()))
        }

        fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R {
            self.with(|cell| f(&mut cell.borrow_mut()))
        }
    }
}
