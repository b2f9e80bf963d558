//! The interface of a reactor to other threads: call it to a connection, give it a new one, wake
//! it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use device::{Error, Result};
use net::Stream;
use runtime::{Bell, Mutex, at_end_of_batch};
use rustix::event::epoll;
use rustix::io::Errno;
use serving::MemoryAccount;

/// The token of the wake-up in a reactor's epoll instance.
pub(crate) const WAKE: u64 = 0;

/// A reactor, as others see it.
#[derive(Debug)]
pub(crate) struct ReactorBell {
    epoll: OwnedFd,
    wake: Bell,
    /// It waits, or is about to: a thread that has something for it must wake it.
    asleep: AtomicBool,
    /// What was given to it, and whether there is any.
    news: Mutex<News>,
    has_news: AtomicBool,
    load: AtomicUsize,
    /// The last roll call that it has answered.
    answered: AtomicU64,
}

/// What is given to a reactor.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Connections that it is called to.
    pub(crate) called: Vec<u64>,
    /// New ones.
    pub(crate) arrivals: Vec<Accepted>,
}

/// A new connection, and the account that pays for it.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    pub(crate) account: Arc<MemoryAccount>,
}

impl ReactorBell {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let say = |e: Errno| Error::os("make a reactor", e);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(say)?;
        let wake = Bell::new().map_err(|e| Error::os("make a reactor", e))?;
        // Each write is reported once, and need not be read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), flags).map_err(say)?;
        Ok(Arc::new(Self {
            epoll,
            wake,
            asleep: AtomicBool::new(false),
            news: Mutex::default(),
            has_news: AtomicBool::new(false),
            load: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
        }))
    }

    pub(crate) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Makes the reactor check everything, even if it is awake and has done so already.
    pub(crate) fn wake(&self) {
        self.wake.ring();
    }

    /// Wakes the reactor, if it sleeps: before it does, it checks for new work.
    fn ring(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// How many connections it has.
    pub(crate) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// It has one less.
    pub(crate) fn lost(&self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
    }

    /// Calls the reactor to one of its connections. Where several operations end in one batch it is
    /// woken once, at the end.
    pub(crate) fn call(self: &Arc<Self>, token: u64) {
        self.put(|news| news.called.push(token));
        let later = || {
            let bell = self.clone();
            move || bell.ring()
        };
        if !at_end_of_batch(Arc::as_ptr(self).addr(), later) {
            self.ring();
        }
    }

    /// Answers the roll call of this number, as the reactor does after each round.
    pub(crate) fn answer(&self, asked: &AtomicU64) {
        let asked = asked.load(Ordering::Relaxed);
        if self.answered.load(Ordering::Relaxed) != asked {
            self.answered.store(asked, Ordering::Release);
        }
    }

    /// Whether it has answered the roll call of this number.
    pub(crate) fn has_answered(&self, number: u64) -> bool {
        self.answered.load(Ordering::Acquire) >= number
    }

    /// Gives it a connection.
    pub(crate) fn give(&self, arrival: Accepted) {
        self.load.fetch_add(1, Ordering::Relaxed);
        self.put(|news| news.arrivals.push(arrival));
        self.ring();
    }

    fn put(&self, put: impl FnOnce(&mut News)) {
        put(&mut self.news.lock());
        // After it was put: who sees this finds it.
        self.has_news.store(true, Ordering::SeqCst);
    }

    /// Says that the reactor is about to wait. What is given to it from now on wakes it; what was
    /// given before is there to be seen.
    pub(crate) fn sleeps(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Whether something was given to it.
    pub(crate) fn has_news(&self) -> bool {
        self.has_news.load(Ordering::SeqCst)
    }

    /// What was given to it since it asked last.
    pub(crate) fn news(&self) -> News {
        match self.has_news.swap(false, Ordering::SeqCst) {
            true => std::mem::take(&mut *self.news.lock()),
            false => News::default(),
        }
    }
}
