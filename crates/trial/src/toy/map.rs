//! The map of an image: what is where, in which layer.

use device::below;
use device::{Abilities, Extent, ExtentKind, Home, Place, Result, Stored, merge_extent};

use super::ToyImage;
use super::room::{Lease, Slot};
use super::table::Entry;

impl ToyImage {
    /// What a range holds, at most `max` extents; `None` as for `read_piece`.
    pub(super) async fn resolve(
        &self,
        (offset, len): (u64, u64),
        max: usize,
        may_wait: bool,
    ) -> Result<Option<Vec<Extent>>> {
        let (mut found, end) = (Vec::new(), offset + len);
        let mut at = offset;
        while at < end && found.len() <= max {
            let (cluster, within) = self.cluster(at);
            let len = (self.len_of(cluster) as u64 - within).min(end - at);
            let (entry, lease) = self.entry(cluster);
            let known = match entry {
                Entry::Absent => self.resolve_backing(at, len, max, may_wait).await?,
                Entry::Zero => Some(vec![Extent::new(at, len, ExtentKind::Hole)]),
                Entry::Packed(slot, packed) => {
                    let stored = Stored::Packed { len: packed };
                    let home = Home { file: slot.file.into(), offset: slot.offset, stored };
                    let extent = Extent::new(at, len, ExtentKind::Data);
                    Some(vec![Extent { home: Some(home), ..extent }])
                }
                Entry::Plain(slot) => {
                    self.resolve_plain((at, len), (slot, within), lease, may_wait).await?
                }
            };
            let Some(known) = known else { return Ok(None) };
            at = known.last().map_or(end, Extent::end);
            known.into_iter().for_each(|extent| merge_extent(&mut found, extent));
        }
        found.truncate(max);
        Ok(Some(found))
    }

    async fn resolve_backing(
        &self,
        at: u64,
        len: u64,
        max: usize,
        may_wait: bool,
    ) -> Result<Option<Vec<Extent>>> {
        let Some((backing, there)) = self.backed(at, len) else {
            return Ok(Some(vec![Extent::new(at, len, ExtentKind::Hole)]));
        };
        let found = below::resolve_or_wait(backing, (at, there), max, may_wait).await?;
        Ok(found.map(|found| found.into_iter().map(Extent::deeper).collect()))
    }

    /// What lies `within` bytes from the beginning of a slot, and where that is.
    async fn resolve_plain(
        &self,
        (at, len): (u64, u64),
        (slot, within): (Slot, u64),
        lease: Lease,
        may_wait: bool,
    ) -> Result<Option<Vec<Extent>>> {
        let (file, offset) = (self.file(slot), slot.offset + within);
        let home = Home { file: slot.file.into(), offset, stored: Stored::Plain };
        let all = Extent { home: Some(home), ..Extent::new(at, len, ExtentKind::Data) };
        let guarded = |place: Place| place.guarded(lease.clone());
        let Abilities { extents, observed, .. } = file.info().abilities;
        if self.state().room.held() > self.settings.bound {
            return Ok(Some(vec![all]));
        }
        if file.info().flat.is_some() || !extents || observed {
            let place = file.info().flat.as_ref().map(|flat| guarded(flat.advanced(offset)));
            return Ok(Some(vec![all.at(place)]));
        }
        // It may lie anywhere in its turn, and in pieces.
        let Some(pieces) =
            below::resolve_or_wait(file, (offset, len), usize::MAX, may_wait).await?
        else {
            return Ok(None);
        };
        let part = |piece: Extent| {
            let start = at + (piece.start - offset);
            let part = all.part(start, start + piece.len)?;
            let kind = if piece.kind.reads_zero() { ExtentKind::Zero } else { ExtentKind::Data };
            let place = piece.place.filter(|_| kind == ExtentKind::Data).map(guarded);
            Some(Extent { kind, ..part }.at(place))
        };
        Ok(Some(pieces.into_iter().filter_map(part).collect()))
    }
}
