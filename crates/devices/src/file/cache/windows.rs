//! Windows of a file that are in use: which of their pages were in the page cache before, which may
//! be now, and which have to be dropped.
//!
//! A window is 4 MiB of the file. Before the first operation in it goes ahead, it is noted which of
//! its pages are in memory; these are never dropped here. Operations run inside
//! [`Windows::during`]. Write-back begins as soon as a window is full, and when more than [`MOST`]
//! may be in memory, the least recently used window is dropped: a writing thread, never a reading
//! one, waits for its dirty pages first. Only clean pages are ever dropped, so nothing is lost.
//!
//! The system keeps pages that are being read just then, or that lie in a socket. A window that
//! still has some after it was dropped stays in the list and is dropped again with later
//! operations. If it were forgotten, the next operation in it would take them for pages that had
//! been in memory before, and they would stay for ever.
//!
//! Which pages of a window they are is asked when something may come in because of us: a read of
//! what is in memory brings nothing, and the answer takes longer than such a read where the file
//! has holes. (What the system reads ahead of it, because another reader left it to, stays.)
//!
//! *Failures of write-back.* Waiting for it consumes the failure report of the descriptor, and a
//! later fdatasync, or one in flight, would succeed. So a failure seen here is kept
//! ([`Windows::take_loss`]), and the flush fails: it checks at its end, after all threads that
//! waited meanwhile have reported.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use device::residency::pages;
use runtime::{Mutex, RwLock};
use rustix::param::page_size;

use super::allowance;
use crate::file::system;
use crate::file::write_back::{begin_write_back, finish_write_back};

/// Bytes of a window: longer than the longest piece of memory that the system drops only as a
/// whole.
const WINDOW: u64 = 4 << 20;
/// Bytes that may be in memory because of us.
const MOST: u64 = 16 << 20;
/// Bytes that may be written before write-back begins.
const UNSENT: u64 = 8 << 20;
/// What the system may read around a short read, and what it may have read ahead of one.
const AROUND: u64 = 256 << 10;
const AHEAD: u64 = 64 << 10;
/// Most windows to remember.
const MANY: usize = 512;
/// And of those that were dropped.
const GONE: usize = 1024;
/// For so many operations it is believed that a window still lies in memory as a whole. To count
/// its pages takes as long as to read a part of them, where the file system has no large ones.
const BELIEVED: u64 = 32;
/// At the end, how often pages that the system keeps are tried again, and after how long.
const LAST_TURNS: usize = 20;
const LAST_WAIT: Duration = Duration::from_millis(1);

/// What an operation does to the pages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PageUse {
    Read,
    Write,
    /// None are to be used. If the system uses some after all, they are dropped.
    Direct,
}

/// The windows of one file.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Whether pages may stay as long as memory is free.
    spares: bool,
    /// Whether write-back begins early, also for pages that stay in memory.
    early: bool,
    state: Mutex<State>,
    /// Held, by many at a time, from before a thread waits for write-back until the result is
    /// noted.
    hearing: RwLock<()>,
}

#[derive(Debug, Default)]
struct State {
    list: Vec<CacheWindow>,
    /// The last windows that were dropped and had no pages in memory before. Pages of theirs that
    /// are there again are ours: read ahead after an operation that had ended.
    gone: VecDeque<u64>,
    /// Counts operations.
    now: u64,
    /// The failure of a write-back that was waited for.
    loss: Option<i32>,
}

#[derive(Debug, Default)]
struct CacheWindow {
    number: u64,
    before: Before,
    /// The operation at which that was looked at.
    looked: u64,
    /// Operations in it now.
    users: usize,
    /// A thread is dropping it.
    leaving: bool,
    /// Bytes that were read or written.
    touched: u64,
    /// Bytes that were still in memory after it was dropped, and the operation at which that was
    /// tried.
    kept: u64,
    tried: u64,
    /// Some of them through the page cache.
    through: bool,
    /// Bytes that were written and whose write-back has not begun.
    unsent: u64,
    /// Something was written that was not yet waited for.
    dirty: bool,
    /// The last operation in it, and the last one that wrote.
    used: u64,
    wrote: u64,
}

/// Which of its pages were in memory when a window was first touched.
#[derive(Debug, Default, Eq, PartialEq)]
enum Before {
    #[default]
    None,
    All,
    /// Some at least, and only those were read since.
    Unasked,
    Some(Box<[bool]>),
}

impl Before {
    /// How many they are.
    fn pages(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::All | Self::Unasked => u64::MAX,
            Self::Some(resident) => resident.iter().filter(|was| **was).count() as u64,
        }
    }
}

/// What has to be done outside the lock.
enum Act {
    Begin(u64),
    LetGo { number: u64, dirty: bool, drops: Vec<Range<u64>>, others: u64, stays: bool },
}

impl Windows {
    /// `spares`: pages may stay as long as memory is free; `early`: write-back begins at once also
    /// for them.
    pub(crate) fn new(spares: bool, early: bool) -> Self {
        Self { spares, early, state: Mutex::default(), hearing: RwLock::default() }
    }

    /// Runs `work` on `len` bytes from `offset` of the file, and then drops what exceeds the limit.
    /// The system may read up to `ahead` bytes after them. May wait for the disk; for write-back
    /// only if it is a write.
    pub(crate) fn during<T>(
        &self,
        fd: BorrowedFd<'_>,
        (offset, len, ahead): (u64, u64, u64),
        how: PageUse,
        work: impl FnOnce() -> T,
    ) -> T {
        if len == 0 {
            return work();
        }
        self.enter(fd, (offset, len, ahead), true);
        let done = work();
        self.leave((offset, len, ahead), how);
        self.tidy(fd, how == PageUse::Write);
        done
    }

    /// Notes an operation that is done elsewhere, at once, and only reads pages that are in memory
    /// already. False: not now, because something has to be dropped first. Never waits for a disk.
    pub(crate) fn passes(&self, fd: BorrowedFd<'_>, (offset, len, ahead): (u64, u64, u64)) -> bool {
        if self.state.lock().is_too_much() {
            return false;
        }
        self.enter(fd, (offset, len, ahead), false);
        self.leave((offset, len, ahead), PageUse::Read);
        true
    }

    /// Whether all of a range was resident as of the last check, at most a short time ago.
    pub(crate) fn are_believed(&self, offset: u64, len: u64) -> bool {
        let state = self.state.lock();
        numbers(offset, len).all(|number| {
            let window = state.list.iter().find(|w| w.number == number);
            window.is_some_and(|w| w.was_there_as_a_whole() && w.is_believed(state.now))
        })
    }

    /// An operation that uses no pages, as far as the system can do without, begins. Where it
    /// cannot, it may read up to `ahead` bytes behind them. Never waits for a disk.
    pub(crate) fn begin_direct(&self, fd: BorrowedFd<'_>, offset: u64, len: u64, ahead: u64) {
        self.enter(fd, (offset, len.max(1), ahead), true);
    }

    /// It has ended; all as in [`Self::begin_direct`].
    pub(crate) fn end_direct(&self, fd: BorrowedFd<'_>, offset: u64, len: u64, ahead: u64) {
        self.leave((offset, len.max(1), ahead), PageUse::Direct);
        self.tidy(fd, false);
    }

    /// Notes the pages in memory of the windows of a range, and of those after it that may be read
    /// ahead. None of them is dropped before the operation ends: pages read ahead would come after
    /// that. `brings`: pages may come in; otherwise all of the range is in memory.
    fn enter(&self, fd: BorrowedFd<'_>, (offset, len, ahead): (u64, u64, u64), brings: bool) {
        let last = numbers(offset, len).end - 1;
        let mut state = self.state.lock();
        state.now += 1;
        for number in numbers(offset, len.saturating_add(ahead)) {
            let now = state.now;
            let window = match state.list.iter().position(|w| w.number == number) {
                Some(i) => state.list.get_mut(i),
                None => {
                    let before = match state.gone.contains(&number) {
                        true => Before::None,
                        false if brings => before(fd, number),
                        false if number <= last => Before::Unasked,
                        false => glance(fd, number),
                    };
                    state
                        .list
                        .push(CacheWindow { looked: now, ..CacheWindow::new(number, before) });
                    state.list.last_mut()
                }
            };
            if let Some(window) = window {
                if brings && window.before == Before::Unasked {
                    window.before = before(fd, number);
                }
                window.used = now;
                window.users += 1;
            }
        }
    }

    fn leave(&self, (offset, len, ahead): (u64, u64, u64), how: PageUse) {
        let mut state = self.state.lock();
        // What was written is younger than a flush that has begun meanwhile. For a read, windows
        // that may have been read ahead for it are as old as its own: they are dropped no sooner.
        let (now, wrote) = (state.now, state.now + 1);
        if how == PageUse::Write {
            state.now = wrote;
        }
        let end = offset.saturating_add(len);
        let last = numbers(offset, len).end - 1;
        for number in numbers(offset, len.saturating_add(ahead)) {
            let Some(window) = state.list.iter_mut().find(|w| w.number == number) else { continue };
            let start = number.saturating_mul(WINDOW);
            let part = end.min(start.saturating_add(WINDOW)).saturating_sub(offset.max(start));
            window.users = window.users.saturating_sub(1);
            window.used = now;
            if number > last || window.before == Before::Unasked {
                continue;
            }
            window.touched = window.touched.saturating_add(part);
            window.through |= how != PageUse::Direct;
            if how == PageUse::Write {
                window.unsent = window.unsent.saturating_add(part);
                (window.dirty, window.wrote) = (true, wrote);
            }
        }
        // Pages that were in memory before need not be remembered, except that they were.
        state.list.retain(|w| !w.has_no_other() || w.dirty || !w.is_idle() || w.is_believed(now));
    }

    /// Begins write-back and drops windows, as is due.
    fn tidy(&self, fd: BorrowedFd<'_>, may_wait: bool) {
        while let Some(act) = self.next(may_wait) {
            self.act(fd, act);
        }
    }

    fn next(&self, may_wait: bool) -> Option<Act> {
        let mut state = self.state.lock();
        if self.early
            && let Some(window) = state.due()
        {
            window.unsent = 0;
            return Some(Act::Begin(window.number));
        }
        if !state.is_too_much() {
            return None;
        }
        let now = state.now;
        let idle = state.list.iter_mut().filter(|w| w.is_idle() && (may_wait || !w.dirty));
        let oldest = idle.filter(|w| !w.was_tried(now)).min_by_key(|w| w.used)?;
        Some(oldest.let_go(self.spares, now))
    }

    fn act(&self, fd: BorrowedFd<'_>, act: Act) {
        match act {
            // A hint; its error is reported again to the thread that waits.
            Act::Begin(number) => _ = begin_write_back(fd, number.saturating_mul(WINDOW), WINDOW),
            Act::LetGo { number, dirty, drops, others, stays } => {
                let start = number.saturating_mul(WINDOW);
                if dirty && !stays {
                    self.hear(|| finish_write_back(fd, start, WINDOW));
                } else if dirty && self.early {
                    let _ = begin_write_back(fd, start, WINDOW);
                }
                for range in &drops {
                    let len = std::num::NonZeroU64::new(range.end - range.start);
                    let _ = system::drop_pages(fd, range.start, len);
                }
                let cached = || Some(pages::count(fd, start, WINDOW).ok()?.cached);
                let kept = if drops.is_empty() { None } else { cached() };
                self.left(number, kept.unwrap_or(0).saturating_sub(others), stays);
            }
        }
    }

    /// A window was dropped, but the system has kept this many bytes of it; or all of it `stays`. A
    /// window that another thread entered meanwhile is kept in the list.
    fn left(&self, number: u64, kept: u64, stays: bool) {
        let mut state = self.state.lock();
        let is_remembered = state.list.len() <= MANY;
        let Some(i) = state.list.iter().position(|w| w.number == number) else { return };
        if let Some(window) = state.list.get_mut(i) {
            window.leaving = false;
            window.kept = kept.saturating_mul(page_size() as u64);
            let is_used = window.users > 0 || window.touched > 0 || window.dirty;
            if is_used || (kept > 0 && is_remembered) {
                return;
            }
        }
        let window = state.list.swap_remove(i);
        if window.before == Before::None && !stays && !state.gone.contains(&number) {
            state.gone.push_back(number);
            if state.gone.len() > GONE {
                state.gone.pop_front();
            }
        }
    }

    /// A point in time, for [`Self::flushed`].
    pub(crate) fn now(&self) -> u64 {
        self.state.lock().now
    }

    /// Everything written until `then` is on the disk: it can be dropped.
    pub(crate) fn flushed(&self, fd: BorrowedFd<'_>, then: u64) {
        let mut acts = Vec::new();
        {
            let mut state = self.state.lock();
            let now = state.now;
            let clean = |w: &&mut CacheWindow| w.is_idle() && w.dirty && w.wrote <= then;
            for window in state.list.iter_mut().filter(clean) {
                (window.dirty, window.unsent) = (false, 0);
                acts.push(window.let_go(self.spares, now));
            }
        }
        acts.into_iter().for_each(|act| self.act(fd, act));
    }

    /// No more operations come: drops everything. Waits a little for pages that are still being
    /// read ahead.
    pub(crate) fn end(&self, fd: BorrowedFd<'_>) {
        self.recall();
        for turn in 0..=LAST_TURNS {
            if turn > 0 {
                std::thread::sleep(LAST_WAIT);
            }
            self.state.lock().now += 1;
            while let Some(act) = self.last() {
                self.act(fd, act);
            }
            if self.state.lock().list.is_empty() {
                return;
            }
        }
    }

    /// Takes back dropped windows: some pages of theirs may be there again.
    fn recall(&self) {
        let mut state = self.state.lock();
        for number in std::mem::take(&mut state.gone) {
            if state.list.iter().all(|w| w.number != number) {
                state.list.push(CacheWindow::new(number, Before::None));
            }
        }
    }

    fn last(&self) -> Option<Act> {
        let mut state = self.state.lock();
        let now = state.now;
        let window = state.list.iter_mut().find(|w| w.is_idle() && !w.was_tried(now))?;
        Some(window.let_go(self.spares, now))
    }

    /// Waits for write-back, and notes its failure.
    fn hear(&self, wait: impl FnOnce() -> io::Result<()>) {
        let _hearing = self.hearing.read();
        if let Err(e) = wait() {
            let mut state = self.state.lock();
            state.loss = state.loss.or(Some(e.raw_os_error().unwrap_or(libc::EIO)));
        }
    }

    /// Takes a failure to write back that was reported here and will not be reported elsewhere.
    /// Waits for threads that wait for write-back just now: the report may have gone to one of
    /// them.
    pub(crate) fn take_loss(&self) -> Option<io::Error> {
        let _all_heard = self.hearing.write();
        self.state.lock().loss.take().map(io::Error::from_raw_os_error)
    }
}

impl State {
    /// Bytes that may be in memory because of us.
    fn held(&self) -> u64 {
        self.list.iter().map(CacheWindow::weight).sum()
    }

    fn is_too_much(&self) -> bool {
        self.held() > MOST || self.list.len() > MANY
    }

    /// The window whose write-back is to begin: a full one, or the oldest if there is too much.
    fn due(&mut self) -> Option<&mut CacheWindow> {
        let unsent: u64 = self.list.iter().map(|w| w.unsent).sum();
        let idle = self.list.iter_mut().filter(|w| w.is_idle() && w.unsent > 0);
        idle.filter(|w| w.unsent >= WINDOW || unsent > UNSENT).min_by_key(|w| w.used)
    }
}

impl CacheWindow {
    fn new(number: u64, before: Before) -> Self {
        Self { number, before, ..Self::default() }
    }

    fn is_idle(&self) -> bool {
        self.users == 0 && !self.leaving
    }

    fn was_there_as_a_whole(&self) -> bool {
        self.before == Before::All
    }

    /// No page of it came in because of us.
    fn has_no_other(&self) -> bool {
        matches!(self.before, Before::All | Before::Unasked)
    }

    fn is_believed(&self, now: u64) -> bool {
        now.saturating_sub(self.looked) < BELIEVED
    }

    fn weight(&self) -> u64 {
        match self.before {
            Before::All | Before::Unasked if !self.dirty => 0,
            _ if self.leaving => 0,
            _ if self.touched == 0 => self.kept.max(AHEAD),
            _ => self.touched.saturating_add(AROUND).max(self.kept).min(WINDOW),
        }
    }

    /// The system has kept pages of it at this very operation: it will not let them go now.
    fn was_tried(&self, now: u64) -> bool {
        self.kept > 0 && self.tried == now
    }

    /// What has to be done to drop it. While memory is free, pages stay.
    fn let_go(&mut self, spares: bool, now: u64) -> Act {
        let stays = spares && self.through && allowance::take(self.touched.min(WINDOW));
        let act = Act::LetGo {
            number: self.number,
            dirty: self.dirty,
            drops: if stays { Vec::new() } else { self.drops() },
            others: self.before.pages(),
            stays,
        };
        self.leaving = true;
        self.tried = now;
        (self.touched, self.through, self.unsent, self.dirty) = (0, false, 0, false);
        act
    }

    /// The runs of pages that were not in memory before.
    fn drops(&self) -> Vec<Range<u64>> {
        let start = self.number.saturating_mul(WINDOW);
        match &self.before {
            Before::All | Before::Unasked => Vec::new(),
            Before::None => std::iter::once(start..start.saturating_add(WINDOW)).collect(),
            Before::Some(resident) => {
                let page = page_size() as u64;
                let mut runs: Vec<Range<u64>> = Vec::new();
                for (at, _) in
                    (start..).step_by(page_size()).zip(resident).filter(|(_, was)| !**was)
                {
                    match runs.last_mut().filter(|run| run.end == at) {
                        Some(run) => run.end = at.saturating_add(page),
                        None => runs.push(at..at.saturating_add(page)),
                    }
                }
                runs
            }
        }
    }
}

/// The windows that `len` bytes (≥ 1) from `offset` lie in.
fn numbers(offset: u64, len: u64) -> Range<u64> {
    let last = offset.saturating_add(len.saturating_sub(1));
    offset / WINDOW..last / WINDOW + 1
}

/// The pages of a window that are in memory. In doubt, all.
fn before(fd: BorrowedFd<'_>, number: u64) -> Before {
    let start = number.saturating_mul(WINDOW);
    match pages::count(fd, start, WINDOW) {
        Ok(counted) if counted.cached == 0 => Before::None,
        Ok(counted) if counted.cached >= pages::touched(start, WINDOW) => Before::All,
        Ok(_) => pages::which(fd, start, WINDOW)
            .map_or(Before::All, |resident| Before::Some(resident.into_boxed_slice())),
        Err(_) => Before::All,
    }
}

/// Whether any are. Counting takes as long as there are many: the first pages show it mostly.
fn glance(fd: BorrowedFd<'_>, number: u64) -> Before {
    let start = number.saturating_mul(WINDOW);
    let is_empty = |len| pages::count(fd, start, len).is_ok_and(|counted| counted.cached == 0);
    if is_empty(AHEAD) && is_empty(WINDOW) { Before::None } else { Before::Unasked }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;

    use rustix::fs::{Advice, fadvise};

    use super::*;

    #[test]
    fn a_failure_to_write_back_that_is_heard_is_kept_for_the_flush() {
        // A pipe cannot be written back.
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        let windows = Windows::new(false, true);
        windows.during(pipe.as_fd(), (0, 10, 0), PageUse::Write, || ());
        assert!(windows.take_loss().is_none(), "no flush has waited yet");
        windows.end(pipe.as_fd());
        assert_eq!(windows.take_loss().and_then(|e| e.raw_os_error()), Some(libc::ESPIPE));
        assert!(windows.take_loss().is_none());
    }

    /// The system reports a failure once: a thread that waits for write-back may get the report
    /// instead of a flush.
    #[test]
    fn a_flush_waits_for_threads_that_may_have_got_its_failure() {
        let windows = Windows::new(false, true);
        let (begun, has_begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                windows.hear(|| {
                    begun.send(()).unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    Err(io::Error::from_raw_os_error(libc::EIO))
                });
            });
            has_begun.recv().unwrap();
            let loss = windows.take_loss();
            assert_eq!(loss.and_then(|e| e.raw_os_error()), Some(libc::EIO));
        });
    }

    #[test]
    fn what_is_written_while_a_flush_begins_is_not_taken_for_flushed() {
        let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let windows = Windows::new(false, true);
        let mut then = 0;
        windows.during(memory.as_fd(), (0, 10, 0), PageUse::Write, || then = windows.now());
        windows.flushed(memory.as_fd(), then);
        assert!(windows.state.lock().list.iter().any(|w| w.dirty), "it may be dirty still");
        windows.flushed(memory.as_fd(), windows.now());
        assert!(windows.state.lock().list.iter().all(|w| !w.dirty));
    }

    /// A file on a disk; `None` where the system does not tell what is in memory.
    fn cached_file(name: &str, len: u64) -> Option<std::fs::File> {
        let path =
            std::env::temp_dir().join(format!("diskferry-windows-{name}-{}", std::process::id()));
        let file =
            std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::io::copy(&mut std::io::repeat(7).take(len), &mut &file).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        if pages::count(file.as_fd(), 0, len).is_ok_and(|pages| pages.cached == 0) {
            return Some(file);
        }
        eprintln!("skipped: needs cachestat(2) and a file that leaves the page cache");
        None
    }

    /// Pages in a pipe stand for those in a socket that the peer has not read.
    #[test]
    fn pages_that_the_system_keeps_are_let_go_later_and_not_taken_for_those_of_others() {
        let Some(file) = cached_file("kept", 2 * WINDOW) else { return };
        let (fd, page) = (file.as_fd(), page_size());
        let cached = || pages::count(fd, 0, 2 * WINDOW).unwrap().cached;
        let windows = Windows::new(false, true);
        let (end, pipe) = rustix::pipe::pipe().unwrap();
        fadvise(fd, 0, None, Advice::Random).unwrap();
        windows.during(fd, (0, 4096, 0), PageUse::Read, || {
            rustix::pipe::splice(
                fd,
                Some(&mut 0),
                &pipe,
                None,
                page,
                rustix::pipe::SpliceFlags::empty(),
            )
            .unwrap();
        });
        let let_go = |windows: &Windows| {
            windows.state.lock().now += 1;
            while let Some(act) = windows.last() {
                windows.act(fd, act);
            }
        };
        let_go(&windows);
        assert_eq!(cached(), 1, "it lies in the pipe");
        windows.during(fd, (4096, 4096, 0), PageUse::Read, || ());
        rustix::io::read(&end, &mut vec![0; page]).unwrap();
        let_go(&windows);
        assert_eq!(cached(), 0);
        assert!(windows.state.lock().list.is_empty());
    }

    #[test]
    fn pages_that_come_after_a_window_was_dropped_go_at_the_end_and_others_stay() {
        for spares in [false, true] {
            let Some(file) = cached_file("late", WINDOW) else { return };
            let (fd, mut page) = (file.as_fd(), vec![0; page_size()]);
            let cached = || pages::count(fd, 0, WINDOW).unwrap().cached;
            fadvise(fd, 0, None, Advice::Random).unwrap();
            let windows = Windows::new(spares, true);
            windows.during(fd, (0, 4096, 0), PageUse::Read, || {
                rustix::io::pread(fd, &mut page, 0).unwrap();
            });
            let act = windows.last().unwrap();
            windows.act(fd, act);
            assert!(windows.state.lock().list.is_empty());
            rustix::io::pread(fd, &mut page, 0).unwrap();
            windows.end(fd);
            assert_eq!(cached(), u64::from(spares), "spares: {spares}");
        }
    }

    #[test]
    fn a_window_that_is_read_ahead_stays_until_the_read_has_ended() {
        let Some(file) = cached_file("ahead", 2 * WINDOW) else { return };
        let fd = file.as_fd();
        let windows = Windows::new(false, true);
        windows.during(fd, (0, 4096, WINDOW), PageUse::Read, || {
            windows.state.lock().now += 1;
            assert!(windows.last().is_none(), "both are in use");
        });
        assert!(windows.last().is_some_and(|act| matches!(act, Act::LetGo { .. })));
    }

    #[test]
    fn a_window_that_was_in_memory_is_believed_for_some_operations_and_then_checked_again() {
        let Some(file) = cached_file("whole", WINDOW) else { return };
        let (fd, mut all) = (file.as_fd(), vec![0; usize::try_from(WINDOW).unwrap()]);
        rustix::io::pread(fd, &mut all, 0).unwrap();
        if before(fd, 0) != Before::All {
            return;
        }
        let windows = Windows::new(false, true);
        let read = || {
            windows.during(fd, (0, 4096, 0), PageUse::Read, || ());
            windows.state.lock().list.iter().map(|w| w.looked).collect::<Vec<_>>()
        };
        let looked: Vec<_> = (0..3 * BELIEVED).map(|_| read()).collect();
        let first = looked.first().cloned().unwrap_or_default();
        assert_eq!(first.len(), 1);
        let same = looked.iter().take_while(|looked| **looked == first).count() as u64;
        assert!((BELIEVED / 2..=BELIEVED).contains(&same), "believed for {same} operations");
        // It has left; what is read of it now is ours, and goes.
        assert!(windows.are_believed(0, WINDOW) && !windows.are_believed(0, WINDOW + 1));
        fadvise(fd, 0, None, Advice::DontNeed).unwrap();
        (0..BELIEVED).for_each(|_| drop(read()));
        assert!(windows.state.lock().list.iter().all(|w| w.before == Before::None));
        assert!(!windows.are_believed(0, 1));
        windows.end(fd);
    }

    #[test]
    fn pages_are_told_apart_once_others_come_and_not_while_what_is_read_is_in_memory() {
        let Some(file) = cached_file("some", WINDOW) else { return };
        let (fd, half, page) = (file.as_fd(), WINDOW / 2, page_size() as u64);
        let read = |from: u64, len: u64| {
            rustix::io::pread(fd, &mut vec![0; usize::try_from(len).unwrap()], from).unwrap();
        };
        fadvise(fd, 0, None, Advice::Random).unwrap();
        read(half, 8 * page);
        let windows = Windows::new(false, true);
        let befores = || windows.state.lock().list.iter().map(|w| w.before.pages()).collect();
        assert!(windows.passes(fd, (half, page, 0)));
        let found: Vec<_> = befores();
        assert_eq!(found, [Before::Unasked.pages()]);
        assert_eq!(windows.state.lock().held(), 0, "nothing came in");
        windows.during(fd, (0, page, 0), PageUse::Read, || read(0, page));
        let found: Vec<u64> = befores();
        assert!(found[0] < half / page, "{found:?}");
        windows.end(fd);
        let kept = pages::which(fd, 0, WINDOW).unwrap();
        assert!(!kept[0] && kept[usize::try_from(half / page).unwrap()], "ours goes alone");
    }

    #[test]
    fn the_runs_that_were_not_in_memory_are_let_go_and_no_others() {
        let page = page_size() as u64;
        let mut resident = vec![true; usize::try_from(WINDOW / page).unwrap()];
        for i in [0, 1, 2, 9, resident.len() - 1] {
            resident[i] = false;
        }
        let window = CacheWindow::new(3, Before::Some(resident.into_boxed_slice()));
        let (start, end) = (3 * WINDOW, 4 * WINDOW);
        let runs = [start..start + 3 * page, start + 9 * page..start + 10 * page, end - page..end];
        assert_eq!(window.drops(), runs);
        assert_eq!(CacheWindow::new(0, Before::None).drops().first(), Some(&(0..WINDOW)));
        assert!(CacheWindow::new(0, Before::All).drops().is_empty());
    }

    #[test]
    fn windows_are_those_of_the_first_and_the_last_byte() {
        assert_eq!(numbers(0, 1), 0..1);
        assert_eq!(numbers(WINDOW - 1, 2), 0..2);
        assert_eq!(numbers(WINDOW, WINDOW), 1..2);
        assert!(numbers(u64::MAX - 5, 100).end > 0);
    }
}
