//! Many operations in flight at a time, side by side in the same blocks: each ends once, and none
//! undoes its neighbour's work.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use device::{Buffer, Client, Done, Edge, Operation, Outcome, Peer, Presence, Result, ZeroFlags};
use proptest::prelude::*;
use trial::SIZE;

use crate::stacks::bottoms::{Format, Guard, KINDS, REACTOR, WAITS, waiting};
use crate::stacks::lasting::{Volatile, knows};
use crate::stacks::{SHAPES, filtered, over, pile};

/// What to do with this many of the next bytes: write this, or zero them (0).
type Step = (usize, u8);

/// An edge for a client of that number, as a server has it.
fn client(disk: &Edge, number: u64) -> Edge {
    let (tx, rx) = mpsc::channel();
    let this_client = Client {
        number,
        peer: Peer::Other,
        export: String::new(),
        tls: None,
        presence: Presence::default(),
    };
    disk.device().connect(&this_client, Box::new(move |answer| tx.send(answer).unwrap()));
    let own = rx.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
    own.map_or_else(|| disk.clone(), |device| disk.beside(device))
}

fn operation(at: usize, (len, byte): Step, fua: bool) -> Operation {
    let offset = at as u64;
    if byte == 0 {
        let flags = ZeroFlags { written: false, may_unmap: fua, fua, fast_only: false };
        return Operation::Zero { offset, len: len as u64, flags };
    }
    let data = Buffer::copy_of(&vec![byte; len]).into();
    Operation::Write { offset, data, fua }
}

/// What is to be started, by a thread that must not block.
type Start = Box<dyn FnOnce() + Send>;

/// A thread that must not block: it starts operations, as a server's reactor does.
fn reactor() -> mpsc::Sender<Start> {
    let (tx, rx) = mpsc::channel::<Start>();
    let work = move || rx.into_iter().for_each(|start| start());
    std::thread::Builder::new().name(REACTOR.into()).spawn(work).unwrap();
    tx
}

/// Checks a result before it goes on.
type Look = Box<dyn FnOnce(&Result<Outcome>) + Send>;

/// What ended, in any order: the number of the operation, and its result.
struct Ends {
    reactor: mpsc::Sender<Start>,
    tx: mpsc::Sender<(usize, Result<Outcome>)>,
    rx: mpsc::Receiver<(usize, Result<Outcome>)>,
    counts: Arc<Vec<AtomicUsize>>,
    started: usize,
}

impl Ends {
    fn new(most: usize) -> Self {
        let (tx, rx) = mpsc::channel();
        let counts = Arc::new((0..most).map(|_| AtomicUsize::new(0)).collect());
        Self { reactor: reactor(), tx, rx, counts, started: 0 }
    }

    /// Starts what `make` says there.
    fn submit(&mut self, edge: &Edge, make: impl FnOnce() -> (Operation, Look) + Send + 'static) {
        let (n, tx, counts) = (self.started, self.tx.clone(), self.counts.clone());
        let edge = edge.clone();
        self.started += 1;
        let start = move || {
            let (operation, look) = make();
            let done: Done = Box::new(move |result| {
                look(&result);
                counts[n].fetch_add(1, Ordering::SeqCst);
                let _ = tx.send((n, result));
            });
            edge.submit(operation, done);
        };
        self.reactor.send(Box::new(start)).unwrap();
    }

    /// Waits for all of them, each of which ends once and well.
    fn wait(&self) -> std::result::Result<(), TestCaseError> {
        for _ in 0..self.started {
            let (_, result) = self
                .rx
                .recv_timeout(Duration::from_secs(60))
                .map_err(|_| TestCaseError::fail("an operation never ended"))?;
            prop_assert!(result.is_ok(), "{:?}", result.err());
        }
        let counts = &self.counts[..self.started];
        prop_assert!(counts.iter().all(|n| n.load(Ordering::SeqCst) == 1));
        Ok(())
    }
}

/// A change: offset, bytes, and what each of them is then.
type Change = (usize, usize, u8);

/// Knows what was acknowledged, and what a power failure would lose.
struct Judge {
    bottom: Arc<Volatile>,
    answered: Mutex<Vec<Change>>,
    lost: Mutex<Vec<String>>,
}

impl Judge {
    fn changed(&self, change: Change, fua: bool, done: bool) {
        if done && fua {
            self.check(&[change], "written with FUA");
        }
        if done {
            self.answered.lock().unwrap().push(change);
        }
    }

    fn check(&self, changes: &[Change], how: &str) {
        let lasting = self.bottom.lasting();
        for (at, len, byte) in changes {
            if let Some(i) = (*at..at + len).find(|i| lasting[*i] != *byte) {
                let was = lasting[i];
                let what = format!("{at}+{len} of {byte}, {how}: byte {i} is {was}");
                self.lost.lock().unwrap().push(what);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn neighbours_in_flight_together_do_not_harm_each_other(
        steps in prop::collection::vec((1..3000usize, 0..4u8), 8..60),
        stack in prop::collection::vec(0..SHAPES.len(), 1..6),
        kind in 0..KINDS,
    ) {
        let _guard = Guard::new();
        let disk = pile(&stack, kind);
        disk.write(&vec![9; SIZE], 0, false).unwrap();
        disk.flush().unwrap();
        let clients = [client(&disk, 1), client(&disk, 2)];
        let mut ends = Ends::new(2 * steps.len());
        let (mut at, mut expected) = (0, vec![9; SIZE]);
        for (i, (len, byte)) in steps.iter().enumerate() {
            let len = (*len).min(SIZE - at);
            if len == 0 {
                break;
            }
            let change = operation(at, (len, *byte), i % 5 == 0);
            ends.submit(&clients[i % 2], || (change, Box::new(|_| ())));
            // Meanwhile, on the same range.
            let other = match i % 4 {
                0 => Operation::Flush,
                1 => Operation::Resolve { offset: at as u64, len: len as u64, max: 4 },
                2 => Operation::Prefetch { offset: at as u64, len: len as u64 },
                _ => Operation::Read { offset: at as u64, buffer: Buffer::zeroed(len) },
            };
            ends.submit(&clients[(i + 1) % 2], || (other, Box::new(|_| ())));
            expected[at..at + len].fill(*byte);
            at += len;
        }
        ends.wait()?;
        // The two may each have a cache of what the other wrote.
        for client in &clients {
            client.flush().unwrap();
        }
        for client in &clients {
            let mut bytes = vec![0; SIZE];
            client.read(&mut bytes, 0).unwrap();
            let differs = (0..SIZE).find(|i| bytes[*i] != expected[*i]);
            prop_assert!(differs.is_none(), "byte {:?}", differs);
        }
    }

    /// A format that blocks needs a thread while it waits for the filters below, and they need one
    /// for the disk, and there is one for all.
    #[test]
    fn a_format_that_blocks_does_not_wait_for_itself(
        above in prop::collection::vec(0..SHAPES.len(), 0..3),
        between in prop::collection::vec(0..SHAPES.len(), 0..3),
        below in prop::collection::vec(0..SHAPES.len(), 0..3),
        kind in 0..KINDS,
        bytes in prop::collection::vec(0..4u8, 64),
    ) {
        let _guard = Guard::new();
        let mut disk = Format::over(pile(&below, kind));
        disk = Format::over(filtered(&between, disk));
        disk = filtered(&above, disk);
        let disk = client(&disk, 1);
        let mut ends = Ends::new(bytes.len());
        let each = SIZE / bytes.len();
        for (i, byte) in bytes.iter().enumerate() {
            let change = operation(i * each, (each, *byte), i % 3 == 0);
            ends.submit(&disk, || (change, Box::new(|_| ())));
        }
        ends.wait()?;
        let mut read = vec![0; SIZE];
        disk.read(&mut read, 0).unwrap();
        prop_assert!(read.chunks(each).zip(&bytes).all(|(c, byte)| c.iter().all(|b| b == byte)));
    }

    /// Durable is what is on the disk *when it is answered*, whatever else is in flight; and a
    /// flush covers all that was acknowledged before it was asked for.
    #[test]
    fn what_is_acknowledged_while_much_is_in_flight_is_on_the_disk(
        steps in prop::collection::vec((1..3000usize, 0..4u8, 0..3u8), 8..60),
        stack in prop::collection::vec(0..SHAPES.len(), 0..6),
        kind in 0..4usize,
        wait in prop::sample::select(&WAITS),
    ) {
        let _guard = Guard::new();
        let stack: Vec<_> = stack.into_iter().filter(|shape| knows(*shape)).collect();
        let shapes: Vec<_> = stack.iter().map(|shape| SHAPES[*shape]).collect();
        let bottom = Arc::new(Volatile::new(kind));
        let disk = over(&shapes, |pool| waiting(bottom.device.clone(), wait, pool));
        disk.write(&vec![9; SIZE], 0, true).unwrap();
        let client = client(&disk, 1);
        let mut ends = Ends::new(2 * steps.len());
        let judge = Arc::new(Judge { bottom, answered: Mutex::default(), lost: Mutex::default() });
        let mut at = 0;
        for (len, byte, also) in steps {
            let len = len.min(SIZE - at);
            if len == 0 {
                break;
            }
            let (change, fua) = ((at, len, byte), also == 0);
            let one = judge.clone();
            ends.submit(&client, move || {
                let look: Look = Box::new(move |result| one.changed(change, fua, result.is_ok()));
                (operation(at, (len, byte), fua), look)
            });
            at += len;
            if also == 1 {
                let one = judge.clone();
                ends.submit(&client, move || {
                    let before = one.answered.lock().unwrap().clone();
                    let look = move |result: &Result<Outcome>| {
                        if result.is_ok() {
                            one.check(&before, "flushed");
                        }
                    };
                    (Operation::Flush, Box::new(look))
                });
            }
        }
        ends.wait()?;
        let lost = judge.lost.lock().unwrap();
        prop_assert!(lost.is_empty(), "{:?}", lost);
    }
}
