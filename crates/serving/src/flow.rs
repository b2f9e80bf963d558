//! What holds up the requests of an export: it is paused, or has a rate.
//!
//! Requests are not begun before they may: a front end asks before it begins one, and keeps what it
//! has taken meanwhile, within the limits that it has anyway. Where nothing holds them up, asking
//! is a look at one flag.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use device::OperationKind;
use runtime::Mutex;

use crate::rate::RateLimit;

/// Whether requests of an export may begin.
#[derive(Debug, Default)]
pub struct Flow {
    /// There is something to look at.
    is_held: AtomicBool,
    state: Mutex<FlowState>,
}

#[derive(Debug, Default)]
struct FlowState {
    is_paused: bool,
    rate: Option<RateLimit>,
}

impl Flow {
    /// Whether one more request may begin.
    pub fn allows(&self) -> bool {
        if !self.is_held.load(Ordering::Acquire) {
            return true;
        }
        let mut state = self.state.lock();
        let is_paused = state.is_paused;
        !is_paused && state.rate.as_mut().is_none_or(|rate| rate.allows(Instant::now()))
    }

    /// A request for so many bytes has begun: those that are read or written count.
    pub fn begun(&self, kind: Option<OperationKind>, bytes: u64) {
        let has_data = matches!(kind, Some(OperationKind::Read | OperationKind::Write));
        if has_data
            && self.is_held.load(Ordering::Acquire)
            && let Some(rate) = &mut self.state.lock().rate
        {
            rate.spend(bytes);
        }
    }

    /// Whether no request begins.
    pub fn is_paused(&self) -> bool {
        self.is_held.load(Ordering::Acquire) && self.state.lock().is_paused
    }

    /// Bytes a second, if they are limited.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.state.lock().rate.as_ref().map(RateLimit::limit)
    }

    /// From now on no request begins, or they do again.
    pub(crate) fn pause(&self, is_paused: bool) {
        self.change(|state| state.is_paused = is_paused);
    }

    /// From now on so many bytes a second are read and written, or as many as there are.
    pub(crate) fn limit(&self, bytes: Option<u64>) {
        self.change(|state| state.rate = bytes.map(|bytes| RateLimit::new(bytes, Instant::now())));
    }

    fn change(&self, change: impl FnOnce(&mut FlowState)) {
        let mut state = self.state.lock();
        change(&mut state);
        let is_held = state.is_paused || state.rate.is_some();
        self.is_held.store(is_held, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_and_a_rate_hold_up_and_let_go_each_by_itself() {
        let flow = Flow::default();
        let write = Some(OperationKind::Write);
        flow.limit(Some(1000));
        assert!(flow.allows());
        flow.begun(Some(OperationKind::Zero), 1 << 40);
        assert!(flow.allows(), "zeroes take no bytes");
        flow.begun(write, 1 << 40);
        assert!(!flow.allows() && !flow.is_paused());
        flow.limit(None);
        assert!(flow.allows());
        flow.pause(true);
        assert!(!flow.allows() && flow.is_paused());
        flow.limit(Some(1000));
        flow.limit(None);
        assert!(!flow.allows());
        flow.pause(false);
        assert!(flow.allows() && flow.rate().is_none());
    }
}
