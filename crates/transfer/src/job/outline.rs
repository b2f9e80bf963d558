//! What a job would do, by a look at both ends. It opens them to read, makes no journal and no
//! target, and changes nothing.

use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::time::{Duration, Instant};

use copy::{Cancel, CopyPlan};
use device::{Edge, Error, ErrorKind, Extent, Reach, Result, Use, format_size, text};
use disk::{OpenOptions, Storage};
use runtime::{Context, RangeSet};

use super::related::Related;
use super::resuming::can_go_on;
use super::source::{Input, OpenSources, open_sources, open_stream};
use super::{CopyJob, JobError, JobFront, range};
use crate::changes::in_blocks;
use crate::journal::CopyJournal;

/// The name of standard output.
const STREAM: &str = "-";
/// Extents asked for at a time.
const MANY: usize = 1024;
/// Places at which both ends are compared, and bytes at each: a few MiB are read of each.
const PLACES: usize = 64;
const SAMPLE: u64 = 64 << 10;

/// A job of which both ends are open to be read.
#[derive(Debug)]
pub struct OutlinedJob {
    job: CopyJob,
    context: Context,
    source: Input,
    found: FoundTarget,
    target: Option<Edge>,
    durable: RangeSet,
}

/// What a job would do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CopyOutline {
    /// Bytes of the source; `None` for a stream, of which nothing else is known.
    pub size: Option<u64>,
    /// Bytes that would be read and written, as far as they are not zero, and in how many
    /// stretches.
    pub data: u64,
    /// The stretches of data.
    pub stretches: u64,
    /// Bytes that are holes, or zero by the map.
    pub zeroes: u64,
    /// Bytes that the journal says are in the target.
    pub durable: u64,
    /// What is there of the target.
    pub found: FoundTarget,
    /// At how many places data of the source was compared with the target, and how many are equal.
    pub compared: u64,
    /// Those that are equal already.
    pub equal: u64,
    /// Bytes of data that were read of the source to look, and the time that took.
    pub read: (u64, Duration),
}

/// What is there of a target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FoundTarget {
    /// No file; one would be made.
    Nothing,
    /// A file or block device.
    Disk,
    /// A pipe, or a device that only takes bytes.
    Stream,
    /// A disk that is none of the system's: of a server, for example.
    Elsewhere,
}

impl CopyJob {
    /// What [`Self::outline`] needs of the system.
    #[must_use]
    pub fn reach_of_outline(&self) -> Reach {
        let journal = self.journal.clone().map(|journal| Reach::path(journal, Use::Read));
        self.reach().and(journal.unwrap_or_default())
    }

    /// Opens both ends to look at them.
    ///
    /// # Errors
    /// The job would be refused, or an end cannot be opened.
    pub fn outline(
        self,
        context: &Context,
        front: &dyn JobFront,
    ) -> std::result::Result<OutlinedJob, JobError> {
        if self.journal.is_some() {
            can_go_on(&self)?;
        }
        Related::of(&self)?;
        let source = match open_stream(&self)? {
            Some(stream) => Input::Stream(stream),
            None => Input::Disk(open_sources(&self, context, front, &mut OpenSources::default())?),
        };
        let durable = match (&self.journal, source.size()) {
            (Some(journal), Some(size)) => CopyJournal::look(journal, size)?,
            _ => RangeSet::default(),
        };
        let found = self.find_target()?;
        if self.is_new && found != FoundTarget::Nothing {
            let text = format!("{}: already exists; nothing was changed", self.target);
            return Err(JobError::refused(ErrorKind::Denied, text));
        }
        if !self.is_new {
            front.meets(source.disk(), context)?;
        }
        let target = self.open_target(found, context)?;
        if let (Some(size), Some(target)) = (source.size(), &target) {
            let end = range::end(self.at.unwrap_or(0), size)?;
            let grows = self.target.path().is_some_and(|path| text::path(path).is_file());
            let room = target.info().size;
            if room < end && (!grows || self.at.is_some() || self.is_there()) {
                let text = format!(
                    "{}: target is too small: it has {room} bytes ({}), and {end} would be written",
                    self.target,
                    format_size(room)
                );
                return Err(JobError::refused(ErrorKind::NoSpace, text));
            }
        }
        Ok(OutlinedJob { job: self, context: context.clone(), source, found, target, durable })
    }

    /// What is there of the target, by its name.
    fn find_target(&self) -> Result<FoundTarget> {
        let Some(name) = self.target.path() else { return Ok(FoundTarget::Elsewhere) };
        if name == STREAM {
            return Ok(FoundTarget::Stream);
        }
        let path = text::path(name);
        let kind = match std::fs::metadata(&path) {
            Ok(found) => found.file_type(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let parent = parent.map_or_else(|| ".".into(), std::path::Path::to_owned);
                return match parent.is_dir() {
                    true => Ok(FoundTarget::Nothing),
                    false => Err(Error::os("create", e).on(name)),
                };
            }
            Err(e) => return Err(Error::os("look at", e).on(name)),
        };
        Ok(match kind.is_file() || kind.is_block_device() {
            true => FoundTarget::Disk,
            false => FoundTarget::Stream,
        })
    }

    /// The target, to be read: not one that is made anew as an image.
    fn open_target(&self, found: FoundTarget, context: &Context) -> Result<Option<Edge>> {
        let is_kept = self.is_there() || self.target_stack.image().format().is_none();
        let is_disk = matches!(found, FoundTarget::Disk | FoundTarget::Elsewhere);
        let is_new = matches!(self.target.storage(), Storage::Own);
        if !is_kept || !is_disk || is_new {
            return Ok(None);
        }
        let options = OpenOptions { lock: false, ..OpenOptions::read_only() };
        let opened = disk::open(&self.target, &self.target_stack, &options, context)?;
        Ok(Some(opened.edge))
    }
}

impl OutlinedJob {
    /// Reads the maps, and a little of both ends.
    ///
    /// # Errors
    /// The source cannot be read, or is not that of the changes.
    pub fn look(&self) -> Result<CopyOutline> {
        let mut outline = CopyOutline {
            size: self.source.size(),
            data: 0,
            stretches: 0,
            zeroes: 0,
            durable: self.durable.len(),
            found: self.found,
            compared: 0,
            equal: 0,
            read: (0, Duration::ZERO),
        };
        let Some(source) = self.source.disk() else { return Ok(outline) };
        let mut data = Vec::new();
        for range in self.left(source)?.iter() {
            outline.walk(source, range, !self.job.options.no_extents, &mut data)?;
        }
        outline.sample(source, self.target.as_ref(), (self.job.at.unwrap_or(0), &data))?;
        Ok(outline)
    }

    /// What the changes name, or all, without what is durable.
    fn left(&self, source: &Edge) -> Result<RangeSet> {
        let size = source.info().size;
        let grid = u64::from(source.info().blocks.minimum.max(1));
        let plan = self.job.changes.as_ref().map(|changes| {
            let options = &self.job.options;
            changes.plan(source, grid, options, &Cancel::default(), &self.context)
        });
        let whole: RangeSet = match plan.transpose()? {
            Some(CopyPlan::List(list)) => list.into_iter().map(|listed| listed.range).collect(),
            _ => std::iter::once(0..size).filter(|all| !all.is_empty()).collect(),
        };
        let left = whole.iter().flat_map(|range| self.durable.gaps(range).collect::<Vec<_>>());
        Ok(in_blocks(left, grid, size))
    }
}

impl CopyOutline {
    /// Adds what the map of a range says.
    fn walk(
        &mut self,
        source: &Edge,
        range: Range<u64>,
        has_map: bool,
        data: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        let (mut at, asks) = (range.start, has_map && source.info().abilities.extents);
        while at < range.end {
            let mut extents: Vec<Extent> = Vec::new();
            if asks {
                let asked = source.resolve(at, range.end - at, MANY, &mut extents);
                asked.map_err(|e| e.on(&source.info().name).at(at))?;
            }
            if extents.is_empty() {
                extents.push(Extent::new(at, range.end - at, device::ExtentKind::Data));
            }
            for extent in extents {
                at = extent.end().min(range.end);
                let len = at - extent.start.min(at);
                if extent.kind.reads_zero() {
                    self.zeroes += len;
                    continue;
                }
                self.data += len;
                match data.last_mut().filter(|last| last.end == extent.start) {
                    Some(last) => last.end = at,
                    None => {
                        self.stretches += 1;
                        remember(data, extent.start..at);
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the source at places in its data, and compares them with the target.
    fn sample(
        &mut self,
        source: &Edge,
        target: Option<&Edge>,
        (at, data): (u64, &[Range<u64>]),
    ) -> Result<()> {
        let known: u64 = data.iter().map(|range| range.end - range.start).sum();
        let step = (known / PLACES as u64).max(SAMPLE);
        let (mut passed, mut next) = (0, 0);
        for range in data {
            let len = range.end - range.start;
            while next < passed + len {
                let start = range.start + (next - passed);
                let mut bytes = vec![0; runtime::to_usize(SAMPLE.min(range.end - start))];
                let begun = Instant::now();
                source.read(&mut bytes, start).map_err(|e| e.on(&source.info().name).at(start))?;
                self.read.1 += begun.elapsed();
                self.read.0 += bytes.len() as u64;
                if let Some(target) = target {
                    let mut there = vec![0; bytes.len()];
                    let is_equal =
                        target.read(&mut there, at.saturating_add(start)).is_ok() && there == bytes;
                    self.compared += 1;
                    self.equal += u64::from(is_equal);
                }
                next += step;
            }
            passed += len;
        }
        Ok(())
    }
}

/// Most stretches that are remembered, to find places in: of more, each second one is forgotten.
const REMEMBERED: usize = 4096;

fn remember(data: &mut Vec<Range<u64>>, range: Range<u64>) {
    if data.len() >= REMEMBERED {
        let mut nth = 0;
        data.retain(|_| {
            nth += 1;
            nth % 2 == 0
        });
    }
    data.push(range);
}
