//! `exitlast`: stops the server when the last client has left.
//!
//! It does not stop before the first client has connected. Bytes pass as if the filter were not
//! there.

use runtime::{Control, Timers};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use device::{Admission, Client, Done, Edge, Error, Filter, Filtered, Info, Operation, Passes};

use crate::FilterKind;

/// A client that switches exports is gone for a moment.
const MOMENT: Duration = Duration::from_millis(100);

pub(crate) const KIND: FilterKind = FilterKind {
    word: "exitlast",
    summary: "the server stops when the last client has gone",
    reads_only: false,
    keeps_disk: false,
    params: &[],
    reaches: device::Reach::nothing,
    example: "serve --filter=exitlast memory 1M --run 'nbdcopy \"$uri\" null:; sleep 0.2'",
    open: |params, below, context| {
        let (control, timers) = (context.control.clone(), context.timers.clone());
        let make = || Ok::<_, Error>(Counts { here: AtomicU64::new(0), control, timers });
        let counts = context.common(params, make)?;
        Ok(Filtered::device(ExitLast { info: Info::over(&below), below, counts, _admitted: None }))
    },
};

struct Counts {
    /// Clients that are being served.
    here: AtomicU64,
    control: Control,
    timers: Timers,
}

/// A client, until it has left.
struct AdmittedClient(Arc<Counts>);

impl AdmittedClient {
    fn new(counts: &Arc<Counts>) -> Self {
        counts.here.fetch_add(1, Ordering::AcqRel);
        Self(counts.clone())
    }
}

impl Drop for AdmittedClient {
    fn drop(&mut self) {
        if self.0.here.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let counts = self.0.clone();
        self.0.timers.after(MOMENT, move || {
            if counts.here.load(Ordering::Acquire) == 0 {
                counts.control.stop();
            }
        });
    }
}

struct ExitLast {
    info: Info,
    below: Edge,
    counts: Arc<Counts>,
    _admitted: Option<AdmittedClient>,
}

impl Filter for ExitLast {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> &Edge {
        &self.below
    }

    fn run(&self, operation: Operation, done: Done) {
        match operation {
            all @ (Operation::Flush
            | Operation::Prefetch { .. }
            | Operation::Read { .. }
            | Operation::Resolve { .. }
            | Operation::Status { .. }
            | Operation::Take { .. }
            | Operation::Trim { .. }
            | Operation::Write { .. }
            | Operation::Zero { .. }) => self.below.submit(all, done),
        }
    }

    fn for_client(&self, below: Edge, _client: &Client, _admission: Admission) -> Self {
        let admitted = Some(AdmittedClient::new(&self.counts));
        Self { info: Info::over(&below), below, counts: self.counts.clone(), _admitted: admitted }
    }

    fn is_personal(&self) -> bool {
        true
    }

    fn passes(&self) -> Passes {
        Passes::ALL
    }
}

#[cfg(test)]
mod tests {
    use runtime::{Context, WorkPool};
    use std::sync::mpsc::channel;

    use device::model::Model;
    use device::{Device, Peer, Presence};

    use super::*;
    use crate::kit::tested::put_in;

    fn connect(disk: &Edge, number: u64) -> Arc<dyn Device> {
        let (tx, rx) = channel();
        let client = Client {
            number,
            peer: Peer::Other,
            export: String::new(),
            tls: None,
            presence: Presence::default(),
        };
        disk.device().connect(&client, Box::new(move |own| tx.send(own).unwrap()));
        rx.recv().unwrap().unwrap().unwrap()
    }

    #[test]
    fn clients_of_all_exports_count() {
        let context = Context::new(WorkPool::new(1));
        let export = || {
            put_in(&context, "exitlast", crate::kit::tested::simple(Arc::new(Model::new(512))), &[])
                .unwrap()
        };
        let (a, b) = (export(), export());
        let (tx, rx) = channel();
        context.control.when_stopped(move || tx.send(()).unwrap());
        let (one, two) = (connect(&a, 1), connect(&b, 2));
        drop(one);
        assert!(rx.recv_timeout(3 * MOMENT).is_err());
        drop(two);
        rx.recv().unwrap();
    }

    #[test]
    fn the_program_is_asked_to_stop_when_the_last_client_has_gone_and_not_before() {
        let context = Context::new(WorkPool::new(1));
        let disk = put_in(
            &context,
            "exitlast",
            crate::kit::tested::simple(Arc::new(Model::new(512))),
            &[],
        )
        .unwrap();
        let (tx, rx) = channel();
        context.control.when_stopped(move || tx.send(()).unwrap());
        let (one, two) = (connect(&disk, 1), connect(&disk, 2));
        drop(one);
        assert!(rx.recv_timeout(3 * MOMENT).is_err());
        // It switches exports.
        drop(two);
        let two = connect(&disk, 2);
        assert!(rx.recv_timeout(3 * MOMENT).is_err());
        drop(two);
        rx.recv().unwrap();
    }
}
