//! A lease: a record with its owner, and for how long it is held. Its owner writes it again from
//! time to time; who wants it takes it over when it was not written for so long, by the store's
//! clock. One that was given back is empty.
//!
//! The owner counts from before it asked the store, by a clock that only counts, and believes to
//! hold it for less time than others wait. So two never hold it at the same time, unless a process
//! is stopped for longer than that (by SIGSTOP, say, or with its machine): what it then had in
//! flight may come late. It notices as soon as it runs again; on a machine that was paused, whose
//! clock stood still, when it next writes the lease.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Result};
use disk::{FoundRecord, ListedRecord, RecordTag, Records, new_mark};
use runtime::{Condvar, Mutex};
use serde_json::{Value, json};

use super::super::place::{OpenRecords, SOON};

/// How long its owner holds it after it was written.
pub(super) const HOLDS: Duration = Duration::from_secs(30);
/// How much longer others wait: a store counts seconds, and its machines may differ.
const MARGIN: Duration = Duration::from_secs(5);
/// When it is written again.
const RENEWS: Duration = Duration::from_secs(10);
/// When that is tried again, where it failed.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a try may take: writing, and looking whether it was done where the answer was lost. One
/// that might take longer than the lease is held is not begun.
const TRY: Duration = Duration::from_secs(2 * SOON.as_secs() + 1);
/// How often it is tried to give it back.
const GIVING_BACK: usize = 3;
/// Seconds that a lease says, at most.
const LONGEST: u64 = 3600;

/// See the module. It is given back when it is dropped.
#[derive(Debug)]
pub(in super::super) struct Lease {
    held: Arc<HeldLease>,
    keeper: Option<JoinHandle<()>>,
}

/// A lease that its owner keeps.
pub(super) struct HeldLease {
    records: Arc<dyn Records>,
    name: String,
    owner: String,
    state: Mutex<State>,
    changed: Condvar,
}

runtime::debug_as!(HeldLease, |lease| "HeldLease({})", lease.name);

struct State {
    tag: RecordTag,
    /// How often it was written.
    written: u64,
    /// When it was first tried to write it once more, if that has not succeeded yet: it may have
    /// been, and then others count from there.
    tried: Option<Instant>,
    /// By our clock.
    until: Instant,
    lost: bool,
    /// It is to be given back.
    over: bool,
    when_lost: Option<Box<dyn Fn() + Send>>,
}

/// Whether a lease in a list seems to be held.
pub(super) fn is_held(listed: &ListedRecord) -> bool {
    listed.bytes > 0 && listed.age.is_none_or(|age| age <= HOLDS + MARGIN)
}

impl Lease {
    /// Takes it. `None`: another process has it.
    pub(super) fn take(open: &OpenRecords, name: &str) -> Result<Option<Self>> {
        let Some(held) = HeldLease::take(open, name)? else { return Ok(None) };
        let held = Arc::new(held);
        let keeping = held.clone();
        let keeper = std::thread::Builder::new().name("lease".into()).spawn(move || keeping.keep());
        let keeper = Some(keeper.map_err(|e| Error::os("start a thread", e))?);
        Ok(Some(Self { held, keeper }))
    }

    /// `lost` is called once it does not hold any more, at once if it does not; it must be short.
    pub(in super::super) fn when_lost(&self, lost: impl Fn() + Send + 'static) {
        self.held.when_lost(lost);
    }

    /// Whether it is held.
    ///
    /// # Errors
    /// It is not.
    pub(in super::super) fn check(&self) -> Result<()> {
        self.held.check(Instant::now())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.held.state.lock().over = true;
        self.held.changed.notify_all();
        if let Some(keeper) = self.keeper.take() {
            // A panic of it was told by then, and the lease runs out.
            let _ = keeper.join();
        }
        self.held.give_back();
    }
}

impl HeldLease {
    /// Takes it, and does not keep it.
    pub(super) fn take(open: &OpenRecords, name: &str) -> Result<Option<Self>> {
        let OpenRecords { patient: records, hasty } = open;
        let owner = new_mark()?;
        let bytes = bytes_of(&owner, 0);
        let found = records.read(name)?;
        if let Some(found) = &found
            && !is_free(found).map_err(|e| e.on(records.shown(name)))?
        {
            return Ok(None);
        }
        let began = Instant::now();
        let tag = match &found {
            None => records.create(name, &bytes)?,
            Some(found) => records.replace(name, &bytes, &found.tag)?,
        };
        let Some(tag) = tag else { return Ok(None) };
        let state = Mutex::new(State {
            tag,
            written: 1,
            tried: None,
            until: began + HOLDS,
            lost: false,
            over: false,
            when_lost: None,
        });
        let (records, name) = (hasty.clone(), name.to_owned());
        Ok(Some(Self { records, name, owner, state, changed: Condvar::new() }))
    }

    pub(super) fn when_lost(&self, lost: impl Fn() + Send + 'static) {
        let mut state = self.state.lock();
        if state.lost {
            lost();
        }
        state.when_lost = Some(Box::new(lost));
    }

    pub(super) fn check(&self, now: Instant) -> Result<()> {
        let state = self.state.lock();
        if !state.lost && now < state.until {
            return Ok(());
        }
        let action = "hold the lease: the store could not be reached in time, this process was \
                      stopped for a while, or another one has taken it over; try again";
        let e = Error::new(ErrorKind::Disconnected, Fault::Peer, action);
        Err(e.on(self.records.shown(&self.name)))
    }

    /// Keeps it until it is over, or lost.
    fn keep(&self) {
        let mut next = Instant::now() + RENEWS;
        loop {
            let state = self.state.lock();
            let wait = next.saturating_duration_since(Instant::now());
            let (state, _) = self.changed.wait_timeout_while(state, wait, |state| !state.over);
            if state.over {
                return;
            }
            drop(state);
            match self.step(Instant::now()) {
                Some(later) => next = later,
                None => return,
            }
        }
    }

    /// Writes it again, if that can be done in time. Returns when the next step is due; `None`: it
    /// is lost.
    pub(super) fn step(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state.lock();
        let (until, tag, written) = (state.until, state.tag.clone(), state.written);
        if now < until && now + TRY > until {
            return Some(until);
        }
        let tried = *state.tried.get_or_insert(now);
        drop(state);
        if now >= until {
            self.lose();
            return None;
        }
        match self.records.replace(&self.name, &bytes_of(&self.owner, written), &tag) {
            Ok(Some(tag)) => {
                let mut state = self.state.lock();
                (state.tag, state.written, state.tried) = (tag, written + 1, None);
                state.until = tried + HOLDS;
                Some(tried + RENEWS)
            }
            Ok(None) => {
                self.lose();
                None
            }
            // It may have been written all the same: then the next try finds another tag, and the
            // same bytes.
            Err(_) => Some(now + AGAIN),
        }
    }

    fn lose(&self) {
        let mut state = self.state.lock();
        state.lost = true;
        if let Some(lost) = &state.when_lost {
            lost();
        }
    }

    /// It may be taken at once, unless another process has taken it over.
    fn give_back(&self) {
        let state = self.state.lock();
        let tag = (!state.lost).then(|| state.tag.clone());
        drop(state);
        let Some(tag) = tag else { return };
        // Where all of these fail it runs out.
        (0..GIVING_BACK).any(|_| self.records.replace(&self.name, &[], &tag).is_ok());
    }
}

fn bytes_of(owner: &str, written: u64) -> Vec<u8> {
    let line = json!({"lease": 1, "owner": owner, "seconds": HOLDS.as_secs(), "written": written});
    format!("{line}\n").into_bytes()
}

/// Whether a lease was given back, or has run out.
fn is_free(found: &FoundRecord) -> Result<bool> {
    if found.bytes.is_empty() {
        return Ok(true);
    }
    let value = serde_json::from_slice::<Value>(&found.bytes).ok();
    let value = value.filter(|value| value.get("lease").and_then(Value::as_u64) == Some(1));
    let seconds = value.and_then(|value| value.get("seconds")?.as_u64());
    let Some(seconds) = seconds.filter(|seconds| *seconds <= LONGEST) else {
        let action = "take the lease: the record holds something else; nothing was changed";
        return Err(Error::new(ErrorKind::InvalidInput, Fault::File, action));
    };
    let Some(age) = found.age else {
        let action = "take the lease: the store does not say when it was written";
        return Err(Error::unsupported(action));
    };
    Ok(age > Duration::from_secs(seconds) + MARGIN)
}
