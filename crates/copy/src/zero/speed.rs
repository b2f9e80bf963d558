//! Tests whether zeroing is as fast as the target advertises: on a range that must be zeroed
//! anyway, or a small one, in a thread of its own, so that others can be worked on meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Result};
use runtime::{Condvar, Mutex, MutexGuard};

use super::requests::{Requests, Swept};

/// How often it is tested before it is not believed: a busy machine makes anything look slow.
pub(super) const TESTS: usize = 2;
/// The longest range to test it on.
const PROBE: u64 = 16 << 20;
/// The range to test it on where none is known that must be zeroed.
const BLIND_PROBE: u64 = 1 << 20;
/// An answer that comes sooner than this is fast, whatever it is compared with.
const SOON: Duration = Duration::from_millis(25);
/// How long nothing is handed out while the first answer is awaited. A target that is as fast as it
/// advertises has answered by then, or is far away, where what is done meanwhile costs no time.
const FIRST_ANSWER: Duration = Duration::from_millis(12);

/// A test that runs, or has ended.
pub(super) struct Test {
    /// The ranges that it zeroes.
    probes: Vec<Range<u64>>,
    verdict: Arc<Verdict>,
}

/// Its result.
#[derive(Default)]
struct Verdict {
    said: Mutex<Said>,
    changed: Condvar,
}

#[derive(Default)]
struct Said {
    /// How long the first request took.
    first: Option<Duration>,
    /// Whether the target is as fast as it advertises.
    fast: Option<Result<bool>>,
}

impl Verdict {
    fn lock(&self) -> MutexGuard<'_, Said> {
        self.said.lock()
    }

    fn say(&self, change: impl FnOnce(&mut Said)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits for a change, at most this long.
    fn wait_while(&self, limit: Duration, waiting: impl Fn(&Said) -> bool) {
        let waiting = |said: &mut Said| waiting(said);
        drop(self.changed.wait_timeout_while(self.lock(), limit, waiting));
    }
}

impl Test {
    /// Starts it on `holes`, or, without any, on the beginning of `range`.
    pub(super) fn start<'scope>(
        requests: &Requests<'scope>,
        range: &Range<u64>,
        holes: Vec<Range<u64>>,
        scope: &'scope Scope<'scope, '_>,
    ) -> Result<Self> {
        let short = |start: u64, len, end: u64| start..end.min(start.saturating_add(len));
        let mut probes = holes;
        probes.iter_mut().for_each(|probe| *probe = short(probe.start, PROBE, probe.end));
        if probes.is_empty() {
            let first = short(range.start, BLIND_PROBE, range.end);
            let second = short(first.end, BLIND_PROBE, range.end);
            probes = vec![first, second];
        }
        let verdict = Arc::<Verdict>::default();
        let test = Self { probes: probes.clone(), verdict: verdict.clone() };
        let requests = requests.clone();
        let work = move || {
            let watch = Watch(&verdict);
            let fast = is_fast(&requests, &probes, &verdict);
            verdict.say(|said| said.fast = Some(fast));
            drop(watch);
        };
        let thread = Builder::new().name("test".into()).spawn_scoped(scope, work);
        thread.map_err(|e| Error::os("copy: start a thread", e))?;
        Ok(test)
    }

    /// Waits as long as a near and fast target would need.
    pub(super) fn wait_a_moment(&self) {
        let verdict = &self.verdict;
        verdict.wait_while(FIRST_ANSWER, |said| said.first.is_none() && said.fast.is_none());
        let first = verdict.lock().first;
        if let Some(first) = first {
            let rest = first.saturating_mul(2).saturating_add(FIRST_ANSWER / 2).min(SOON);
            verdict.wait_while(rest, |said| said.fast.is_none());
        }
    }

    /// Whether the target is as fast as it advertises, if known; waits for that if `wait`.
    pub(super) fn verdict(&self, wait: bool) -> Option<Result<bool>> {
        let mut said = self.verdict.lock();
        while wait && said.fast.is_none() {
            said = self.verdict.changed.wait(said);
        }
        said.fast.take()
    }

    /// Whether it zeroes any of a range.
    pub(super) fn meets(&self, start: u64, end: u64) -> bool {
        self.probes.iter().any(|probe| probe.start < end && start < probe.end)
    }
}

/// Sets a result when the test panics, so that nothing waits for it.
struct Watch<'a>(&'a Verdict);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let action = "copy: a test panicked; this is a defect";
            let error = Error::new(ErrorKind::Io, Fault::Us, action);
            self.0.say(|said| said.fast = Some(Err(error)));
        }
    }
}

/// Zeroes one range after the other until the times are those of a fast target, or there are no
/// more ranges.
fn is_fast(requests: &Requests<'_>, probes: &[Range<u64>], verdict: &Verdict) -> Result<bool> {
    for probe in probes.iter().filter(|probe| !probe.is_empty()) {
        match look_at(requests, probe, verdict)? {
            Some((first, second)) if !is_soon(first, second) => {}
            answer => return Ok(answer.is_some()),
        }
    }
    Ok(false)
}

/// Zeroes a range in two requests. Returns how long they took; `None` if one was refused.
fn look_at(
    requests: &Requests<'_>,
    range: &Range<u64>,
    verdict: &Verdict,
) -> Result<Option<(Duration, Duration)>> {
    let cut = quarter(range, u64::from(requests.pair.target.info().blocks.minimum));
    let mut took = [Duration::ZERO; 2];
    for (took, part) in took.iter_mut().zip([range.start..cut, cut..range.end]) {
        if part.is_empty() {
            continue;
        }
        let begin = Instant::now();
        if requests.run(vec![part].into())? != Swept::Done {
            return Ok(None);
        }
        *took = begin.elapsed();
        verdict.say(|said| said.first = said.first.or(Some(*took)));
    }
    Ok(Some((took[0], took[1])))
}

/// Whether a target is believed whose two answers took this long, the second for three times as
/// many bytes.
fn is_soon(first: Duration, second: Duration) -> bool {
    second < SOON || second < first.saturating_mul(2)
}

/// About a quarter into a range, at a multiple of the largest piece that divides it well; its
/// end if it is too short to be cut.
fn quarter(range: &Range<u64>, block: u64) -> u64 {
    let quarter = (range.end - range.start) / 4;
    let grain = [256 << 10, 64 << 10, 4 << 10, 512, 1].into_iter();
    let grain = grain.map(|g: u64| g.max(block)).find(|g| *g <= quarter);
    grain.map_or(range.end, |grain| range.start + quarter - quarter % grain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_whose_time_grows_with_the_length_is_not_believed() {
        let ms = Duration::from_millis;
        assert!(is_soon(ms(5), ms(5)), "5 ms for anything");
        assert!(!is_soon(ms(20), ms(60)), "80 ms for a MiB");
        assert!(is_soon(ms(100), ms(120)), "far away");
        assert!(is_soon(ms(1), ms(24)), "too short to tell");
        assert!(!is_soon(ms(1), ms(500)));
    }

    #[test]
    fn a_probe_is_cut_where_the_target_likes_it() {
        let mib = 1 << 20;
        assert_eq!(quarter(&(mib..2 * mib), 1), mib + (256 << 10));
        assert_eq!(quarter(&(0..100_000), 1), 24_576);
        assert_eq!(quarter(&(4096..8192), 4096), 8192);
        assert_eq!(quarter(&(10..12), 1), 12);
    }
}
