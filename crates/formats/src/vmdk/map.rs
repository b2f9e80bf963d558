//! The map of an image: kind and layer of each range.

use device::{Extent, ExtentKind, Home, Result, Stored, merge_extent};

use super::read::{Piece, Reader, What};
use crate::kit;

/// The most pieces for one answer, which may then be shorter than the range.
const PIECES: usize = 4096;

impl Reader {
    /// The map of a range, at most `max` extents; `None` if that would have to wait and `may_wait`
    /// is false.
    pub(super) async fn resolve(
        &self,
        (offset, len): (u64, u64),
        max: usize,
        may_wait: bool,
    ) -> Result<Option<Vec<Extent>>> {
        let (mut found, end, mut at) = (Vec::new(), offset + len, offset);
        for _ in 0..PIECES {
            if at >= end || found.len() > max {
                break;
            }
            let Some(piece) = self.piece(at, end - at, may_wait).await? else {
                return Ok(None);
            };
            at += piece.len;
            let Some(known) = self.extents(piece, max, may_wait).await? else { return Ok(None) };
            at = known.last().map_or(at, Extent::end);
            known.into_iter().for_each(|extent| merge_extent(&mut found, extent));
        }
        found.truncate(max);
        Ok(Some(found))
    }

    async fn extents(
        &self,
        piece: Piece<'_>,
        max: usize,
        may_wait: bool,
    ) -> Result<Option<Vec<Extent>>> {
        let Piece { at, len, what } = piece;
        let one = |kind| Extent::new(at, len, kind);
        let home = |file, offset, stored| Some(Home { file, offset, stored });
        match what {
            What::Zero { present } => Ok(Some(vec![Extent { present, ..one(ExtentKind::Hole) }])),
            What::Backing(backing) => {
                let found = kit::resolve(backing, (at, len), max, may_wait).await?;
                Ok(found.map(|found| found.into_iter().map(Extent::deeper).collect()))
            }
            What::Packed(packed) => {
                // An upper bound: only the marker before it has its length.
                let len = u32::try_from(packed.longest).unwrap_or(u32::MAX);
                let home = home(packed.file, packed.at, Stored::Packed { len });
                Ok(Some(vec![Extent { home, ..one(ExtentKind::Data) }]))
            }
            What::Plain(file, number, offset, false) => {
                let place = file.info().flat.as_ref().map(|flat| flat.advanced(offset));
                let home = home(number, offset, Stored::Plain);
                Ok(Some(vec![Extent { home, ..one(ExtentKind::Data) }.at(place)]))
            }
            What::Plain(file, number, offset, true) => {
                // Like raw: only the file knows its holes.
                let found = kit::resolve(file, (offset, len), max, may_wait).await?;
                let above = |e: Extent| Extent {
                    start: at + (e.start - offset),
                    depth: 0,
                    home: home(number, e.start, Stored::Plain),
                    ..e
                };
                Ok(found.map(|found| found.into_iter().map(above).collect()))
            }
        }
    }
}
