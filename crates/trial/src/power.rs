//! A disk that loses its power: it forgets what was not flushed, in any order, sector by sector.

use std::sync::Arc;

use device::{
    Buffer, Device, Done, Edge, Error, ErrorKind, Extent, ExtentKind, Fault, Info, Now, Operation,
    Outcome, Result,
};
use runtime::{Mutex, WorkPool};

use crate::shared_bytes::SharedBytes;

/// What is written as a whole or not at all, in bytes.
const SECTOR: usize = 512;
/// Versions of the disk since it was flushed that may be mixed when the power is cut.
const VERSIONS: usize = 64;

/// The disk. It does everything at once, and knows what it held after each change. A clone is the
/// same disk.
#[derive(Clone)]
pub struct PowerCut(Arc<Inner>);

struct Inner {
    info: Info,
    grows: bool,
    /// What was there at first: the same bytes, until they are changed.
    first: SharedBytes,
    state: Mutex<State>,
}

struct State {
    bytes: SharedBytes,
    steps: Vec<Step>,
    /// What was there after so many steps: who cuts at one after the other goes on from there.
    durable: Option<(usize, SharedBytes)>,
    /// Changes and flushes that still succeed before the first that fails, and how many fail.
    fails: Option<(usize, usize, ErrorKind)>,
}

enum Step {
    Write(usize, Vec<u8>),
    /// Zeroes, which make nothing longer.
    Clear(usize, usize),
    Flush,
}

/// A number that is different each time, and the same each time that a test runs.
#[derive(Debug)]
pub struct TestDice(pub u64);

impl TestDice {
    /// A number below `end` (≥ 1).
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(runtime::SPREAD_STEP);
        runtime::spread_bits(self.0) % end
    }
}

runtime::debug_as!(PowerCut);

impl PowerCut {
    /// A disk that holds these bytes, and grows like a file or not.
    #[must_use]
    pub fn new(bytes: Vec<u8>, grows: bool) -> Self {
        Self::of(SharedBytes::of(&bytes), grows)
    }

    /// One that holds what is there now, and has nothing to forget.
    #[must_use]
    pub fn again(&self, grows: bool) -> Self {
        let bytes = self.0.state.lock().bytes.clone();
        Self::of(bytes, grows)
    }

    /// The same, which grows as this one does.
    #[must_use]
    pub fn settled(&self) -> Self {
        self.again(self.0.grows)
    }

    fn of(first: SharedBytes, grows: bool) -> Self {
        let mut info = Info::new("power-cut", first.len() as u64);
        info.abilities.write = true;
        info.abilities.flush = true;
        info.abilities.trim = true;
        info.abilities.zero = true;
        let state = State { bytes: first.clone(), steps: Vec::new(), durable: None, fails: None };
        Self(Arc::new(Inner { info, grows, first, state: Mutex::new(state) }))
    }

    /// With an edge in front.
    #[must_use]
    pub fn edge(&self) -> Edge {
        Edge::new(Arc::new(self.clone()), WorkPool::new(1))
    }

    /// The bytes that are there now, whether they are durable or not.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.0.state.lock().bytes.to_vec()
    }

    /// How many changes and flushes there were.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.0.state.lock().steps.len()
    }

    /// After so many more changes and flushes that succeed, `count` of them fail.
    pub fn fail(&self, after: usize, count: usize, kind: ErrorKind) {
        self.0.state.lock().fails = Some((after, count, kind));
    }

    /// What is there when the power is cut after so many steps: all that was flushed, and of what
    /// was written since, any sectors.
    #[must_use]
    pub fn cut(&self, steps: usize, dice: &mut TestDice) -> Vec<u8> {
        self.left(steps, dice).to_vec()
    }

    /// The same as a disk that grows like a file.
    #[must_use]
    pub fn after_cut(&self, steps: usize, dice: &mut TestDice) -> Self {
        Self::of(self.left(steps, dice), true)
    }

    fn left(&self, steps: usize, dice: &mut TestDice) -> SharedBytes {
        let state = &mut *self.0.state.lock();
        let done = &state.steps[..steps];
        let flushed = done.iter().rposition(|step| matches!(step, Step::Flush)).unwrap_or(0);
        let (known, mut durable) = state
            .durable
            .take()
            .filter(|(known, _)| *known <= flushed)
            .unwrap_or_else(|| (0, self.0.first.clone()));
        done[known..flushed].iter().for_each(|step| step.apply(&mut durable));
        let mut written = durable.clone();
        let mut bytes = durable.clone();
        let odds = [0, 1, 50, 99, 100][usize::try_from(dice.below(5)).unwrap()];
        // Of each sector any version, not only the last: how long the disk is in each.
        let since = &done[flushed..];
        let mut lens = vec![bytes.len()];
        for step in since {
            let len = lens[lens.len() - 1].max(step.least_len());
            if lens.len() == VERSIONS {
                lens[VERSIONS - 1] = len;
            } else {
                lens.push(len);
            }
        }
        let last = lens.len() - 1;
        let len = lens[last];
        let longest = if dice.below(100) < odds { len } else { lens[0] };
        bytes.grow(longest);
        let mut chosen = vec![Vec::new(); lens.len()];
        for start in (0..len).step_by(SECTOR) {
            if dice.below(100) < odds {
                let which = usize::try_from(dice.below(lens.len() as u64 + 2)).unwrap();
                chosen[which.min(last)].push(start);
            }
        }
        for n in 0..=since.len() {
            if let Some(step) = n.checked_sub(1) {
                since[step].apply(&mut written);
            }
            if n >= last && n < since.len() {
                continue;
            }
            for start in &chosen[n.min(last)] {
                let end = (start + SECTOR).min(written.len());
                if *start < end {
                    bytes.take(&written, *start, end - start);
                }
            }
        }
        state.durable = Some((flushed, durable));
        bytes
    }

    fn change(&self, step: Step) -> Result<Outcome> {
        let state = &mut *self.0.state.lock();
        if let Some((after, count, kind)) = &mut state.fails {
            if *after > 0 {
                *after -= 1;
            } else if *count > 0 {
                *count -= 1;
                return Err(Error::new(*kind, Fault::File, "fail as this test wants it"));
            }
        }
        step.apply(&mut state.bytes);
        state.steps.push(step);
        Ok(Outcome::Done)
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let state = self.0.state.lock();
        let start = usize::try_from(offset).unwrap();
        if buffer.len() > state.bytes.len().saturating_sub(start) {
            let action = "read beyond the end";
            return Err(Error::new(ErrorKind::Io, Fault::Us, action).at(offset));
        }
        state.bytes.read(start, buffer);
        Ok(())
    }
}

impl Step {
    /// How long a disk is at least after it.
    fn least_len(&self) -> usize {
        match self {
            Self::Write(start, data) => start + data.len(),
            Self::Clear(..) | Self::Flush => 0,
        }
    }

    fn apply(&self, bytes: &mut SharedBytes) {
        match self {
            Self::Write(start, data) => bytes.write(*start, data),
            Self::Clear(start, len) => bytes.clear(*start, *len),
            Self::Flush => {}
        }
    }
}

impl Device for PowerCut {
    fn info(&self) -> &Info {
        &self.0.info
    }

    fn grows(&self) -> bool {
        self.0.grows
    }

    fn submit(&self, operation: Operation, done: Done) {
        let narrow = |n: u64| usize::try_from(n).unwrap();
        let end = operation.range().map_or(0, |(offset, len)| offset + len);
        assert!(self.0.grows || end <= self.0.info.size, "{operation:?}");
        done(match operation {
            Operation::Flush => self.change(Step::Flush),
            Operation::Read { offset, mut buffer } => {
                self.read(offset, &mut buffer).map(|()| Outcome::Read(buffer))
            }
            Operation::Write { offset, data, .. } => {
                self.change(Step::Write(narrow(offset), data.to_vec()))
            }
            Operation::Trim { offset, len, .. } | Operation::Zero { offset, len, .. } => {
                self.change(Step::Clear(narrow(offset), narrow(len)))
            }
            Operation::Resolve { offset, len, .. } => {
                Ok(Outcome::Extents(vec![Extent::new(offset, len, ExtentKind::Data)]))
            }
            Operation::Prefetch { .. } => Ok(Outcome::Done),
            Operation::Take { .. } => Ok(Outcome::Taken(0)),
            Operation::Status { .. } => Err(Error::unsupported("status")),
        });
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        match now {
            Now::Read { offset, buffer } => self.read(offset, buffer).map(|()| true),
            Now::Write { offset, data, .. } => {
                let data = Buffer::copy_of(data).to_vec();
                self.change(Step::Write(usize::try_from(offset).unwrap(), data)).map(|_| true)
            }
            Now::Resolve { .. } => Ok(false),
        }
    }
}
