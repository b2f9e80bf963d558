//! streamOptimized: compressed grains in the order of the disk, each with a marker, then the
//! tables, a directory, a footer, and the end of the stream.
//!
//! In a file the header also leads to a directory and tables in front, which have room for every
//! grain: a program that writes into the image in place (QEMU, VMware's tools) needs them there.
//! What comes behind is the same, so a reader of streams needs nothing of them; once such a program
//! has appended grains, only the front counts. Into a pipe goes the stream alone: the header says
//! that the directory is at the end.
//!
//! Every byte of the stream is written once, in ascending order. The thread that brings a grain
//! compresses it, in any order, and the grain waits for its turn. The number of waiting grains is
//! limited: a thread that is far ahead waits until the grains before its own have come
//! ([`Order::Upwards`]). Grains that were never written read as zeroes. Without the footer, the
//! file is not a valid image: what leads to the front is written last.

use std::collections::BTreeMap;
use std::sync::Arc;

use device::{
    Abilities, BlockSizes, Buffer, Device, Edge, Error, ErrorKind, Fault, Info, Operation, Order,
    Outcome, Result, Slice, is_zero,
};
use runtime::{Mutex, MutexGuard, Promise, RangeSet, WorkPool, promise, where_there_is_time};

use super::front::{Front, TABLE};
use super::text::{DESCRIPTOR, DESCRIPTOR_AT, Header, Text, own_name};
use super::{GRAIN, Making, SPAN, Settings, grains};
use crate::kit::{self, Layer, Layered, clear_now, confused};
use crate::vmdk::codec;
use crate::vmdk::descriptor::SECTOR;
use crate::vmdk::header::{
    END_OF_STREAM, FOOTER, GRAIN_DIRECTORY, GRAIN_TABLE, GRAIN_TABLE_ENTRIES,
};
use crate::vmdk::sparse::MARKER;

/// The most bytes of compressed grains that may wait for those before them.
const WINDOW: usize = 32 << 20;
/// Bytes that are written at once, or a little more.
const AT_ONCE: usize = 1 << 20;
/// Fewer bytes are not worth a write.
const ENOUGH: usize = 256 << 10;
const SECTOR_LEN: usize = 512;
/// The sector of a directory in front.
const FRONT: u64 = DESCRIPTOR_AT + DESCRIPTOR;
/// Sectors before the grains of a stream alone.
const HEAD: u64 = 128;
/// A container that grows has this size, as a bound.
const GROWS: u64 = i64::MAX.cast_unsigned();

struct StreamOptimized {
    info: Info,
    container: Edge,
    pool: WorkPool,
    level: i32,
    header: Header,
    /// None for a pipe.
    front: Option<Front>,
    durable: bool,
    state: Mutex<State>,
}

/// A grain that waits.
struct Packed {
    /// With its marker, in whole sectors.
    bytes: Vec<u8>,
    /// The data that waits to be written.
    waits: Option<Promise<Result<()>>>,
}

struct State {
    /// The first grain that was neither written nor declared zero.
    next: u64,
    /// The grains after it.
    packed: BTreeMap<u64, Packed>,
    /// Bytes of them.
    held: usize,
    /// Ranges beyond it that are zero, by their first grain.
    zeroes: RangeSet,
    /// The places of grains of the table being filled; empty if it has none.
    table: Vec<u32>,
    /// Where tables are.
    directory: Vec<u32>,
    /// Whether tables are in front, too; and those that are to be written there: their numbers and
    /// bytes.
    has_front: bool,
    fronts: Vec<(u64, Vec<u8>)>,
    /// The next batch, and its place.
    batch: Vec<u8>,
    at: u64,
    /// The writers whose grains are in the batch.
    told: Vec<Promise<Result<()>>>,
    /// A thread is writing.
    writing: bool,
    failed: Option<Error>,
}

pub(super) fn open(
    container: Edge,
    making: &Making<'_>,
    settings: &Settings,
) -> Result<Arc<dyn Device>> {
    let below = container.info();
    if below.size < GROWS {
        let action =
            "a stream ends where its file does: it cannot be made on a disk of a fixed size";
        return Err(Error::unsupported(action));
    }
    let front = (below.order == Order::Any).then(|| Front::of(making.size, FRONT));
    let name = own_name(making.files.name());
    let text = Text { settings, size: making.size, parent_cid: None };
    let header = Header {
        described: true,
        size: making.size,
        stream: true,
        zeroed_grain: settings.zeroed_grain,
        redundant: 0,
        directory: 0,
        grains: front.map_or(HEAD, Front::grains),
    };
    let mut batch = header.before_the_footer().to_vec();
    batch.resize(usize::try_from(DESCRIPTOR_AT * SECTOR).unwrap_or(512), 0);
    batch.extend(text.embedded(name)?);
    let mut at = 0;
    match front {
        None => batch.resize(usize::try_from(HEAD * SECTOR).unwrap_or(0), 0),
        Some(front) => {
            container.write(&std::mem::take(&mut batch), 0, false)?;
            at = front.grains() * SECTOR;
            if !making.zeroed {
                let start = front.directory * SECTOR;
                clear_now(&container, start, at - start)?;
            }
        }
    }
    let grain = u32::try_from(GRAIN).unwrap_or(u32::MAX);
    let info = Info {
        blocks: BlockSizes { minimum: grain, preferred: grain, ..BlockSizes::ANY },
        abilities: Abilities {
            write: true,
            flush: below.abilities.flush,
            zero: true,
            fast_zero: true,
            whole_blocks: true,
            ..Abilities::READ
        },
        order: Order::Upwards,
        ..Info::new(below.name.clone(), making.size)
    };
    let tables = usize::try_from(making.size.div_ceil(SPAN)).map_err(|_| confused())?;
    let state = State {
        next: 0,
        packed: BTreeMap::new(),
        held: 0,
        zeroes: RangeSet::default(),
        table: Vec::new(),
        directory: Vec::with_capacity(tables),
        has_front: front.is_some(),
        fronts: Vec::new(),
        batch,
        at,
        told: Vec::new(),
        writing: false,
        failed: None,
    };
    let stream = StreamOptimized {
        info,
        container,
        pool: making.context.pool.for_disk().for_computing(),
        level: settings.level,
        header,
        front,
        durable: making.durable,
        state: Mutex::new(state),
    };
    Ok(Layered::device(stream))
}

/// Bytes of a stream with so many grains, if none of them compresses.
pub(super) fn at_most(size: u64, grains: u64) -> u64 {
    let tables = size.div_ceil(SPAN);
    // Incompressible data is stored in blocks of at most 64 KiB, with five bytes each.
    let grain = (MARKER + GRAIN + 64).next_multiple_of(SECTOR);
    let table = SECTOR + GRAIN_TABLE_ENTRIES * 4;
    let directory = SECTOR + (tables * 4).next_multiple_of(SECTOR);
    Front::of(size, FRONT).grains() * SECTOR
        + grains * grain
        + grains.min(tables) * table
        + directory
        + 3 * SECTOR
}

impl State {
    /// Whether a grain was written or declared zero.
    fn knows(&self, grain: u64) -> bool {
        grain < self.next
            || self.zeroes.covering(grain).is_some()
            || self.packed.contains_key(&grain)
    }

    /// Moves grains whose turn has come into the batch. Returns whether the batch should be
    /// written: it is long enough, or a thread waits for it, or, `at_end`, it is not empty.
    fn gather(&mut self, at_end: bool) -> Result<bool> {
        while self.batch.len() < AT_ONCE {
            if let Some(packed) = self.packed.remove(&self.next) {
                self.held -= packed.bytes.len();
                self.add(&packed.bytes)?;
                self.told.extend(packed.waits);
                self.advance(self.next + 1)?;
            } else if let Some(zero) = self.zeroes.covering(self.next) {
                self.zeroes.remove(zero.clone());
                self.advance(zero.end)?;
            } else if at_end && let Some((first, _)) = self.packed.first_key_value() {
                let first = *first;
                self.advance(first)?;
            } else {
                break;
            }
        }
        let enough = self.batch.len() >= ENOUGH || !self.told.is_empty();
        Ok(enough || at_end && !self.batch.is_empty())
    }

    /// Appends a grain.
    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        let sector = self.sector()?;
        if self.table.is_empty() {
            self.table.resize(usize::try_from(GRAIN_TABLE_ENTRIES).unwrap_or(512), 0);
        }
        let entry = usize::try_from(self.next % GRAIN_TABLE_ENTRIES).map_err(|_| confused())?;
        *self.table.get_mut(entry).ok_or_else(confused)? = sector;
        self.batch.extend(bytes);
        Ok(())
    }

    /// Continues at the grain `next`; appends the tables that end before it.
    fn advance(&mut self, next: u64) -> Result<()> {
        let (before, now) = (self.next / GRAIN_TABLE_ENTRIES, next / GRAIN_TABLE_ENTRIES);
        self.next = next;
        for _ in before..now {
            self.end_table()?;
        }
        Ok(())
    }

    /// Appends the table, if it has any grain.
    fn end_table(&mut self) -> Result<()> {
        let table = std::mem::take(&mut self.table);
        if table.is_empty() {
            self.directory.push(0);
            return Ok(());
        }
        self.mark(GRAIN_TABLE, TABLE);
        let sector = self.sector()?;
        let bytes: Vec<u8> = table.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        self.batch.extend(&bytes);
        if self.has_front {
            self.fronts.push((self.directory.len() as u64, bytes));
        }
        self.directory.push(sector);
        Ok(())
    }

    /// The next sector to append.
    fn sector(&self) -> Result<u32> {
        u32::try_from((self.at + self.batch.len() as u64) / SECTOR).map_err(|_| {
            let action = "the format counts sectors in 32 bits, which is not enough";
            Error::new(ErrorKind::NoSpace, Fault::File, action)
        })
    }

    /// Appends a marker that is not a grain's.
    fn mark(&mut self, kind: u32, sectors: u64) {
        let start = self.batch.len();
        self.batch.extend(sectors.to_le_bytes());
        self.batch.extend(0u32.to_le_bytes());
        self.batch.extend(kind.to_le_bytes());
        self.batch.resize(start + SECTOR_LEN, 0);
    }

    /// Appends the directory; its sector.
    fn end_directory(&mut self) -> Result<u32> {
        let bytes: Vec<u8> = self.directory.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        let sectors = (bytes.len() as u64).div_ceil(SECTOR);
        self.mark(GRAIN_DIRECTORY, sectors);
        let sector = self.sector()?;
        let start = self.batch.len();
        self.batch.extend(bytes);
        let end = start + usize::try_from(sectors * SECTOR).map_err(|_| confused())?;
        self.batch.resize(end, 0);
        Ok(sector)
    }

    /// Appends all that comes before the footer, and takes the batch: its offset, the sector of the
    /// directory, and the bytes.
    fn end(&mut self, all: u64) -> Result<(u64, u32, Vec<u8>)> {
        self.check()?;
        self.advance(all)?;
        if !all.is_multiple_of(GRAIN_TABLE_ENTRIES) {
            self.end_table()?;
        }
        let directory = self.end_directory()?;
        Ok((self.at, directory, std::mem::take(&mut self.batch)))
    }

    /// The last bytes: a footer, and the end of the stream.
    fn footer(&mut self, header: Header) -> Vec<u8> {
        self.mark(FOOTER, 1);
        self.batch.extend(header.bytes());
        self.mark(END_OF_STREAM, 0);
        std::mem::take(&mut self.batch)
    }

    fn check(&self) -> Result<()> {
        self.failed.as_ref().map_or(Ok(()), |e| Err(e.duplicate()))
    }

    /// Stops writing, and tells all waiting threads why.
    fn fail(&mut self, e: &Error) -> Vec<Promise<Result<()>>> {
        self.failed.get_or_insert_with(|| e.duplicate());
        self.writing = false;
        let mut all = std::mem::take(&mut self.told);
        all.extend(std::mem::take(&mut self.packed).into_values().filter_map(|p| p.waits));
        self.held = 0;
        all
    }
}

impl Layer for StreamOptimized {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> Vec<&Edge> {
        vec![&self.container]
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Flush => kit::flush(&self.container).await?,
            Operation::Prefetch { .. } | Operation::Trim { .. } => {}
            Operation::Read { offset, mut buffer } => {
                let range = self.range(offset, buffer.len() as u64);
                if range.into_iter().any(|grain| self.state().knows(grain)) {
                    return Err(Error::unsupported("read what was written to a stream").at(offset));
                }
                buffer.fill(0);
                return Ok(Outcome::Read(buffer));
            }
            Operation::Resolve { .. } => return Err(Error::unsupported("map a new image")),
            Operation::Status { .. } => return Err(Error::unsupported("status")),
            Operation::Take { .. } => return Ok(Outcome::Taken(0)),
            Operation::Write { offset, data, .. } => self.write(offset, data).await?,
            Operation::Zero { flags, .. } if !flags.may_unmap => {
                return Err(Error::unsupported("zero and keep the room"));
            }
            Operation::Zero { offset, len, .. } => {
                self.told_zero(self.range(offset, len))?;
                self.write_out(false).await?;
            }
        }
        Ok(Outcome::Done)
    }

    async fn finish(self: Arc<Self>) -> Result<()> {
        self.write_out(true).await?;
        let (at, directory, bytes) = self.state().end(grains(self.info.size))?;
        let end = at + bytes.len() as u64;
        kit::write(&self.container, at, Buffer::copy_of(&bytes).into(), false).await?;
        let fronts = std::mem::take(&mut self.state().fronts);
        self.put_in_front(fronts).await?;
        if let Some(front) = self.front {
            front.write_directory(&self.container, self.info.size).await?;
        }
        if self.durable && self.info.abilities.flush {
            kit::flush(&self.container).await?;
        }
        let last = self.state().footer(Header { directory: directory.into(), ..self.header });
        kit::write(&self.container, end, Buffer::copy_of(&last).into(), false).await?;
        if let Some(front) = self.front {
            let header = Header { directory: front.directory, ..self.header }.bytes();
            kit::write(&self.container, 0, Buffer::copy_of(&header).into(), false).await?;
        }
        self.container.device().resize(end + last.len() as u64)?;
        self.container.device().finish()
    }
}

impl StreamOptimized {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The grains of a range of whole ones; the last may end with the disk.
    fn range(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        offset / GRAIN..offset / GRAIN + grains(len)
    }

    async fn put_in_front(&self, tables: Vec<(u64, Vec<u8>)>) -> Result<()> {
        match self.front {
            Some(front) => front.write_tables(&self.container, tables).await,
            None => Ok(()),
        }
    }

    async fn write(&self, offset: u64, data: Slice) -> Result<()> {
        where_there_is_time(&self.pool).await;
        let mut answer = None;
        let grain_len = usize::try_from(GRAIN).unwrap_or(1);
        let range = self.range(offset, data.len() as u64);
        let last = range.end.saturating_sub(1);
        for (grain, bytes) in range.zip(data.chunks(grain_len)) {
            if is_zero(bytes) {
                self.told_zero(grain..grain + 1)?;
                continue;
            }
            let bytes = self.pack(grain, bytes)?;
            let mut state = self.state();
            state.check()?;
            if state.knows(grain) {
                return Err(twice(grain));
            }
            state.held += bytes.len();
            // Too much waits: this request ends only when its own grains are written.
            let waits = (grain == last && state.held > WINDOW).then(|| {
                let (promise, owed) = promise();
                answer = Some(owed);
                promise
            });
            state.packed.insert(grain, Packed { bytes, waits });
        }
        drop(data);
        self.write_out(false).await?;
        match answer {
            Some(owed) => owed.await.unwrap_or_else(|| Err(Error::unanswered())),
            None => Ok(()),
        }
    }

    /// A grain with its marker, in whole sectors. The last one of the disk may be short: it is
    /// padded.
    fn pack(&self, grain: u64, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut packed = Vec::with_capacity(bytes.len() / 2);
        packed.extend((grain * (GRAIN / SECTOR)).to_le_bytes());
        packed.extend([0; 4]);
        let head = packed.len();
        if bytes.len() as u64 == GRAIN {
            codec::pack(bytes, self.level, &mut packed)?;
        } else {
            let mut whole = bytes.to_vec();
            whole.resize(usize::try_from(GRAIN).unwrap_or(0), 0);
            codec::pack(&whole, self.level, &mut packed)?;
        }
        let len = u32::try_from(packed.len() - head).map_err(|_| confused())?;
        if let Some(field) = packed.get_mut(8..head) {
            field.copy_from_slice(&len.to_le_bytes());
        }
        packed.resize(packed.len().next_multiple_of(SECTOR_LEN), 0);
        // It may wait for a long time.
        packed.shrink_to_fit();
        Ok(packed)
    }

    fn told_zero(&self, range: std::ops::Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let mut state = self.state();
        state.check()?;
        let packed = state.packed.range(range.clone()).next().is_some();
        if range.start < state.next || state.zeroes.has_some_of(&range) || packed {
            return Err(twice(range.start));
        }
        state.zeroes.add(range);
        Ok(())
    }

    /// Writes the grains whose turn has come, unless another thread is writing, which then writes
    /// these too. At the end, writes everything.
    async fn write_out(&self, at_end: bool) -> Result<()> {
        loop {
            let (at, bytes, told, fronts) = {
                let mut state = self.state();
                state.check()?;
                if state.writing {
                    return Ok(());
                }
                match state.gather(at_end) {
                    Ok(true) => {}
                    Ok(false) => return Ok(()),
                    Err(e) => {
                        let told = state.fail(&e);
                        drop(state);
                        return Err(tell(told, e));
                    }
                }
                state.writing = true;
                let bytes = std::mem::take(&mut state.batch);
                let at = state.at;
                state.at += bytes.len() as u64;
                (at, bytes, std::mem::take(&mut state.told), std::mem::take(&mut state.fronts))
            };
            let data = Buffer::copy_of(&bytes).into();
            drop(bytes);
            let written = match kit::write(&self.container, at, data, false).await {
                Ok(()) => self.put_in_front(fronts).await,
                failed => failed,
            };
            let mut state = self.state();
            state.writing = false;
            match written {
                Ok(()) => {
                    drop(state);
                    told.into_iter().for_each(|promise| promise.keep(Ok(())));
                }
                Err(e) => {
                    let mut all = state.fail(&e);
                    drop(state);
                    all.extend(told);
                    return Err(tell(all, e));
                }
            }
        }
    }
}

fn tell(all: Vec<Promise<Result<()>>>, e: Error) -> Error {
    all.into_iter().for_each(|promise| promise.keep(Err(e.duplicate())));
    e
}

fn twice(grain: u64) -> Error {
    let action = "write again what was written to a stream";
    Error::unsupported(action).at(grain * GRAIN)
}
