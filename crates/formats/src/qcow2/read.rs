//! Reading: data that is available now at once, the rest with one request below per stretch;
//! compressed clusters are decompressed on threads that have time.

use std::sync::Arc;

use device::{Buffer, Result, below};
use runtime::{Mutex, StepBudget, each, has_time, where_there_is_time};

use super::image::{Qcow2Image, lay};
use super::map::{Run, Walk, What};
use super::unpack::unpack;
use crate::kit::{self, confused};

/// Pieces of one request in flight at a time.
const WIDTH: usize = 16;
/// Bytes read at once for one thread to decompress: more if it is the only one.
const PACKED: u64 = 1 << 20;
const PACKED_BY_EACH: u64 = 128 << 10;
/// The longest gap between two compressed clusters that is read and thrown away.
const GAP: u64 = 16 << 10;

/// A part of a request that is done by itself.
#[derive(Debug)]
struct Piece {
    /// Runs of one kind: one uncompressed, or compressed ones whose clusters are close together.
    runs: Vec<Run>,
    /// The range of the compressed ones in the container.
    packed: (u64, u64),
}

impl Qcow2Image {
    /// Fills the data available now; `false` if it would have to wait or decompress.
    pub(super) fn fill_now(&self, run: &Run, piece: &mut [u8]) -> Result<bool> {
        match run.what {
            What::Zero | What::ZeroAt(_) => piece.fill(0),
            What::Absent => {
                let there = self.backed(run.start, run.len);
                let Some((backing, there)) = there else {
                    piece.fill(0);
                    return Ok(true);
                };
                let (there, beyond) = split(piece, there);
                beyond.fill(0);
                return backing.read_now(there, run.start);
            }
            What::Plain(offset) => {
                let (there, beyond) = split(piece, self.stored(offset, run.len));
                beyond.fill(0);
                return self.data.read_now(there, offset);
            }
            What::Packed { cluster, .. } => {
                let Some(bytes) = self.unpacked.get(cluster) else { return Ok(false) };
                piece.copy_from_slice(part(&bytes, cluster, run)?);
            }
        }
        Ok(true)
    }

    pub(super) async fn read(self: Arc<Self>, offset: u64, mut buffer: Buffer) -> Result<Buffer> {
        let end = offset + buffer.len() as u64;
        let (mut walk, mut budget) = (Walk::waiting(&self.pool), StepBudget::default());
        let (mut at, mut later) = (offset, Vec::new());
        while at < end {
            let run = self.map.run(at, end, &mut walk).await?.ok_or_else(confused)?;
            if let What::Plain(place) = run.what
                && (run.start, run.end()) == (offset, end)
                && self.stored(place, run.len) == run.len
            {
                // In one stretch: nothing is copied.
                return below::read(&self.data, place, buffer).await;
            }
            budget.spend(&self.pool).await;
            let piece = slice_of(&mut buffer, offset, &run)?;
            if !self.fill_now(&run, piece)? {
                later.push(run);
            }
            at = run.end();
        }
        if later.is_empty() {
            return Ok(buffer);
        }
        // A worker of a copy has others beside it, and no other work.
        let alone = has_time() && later.iter().all(|run| matches!(run.what, What::Packed { .. }));
        let pieces = pieces(&later, if alone { PACKED } else { PACKED_BY_EACH });
        if alone || pieces.len() == 1 {
            for piece in pieces {
                self.read_piece(piece, Target::Own(&mut buffer, offset)).await?;
            }
            return Ok(buffer);
        }
        self.read_pieces(offset, buffer, pieces).await
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
        let [run, ..] = piece.runs[..] else { return Ok(()) };
        let (file, offset, there) = match run.what {
            What::Packed { .. } => return self.read_packed(piece, target).await,
            What::Plain(offset) => (&self.data, offset, self.stored(offset, run.len)),
            // Zeroes need no reading.
            What::Absent | What::Zero | What::ZeroAt(_) => {
                let (backing, there) = self.backed(run.start, run.len).ok_or_else(confused)?;
                (backing, run.start, there)
            }
        };
        let len = usize::try_from(there).map_err(|_| confused())?;
        let bytes = kit::read(file, offset, len, true).await?.ok_or_else(confused)?;
        // The rest was cleared by the earlier attempt to answer at once.
        target.put(run.start, &bytes)
    }

    /// Reads some compressed clusters at once, and decompresses them.
    async fn read_packed(&self, piece: Piece, mut target: Target<'_>) -> Result<()> {
        let container = &self.map.tables.container;
        let (from, to) = piece.packed;
        // The last sector of a file may be cut off.
        let to = to.min(container.info().size);
        let len = usize::try_from(to.saturating_sub(from)).map_err(|_| confused())?;
        let read = kit::read(container, from, len, true).await?.ok_or_else(confused)?;
        where_there_is_time(&self.pool).await;
        for run in piece.runs {
            let What::Packed { cluster, offset, len } = run.what else { continue };
            let packed = offset.checked_sub(from).and_then(|at| {
                let rest = read.get(usize::try_from(at).ok()?..)?;
                rest.get(..usize::try_from(len).ok()?.min(rest.len()))
            });
            let packed = packed.ok_or_else(confused)?;
            self.unpack_to(packed, cluster, &run, &mut target).map_err(|e| e.at(offset))?;
        }
        Ok(())
    }

    /// Decompresses the cluster at `start`, of which a run is wanted.
    fn unpack_to(
        &self,
        packed: &[u8],
        start: u64,
        run: &Run,
        target: &mut Target<'_>,
    ) -> Result<()> {
        let cluster = self.map.tables.geometry.cluster();
        if run.len == cluster
            && let Target::Own(buffer, base) = target
        {
            return unpack(self.compression, packed, slice_of(buffer, *base, run)?);
        }
        let len = usize::try_from(cluster).map_err(|_| confused())?;
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, len).collect();
        let room = Arc::get_mut(&mut bytes).ok_or_else(confused)?;
        unpack(self.compression, packed, room)?;
        target.put(run.start, part(&bytes, start, run)?)?;
        if run.len < cluster {
            // The rest may be wanted soon.
            self.unpacked.put(start, bytes);
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
        let laid = match self {
            Self::Own(buffer, base) => lay(buffer, *base, bytes, start),
            Self::Shared(buffer, base) => {
                let mut buffer = buffer.lock();
                lay(&mut buffer, *base, bytes, start)
            }
        };
        laid.ok_or_else(confused)
    }
}

/// Splits the missing runs into parts that are done by themselves.
fn pieces(runs: &[Run], most: u64) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for run in runs {
        let What::Packed { offset, len, .. } = run.what else {
            pieces.push(Piece { runs: vec![*run], packed: (0, 0) });
            continue;
        };
        let end = offset.saturating_add(len);
        match pieces.last_mut() {
            Some(Piece { runs, packed: (from, to) })
                if *to > 0
                    && (*from..=to.saturating_add(GAP)).contains(&offset)
                    && end - *from <= most =>
            {
                runs.push(*run);
                *to = end.max(*to);
            }
            _ => pieces.push(Piece { runs: vec![*run], packed: (offset, end) }),
        }
    }
    pieces
}

/// The part of a decompressed cluster, which begins at `start` of the disk, that is in a run.
fn part<'a>(bytes: &'a [u8], start: u64, run: &Run) -> Result<&'a [u8]> {
    let range = || {
        let from = usize::try_from(run.start.checked_sub(start)?).ok()?;
        bytes.get(from..)?.get(..usize::try_from(run.len).ok()?)
    };
    range().ok_or_else(confused)
}

/// The range of a run in a buffer that begins at `base` of the disk.
fn slice_of<'a>(buffer: &'a mut Buffer, base: u64, run: &Run) -> Result<&'a mut [u8]> {
    let range = |buffer: &'a mut Buffer| {
        let from = usize::try_from(run.start.checked_sub(base)?).ok()?;
        buffer.get_mut(from..)?.get_mut(..usize::try_from(run.len).ok()?)
    };
    range(buffer).ok_or_else(confused)
}

/// The first `there` bytes, and the rest.
fn split(piece: &mut [u8], there: u64) -> (&mut [u8], &mut [u8]) {
    let at = usize::try_from(there).unwrap_or(usize::MAX).min(piece.len());
    piece.split_at_mut(at)
}
