//! Locks between threads, without poison: over those of the standard library, or, under `--cfg
//! shuttle`, over those of a model in which a scheduler tries the orders in which threads may run
//! (CONTRIBUTING.md says how).
//!
//! A thread that panics ends alone (see [`contained`](crate::contained())): others find what it had
//! locked as it left it.
//!
//! In the model a wait may last as long as nothing else happens: time passes now and then, but need
//! not, so that nothing depends on it.

use std::cell::RefCell;
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

#[cfg(shuttle)]
use shuttle::sync as system;
#[cfg(not(shuttle))]
use std::sync as system;

pub use system::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::atomic::{AtomicU8, Ordering},
    thread::LocalKey,
    thread_local,
};
#[cfg(shuttle)]
pub(crate) use {
    model::RefCellKey,
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

/// A lock for one thread at a time.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(system::Mutex<T>);

impl<T> Mutex<T> {
    /// An open lock.
    pub const fn new(value: T) -> Self {
        Self(system::Mutex::new(value))
    }

    /// What it protects.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until no other thread holds it. A thread that holds it itself waits for ever.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks it, if no thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// What it protects: no other thread can hold it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock for many threads that read, or one that writes.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(system::RwLock<T>);

impl<T> RwLock<T> {
    /// An open lock.
    pub const fn new(value: T) -> Self {
        Self(system::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no thread writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread reads or writes.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What threads wait for while what they locked is not as they want it. They may wake for nothing.
#[derive(Debug, Default)]
pub struct Condvar(Signal);

#[cfg(not(shuttle))]
type Signal = system::Condvar;
#[cfg(shuttle)]
type Signal = std::sync::Arc<system::Condvar>;

impl Condvar {
    /// No thread waits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes one of the threads that wait.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Opens the lock, waits, and locks it again.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while what is locked is not as wanted.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        is_waiting: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_while(guard, is_waiting).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for some time at most; whether that is over.
    #[cfg(not(shuttle))]
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let woken = self.0.wait_timeout(guard, limit);
        let (guard, waited) = woken.unwrap_or_else(PoisonError::into_inner);
        (guard, waited.timed_out())
    }

    /// Waits while what is locked is not as wanted, for some time at most; whether it is still not.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        is_waiting: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        let woken = self.0.wait_timeout_while(guard, limit, is_waiting);
        let (guard, waited) = woken.unwrap_or_else(PoisonError::into_inner);
        (guard, waited.timed_out())
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

/// What shuttle lacks.
#[cfg(shuttle)]
mod model {
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, PoisonError};
    use std::time::Duration;

    use shuttle::rand::Rng;
    use shuttle::thread::LocalKey;

    use super::{Condvar, MutexGuard, spawn_thread};

    impl Condvar {
        /// One wait in eight may time out, at any moment; others then wake spuriously, as is
        /// allowed.
        pub fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            _: Duration,
        ) -> (MutexGuard<'a, T>, bool) {
            let over = Arc::new(AtomicBool::new(false));
            if shuttle::rand::thread_rng().gen_ratio(1, 8) {
                let (condition, over) = (self.0.clone(), over.clone());
                let _ = spawn_thread("clock", move || {
                    over.store(true, Ordering::SeqCst);
                    condition.notify_all();
                });
            }
            let guard = self.0.wait(guard).unwrap_or_else(PoisonError::into_inner);
            (guard, over.load(Ordering::SeqCst))
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
