//! `exitlast`: stops the server when the last client has left.
//!
//! It does not stop before the first client has connected. Bytes pass as if the filter were not
//! there.

use runtime::{Control, Timers};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use device::{Admission, Arrival, Error, Filter, Filtered, Over, Passes};

use crate::FilterKind;

/// A client that switches exports is gone for a moment.
const MOMENT: Duration = Duration::from_millis(100);

pub(crate) const KIND: FilterKind = FilterKind {
    word: "exitlast",
    summary: "stops the server when the last client has left",
    keeps_disk: false,
    example: "serve --filter=exitlast memory 1M --run 'nbdcopy \"$uri\" null:; sleep 0.2'",
    open: |params, below, context| {
        let (control, timers) = (context.control.clone(), context.timers.clone());
        let make = || Ok::<_, Error>(Counts { here: AtomicU64::new(0), control, timers });
        let counts = context.common(params, make)?;
        Ok(Filtered::device(ExitLast(counts), below))
    },
    ..FilterKind::PLAIN
};

struct Counts {
    /// Clients that are being served.
    here: AtomicU64,
    control: Control,
    timers: Timers,
}

impl Counts {
    fn leave(self: Arc<Self>) {
        if self.here.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let timers = self.timers.clone();
        timers.after(MOMENT, move || {
            if self.here.load(Ordering::Acquire) == 0 {
                self.control.stop();
            }
        });
    }
}

struct ExitLast(Arc<Counts>);

impl Filter for ExitLast {
    fn describe(&self, over: &mut Over) {
        over.passes = Passes::ALL;
    }

    fn for_client(&self, _: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        // Only now: one that the device below refuses was never here.
        let counts = self.0.clone();
        counts.here.fetch_add(1, Ordering::AcqRel);
        arrival.admission = Admission::until(move || counts.leave());
        None
    }
}

#[cfg(test)]
mod tests {
    use runtime::{Context, WorkPool};
    use std::sync::mpsc::channel;

    use device::Device;

    use super::*;
    use crate::kit::tested::{self, blank, put_in};
    use device::Edge;

    fn connect(disk: &Edge, number: u64) -> Arc<dyn Device> {
        tested::connect(disk, &tested::client(number)).unwrap().unwrap()
    }

    #[test]
    fn the_program_is_asked_to_stop_when_the_last_client_of_all_exports_has_gone_and_not_before() {
        let context = Context::new(WorkPool::new(1));
        let export = || put_in(&context, "exitlast", blank(512), &[]).unwrap();
        let (a, b) = (export(), export());
        let (tx, rx) = channel();
        context.control.when_stopped(move || tx.send(()).unwrap());
        let (one, two) = (connect(&a, 1), connect(&b, 2));
        drop(one);
        assert!(rx.recv_timeout(3 * MOMENT).is_err());
        // It switches exports.
        drop(two);
        let two = connect(&a, 2);
        assert!(rx.recv_timeout(3 * MOMENT).is_err());
        drop(two);
        rx.recv().unwrap();
    }
}
