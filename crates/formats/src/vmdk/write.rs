//! Writing into hosted sparse extents and flat ones where they lie.
//!
//! A new grain goes to the end of its file, behind all tables, which have to be in front; its entry
//! is in both tables, if there are two. Before the first change the image gets a new content ID, so
//! that no overlay is taken for one over it any more, and its sparse extents say that they were not
//! closed; both are durable before anything is changed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use device::{Buffer, Device, Edge, Result, below};

use super::descriptor::{LONGEST, LineKind, SECTOR, cid_place};
use super::grains::{Grains, Written, refused};
use super::map::{Kind, Map, Part};
use super::open::{self, Top};
use super::sparse::Sparse;
use crate::Opening;
use crate::kit::blocks::Rank;
use crate::kit::fields::{array, load, new_uuid};
use crate::kit::{Appending, Appends, Later, NewBlock, WrittenFile, confused, flush, written_info};

/// Where a header says whether the extent was closed.
const UNCLEAN_AT: u64 = 72;
/// Opens an image to be written.
pub(super) fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let top = Top::of(&container)?;
    let extents = &top.descriptor.extents;
    if top.descriptor.is_read_only {
        return Err(refused("one of its extents is not to be (RDONLY)"));
    }
    let is_known = |kind| matches!(kind, LineKind::Flat | LineKind::Vmfs | LineKind::Sparse);
    if let Some(line) = extents.iter().find(|line| !is_known(line.kind)) {
        return Err(refused(&format!("it has an extent of the kind {}", line.kind.word())));
    }
    let (size, backing) = (top.size()?, open::parent(&top.descriptor, opening.files)?);
    let cid = cid(&container, &top)?;
    let new_file = |edge: Edge| WrittenFile::open(edge, SECTOR, opening.context).map(Arc::new);
    let name = container.info().name.clone();
    let mut files = vec![new_file(container.clone())?];
    let mut parts = match top.layout {
        Some(layout) => {
            let end = layout.capacity;
            let sparse = Box::new(Sparse::new(layout, container, opening.context));
            vec![Part { start: 0, end, kind: Kind::Sparse(sparse, 0) }]
        }
        None => open::open_parts(extents, opening, true)?,
    };
    for part in &mut parts {
        let (number, edge) = part.kind.file().ok_or_else(confused)?;
        let number = usize::from(number);
        if number == files.len() {
            files.push(new_file(edge.clone())?);
        }
        let file = files.get(number).ok_or_else(confused)?;
        let is_last = part.end == size;
        match &mut part.kind {
            Kind::Zero => return Err(confused()),
            Kind::Flat(edge, ..) => *edge = file.edge.clone(),
            Kind::Sparse(sparse, _) => {
                let is_whole = (part.end - part.start).is_multiple_of(sparse.layout.grain);
                if !is_whole && !is_last {
                    return Err(refused("an extent of it ends within a grain"));
                }
                sparse.grains = Some(Grains::find(&sparse.layout, &sparse.file, file)?);
                sparse.file = file.edge.clone();
            }
        }
    }
    let info = open::info(name, size, &parts, backing.is_some());
    let known: Vec<_> = files.iter().map(|file| &**file).collect();
    let info = written_info(info, &known);
    let (is_marked, marking) = (AtomicBool::new(false), Arc::default());
    let map = Map { parts, written: Some(Written { files, cid, is_marked, marking }) };
    Ok(Appending::device(info, opening.context, backing, map))
}

/// The content ID: where its digits are in the container, how many, and what it is.
fn cid(container: &Edge, top: &Top) -> Result<Option<(u64, usize, u32)>> {
    let (at, len) = match &top.layout {
        Some(layout) => match layout.descriptor {
            Some(range) => range,
            None => return Ok(None),
        },
        None => match super::header::read(container)? {
            Some(super::header::FirstBytes::Only(range)) => range,
            _ => (0, container.info().size),
        },
    };
    let len = usize::try_from(len.min(LONGEST)).unwrap_or(0);
    let found = cid_place(&load(container, "descriptor", at, len)?);
    Ok(found.map(|digits| (at + digits.start as u64, digits.len(), top.descriptor.cid)))
}

impl Map {
    fn changed(&self) -> Result<&Written> {
        self.written.as_ref().ok_or_else(confused)
    }

    /// The sparse extent with the byte at `at`, where that begins, and its grains.
    fn grains(&self, at: u64) -> Result<(&Sparse, u64, &Grains)> {
        let part = self.part(at).ok_or_else(confused)?;
        let Kind::Sparse(sparse, _) = &part.kind else { return Err(confused()) };
        let grains = sparse.grains.as_ref().ok_or_else(confused)?;
        Ok((sparse, part.start, grains))
    }

    /// Says in sparse extents that were closed whether they are now.
    async fn mark(&self, is_open: bool) -> Result<()> {
        for part in &self.parts {
            let Kind::Sparse(sparse, _) = &part.kind else { continue };
            if !sparse.layout.dirty {
                let mark = Buffer::copy_of(&[u8::from(is_open)]);
                below::write(&sparse.file, UNCLEAN_AT, mark.into(), false).await?;
            }
        }
        Ok(())
    }
}

/// Another content ID than `old`, in so many digits, and never that which stands for no image.
fn new_cid(digits: usize, old: u32) -> String {
    let bits = u32::try_from(digits.min(8) * 4).unwrap_or(0).min(31);
    let id = u32::from_le_bytes(array(&new_uuid(), 0)) & ((1 << bits) - 1);
    let id = if id == old { id ^ 1 } else { id };
    format!("{id:0digits$x}")
}

impl Appends for Map {
    fn written(&self) -> Vec<&WrittenFile> {
        self.written.iter().flat_map(|written| &written.files).map(|file| &**file).collect()
    }

    fn written_at(&self, at: u64) -> Option<&WrittenFile> {
        let (number, _) = self.part(at)?.kind.file()?;
        self.written.as_ref()?.files.get(usize::from(number)).map(|file| &**file)
    }

    fn block(&self, at: u64) -> Range<u64> {
        let Ok((sparse, start, _)) = self.grains(at) else { return at..at.saturating_add(1) };
        let grain = sparse.layout.grain;
        let begin = at - (at - start) % grain;
        begin..begin.saturating_add(grain)
    }

    fn is_prepared(&self, _: u64, _: u64) -> bool {
        self.written.as_ref().is_some_and(|written| written.is_marked.load(Ordering::Acquire))
    }

    fn prepare(&self, _: u64, _: u64) -> Later<'_, ()> {
        Box::pin(async move {
            let Written { files, cid, is_marked, marking } = self.changed()?;
            if is_marked.load(Ordering::Acquire) {
                return Ok(());
            }
            let _alone = marking.alone().await;
            if is_marked.load(Ordering::Acquire) {
                return Ok(());
            }
            if let (Some((at, count, old)), Some(container)) = (cid, files.first()) {
                let digits = new_cid(*count, *old);
                let digits = Buffer::copy_of(digits.as_bytes());
                below::write(&container.edge, *at, digits.into(), false).await?;
            }
            self.mark(true).await?;
            for file in files {
                flush(&file.edge).await?;
            }
            is_marked.store(true, Ordering::Release);
            Ok(())
        })
    }

    fn take(&self, start: u64) -> Result<NewBlock> {
        let (sparse, _, grains) = self.grains(start)?;
        let (at, is_first) = grains.take(sparse.layout.grain)?;
        Ok(NewBlock { at, front: Vec::new(), is_zero: is_first && grains.file.is_new(at) })
    }

    fn give_back(&self, start: u64, new: NewBlock) {
        if let Ok((_, _, grains)) = self.grains(start) {
            grains.give_back(new.at);
        }
    }

    fn link<'a>(&'a self, start: u64, new: &'a NewBlock) -> Later<'a, ()> {
        Box::pin(async move {
            let (sparse, begin, grains) = self.grains(start)?;
            let (layout, grain) = (&sparse.layout, (start - begin) / sparse.layout.grain);
            let sector = u32::try_from(new.at / SECTOR).map_err(|_| confused())?.to_le_bytes();
            let place = grains.entry(layout, layout.directory, grain).await?;
            let other = match grains.redundant {
                Some(directory) => Some(grains.entry(layout, directory, grain).await?),
                None => None,
            };
            let places: Vec<u64> = other.into_iter().chain([place]).collect();
            let file = &grains.file;
            file.change(&places, |blocks| {
                blocks.change(place, Rank::Last, &sector)?;
                let Some(other) = other else { return Ok(()) };
                // The power may have been cut between the two, some time ago.
                let block = blocks.get(blocks.start(place)).ok_or_else(confused)?;
                blocks.change(blocks.start(other), Rank::Last, &block)
            })
            .await
        })
    }

    fn close(&self) -> Later<'_, ()> {
        Box::pin(async move {
            let Written { files, is_marked, marking, .. } = self.changed()?;
            let _alone = marking.alone().await;
            if is_marked.swap(false, Ordering::AcqRel) {
                self.mark(false).await?;
                for file in files {
                    flush(&file.edge).await?;
                }
            }
            Ok(())
        })
    }

    fn is_open(&self) -> bool {
        self.is_prepared(0, 0)
    }
}
