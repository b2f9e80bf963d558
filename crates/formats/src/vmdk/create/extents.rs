//! monolithicFlat, twoGbMaxExtentFlat, twoGbMaxExtentSparse: a descriptor, and the extents beside
//! it, of plain bytes or of grains.
//!
//! What is in one extent goes to it unchanged; the descriptor is written last.

use std::sync::Arc;

use device::{
    Buffer, Device, Done, Edge, Error, Extent, Info, Now, Operation, Outcome, PathsBelow, Result,
    Session, Slice, Window, below,
};
use runtime::to_usize;

use super::text::Text;
use super::{Making, Settings, Subformat, sparse};
use crate::kit::{ask, confused};

/// Bytes of an extent of a split image.
const SPLIT: u64 = 2 << 30;
/// The most extents of a split image: their names are known before its size is.
const EXTENTS_MAX: u64 = 1024;
/// Bytes of the largest split image.
pub(super) const LARGEST_SPLIT: u64 = SPLIT * EXTENTS_MAX;

/// The disk of all extents.
struct Extents {
    info: Info,
    /// All but the last are `each` bytes long.
    all: Arc<[Edge]>,
    each: u64,
    is_sparse: bool,
    container: Edge,
    descriptor: Vec<u8>,
    durable: bool,
    paths: Option<PathsBelow>,
}

pub(super) fn open(
    container: Edge,
    making: &Making<'_>,
    settings: &Settings,
) -> Result<Arc<dyn Device>> {
    let name = making.files.name();
    let name = name.ok_or_else(|| {
        Error::unsupported("create files beside it for the bytes: its name is unknown")
    })?;
    let own = name.rsplit('/').next().unwrap_or(&name);
    let kind = settings.kind;
    let (is_sparse, each) = (kind == Subformat::SplitSparse, bytes_of_each(kind));
    let count = making.size.div_ceil(each);
    let extents: Vec<_> = (0..count)
        .map(|index| (each.min(making.size - index * each), name_of(own, kind, index)))
        .collect();
    let word = if is_sparse { "SPARSE" } else { "FLAT" };
    let descriptor =
        Text { settings, size: making.size, parent_cid: None }.bytes(word, &extents)?;
    let mut all = Vec::new();
    for (size, name) in extents {
        let file = making.files.create(&name)?;
        all.push(if is_sparse {
            let making = Making { size, zeroed: true, ..*making };
            Edge::new(sparse::extent(file, &making, settings)?, making.context.pool.clone())
        } else {
            // Unwritten ranges are holes.
            file.device().resize(size.next_multiple_of(512))?;
            file
        });
    }
    let first = all.first().ok_or_else(confused)?.info().clone();
    let info = Info { name: container.info().name.clone(), size: making.size, flat: None, ..first };
    let paths = PathsBelow::of(&all, true);
    let all = all.into();
    let durable = making.durable;
    Ok(Arc::new(Extents { info, all, each, is_sparse, container, descriptor, durable, paths }))
}

fn bytes_of_each(kind: Subformat) -> u64 {
    match kind {
        Subformat::SplitFlat | Subformat::SplitSparse => SPLIT,
        Subformat::Flat | Subformat::Sparse | Subformat::Stream => u64::MAX,
    }
}

/// All names that extents of an image of this name may have.
pub(super) fn names(own: &str, kind: Subformat) -> Vec<String> {
    let count = match kind {
        Subformat::Sparse | Subformat::Stream => 0,
        Subformat::Flat => 1,
        Subformat::SplitFlat | Subformat::SplitSparse => EXTENTS_MAX,
    };
    (0..count).map(|index| name_of(own, kind, index)).collect()
}

/// `disk-flat.vmdk`, `disk-f001.vmdk` or `disk-s001.vmdk` for `disk.vmdk`.
fn name_of(own: &str, kind: Subformat, index: u64) -> String {
    let mark = match kind {
        Subformat::SplitFlat => format!("f{:03}", index + 1),
        Subformat::SplitSparse => format!("s{:03}", index + 1),
        Subformat::Flat | Subformat::Sparse | Subformat::Stream => "flat".to_owned(),
    };
    match own.rsplit_once('.') {
        Some((stem, ending)) if !stem.is_empty() => format!("{stem}-{mark}.{ending}"),
        _ => format!("{own}-{mark}"),
    }
}

/// The beginning of a range that lies in one extent: which, where in it, and how many bytes.
fn piece((all, each): (&[Edge], u64), offset: u64, len: u64) -> Option<(&Edge, u64, u64)> {
    let extent = all.get(to_usize(offset / each))?;
    let start = offset % each;
    Some((extent, start, len.min(each - start)))
}

/// The beginning of an operation that lies in one extent, as one on that extent, which `start` and
/// `len` say; what it reads begins at `at` in the buffer of the whole.
fn part_of(whole: &mut Operation, at: usize, start: u64, len: u64) -> Result<Operation> {
    Ok(match whole {
        Operation::Read { .. } => {
            Operation::Read { offset: start, buffer: Buffer::zeroed(to_usize(len)) }
        }
        Operation::Write { data, fua, .. } => {
            let data: Slice = data.share(at, to_usize(len)).ok_or_else(confused)?;
            Operation::Write { offset: start, data, fua: *fua }
        }
        Operation::Zero { flags, .. } => Operation::Zero { offset: start, len, flags: *flags },
        Operation::Trim { fua, .. } => Operation::Trim { offset: start, len, fua: *fua },
        Operation::Prefetch { .. } => Operation::Prefetch { offset: start, len },
        Operation::Resolve { max, .. } => Operation::Resolve { offset: start, len, max: *max },
        Operation::Take { from, share_only, .. } => {
            Operation::Take { offset: start, len, from: from.clone(), share_only: *share_only }
        }
        Operation::Status { .. } | Operation::Flush => return Err(confused()),
    })
}

/// Carries out an operation that is in more than one extent, or not in the first.
async fn run(all: &[Edge], each: u64, mut whole: Operation) -> Result<Outcome> {
    let Some((offset, len)) = whole.range() else {
        for extent in all {
            ask(extent, Operation::Flush).await?;
        }
        return Ok(Outcome::Done);
    };
    let mut read = Buffer::zeroed(match &whole {
        Operation::Read { buffer, .. } => buffer.len(),
        _ => 0,
    });
    let mut done = 0;
    while done < len {
        let found = piece((all, each), offset + done, len - done).ok_or_else(confused)?;
        let (extent, start, some) = found;
        let at = to_usize(done);
        match ask(extent, part_of(&mut whole, at, start, some)?).await? {
            Outcome::Read(bytes) => {
                let room = read.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len()));
                room.ok_or_else(confused)?.copy_from_slice(&bytes);
            }
            // The caller asks again for the rest.
            Outcome::Extents(extents) => {
                return Ok(Outcome::Extents(lifted(extents, start, offset)));
            }
            taken @ Outcome::Taken(_) => return Ok(taken),
            Outcome::Done => {}
            Outcome::Status(_) => return Err(confused()),
        }
        done += some;
    }
    Ok(match whole {
        Operation::Read { .. } => Outcome::Read(read),
        _ => Outcome::Done,
    })
}

/// Extents of a file, as those of the disk.
fn lifted(mut extents: Vec<Extent>, by: u64, to: u64) -> Vec<Extent> {
    for extent in &mut extents {
        extent.start = extent.start - by + to;
    }
    extents
}

impl Extents {
    /// The extent that has a range, if it is all in one; and where it has it.
    fn one(&self, offset: u64, len: u64) -> Option<(&Edge, u64)> {
        let (extent, start, some) = piece((&self.all, self.each), offset, len)?;
        (some == len).then_some((extent, start))
    }

    /// Writes what makes an extent whole.
    fn finish_extent(&self, extent: &Edge, size: u64) -> Result<()> {
        if !self.is_sparse {
            extent.device().resize(size.next_multiple_of(512))?;
        }
        extent.device().finish()?;
        if self.durable { extent.flush() } else { Ok(()) }
    }
}

impl Device for Extents {
    fn info(&self) -> &Info {
        &self.info
    }

    fn session(&self) -> Option<&dyn Session> {
        self.paths.as_ref().map(|paths| paths as &dyn Session)
    }

    fn submit(&self, operation: Operation, done: Done) {
        let first = self.all.first();
        match operation.range() {
            // Offsets in the first one are those of the disk.
            Some((offset, len)) if self.one(offset, len).is_some() && offset < self.each => {
                match first {
                    Some(extent) => extent.submit(operation, done),
                    None => done(Err(confused())),
                }
            }
            _ => {
                let (all, each) = (self.all.clone(), self.each);
                below::complete(done, async move { run(&all, each, operation).await });
            }
        }
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        match now {
            Now::Read { offset, buffer } => match self.one(offset, buffer.len() as u64) {
                Some((extent, start)) => extent.read_now(buffer, start),
                None => Ok(false),
            },
            Now::Write { offset, data, fua } => match self.one(offset, data.len() as u64) {
                Some((extent, start)) => extent.write_now(data, start, fua),
                None => Ok(false),
            },
            Now::Resolve { offset, len, max, out } if offset < self.each => {
                match self.one(offset, len) {
                    Some((extent, start)) => extent.resolve_now(start, len, max, out),
                    None => Ok(false),
                }
            }
            Now::Resolve { .. } => Ok(false),
        }
    }

    fn window(&self, offset: u64, len: usize) -> Option<Window> {
        let (extent, start) = self.one(offset, len as u64)?;
        extent.window(start, len)
    }

    fn finish(&self) -> Result<()> {
        let mut left = self.info.size;
        for extent in self.all.iter() {
            self.finish_extent(extent, left.min(self.each))?;
            left = left.saturating_sub(self.each);
        }
        let data = Buffer::copy_of(&self.descriptor).into();
        match self.container.run(Operation::Write { offset: 0, data, fua: false })? {
            Outcome::Done => {}
            _ => return Err(confused()),
        }
        self.container.device().resize(self.descriptor.len() as u64)?;
        self.container.device().finish()?;
        if self.durable { self.container.flush() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_called_as_qemu_calls_them() {
        for (name, kind, index, extent) in [
            ("disk.vmdk", Subformat::Flat, 0, "disk-flat.vmdk"),
            ("a.b.vmdk", Subformat::Flat, 0, "a.b-flat.vmdk"),
            ("disk", Subformat::Flat, 0, "disk-flat"),
            (".vmdk", Subformat::Flat, 0, ".vmdk-flat"),
            ("disk.vmdk", Subformat::SplitFlat, 0, "disk-f001.vmdk"),
            ("disk.vmdk", Subformat::SplitSparse, 1022, "disk-s1023.vmdk"),
        ] {
            assert_eq!(name_of(name, kind, index), extent);
        }
        assert_eq!(names("disk.vmdk", Subformat::Flat), ["disk-flat.vmdk"]);
        assert!(names("disk.vmdk", Subformat::Sparse).is_empty());
    }
}
