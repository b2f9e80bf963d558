//! What changed in a disk since it was copied: the ranges of a list that another program prints, of
//! a dirty bitmap, or those that differ from the manifest of the last copy.
//!
//! A copy by them reads, writes, zeroes and sweeps nothing outside of them.

mod list;
#[cfg(test)]
mod tests;

use std::io::{BufReader, Read};
use std::ops::Range;
use std::sync::Arc;

use copy::{Cancel, CopyPlan, ListedRange, Options, Progress, RangeFate};
use device::{Edge, Error, ErrorKind, Fault, Result, StatusRun};
use runtime::{Context, RangeSet};

use crate::manifest::Manifest;

/// What the contexts of dirty bitmaps begin with, by the NBD protocol's registry.
const BITMAP: &str = "qemu:dirty-bitmap:";
/// The bit of a range that is dirty.
const DIRTY: u64 = 1;
/// Runs asked for at a time.
const MANY: usize = 1024;
/// Ranges in a plan. With them a plan takes some hundred megabytes.
const RANGES: usize = 1 << 22;
/// Bytes of a list.
const LIST: u64 = 512 << 20;

/// Where it is known from what changed.
#[derive(Clone, Debug)]
pub enum CopyChanges {
    /// A dirty bitmap of the source: a status context.
    Bitmap(Arc<str>),
    /// A list.
    Ranges(Arc<RangeSet>),
    /// What the source held when it was copied.
    Since(Arc<Manifest>),
}

impl CopyChanges {
    /// The bitmap that `word` names: `bitmap:NAME`, or the name of a context.
    #[must_use]
    pub fn bitmap(word: &str) -> Option<Self> {
        let name = word.strip_prefix("bitmap:").map(|name| format!("{BITMAP}{name}"));
        let name = name.or_else(|| word.starts_with(BITMAP).then(|| word.to_owned()))?;
        Some(Self::Bitmap(name.into()))
    }

    /// Reads a list of ranges, or a manifest; which of them it is, its first bytes tell.
    ///
    /// # Errors
    /// It is neither, or has too many ranges.
    pub fn read(from: impl Read) -> Result<Self> {
        let mut text = Vec::new();
        let read = from.take(LIST + 1).read_to_end(&mut text);
        read.map_err(|e| Error::os("read the list of changes", e))?;
        if text.len() as u64 > LIST {
            return Err(limit(format!("has more than {LIST} bytes")));
        }
        if text.starts_with(b"{\"manifest\":") {
            return Ok(Self::Since(Arc::new(Manifest::read(BufReader::new(&*text))?)));
        }
        Ok(Self::Ranges(Arc::new(list::read(&text)?)))
    }

    /// Whether the source has to be opened with its status contexts.
    pub(crate) fn is_bitmap(&self) -> bool {
        matches!(self, Self::Bitmap(_))
    }

    /// The ranges of the source that changed, in blocks of both ends.
    ///
    /// # Errors
    /// The source has no such bitmap, is not as large as it was, or cannot be read.
    pub(crate) fn plan(
        &self,
        source: &Edge,
        grid: u64,
        options: &Options,
        cancel: &Cancel,
        context: &Context,
    ) -> Result<CopyPlan> {
        let size = source.info().size;
        let changed = match self {
            Self::Bitmap(name) => dirty(source, name, cancel)?,
            Self::Ranges(ranges) => {
                let end = ranges.iter().last().map_or(0, |range| range.end);
                if end > size {
                    let action = format!(
                        "copy the changes: the list ends at {end}, and the disk at {size}: it \
                         belongs to another disk"
                    );
                    return Err(
                        Error::new(ErrorKind::Changed, Fault::User, action).on(&source.info().name)
                    );
                }
                (**ranges).clone()
            }
            Self::Since(manifest) => since(manifest, source, options, cancel, context)?,
        };
        let changed = in_blocks(changed.iter(), grid, size);
        let listed = |range| ListedRange { range, kind: RangeFate::Data };
        Ok(CopyPlan::List(changed.iter().map(listed).collect()))
    }
}

/// The ranges of a disk of `size` bytes, in whole blocks of `grid`.
pub(crate) fn in_blocks(
    ranges: impl Iterator<Item = Range<u64>>,
    grid: u64,
    size: u64,
) -> RangeSet {
    let whole = |range: Range<u64>| {
        range.start - range.start % grid..range.end.next_multiple_of(grid).min(size)
    };
    ranges.map(whole).collect()
}

fn limit(what: String) -> Error {
    Error::new(ErrorKind::Limit, Fault::User, format!("read the list of changes: it {what}"))
}

/// What a bitmap says is dirty.
fn dirty(source: &Edge, name: &str, cancel: &Cancel) -> Result<RangeSet> {
    let info = source.info();
    if !info.contexts.iter().any(|known| **known == *name) {
        let known: Vec<_> =
            info.contexts.iter().filter(|context| context.starts_with(BITMAP)).collect();
        let known: Vec<&str> = known.iter().map(|context| &***context).collect();
        let there = if known.is_empty() { "none" } else { &*known.join(", ") };
        let action = format!("copy the changes: there is no bitmap {name}; there is {there}");
        return Err(Error::new(ErrorKind::NotFound, Fault::User, action).on(&info.name));
    }
    let (mut changed, mut at, mut some) = (RangeSet::default(), 0, Vec::new());
    while at < info.size {
        cancel.check()?;
        source.status(name, at, info.size - at, MANY, &mut some).map_err(|e| e.at(at))?;
        for StatusRun { len, value } in some.drain(..) {
            if value & DIRTY != 0 {
                changed.add(at..at + len);
            }
            at += len;
        }
        if changed.count() > RANGES {
            return Err(limit(format!("has more than {RANGES} ranges")));
        }
    }
    Ok(changed)
}

/// What differs from a manifest. All of the source's data are read.
fn since(
    manifest: &Arc<Manifest>,
    source: &Edge,
    options: &Options,
    cancel: &Cancel,
    context: &Context,
) -> Result<RangeSet> {
    let size = source.info().size;
    if size != manifest.size {
        let action = format!(
            "copy the changes: the manifest is of a disk of {} bytes, and this one has {size}",
            manifest.size
        );
        return Err(Error::new(ErrorKind::Changed, Fault::User, action).on(&source.info().name));
    }
    let reading = Options { anew: options.anew.clone(), ..Options::default() };
    let watched = (&Progress::default(), cancel);
    Ok(manifest.compare(source, &reading, watched, context)?.0)
}
