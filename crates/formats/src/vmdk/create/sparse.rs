//! monolithicSparse, and the extents of twoGbMaxExtentSparse: grains in one file, with two
//! directories of all tables in front of them.
//!
//! Many threads append grains as they come. Tables, descriptor and header follow at the end, the
//! header last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use device::{
    Abilities, BlockSizes, Buffer, Device, Edge, Error, ErrorKind, Fault, Info, Operation, Outcome,
    Place, Result, Slice, ZeroFlags,
};
use runtime::{Mutex, MutexGuard};

use super::front::Front;
use super::text::{DESCRIPTOR, DESCRIPTOR_AT, Header, Text, own_name};
use super::{GRAIN, Making, SPAN, Settings, grains};
use crate::kit::{self, Atlas, Layer, Layered, Lies, Run, Runs, Scattered, confused};
use crate::vmdk::descriptor::SECTOR;
use crate::vmdk::header::{GRAIN_TABLE_ENTRIES, HEADER};
use crate::vmdk::open::parent_cid;
use crate::{Reference, Role};

const PER_TABLE: usize = 512;
/// Bytes of a table.
const TABLE: u64 = GRAIN_TABLE_ENTRIES * 4;
/// Tables in one write.
const AT_ONCE: usize = 512;
/// The entry for zeroes, whatever the parent has.
const ZERO: u32 = 1;

/// The redundant directory, and the other one.
fn fronts(size: u64) -> [Front; 2] {
    let redundant = Front::of(size, DESCRIPTOR_AT + DESCRIPTOR);
    [redundant, redundant.twin(size)]
}

/// Bytes before the grains.
pub(super) fn overhead(size: u64) -> u64 {
    let [_, front] = fronts(size);
    front.grains() * SECTOR
}

struct Sparse {
    disk: Arc<Scattered>,
    /// The map of `disk`.
    grains: Arc<Grains>,
    header: Header,
    descriptor: Vec<u8>,
    zeroed_grain: bool,
    durable: bool,
    /// The container may hold another image.
    stale: AtomicBool,
    takes: AtomicBool,
}

/// Where the grains are.
struct Grains {
    container: Edge,
    state: Mutex<State>,
}

struct State {
    /// The places of grains, in sectors, by table; none if no grain was written.
    tables: Vec<Option<Box<[u32; PER_TABLE]>>>,
    /// The first sector after all grains.
    end: u64,
    /// Runs that were allocated but not used: first sector, and how many grains.
    free: Vec<(u64, u64)>,
}

pub(super) fn open(
    container: Edge,
    making: &Making<'_>,
    settings: &Settings,
) -> Result<Arc<dyn Device>> {
    let (mut backing, mut cid) = (None, None);
    if let Some(name) = &settings.backing {
        cid = Some(parent_cid(name, making.files)?);
        let reference = Reference { name, role: Role::Backing, format: Some("vmdk") };
        backing = Some(making.files.open(&reference)?);
    }
    let text = Text { settings, size: making.size, parent_cid: cid };
    let descriptor = text.embedded(own_name(making.files.name()))?;
    device(container, making, settings, descriptor, backing)
}

/// An extent whose descriptor is elsewhere. `making` says how many bytes of the disk are in it.
pub(super) fn extent(
    container: Edge,
    making: &Making<'_>,
    settings: &Settings,
) -> Result<Arc<dyn Device>> {
    device(container, making, settings, Vec::new(), None)
}

fn device(
    container: Edge,
    making: &Making<'_>,
    settings: &Settings,
    descriptor: Vec<u8>,
    backing: Option<Edge>,
) -> Result<Arc<dyn Device>> {
    let [redundant, front] = fronts(making.size);
    let tables = usize::try_from(making.size.div_ceil(SPAN)).map_err(|_| confused())?;
    let below = container.info();
    let grain = u32::try_from(GRAIN).unwrap_or(u32::MAX);
    let info = Info {
        blocks: BlockSizes { minimum: grain, preferred: grain, ..BlockSizes::ANY },
        abilities: Abilities {
            write: true,
            flush: below.abilities.flush,
            zero: true,
            fast_zero: true,
            whole_blocks: true,
            take: below.abilities.take,
            ..Abilities::READ
        },
        ..Info::new(below.name.clone(), making.size)
    };
    let header = Header {
        size: making.size,
        stream: false,
        described: !descriptor.is_empty(),
        zeroed_grain: settings.zeroed_grain,
        redundant: redundant.directory,
        directory: front.directory,
        grains: front.grains(),
    };
    let takes = AtomicBool::new(info.abilities.take);
    let tables = vec![None; tables];
    let state = Mutex::new(State { tables, end: front.grains(), free: Vec::new() });
    let grains = Arc::new(Grains { container, state });
    Ok(Layered::device(Sparse {
        disk: Arc::new(Scattered::new(info, making.context, backing, grains.clone())),
        grains,
        header,
        descriptor,
        zeroed_grain: settings.zeroed_grain,
        durable: making.durable,
        stale: AtomicBool::new(!making.zeroed),
        takes,
    }))
}

impl State {
    /// The place of a grain, in sectors; 0: none.
    fn get(&self, grain: u64) -> u32 {
        let (table, entry) = place(grain);
        let table = self.tables.get(table).and_then(Option::as_ref);
        table.and_then(|table| table.get(entry)).copied().unwrap_or(0)
    }

    fn set(&mut self, grain: u64, sector: u32) {
        let (table, entry) = place(grain);
        if let Some(table) = self.tables.get_mut(table)
            && (table.is_some() || sector != 0)
        {
            let table = table.get_or_insert_with(|| Box::new([0; PER_TABLE]));
            if let Some(slot) = table.get_mut(entry) {
                *slot = sector;
            }
        }
    }

    /// Room for at most `most` grains side by side: its first sector, and for how many.
    fn allocate(&mut self, most: u64) -> Result<(u64, u64)> {
        if let Some((at, n)) = self.free.pop() {
            let used = n.min(most);
            if used < n {
                self.free.push((at + used * (GRAIN / SECTOR), n - used));
            }
            return Ok((at, used));
        }
        let end = self.end + most * (GRAIN / SECTOR);
        if u32::try_from(end).is_err() {
            let action = "the format counts sectors in 32 bits, which is not enough";
            return Err(Error::new(ErrorKind::NoSpace, Fault::File, action));
        }
        Ok((std::mem::replace(&mut self.end, end), most))
    }

    /// The run of grains from `first` on that are all missing, or all contiguous.
    fn run(&self, first: u64, most: u64) -> (u32, u64) {
        let at = self.get(first);
        let mut n = 1;
        while n < most {
            let follows = u64::from(at) + n * (GRAIN / SECTOR);
            let next = self.get(first + n);
            let same = if at > ZERO { u64::from(next) == follows } else { next == at };
            if !same {
                break;
            }
            n += 1;
        }
        (at, n)
    }
}

/// The table of a grain, and its entry there.
fn place(grain: u64) -> (usize, usize) {
    let split = |n| usize::try_from(n).unwrap_or(usize::MAX);
    (split(grain / GRAIN_TABLE_ENTRIES), split(grain % GRAIN_TABLE_ENTRIES))
}

impl Runs for Grains {
    async fn run(&self, at: u64, len: u64, _may_wait: bool) -> Result<Option<Run>> {
        let (first, within) = (at / GRAIN, at % GRAIN);
        let (sector, n) = self.state.lock().run(first, grains(within + len));
        let lies = match sector {
            0 => Lies::Beneath,
            ZERO => Lies::Hole,
            sector => Lies::At(u64::from(sector) * SECTOR + within),
        };
        Ok(Some(Run { len: (n * GRAIN - within).min(len), lies }))
    }
}

impl Atlas for Grains {
    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((0, &self.container))
    }
}

impl Layer for Sparse {
    fn info(&self) -> &Info {
        self.disk.info()
    }

    fn below(&self) -> Vec<&Edge> {
        vec![self.container()]
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Flush => kit::flush(self.container()).await?,
            Operation::Trim { .. } => {}
            Operation::Read { .. } | Operation::Prefetch { .. } | Operation::Status { .. } => {
                return self.disk.clone().run(operation).await;
            }
            Operation::Resolve { .. } => return Err(Error::unsupported("map a new image")),
            Operation::Take { offset, len, from, share_only } => {
                return self.take((offset, len), from, share_only).await.map(Outcome::Taken);
            }
            Operation::Write { offset, data, .. } => self.write(offset, data).await?,
            Operation::Zero { offset, len, flags } => self.zero(offset, len, flags)?,
        }
        Ok(Outcome::Done)
    }

    async fn finish(self: Arc<Self>) -> Result<()> {
        self.forget().await?;
        let size = self.state().end * SECTOR;
        for front in fronts(self.info().size) {
            front.write_directory(self.container(), self.info().size).await?;
            self.write_tables(front.tables).await?;
        }
        if !self.descriptor.is_empty() {
            self.put(DESCRIPTOR_AT * SECTOR, self.descriptor.clone()).await?;
        }
        self.container().device().resize(size)?;
        if self.durable && self.container().info().abilities.flush {
            kit::flush(self.container()).await?;
        }
        self.put(0, self.header.bytes().to_vec()).await?;
        self.container().device().finish()
    }
}

impl Sparse {
    fn state(&self) -> MutexGuard<'_, State> {
        self.grains.state.lock()
    }

    fn container(&self) -> &Edge {
        &self.grains.container
    }

    async fn put(&self, offset: u64, bytes: Vec<u8>) -> Result<()> {
        kit::write(self.container(), offset, Buffer::copy_of(&bytes).into(), false).await
    }

    /// Grains of a range, which begins with one.
    fn range(&self, offset: u64, len: u64) -> (u64, u64) {
        (offset / GRAIN, grains(len))
    }

    /// Before an old image is overwritten, it is made invalid.
    async fn forget(&self) -> Result<()> {
        if self.stale.swap(false, Relaxed) {
            self.put(0, vec![0; HEADER]).await?;
        }
        Ok(())
    }

    async fn write(&self, offset: u64, mut data: Slice) -> Result<()> {
        self.forget().await?;
        let (mut grain, mut left) = self.range(offset, data.len() as u64);
        let mut done = 0;
        while left > 0 {
            let (at, n) = {
                let mut state = self.state();
                match state.run(grain, left) {
                    (0 | ZERO, n) => state.allocate(n)?,
                    (at, n) => (u64::from(at), n),
                }
            };
            let bytes = usize::try_from(n * GRAIN).map_err(|_| confused())?.min(data.len() - done);
            let part = data.share(done, bytes).ok_or_else(confused)?;
            self.write_grains(at, part).await?;
            self.remember(grain, at, n)?;
            (grain, left, done) = (grain + n, left - n, done + bytes);
        }
        Ok(())
    }

    /// Writes grains side by side. The last of the disk may end before its grain does.
    async fn write_grains(&self, at: u64, part: Slice) -> Result<()> {
        let grain = usize::try_from(GRAIN).unwrap_or(1);
        let short = part.len().next_multiple_of(grain) - part.len();
        let part = if short > 0 {
            let mut padded = Buffer::zeroed(part.len() + short);
            if let Some(front) = padded.get_mut(..part.len()) {
                front.copy_from_slice(&part);
            }
            padded.into()
        } else {
            part
        };
        kit::write(self.container(), at * SECTOR, part, false).await
    }

    /// Notes that grains are written.
    fn remember(&self, grain: u64, at: u64, n: u64) -> Result<()> {
        let mut state = self.state();
        for i in 0..n {
            let sector = u32::try_from(at + i * (GRAIN / SECTOR)).map_err(|_| confused())?;
            state.set(grain + i, sector);
        }
        Ok(())
    }

    /// Shares whole grains; grains that cannot be shared are written.
    async fn take(&self, (offset, len): (u64, u64), from: Place, share_only: bool) -> Result<u64> {
        let (grain, whole) = (offset / GRAIN, len / GRAIN);
        if whole == 0 || !self.takes.load(Relaxed) {
            return Ok(0);
        }
        self.forget().await?;
        let (at, n) = {
            let mut state = self.state();
            match state.run(grain, whole) {
                (0 | ZERO, n) => state.allocate(n)?,
                // It was written there.
                _ => return Ok(0),
            }
        };
        let taken = kit::take(self.container(), (at * SECTOR, n * GRAIN), from, share_only).await;
        let taken = taken.inspect_err(|_| self.state().free.push((at, n)))?;
        if taken == 0 {
            self.takes.store(false, Relaxed);
        }
        let whole = (taken / GRAIN).min(n);
        if whole < n {
            self.state().free.push((at + whole * (GRAIN / SECTOR), n - whole));
        }
        self.remember(grain, at, whole)?;
        Ok(whole * GRAIN)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        let zero = match (&self.disk.backing, self.zeroed_grain) {
            (None, _) => 0,
            (Some(_), true) => ZERO,
            (Some(_), false) => return Err(Error::unsupported("zero over a parent")),
        };
        if !flags.may_unmap {
            return Err(Error::unsupported("zero and keep the room"));
        }
        let (first, n) = self.range(offset, len);
        let mut state = self.state();
        let mut grain = first;
        while grain < first + n {
            let (table, entry) = place(grain);
            if zero == 0 && state.tables.get(table).is_some_and(Option::is_none) {
                // Nothing of it was written.
                grain += GRAIN_TABLE_ENTRIES - entry as u64;
                continue;
            }
            let before = state.get(grain);
            if before > ZERO {
                state.free.push((u64::from(before), 1));
            }
            state.set(grain, zero);
            grain += 1;
        }
        Ok(())
    }

    /// The tables after a directory. Those without a grain are zeroed, since the old contents may
    /// be anything.
    async fn write_tables(&self, at: u64) -> Result<()> {
        let count = self.state().tables.len();
        let flags = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
        let (mut first, all) = (0, count.max(1));
        while first < all {
            let (used, n, bytes) = {
                let state = self.state();
                let rest = state.tables.get(first..).unwrap_or_default();
                let used = rest.first().is_some_and(Option::is_some);
                let same = rest.iter().take_while(|table| table.is_some() == used);
                let n = if used { same.take(AT_ONCE).count() } else { same.count() };
                let written = rest.iter().take(if used { n } else { 0 }).flatten();
                let bytes: Vec<u8> =
                    written.flat_map(|table| table.iter().flat_map(|e| e.to_le_bytes())).collect();
                (used, n.max(1), bytes)
            };
            let offset = at * SECTOR + first as u64 * TABLE;
            if used {
                self.put(offset, bytes).await?;
            } else {
                let zero = Operation::Zero { offset, len: n as u64 * TABLE, flags };
                kit::ask(self.container(), zero).await?;
            }
            first += n;
        }
        Ok(())
    }
}
