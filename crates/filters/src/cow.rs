//! `cow`: a writable overlay over a disk that is never written.
//!
//! Writes go to a temporary file without a name, which is gone at the end. Each disk has one
//! overlay, which its clients share, whatever name they asked for: they see each other's writes at
//! once. A flush does nothing, and needs to do nothing: no part of the overlay is meant to outlive
//! the program.

use runtime::{WorkPool, to_usize};
use std::sync::Arc;

use device::{
    Abilities, Arrival, BlockSizes, Buffer, Done, Edge, Error, ErrorKind, Filter, Filtered,
    Operation, Outcome, Over, Params, Result, param, values,
};

use crate::FilterKind;
use crate::kit::below;
use crate::kit::store::{BlockAccess, BlockState, OnRead, Store, TempFile, block_size};

pub(crate) const KIND: FilterKind = FilterKind {
    word: "cow",
    summary: "makes a disk writable without changing it: writes go to a temporary overlay",
    reads_only: true,
    params: &[
        param("cow-block-size", "SIZE", "block of the overlay, a power of two (default 64K)"),
        param("cow-on-cache", "true|false", "keep what is prefetched (default false)"),
        param("cow-on-read", "true|false|/PATH", "keep what is read; PATH: while it exists"),
    ],
    reaches: |_| crate::kit::store::TempFile::reach(),
    example: "serve --filter=cow random 10M --run 'nbdcopy null: \"$uri\"'",
    open: |params, below, context| {
        let settings = Settings::read(params, &context.pool)?;
        let cow = Cow::new(Arc::new(settings), &below, false);
        // Fail now rather than at the first write.
        cow.store.file.make()?;
        Ok(Filtered::device(cow, below))
    },
    ..FilterKind::PLAIN
};

struct Settings {
    block: u64,
    on_cache: bool,
    on_read: OnRead,
    pool: WorkPool,
}

impl Settings {
    fn read(params: &Params, pool: &WorkPool) -> Result<Self> {
        Ok(Self {
            block: block_size(params, "cow-block-size")?,
            on_cache: values::flag(params, "cow-on-cache")?.unwrap_or(false),
            on_read: OnRead::read(params, "cow-on-read")?,
            pool: pool.clone(),
        })
    }
}

struct Cow {
    settings: Arc<Settings>,
    store: Arc<Store>,
    /// It belongs to one client, whose disk below is another: no other client sees it or its
    /// writes.
    apart: bool,
}

impl Cow {
    fn new(settings: Arc<Settings>, below: &Edge, apart: bool) -> Self {
        let store = Arc::new(Store::new(settings.block, below, TempFile::new(&settings.pool)));
        Self { settings, store, apart }
    }
}

/// For one operation: the store, and the disk below it.
struct Overlay {
    below: Edge,
    settings: Arc<Settings>,
    store: Arc<Store>,
}

impl Overlay {
    async fn run(self, operation: Operation) -> Result<Outcome> {
        let Self { below, settings, store } = &self;
        match operation {
            Operation::Flush => {}
            Operation::Prefetch { offset, len } if settings.on_cache => {
                store.prefetch(below, offset, len).await?;
            }
            prefetch @ Operation::Prefetch { .. } => return below::ask(below, prefetch).await,
            Operation::Read { offset, buffer } => {
                return self.read(offset, buffer).await.map(Outcome::Read);
            }
            Operation::Resolve { offset, len, max } => {
                return store.resolve(below, offset, len, max).await.map(Outcome::Extents);
            }
            Operation::Status { .. } => {
                return Err(Error::unsupported("status: an overlay has none"));
            }
            Operation::Take { .. } => return Ok(Outcome::Taken(0)),
            Operation::Trim { offset, len, .. } => self.trim(offset, len).await?,
            Operation::Write { offset, data, .. } => store.write(below, offset, data).await?,
            Operation::Zero { offset, len, flags } => {
                self.zero(offset, len, flags.fast_only).await?;
            }
        }
        Ok(Outcome::Done)
    }

    async fn read(&self, offset: u64, buffer: Buffer) -> Result<Buffer> {
        if self.settings.on_read.is_on() {
            // Keeping needs whole blocks, more than was asked for; if that fails, the plain read
            // may still succeed.
            let _ = self.store.fill(&self.below, offset, buffer.len() as u64).await;
        }
        self.store.read(&self.below, offset, buffer).await
    }

    async fn zero(&self, offset: u64, len: u64, fast: bool) -> Result<()> {
        let refused = || Err(Error::not_fast().on(&self.below.info().name).at(offset));
        // Checked before too: a request that must wait for others is not answered at once.
        if fast && !self.is_fast(offset, len) {
            return refused();
        }
        let blocks = self.store.touched(offset, len);
        self.store.admit(&blocks).map_err(|e| e.on(&self.below.info().name).at(offset))?;
        let _held = self.store.locks.take(blocks, BlockAccess::Own).await;
        if fast && !self.is_fast(offset, len) {
            return refused();
        }
        self.clear(offset, len).await
    }

    /// Makes a range, whose blocks the caller holds exclusively, read as zeroes.
    async fn clear(&self, offset: u64, len: u64) -> Result<()> {
        for (range, whole) in self.store.segments(offset, len) {
            let (start, len) = (range.start, range.end - range.start);
            if whole {
                self.store.make_hole(self.store.whole(start, len)).await;
            } else if !self.is_hole(start) {
                let zeroes = Buffer::zeroed(to_usize(len));
                self.store.bring_and_write(&self.below, start, zeroes.into()).await?;
            }
        }
        Ok(())
    }

    /// Whether zeroing a range only changes the map, and writes no part of a block.
    fn is_fast(&self, offset: u64, len: u64) -> bool {
        let segments = self.store.segments(offset, len);
        segments.iter().all(|(range, whole)| *whole || self.is_hole(range.start))
    }

    fn is_hole(&self, offset: u64) -> bool {
        self.store.states().get(offset / self.store.block()) == BlockState::Hole
    }

    /// What is trimmed reads as zeroes, parts of blocks too. A hint: where a block finds no room,
    /// or its state would cost too much memory, it stays as it is.
    async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        let blocks = self.store.touched(offset, len);
        if self.store.admit(&blocks).is_err() {
            return Ok(());
        }
        let _held = self.store.locks.take(blocks, BlockAccess::Own).await;
        match self.clear(offset, len).await {
            Err(e) if e.kind() != ErrorKind::NoSpace => Err(e),
            _ => Ok(()),
        }
    }
}

impl Filter for Cow {
    fn describe(&self, over: &mut Over) {
        let info = &mut over.info;
        let block = u32::try_from(self.store.block()).unwrap_or(BlockSizes::ANY.maximum);
        let preferred = info.blocks.preferred.max(block);
        info.blocks = BlockSizes { preferred, ..BlockSizes::ANY };
        info.abilities = Abilities {
            write: true,
            flush: true,
            fua: true,
            trim: true,
            zero: true,
            fast_zero: true,
            multi_conn: !self.apart,
            extents: true,
            prefetch: self.settings.on_cache || info.abilities.prefetch,
            observed: info.abilities.observed || self.settings.on_read.is_ever_on(),
            take: false,
            discards: false,
            hides_zero: false,
            hides_fua: false,
            ..info.abilities
        };
        info.longest_effect = u64::MAX;
        // The contexts of the disk below are wrong for data written here, and nothing can say
        // where.
        info.contexts.clear();
    }

    fn keeps_bytes(&self) -> bool {
        true
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let (settings, store) = (self.settings.clone(), self.store.clone());
        let me = Overlay { below: over.below.clone(), settings, store };
        below::complete(done, async move { me.run(operation).await });
    }

    fn for_client(&self, _: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        if self.store.fits(&arrival.below) {
            return None;
        }
        Some(Arc::new(Self::new(self.settings.clone(), &arrival.below, true)))
    }
}

#[cfg(test)]
mod tests {

    use device::model::Model;
    use device::{Client, Connected, Device, Extent, ExtentKind, ZeroFlags};

    use super::*;
    use crate::kit::tested::{bytes, client, personal, put, read, start, write};
    use device::Blocking as _;
    use runtime::Mutex;
    use trial::TestDevice;

    const BLOCK: u64 = 64 << 10;

    fn over(below: Arc<dyn Device>, words: &[&str]) -> Edge {
        put("cow", below, words).unwrap()
    }

    fn map(disk: &Edge) -> Vec<(u64, u64, ExtentKind)> {
        let mut extents: Vec<Extent> = Vec::new();
        disk.resolve(0, disk.info().size, 100, &mut extents).unwrap();
        extents.iter().map(|e| (e.start, e.len, e.kind)).collect()
    }

    #[test]
    fn a_read_during_the_first_write_of_a_block_sees_the_old_or_the_new_bytes() {
        let probe = TestDevice::new(1 << 20);
        probe.model().write_at(&[1; 1 << 18], 0, false).unwrap();
        let disk = over(probe.clone(), &[]);
        probe.hold();
        let writing = start(&disk, write(100, 1000, 2));
        let reading: Vec<_> = (0..4).map(|_| start(&disk, read(100, 1000))).collect();
        probe.release();
        writing.recv().unwrap().unwrap();
        for reading in reading {
            let Outcome::Read(data) = reading.recv().unwrap().unwrap() else { panic!() };
            assert!(data.iter().all(|b| *b == 1) || data.iter().all(|b| *b == 2));
        }
        assert_eq!(bytes(&disk, 100, 1000), [2; 1000]);
        assert_eq!(bytes(&disk, 0, 100), [1; 100]);
    }

    #[test]
    fn a_write_waits_only_for_writes_to_the_same_block() {
        let probe = TestDevice::new(1 << 20);
        let disk = over(probe.clone(), &[]);
        probe.hold();
        let waiting = start(&disk, write(0, 10, 1));
        // Writing a whole block reads nothing from below.
        start(&disk, write(BLOCK, 65536, 2)).recv().unwrap().unwrap();
        assert_eq!(bytes(&disk, BLOCK, 10), [2; 10]);
        assert!(waiting.try_recv().is_err());
        probe.release();
        waiting.recv().unwrap().unwrap();
    }

    #[test]
    fn a_failure_to_read_the_rest_of_a_block_fails_the_write_and_changes_nothing() {
        let probe = TestDevice::new(1 << 20);
        let disk = over(probe.clone(), &[]);
        probe.fail(Some("read"));
        assert_eq!(disk.write(&[1; 10], 5, false).unwrap_err().kind(), ErrorKind::Io);
        probe.fail(None);
        assert_eq!(bytes(&disk, 0, 100), [0; 100]);
        assert!(map(&disk).iter().all(|(_, _, kind)| *kind == ExtentKind::Hole));
    }

    #[test]
    fn blocks_beyond_what_may_be_remembered_are_refused_and_the_others_stay_right() {
        let probe = TestDevice::new(1 << 20);
        probe.model().write_at(&[1; 1 << 20], 0, false).unwrap();
        let settings = Settings::read(&Params::default(), &WorkPool::new(2)).unwrap();
        let below = probe.edge(&WorkPool::new(2));
        let cow = Cow::new(Arc::new(settings), &below, false);
        cow.store.states().limit(3 * 64);
        let disk = Edge::new(Filtered::device(cow, below), WorkPool::new(2));
        let zero = ZeroFlags::default();
        disk.write(&[2; 10], 0, false).unwrap();
        disk.zero(2 * BLOCK, BLOCK, zero).unwrap();
        disk.trim(4 * BLOCK, BLOCK, false).unwrap();
        for refused in [
            disk.write(&[3; 10], 6 * BLOCK, false),
            disk.zero(6 * BLOCK, BLOCK, zero),
            disk.zero(6 * BLOCK, BLOCK, ZeroFlags { fast_only: true, ..zero }),
        ] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoMemory);
        }
        // A hint.
        disk.trim(6 * BLOCK, BLOCK, false).unwrap();
        assert_eq!(bytes(&disk, 6 * BLOCK, 65536), [1; 1 << 16]);
        assert_eq!(bytes(&disk, 2 * BLOCK, 65536), [0; 1 << 16]);
        disk.write(&[4; 10], 10, false).unwrap();
        assert_eq!(bytes(&disk, 0, 20), [[2; 10], [4; 10]].concat());
        // A change that leaves fewer entries is always accepted.
        disk.zero(0, 1 << 20, zero).unwrap();
        disk.write(&[3; 10], 6 * BLOCK, false).unwrap();
        assert_eq!(bytes(&disk, 6 * BLOCK, 10), [3; 10]);
    }

    #[test]
    fn zeroes_cost_no_writing_and_their_map_is_a_hole_over_whatever_is_below() {
        let below = devices::Named::parse("sparse-random:1T?seed=1").unwrap();
        let below =
            below.open(&devices::OpenOptions::default(), &runtime::Context::default()).unwrap();
        let disk = over(below, &[]);
        let fast = ZeroFlags { fast_only: true, may_unmap: true, ..ZeroFlags::default() };
        disk.zero(0, 1 << 40, fast).unwrap();
        assert_eq!(map(&disk), [(0, 1 << 40, ExtentKind::Hole)]);
        disk.write(&[1; 4096], BLOCK + 4096, false).unwrap();
        let rest = 2 * BLOCK..1 << 40;
        assert_eq!(
            map(&disk),
            [
                (0, BLOCK, ExtentKind::Hole),
                (BLOCK, BLOCK, ExtentKind::Data),
                (rest.start, rest.end - rest.start, ExtentKind::Hole),
            ]
        );
        assert_eq!(bytes(&disk, BLOCK, 4096), [0; 4096]);
        assert_eq!(bytes(&disk, (1 << 40) - 4096, 4096), [0; 4096]);
    }

    #[test]
    fn a_fast_zero_of_part_of_a_block_is_refused_at_once_unless_it_is_a_hole() {
        let probe = TestDevice::new((1 << 20) + 100);
        probe.model().write_at(&[1; 1 << 18], 0, false).unwrap();
        let disk = over(probe.clone(), &[]);
        let fast = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
        probe.hold();
        let error = disk.zero(BLOCK, BLOCK + 1, fast).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFast);
        assert!(probe.asked().is_empty());
        // The last block is short and counts as whole.
        disk.zero(BLOCK, (1 << 20) + 100 - BLOCK, fast).unwrap();
        disk.zero(BLOCK, 5, fast).unwrap();
        probe.release();
        assert_eq!(bytes(&disk, 0, 65536), [1; 65536]);
        assert_eq!(bytes(&disk, BLOCK, 65536), [0; 65536]);
    }

    #[test]
    fn what_is_read_or_prefetched_is_kept_if_asked_for_and_its_map_stays_the_one_below() {
        for (words, prefetched) in [(["cow-on-read=true"], false), (["cow-on-cache=true"], true)] {
            let probe = TestDevice::new(1 << 20);
            probe.model().write_at(&[1; 4096], 4096, false).unwrap();
            let disk = over(probe.clone(), &words);
            if prefetched {
                disk.prefetch(4096, 10).unwrap();
            } else {
                bytes(&disk, 4096, 10);
            }
            assert_eq!(probe.asked(), ["read 0+65536"]);
            assert_eq!(bytes(&disk, 4000, 96), [0; 96]);
            assert_eq!(bytes(&disk, 4096, 4096), [1; 4096]);
            assert_eq!(probe.asked(), [""; 0]);
            let size = (1 << 20) - 8192;
            let (hole, data) = (ExtentKind::Hole, ExtentKind::Data);
            assert_eq!(map(&disk), [(0, 4096, hole), (4096, 4096, data), (8192, size, hole)]);
        }
    }

    #[test]
    fn a_trim_leaves_nothing_of_parts_of_blocks_but_finding_no_room_is_no_failure() {
        let probe = TestDevice::new((1 << 20) + 100);
        probe.model().write_at(&[1; 1 << 20], 0, false).unwrap();
        let disk = over(probe.clone(), &[]);
        disk.trim(1024, 1024, false).unwrap();
        disk.trim(BLOCK - 10, 3 * BLOCK, false).unwrap();
        let mut want = vec![1; 1 << 20];
        want[1024..2048].fill(0);
        let (start, end) =
            (usize::try_from(BLOCK - 10).unwrap(), usize::try_from(4 * BLOCK - 10).unwrap());
        want[start..end].fill(0);
        assert!(bytes(&disk, 0, 1 << 20) == want);
        // What is below is not touched, and is a hole wherever whole blocks were trimmed.
        assert_eq!(probe.model().bytes()[..1 << 20], [1; 1 << 20]);
        assert_eq!(map(&disk)[1], (BLOCK, 2 * BLOCK, ExtentKind::Hole));
        // A part of a hole is nothing to do.
        probe.fail(Some("read"));
        disk.trim(BLOCK + 5, 10, false).unwrap();
        // What cannot be read below is a failure.
        assert_eq!(disk.trim(8 * BLOCK + 5, 10, false).unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn keeping_what_is_read_begins_and_ends_with_a_file() {
        let scratch = trial::Scratch::new("/tmp");
        let path = scratch.path("keep");
        let probe = TestDevice::new(1 << 20);
        let key = format!("cow-on-read={}", path.display());
        let disk = over(probe.clone(), &[&key]);
        bytes(&disk, 0, 10);
        assert_eq!(probe.asked(), ["read 0+10"]);
        std::fs::write(&path, "").unwrap();
        bytes(&disk, 0, 10);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(probe.asked(), ["read 0+65536"]);
        bytes(&disk, 0, 10);
        bytes(&disk, BLOCK, 10);
        assert_eq!(probe.asked(), ["read 65536+10"]);
    }

    #[test]
    fn clients_of_one_disk_share_its_overlay_whatever_name_they_came_by() {
        let paths = Arc::<Mutex<Vec<Arc<TestDevice>>>>::default();
        let given = paths.clone();
        let give = move |_: &Client, done: Connected| {
            done(Ok(given.lock().pop().map(|path| path as Arc<dyn Device>)));
        };
        let probe = TestDevice::over(Model::new(1 << 20)).connecting(give).shared();
        let disk = over(probe.clone(), &[]);
        let client = |path: Arc<TestDevice>, export: &str| {
            paths.lock().push(path);
            let this_client = Client { export: export.to_owned(), ..client(1) };
            personal(&disk, &this_client)
        };
        let (a, b) = (client(probe.clone(), ""), client(probe.clone(), "disk"));
        a.write(&[7; 10], 0, false).unwrap();
        assert_eq!(bytes(&b, 0, 10), [7; 10]);
        assert!(b.info().abilities.multi_conn);
        // A path that leads to another disk.
        let other = client(TestDevice::new(2 << 20), "disk");
        assert_eq!(bytes(&other, 0, 10), [0; 10]);
        assert_eq!(bytes(&other, (2 << 20) - 10, 10), [0; 10]);
        assert!(!other.info().abilities.multi_conn);
    }
}
