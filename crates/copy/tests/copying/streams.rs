//! Targets that are written as streams: they get every byte once, and hold back a writer that is
//! ahead of the first byte that they did not get.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use copy::{Cancel, CopyPlan, ListedRange, Options, Progress, RangeFate};
use device::model::Model;
use device::{Abilities, Device, Done, Error, Info, Operation, Order, Outcome};
use trial::{Fate, TestDevice};

use crate::support::*;

/// The stream: nothing ends before all that lies more than a window before it was told. No
/// [`TestDevice`]: what a stream may do is what is tested.
struct Stream {
    info: Info,
    window: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Where ranges begin and end that were told ahead of the first that was not.
    ahead: BTreeMap<u64, u64>,
    next: u64,
    held: Vec<(u64, Done)>,
    bytes: Vec<u8>,
    wrong: Vec<String>,
    under_way: usize,
    most: usize,
}

impl Stream {
    fn new(size: u64, block: u32, window: u64, order: Order) -> Arc<Self> {
        let info = Info {
            blocks: blocks(block, block.max(512), 1 << 20),
            abilities: Abilities { write: true, zero: true, ..Abilities::READ },
            order,
            ..Info::new("stream", size)
        };
        let bytes = vec![0xee; usize::try_from(size).unwrap()];
        let state = Mutex::new(State { bytes, ..State::default() });
        Arc::new(Self { info, window, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn told(&self, offset: u64, bytes: &[u8], done: Done) {
        let mut state = self.state();
        let end = offset + bytes.len() as u64;
        let before = state.ahead.range(..end).next_back().map_or(0, |(_, end)| *end);
        if offset < state.next.max(before) {
            state.wrong.push(format!("{offset} to {end} was told twice"));
        }
        state.under_way += 1;
        state.most = state.most.max(state.under_way);
        let range = usize::try_from(offset).unwrap()..usize::try_from(end).unwrap();
        state.bytes[range].copy_from_slice(bytes);
        state.ahead.insert(offset, end);
        let next = state.next;
        while let Some(end) = {
            let next = state.next;
            state.ahead.remove(&next)
        } {
            state.next = end;
        }
        state.held.push((offset, done));
        assert!(next <= state.next);
        let bound = state.next + self.window;
        let (free, held) = std::mem::take(&mut state.held).into_iter().partition(|h| h.0 <= bound);
        state.held = held;
        let free: Vec<_> = free;
        state.under_way -= free.len();
        drop(state);
        free.into_iter().for_each(|(_, done)| done(Ok(Outcome::Done)));
    }
}

impl Device for Stream {
    fn info(&self) -> &Info {
        &self.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        match operation {
            Operation::Write { offset, data, .. } => self.told(offset, &data, done),
            Operation::Zero { offset, len, .. } => {
                self.told(offset, &vec![0; usize::try_from(len).unwrap()], done);
            }
            other => done(Err(Error::unsupported(format!("{:?} of a stream", other.kind())))),
        }
    }
}

/// A source whose reads take differently long.
fn uneven(size: usize, seed: u64) -> Arc<TestDevice> {
    let model = Model::new(size);
    random_disk(&model, &mut Random(seed), 512);
    let turns = AtomicU64::new(seed);
    let device = TestDevice::over(model).waiting().hooked(move |operation| {
        if let Operation::Read { .. } = operation {
            let turn = turns.fetch_add(0x9e37_79b9, SeqCst);
            if turn.is_multiple_of(5) {
                std::thread::sleep(Duration::from_micros(turn % 1999));
            }
        }
        Fate::Pass(operation)
    });
    device.shared()
}

#[test]
fn a_stream_gets_every_byte_once_and_never_waits_for_a_write_that_waits_for_it() {
    let size = (9 << 20) + 5 * 512;
    for seed in 0..24u64 {
        let source = uneven(size, seed);
        let options = Options {
            requests: Some([1, 2, 3, 64][usize::try_from(seed % 4).unwrap()]),
            threads: Some([1, 2, 4][usize::try_from(seed % 3).unwrap()]),
            queue_size: Some(if seed % 5 == 0 { 1 } else { 16 << 20 }),
            target_is_zero: seed % 2 == 0,
            allocated: seed % 7 == 0,
            sparse: (seed % 6 > 0).then_some(4096),
            no_extents: seed % 8 == 1,
            ..Options::default()
        };
        let (order, window) = match seed % 3 {
            0 => (Order::OneByOne, 0),
            1 => (Order::Upwards, 0),
            _ => (Order::Upwards, 100_000),
        };
        let block = if seed % 2 == 0 { 65536 } else { 512 };
        let target = Stream::new(size as u64, block, window, order);
        let report = run(&edge(source.clone()), &outside(target.clone()), &options).unwrap();
        assert!(report.left.is_empty() && report.skipped == 0, "{report:?}");
        let state = target.state();
        assert!(state.wrong.is_empty(), "{seed}: {:?}", state.wrong);
        assert!(state.next == size as u64 && state.bytes == source.model().bytes(), "{seed}");
        assert!(order == Order::Upwards || state.most == 1, "{seed}: {} at a time", state.most);
    }
}

#[test]
fn nothing_in_a_stream_is_left_alone() {
    let source = uneven(1 << 20, 1);
    let target = Stream::new(1 << 20, 512, 0, Order::Upwards);
    let plan = CopyPlan::List(vec![ListedRange { range: 0..4096, kind: RangeFate::Data }]);
    let (options, progress) = (Options::default(), Progress::default());
    let failed =
        copy::run(&edge(source), &outside(target), &plan, &options, &progress, &Cancel::default());
    assert!(failed.unwrap_err().error.to_string().contains("stream"));
}
