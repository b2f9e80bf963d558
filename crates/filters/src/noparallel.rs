//! `noparallel`: one request at a time, or one client at a time.
//!
//! Requests wait in a queue, and the thread that finishes one runs the next; no thread waits.
//! Replies come in the order of the requests.

use runtime::{Gate, spawn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use device::{
    Admission, Admitted, Arrival, Client, Done, Filter, Filtered, Operation, Over, Params, Result,
    param, values,
};

use crate::FilterKind;
use crate::kit::outlet::left;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "noparallel",
    summary: "serializes requests, or clients",
    keeps_disk: false,
    params: &[param(
        "serialize",
        "requests|all-requests|connections",
        "one request for each client, one for all, or one client (default requests)",
    )],
    example: "serve --filter=noparallel memory 1M serialize=connections \
              --run 'nbdinfo --can multi-conn \"$uri\" || echo one at a time'",
    open: |params, below, _| Ok(Filtered::device(NoParallel::new(Shared::new(params)?), below)),
    ..FilterKind::PLAIN
};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mode {
    Requests,
    AllRequests,
    Connections,
}

/// What the filters of all clients share.
struct Shared {
    mode: Mode,
    /// The gate for the requests of all clients.
    requests: Arc<Gate>,
    /// The gate for clients.
    door: Arc<Gate>,
}

impl Shared {
    fn new(params: &Params) -> Result<Arc<Self>> {
        let words = "requests|all-requests|all_requests|connections";
        let modes = [Mode::Requests, Mode::AllRequests, Mode::AllRequests, Mode::Connections];
        let mode = values::meaning(params, "serialize", words, modes)?.unwrap_or(Mode::Requests);
        let (requests, door) = Default::default();
        Ok(Arc::new(Self { mode, requests, door }))
    }
}

struct NoParallel {
    shared: Arc<Shared>,
    requests: Arc<Gate>,
    /// Whether its client has left.
    left: Arc<AtomicBool>,
}

impl NoParallel {
    fn new(shared: Arc<Shared>) -> Self {
        let requests = match shared.mode {
            Mode::AllRequests => shared.requests.clone(),
            Mode::Requests | Mode::Connections => Arc::default(),
        };
        Self { shared, requests, left: Arc::default() }
    }
}

impl Filter for NoParallel {
    fn describe(&self, over: &mut Over) {
        over.info.abilities.multi_conn &= self.shared.mode != Mode::Connections;
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        // Whatever it is. The client's pass through the gate goes with it.
        let (below, admission) = (over.below.clone(), over.admission.clone());
        let gone = self.left.clone();
        // Later requests are not the client's: a filter above writes data back.
        let was_here = !gone.load(Ordering::Acquire);
        let requests = self.requests.clone();
        spawn(async move {
            let pass = requests.alone().await;
            if was_here && gone.load(Ordering::Acquire) {
                return done(Err(left()));
            }
            let then: Done = Box::new(move |result| {
                // First the reply, then the next request.
                done(result);
                drop((pass, admission));
            });
            below.submit(operation, then);
        });
    }

    fn for_client(&self, _: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        // Of its own, so that its requests can be dropped when it leaves.
        let own = Self::new(self.shared.clone());
        let left = own.left.clone();
        arrival.client.presence.on_leaving(move || left.store(true, Ordering::Release));
        Some(Arc::new(own))
    }

    fn admit(&self, _client: &Client, then: Admitted) {
        if self.shared.mode != Mode::Connections {
            return then(Ok(Admission::free()));
        }
        let shared = self.shared.clone();
        spawn(async move { then(Ok(Admission::of(shared.door.alone().await))) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use device::model::Model;
    use device::{Device, Error};
    use runtime::Mutex;
    use trial::{Fate, TestDevice};

    use super::*;
    use crate::kit::tested::{blank, client, connect, personal, put, start, write};
    use device::Edge;

    /// Holds its operations until they are released.
    fn busy(refuses: bool) -> Arc<TestDevice> {
        let refused = move || if refuses { Err(Error::invalid("not today")) } else { Ok(None) };
        let device = TestDevice::over(Model::new(1 << 16));
        device.connecting(move |_, done| done(refused())).hooked(Fate::Hold).shared()
    }

    fn flush(device: &Arc<dyn Device>, order: &Arc<Mutex<Vec<u32>>>, number: u32) {
        let order = order.clone();
        device.submit(Operation::Flush, Box::new(move |_| order.lock().push(number)));
    }

    /// How many of five requests of each of two clients are inside at the same time.
    fn most(mode: &str) -> usize {
        let below = busy(false);
        let disk = put("noparallel", below.clone(), &[mode]).unwrap();
        let ask = |number| connect(&disk, &client(number)).unwrap();
        let clients: Vec<_> =
            (1..3).map(|n| ask(n).unwrap_or_else(|| disk.device().clone())).collect();
        let order = Arc::new(Mutex::new(Vec::new()));
        for i in 0..5 {
            flush(&clients[0], &order, i);
            flush(&clients[1], &order, i + 10);
        }
        let mut most = 0;
        for _ in 0..10 {
            below.wait_for_held(1);
            most = most.max(below.held().len());
            below.release_one(0);
        }
        let order = order.lock();
        assert_eq!(order.len(), 10);
        let first: Vec<_> = order.iter().filter(|n| **n < 10).copied().collect();
        assert_eq!(first, [0, 1, 2, 3, 4], "answers are in the order of the requests");
        most
    }

    #[test]
    fn requests_wait_for_those_of_the_same_client_or_of_all() {
        assert_eq!(most("serialize=requests"), 2);
        assert_eq!(most("serialize=all-requests"), 1);
    }

    #[test]
    fn requests_of_a_client_that_has_left_are_passed_over_when_it_is_their_turn() {
        for mode in ["serialize=requests", "serialize=all-requests"] {
            let below = busy(false);
            let disk = put("noparallel", below.clone(), &[mode]).unwrap();
            let (one, other) = (client(1), client(2));
            let own = |client| personal(&disk, client);
            let (a, b) = (own(&one), own(&other));
            let begun = start(&a, Operation::Flush);
            let waits = start(&a, Operation::Flush);
            let others = start(&b, Operation::Flush);
            one.presence.leave();
            below.release();
            below.release();
            assert!(begun.try_recv().unwrap().is_ok() && others.try_recv().unwrap().is_ok());
            assert!(waits.try_recv().unwrap().is_err(), "{mode}");
        }
    }

    #[test]
    fn a_long_queue_does_not_overflow_the_stack() {
        let disk = put("noparallel", blank(4096), &[]).unwrap();
        let writes: Vec<_> = (0..50_000).map(|_| start(&disk, write(0, 4, 1))).collect();
        assert!(writes.into_iter().all(|one| one.recv().unwrap().is_ok()));
    }

    fn ask(disk: &Edge, number: u64) -> mpsc::Receiver<Result<Option<Arc<dyn Device>>>> {
        let (tx, rx) = mpsc::channel();
        disk.device().connect(&client(number), Box::new(move |a| drop(tx.send(a))));
        rx
    }

    #[test]
    fn a_second_client_is_let_in_when_the_first_and_its_requests_have_gone() {
        let below = busy(false);
        let disk = put("noparallel", below.clone(), &["serialize=connections"]).unwrap();
        assert!(!disk.info().abilities.multi_conn);
        let first = ask(&disk, 1).try_recv().unwrap().unwrap().unwrap();
        let (second, third) = (ask(&disk, 2), ask(&disk, 3));
        assert!(second.try_recv().is_err() && third.try_recv().is_err());
        flush(&first, &Arc::default(), 0);
        drop(first);
        assert!(second.try_recv().is_err(), "a request of the first is in flight");
        below.release_one(0);
        let second = second.try_recv().unwrap().unwrap();
        assert!(second.is_some() && third.try_recv().is_err());
        drop(second);
        assert!(third.try_recv().unwrap().is_ok());
    }

    #[test]
    fn a_client_that_is_refused_below_or_does_not_wait_leaves_its_place_to_the_next() {
        let disk = put("noparallel", busy(true), &["serialize=connections"]).unwrap();
        assert!(ask(&disk, 1).try_recv().unwrap().is_err());
        assert!(ask(&disk, 2).try_recv().unwrap().is_err());

        let disk = put("noparallel", busy(false), &["serialize=connections"]).unwrap();
        let first = ask(&disk, 1).try_recv().unwrap();
        drop(ask(&disk, 2));
        let third = ask(&disk, 3);
        drop(first);
        assert!(third.try_recv().unwrap().is_ok());
    }
}
