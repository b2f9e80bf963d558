//! Reading: data that is available now at once, the rest with one request below per stretch; what
//! is packed is unpacked on threads that have time.

use std::sync::Arc;

use device::{Buffer, Result, below};
use runtime::{Mutex, each, has_time, where_there_is_time};

use super::{Lies, Packed, Run, Scattered, Walk};
use crate::kit::{confused, read};

/// Pieces of one request in flight at a time.
const WIDTH: usize = 16;
/// Bytes read at once for one thread to unpack: more if it is the only one.
const PACKED: u64 = 1 << 20;
const PACKED_BY_EACH: u64 = 128 << 10;
/// The longest gap between two packed runs that is read and thrown away.
const GAP: u64 = 16 << 10;

/// A run, and where it begins in the disk.
type Part = (u64, Run);

/// A part of a request that is done by itself.
struct Piece {
    /// One that is not packed, or packed ones that are close together in one file.
    parts: Vec<Part>,
    /// The range of the packed ones in their file.
    packed: (u64, u64),
}

impl Scattered {
    /// Fills all of `bytes` with data that is available now; `false` if it would have to wait or
    /// unpack.
    pub(super) async fn fill(&self, at: u64, bytes: &mut [u8], walk: &mut Walk) -> Result<bool> {
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let Some(run) = self.run(at, rest.len() as u64, walk).await? else { return Ok(false) };
            let (piece, after) = split(rest, run.len);
            if !self.fill_now((at, run), piece)? {
                return Ok(false);
            }
            (at, rest) = (at + run.len, after);
        }
        Ok(true)
    }

    /// The same for one run.
    fn fill_now(&self, (at, run): Part, piece: &mut [u8]) -> Result<bool> {
        let (file, offset, there) = match run.lies {
            Lies::Hole | Lies::Zero(_) => {
                piece.fill(0);
                return Ok(true);
            }
            Lies::Packed(packed) => {
                let Some(bytes) = self.unpacked.get(packed.start) else { return Ok(false) };
                piece.copy_from_slice(part_of(&bytes, packed.start, (at, run))?);
                return Ok(true);
            }
            Lies::Beneath => match self.backed(at, run.len) {
                Some((backing, there)) => (backing, at, there),
                None => {
                    piece.fill(0);
                    return Ok(true);
                }
            },
            Lies::At(offset) => {
                let file = self.file(at)?;
                (file, offset, self.stored(file, offset, run.len))
            }
        };
        let (there, beyond) = split(piece, there);
        beyond.fill(0);
        Ok(there.is_empty() || file.read_now(there, offset)?)
    }

    /// Reads a range into a buffer of its length.
    pub(crate) async fn read(self: Arc<Self>, offset: u64, mut buffer: Buffer) -> Result<Buffer> {
        let (mut walk, mut later) = (Walk::new(true, usize::MAX), Vec::new());
        let (mut at, end) = (offset, offset + buffer.len() as u64);
        while at < end {
            let run = self.run(at, end - at, &mut walk).await?.ok_or_else(confused)?;
            if let Lies::At(place) = run.lies
                && run.len == buffer.len() as u64
            {
                let file = self.file(at)?;
                if self.stored(file, place, run.len) == run.len {
                    // In one stretch: nothing is copied.
                    return below::read(file, place, buffer).await;
                }
            }
            let piece = slice_of(&mut buffer, offset, (at, run))?;
            if !self.fill_now((at, run), piece)? {
                later.push((at, run));
            }
            at += run.len;
        }
        if later.is_empty() {
            return Ok(buffer);
        }
        // A worker of a copy has others beside it, and no other work.
        let is_packed = |(_, run): &Part| matches!(run.lies, Lies::Packed(_));
        let alone = has_time() && later.iter().all(is_packed);
        let pieces = self.pieces(&later, if alone { PACKED } else { PACKED_BY_EACH });
        if alone || pieces.len() == 1 {
            for piece in pieces {
                self.read_piece(piece, Target::Own(&mut buffer, offset)).await?;
            }
            return Ok(buffer);
        }
        self.read_pieces(offset, buffer, pieces).await
    }

    /// Splits the missing runs into pieces that are done by themselves.
    fn pieces(&self, parts: &[Part], most: u64) -> Vec<Piece> {
        let number = |(at, _): &Part| self.atlas.file(*at).map(|(number, _)| number);
        let mut pieces: Vec<Piece> = Vec::new();
        for part in parts {
            let Lies::Packed(Packed { offset, len, .. }) = part.1.lies else {
                pieces.push(Piece { parts: vec![*part], packed: (0, 0) });
                continue;
            };
            let end = offset.saturating_add(len);
            match pieces.last_mut() {
                Some(Piece { parts, packed: (from, to) })
                    if *to > 0
                        && (*from..=to.saturating_add(GAP)).contains(&offset)
                        && end - *from <= most
                        && parts.last().and_then(number) == number(part) =>
                {
                    parts.push(*part);
                    *to = end.max(*to);
                }
                _ => pieces.push(Piece { parts: vec![*part], packed: (offset, end) }),
            }
        }
        pieces
    }

    async fn read_pieces(
        self: Arc<Self>,
        offset: u64,
        buffer: Buffer,
        pieces: Vec<Piece>,
    ) -> Result<Buffer> {
        let (pool, whole) = (self.pool.clone(), Arc::new(Mutex::new(buffer)));
        let into = whole.clone();
        let reads = pieces.into_iter().map(move |piece| {
            let (me, into) = (self.clone(), into.clone());
            async move { me.read_piece(piece, Target::Shared(&into, offset)).await }
        });
        each(&pool, WIDTH, reads).await?;
        let mut whole = whole.lock();
        Ok(std::mem::replace(&mut *whole, Buffer::zeroed(0)))
    }

    /// Reads a piece to its place.
    async fn read_piece(&self, piece: Piece, mut target: Target<'_>) -> Result<()> {
        let [(at, run), ..] = piece.parts[..] else { return Ok(()) };
        let (file, offset, there) = match run.lies {
            Lies::Packed(_) => return self.read_packed(piece, target).await,
            Lies::At(offset) => {
                let file = self.file(at)?;
                (file, offset, self.stored(file, offset, run.len))
            }
            Lies::Beneath => {
                let (backing, there) = self.backed(at, run.len).ok_or_else(confused)?;
                (backing, at, there)
            }
            // Zeroes were filled in by the earlier attempt to answer at once.
            Lies::Hole | Lies::Zero(_) => return Err(confused()),
        };
        let len = usize::try_from(there).map_err(|_| confused())?;
        let bytes = read(file, offset, len, true).await?.ok_or_else(confused)?;
        // The rest was cleared by the earlier attempt to answer at once.
        target.put(at, &bytes)
    }

    /// Reads packed runs at once, and unpacks them.
    async fn read_packed(&self, piece: Piece, mut target: Target<'_>) -> Result<()> {
        let (first, _) = *piece.parts.first().ok_or_else(confused)?;
        let (file, (from, to)) = (self.file(first)?, piece.packed);
        // The last sector of a file may be cut off.
        let len = usize::try_from(self.stored(file, from, to.saturating_sub(from)));
        let len = len.map_err(|_| confused())?;
        let read = read(file, from, len, true).await?.ok_or_else(confused)?;
        where_there_is_time(&self.pool).await;
        for part in piece.parts {
            let Lies::Packed(packed) = part.1.lies else { continue };
            let bytes = packed.offset.checked_sub(from).and_then(|at| {
                let rest = read.get(usize::try_from(at).ok()?..)?;
                rest.get(..usize::try_from(packed.len).ok()?.min(rest.len()))
            });
            let bytes = bytes.ok_or_else(confused)?;
            let unpacked = self.unpack(bytes, packed, part, &mut target);
            unpacked.map_err(|e| e.at(packed.offset))?;
        }
        Ok(())
    }

    /// Unpacks a cluster or grain, of which a part is wanted.
    fn unpack(
        &self,
        bytes: &[u8],
        packed: Packed,
        part: Part,
        target: &mut Target<'_>,
    ) -> Result<()> {
        let is_whole = part.1.len == packed.size;
        if is_whole && let Target::Own(buffer, base) = target {
            return self.atlas.unpack(packed.start, bytes, slice_of(buffer, *base, part)?);
        }
        let len = usize::try_from(packed.size).map_err(|_| confused())?;
        let mut whole: Arc<[u8]> = std::iter::repeat_n(0, len).collect();
        let room = Arc::get_mut(&mut whole).ok_or_else(confused)?;
        self.atlas.unpack(packed.start, bytes, room)?;
        target.put(part.0, part_of(&whole, packed.start, part)?)?;
        if !is_whole && self.keeps_unpacked {
            // The rest may be wanted soon.
            self.unpacked.put(packed.start, whole);
        }
        Ok(())
    }
}

/// The buffer of a request, and its offset in the disk.
enum Target<'a> {
    /// No other task fills it.
    Own(&'a mut Buffer, u64),
    /// Other tasks fill other parts of it.
    Shared(&'a Mutex<Buffer>, u64),
}

impl Target<'_> {
    /// Copies bytes that begin at `start` of the disk to their place.
    fn put(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
        let lay = |to: &mut Buffer, base: u64| {
            let at = usize::try_from(start.checked_sub(base)?).ok()?;
            to.get_mut(at..)?.get_mut(..bytes.len())?.copy_from_slice(bytes);
            Some(())
        };
        let laid = match self {
            Self::Own(buffer, base) => lay(buffer, *base),
            Self::Shared(buffer, base) => lay(&mut buffer.lock(), *base),
        };
        laid.ok_or_else(confused)
    }
}

/// The bytes of a part, of those that begin at `start` of the disk.
fn part_of(bytes: &[u8], start: u64, (at, run): Part) -> Result<&[u8]> {
    let range = || {
        let from = usize::try_from(at.checked_sub(start)?).ok()?;
        bytes.get(from..)?.get(..usize::try_from(run.len).ok()?)
    };
    range().ok_or_else(confused)
}

/// The range of a part in a buffer that begins at `base` of the disk.
fn slice_of(buffer: &mut Buffer, base: u64, (at, run): Part) -> Result<&mut [u8]> {
    let range = at.checked_sub(base).zip(Some(run.len));
    let range = range.and_then(|(from, len)| {
        let from = usize::try_from(from).ok()?;
        buffer.get_mut(from..)?.get_mut(..usize::try_from(len).ok()?)
    });
    range.ok_or_else(confused)
}

/// The first `there` bytes, and the rest.
fn split(piece: &mut [u8], there: u64) -> (&mut [u8], &mut [u8]) {
    let at = usize::try_from(there).unwrap_or(usize::MAX).min(piece.len());
    piece.split_at_mut(at)
}
