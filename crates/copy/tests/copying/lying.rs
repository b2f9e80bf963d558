//! Lanes and maps with invalid answers, or none: the copy fails and names the defective end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use copy::{Cancel, Options, Progress};
use device::model::Model;
use device::{
    Blocking as _, Buffer, Completed, Edge, ErrorKind, ExtentKind, Interest, Lane, LaneStep,
    Operation, Outcome, Result,
};
use trial::{Fate, TestDevice};

use crate::support::*;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Lie {
    /// Answers everything twice.
    Twice,
    /// Answers a ticket that was not given.
    WrongTicket,
    /// A read comes back shorter than asked.
    ShortRead,
    /// A read ends without its bytes.
    NoBytes,
    /// A map that does not begin where it was asked.
    MapElsewhere,
    /// A map without an extent.
    EmptyMap,
    /// A map that goes beyond what was asked.
    MapBeyond,
    /// Never answers, and waits for nothing.
    Dead,
    /// Never answers.
    Silent,
}

fn liar(model: Arc<Model>, lie: Lie) -> Edge {
    let device = TestDevice::over(model).hooked(move |operation| match (lie, operation) {
        (Lie::MapElsewhere, Operation::Resolve { offset, len, .. }) => {
            told(offset + 1, len - 1, ExtentKind::Hole)
        }
        (Lie::EmptyMap, Operation::Resolve { .. }) => {
            Fate::Answer(Ok(Outcome::Extents(Vec::new())))
        }
        (Lie::MapBeyond, Operation::Resolve { offset, len, .. }) => {
            told(offset, len + 1, ExtentKind::Hole)
        }
        (_, other) => Fate::Pass(other),
    });
    let device = device.lanes(move |device| {
        let never = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let device = device.clone();
        Ok(Box::new(LyingLane { device, lie, ended: Vec::new(), waiting: 0, never }))
    });
    edge(device.shared())
}

struct LyingLane {
    device: TestDevice,
    lie: Lie,
    ended: Vec<Completed>,
    waiting: usize,
    never: OwnedFd,
}

impl LyingLane {
    fn answer(&self, operation: Operation) -> Result<Outcome> {
        match (self.lie, operation) {
            (Lie::ShortRead, Operation::Read { buffer, .. }) => {
                Ok(Outcome::Read(Buffer::zeroed(buffer.len() - 1)))
            }
            (Lie::NoBytes, Operation::Read { .. }) => Ok(Outcome::Done),
            (_, other) => device::run_blocking(&self.device, other),
        }
    }
}

impl Lane for LyingLane {
    fn start(&mut self, ticket: u64, operation: Operation) {
        if matches!(self.lie, Lie::Dead | Lie::Silent) {
            self.waiting += 1;
            return;
        }
        let outcome = self.answer(operation);
        let ticket = if self.lie == Lie::WrongTicket { ticket ^ 1 << 40 } else { ticket };
        self.ended.push(Completed { ticket, outcome });
        if self.lie == Lie::Twice {
            self.ended.push(Completed { ticket, outcome: Ok(Outcome::Done) });
        }
    }

    fn turn(&mut self, out: &mut Vec<Completed>) -> LaneStep {
        out.append(&mut self.ended);
        if out.is_empty() { LaneStep::Idle } else { LaneStep::Progress }
    }

    fn waits_on(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        let waits = self.waiting > 0 && self.lie == Lie::Silent;
        waits.then(|| (self.never.as_fd(), Interest { read: true, write: false }))
    }

    fn in_flight(&self) -> usize {
        self.waiting + self.ended.len()
    }
}

fn models() -> (Arc<Model>, Arc<Model>) {
    let source = Arc::new(Model::new(1 << 20));
    source.write_at(&[7; 300_000], 0, false).unwrap();
    let target = Arc::new(Model::new(1 << 20));
    fill(&target, 0xee);
    (source, target)
}

#[test]
fn a_source_with_invalid_answers_ends_the_copy() {
    for lie in [Lie::Twice, Lie::WrongTicket, Lie::ShortRead, Lie::NoBytes, Lie::Dead] {
        let (source, target) = models();
        let source = liar(source, lie);
        let failure = run(&source, &edge(target), &Options::default()).unwrap_err();
        let whose = failure.error.fault();
        assert_eq!(whose, device::Fault::Us, "{lie:?}: {failure}");
        assert!(!failure.report.left.is_empty(), "{lie:?}");
    }
}

#[test]
fn a_target_with_invalid_answers_ends_the_copy() {
    for lie in
        [Lie::Twice, Lie::WrongTicket, Lie::MapElsewhere, Lie::EmptyMap, Lie::MapBeyond, Lie::Dead]
    {
        let (source, target) = models();
        let target = liar(target, lie);
        let failure = run(&edge(source), &target, &Options::default()).unwrap_err();
        assert!(!failure.report.left.is_empty(), "{lie:?}");
    }
}

#[test]
fn a_copy_can_leave_a_peer_that_never_answers() {
    for silent_target in [false, true] {
        let (source, target) = models();
        let silent = |model| liar(model, Lie::Silent);
        let (source, target) = if silent_target {
            (edge(source), silent(target))
        } else {
            (silent(source), edge(target))
        };
        let cancel = Cancel::default();
        let later = cancel.clone();
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            later.cancel();
        });
        let progress = Progress::default();
        let failure =
            run_until(&source, &target, &Options::default(), &progress, &cancel).unwrap_err();
        assert_eq!(failure.error.kind(), ErrorKind::Cancelled);
        assert!(!failure.report.left.is_empty());
    }
}
