//! A disk of which some bytes cannot be read, for users who want the rest: zeroes replace them, and
//! each gap is reported. Only where it was asked for explicitly.

use std::ops::Range;
use std::sync::Arc;

use device::below::ask;
use device::{
    Buffer, Device, Done, Edge, Error, ErrorKind, Extent, ExtentKind, Info, Operation, Outcome,
    PathsBelow, Result, Session, below,
};
use runtime::{Context, Mutex, RangeSet, to_usize};

/// The smallest piece that is given up: a sector.
const SECTOR: u64 = 512;
/// Gaps that do not touch each other and are remembered, so that each is reported once.
const MANY: usize = 1 << 20;

/// Called once for each block that cannot be read, with the disk's error; an empty range is where
/// only the map could not be read. With an error the read fails instead.
pub type OnGap = dyn Fn(Range<u64>, &Error) -> Result<()> + Send + Sync;

/// A disk that reads as zeroes where `disk` cannot be read.
#[must_use]
pub fn salvage(disk: &Edge, tell: Arc<OnGap>, context: &Context) -> Edge {
    // A read from a place would bypass this.
    let info = Info { flat: None, contexts: Vec::new(), ..Info::over(disk) };
    let gaps = Arc::new(Gaps { tell, told: Mutex::default() });
    let paths = PathsBelow::of([disk], false);
    let device = Salvage { info, below: disk.clone(), paths, gaps };
    Edge::new(Arc::new(device), context.pool.clone())
}

struct Salvage {
    info: Info,
    below: Edge,
    paths: Option<PathsBelow>,
    gaps: Arc<Gaps>,
}

struct Gaps {
    tell: Arc<OnGap>,
    told: Mutex<RangeSet>,
}

impl Gaps {
    fn tell(&self, gap: Range<u64>, error: &Error) -> Result<()> {
        let mut told = self.told.lock();
        if told.covering(gap.start).is_some() || told.count() >= MANY {
            return Ok(());
        }
        // What was refused is told again.
        (self.tell)(gap.clone(), error)?;
        told.add(gap);
        Ok(())
    }
}

/// Reads what can be read: all at once, else in halves.
async fn read(below: &Edge, gaps: &Gaps, offset: u64, mut whole: Buffer) -> Result<Outcome> {
    let size = u64::from(below.info().blocks.minimum).max(SECTOR);
    let mut left = vec![(0, whole.len())];
    while let Some((start, len)) = left.pop() {
        let at = offset + start as u64;
        let asked = Operation::Read { offset: at, buffer: Buffer::zeroed(len) };
        let end = at + len as u64;
        match ask(below, asked).await {
            Ok(Outcome::Read(read)) if read.len() == len => {
                if let Some(place) = whole.get_mut(start..start + len) {
                    place.copy_from_slice(&read);
                }
            }
            Ok(_) => return Err(Error::unanswered()),
            Err(e) if is_of_the_way(&e) => return Err(e),
            // The buffer is zero there from the beginning.
            Err(e) if at / size == (end - 1) / size => gaps.tell(at..end, &e)?,
            Err(_) => {
                let middle = at.midpoint(end).next_multiple_of(size);
                let middle = if middle < end { middle } else { end - (end - 1) % size - 1 };
                let first = to_usize(middle - at).clamp(1, len - 1);
                left.extend([(start + first, len - first), (start, first)]);
            }
        }
    }
    Ok(Outcome::Read(whole))
}

/// Whether the disk was lost, or is another one now: that says nothing about its bytes, and no gap
/// is made of it.
fn is_of_the_way(e: &Error) -> bool {
    use ErrorKind::{Cancelled, Changed, Disconnected, Shutdown, TimedOut};
    matches!(e.kind(), Cancelled | Changed | Disconnected | Shutdown | TimedOut)
}

/// The map; where it cannot be read, all may be data.
async fn resolve(
    below: &Edge,
    gaps: &Gaps,
    (offset, len): (u64, u64),
    max: usize,
) -> Result<Outcome> {
    Ok(match ask(below, Operation::Resolve { offset, len, max }).await {
        Ok(Outcome::Extents(mut extents)) => {
            extents.iter_mut().for_each(|extent| extent.place = None);
            Outcome::Extents(extents)
        }
        Err(e) if is_of_the_way(&e) => return Err(e),
        outcome => {
            if let Err(e) = outcome {
                gaps.tell(offset..offset, &e)?;
            }
            Outcome::Extents(vec![Extent::new(offset, len, ExtentKind::Data)])
        }
    })
}

impl Device for Salvage {
    fn info(&self) -> &Info {
        &self.info
    }

    fn session(&self) -> Option<&dyn Session> {
        self.paths.as_ref().map(|paths| paths as &dyn Session)
    }

    fn submit(&self, operation: Operation, done: Done) {
        let (below, gaps) = (self.below.clone(), self.gaps.clone());
        match operation {
            Operation::Read { offset, buffer } => {
                let buffer = Buffer::zeroed(buffer.len());
                below::complete(done, async move { read(&below, &gaps, offset, buffer).await });
            }
            Operation::Resolve { offset, len, max } => {
                below::complete(
                    done,
                    async move { resolve(&below, &gaps, (offset, len), max).await },
                );
            }
            Operation::Prefetch { .. } | Operation::Flush => done(Ok(Outcome::Done)),
            other @ (Operation::Status { .. }
            | Operation::Take { .. }
            | Operation::Trim { .. }
            | Operation::Write { .. }
            | Operation::Zero { .. }) => self.below.submit(other, done),
        }
    }
}

#[cfg(test)]
mod tests {
    use device::Simple;
    use trial::{Fate, TestDevice};

    use super::*;

    /// A disk of sevens, some of whose bytes cannot be read.
    fn broken(bad: Vec<std::ops::Range<u64>>) -> TestDevice {
        TestDevice::blank(Info::new("broken", 100_000)).hooked(move |operation| {
            let Operation::Read { offset, mut buffer } = operation else {
                return Fate::Pass(operation);
            };
            let end = offset + buffer.len() as u64;
            if bad.iter().any(|bad| bad.start < end && offset < bad.end) {
                return Fate::fail(ErrorKind::Io);
            }
            buffer.fill(7);
            Fate::done(Operation::Read { offset, buffer })
        })
    }

    #[test]
    fn only_the_sectors_that_cannot_be_read_are_zeroes_and_each_is_told_once() {
        let context = Context::default();
        let note = |to: Arc<Mutex<Vec<u64>>>| {
            move |gap: Range<u64>, _: &Error| {
                to.lock().push(gap.start);
                Ok(())
            }
        };
        let bad = vec![0..1, 5000..5001, 99_000..100_000];
        let below = Simple::edge(broken(bad.clone()), &context.pool);
        let told = Arc::new(Mutex::new(Vec::new()));
        let to = told.clone();
        let disk = salvage(&below, Arc::new(note(to)), &context);
        for _ in 0..2 {
            let mut bytes = vec![1; 100_000];
            disk.read(&mut bytes, 0).unwrap();
            for (i, byte) in bytes.iter().enumerate() {
                let sector = i as u64 / SECTOR;
                let is_bad = bad
                    .iter()
                    .any(|b| b.start / SECTOR <= sector && sector <= (b.end - 1) / SECTOR);
                assert_eq!(*byte, if is_bad { 0 } else { 7 }, "{i}");
            }
        }
        let mut told = told.lock().clone();
        told.sort_unstable();
        assert_eq!(told, [0, 4608, 98_816, 99_328, 99_840]);
    }

    #[test]
    fn a_disk_that_was_lost_is_an_error_and_no_gap() {
        let context = Context::default();
        let lost = TestDevice::blank(Info::new("lost", 100_000))
            .hooked(|_| Fate::fail(ErrorKind::Disconnected));
        let below = Simple::edge(lost, &context.pool);
        let disk = salvage(&below, Arc::new(|gap, _| panic!("a gap at {gap:?}")), &context);
        let error = disk.read(&mut [1; 4096], 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Disconnected);
        assert!(disk.resolve(0, 4096, 1, &mut Vec::new()).is_err());
    }
}
