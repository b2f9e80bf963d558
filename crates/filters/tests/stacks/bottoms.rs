//! The devices at the bottom of a stack: what they can do × how they keep callers waiting.
//!
//! A device that waits for a disk refuses requests of a thread that must not block; one that
//! waits for something outside answers later, from a thread of its own, and not in the order in
//! which it was asked.

use runtime::WorkPool;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use device::model::Model;
use device::{
    Abilities, BlockSizes, Blocking, Device, Edge, Extent, Info, Name, Result, Simple, StatusRun,
    ZeroFlags, run_blocking,
};
use devices::OpenOptions;
use trial::{Fate, SIZE, TestDevice};

/// How a device keeps callers waiting.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wait {
    /// Never.
    Never,
    /// For a disk.
    Disk,
    /// For something outside.
    Outside,
}

/// The ways of waiting.
pub(crate) const WAITS: [Wait; 3] = [Wait::Never, Wait::Disk, Wait::Outside];
/// How many kinds of [`bottom`] there are.
pub(crate) const KINDS: usize = 8;
/// The kind that is a file in memory: it never waits, and has places.
pub(crate) const IN_MEMORY: usize = 6;

/// A device of [`SIZE`] bytes, all of them zero.
pub(crate) fn bottom(kind: usize, pool: &WorkPool) -> Arc<dyn Device> {
    bottom_of(SIZE, kind, pool)
}

/// The same of `size` bytes.
pub(crate) fn bottom_of(size: usize, kind: usize, pool: &WorkPool) -> Arc<dyn Device> {
    match kind {
        0..3 => waiting(Arc::new(Model::new(size)), WAITS[kind], pool),
        3..6 => waiting(Arc::new(derived(size)), WAITS[kind - 3], pool),
        IN_MEMORY => file(Path::new("/dev/shm"), size, pool),
        // On a disk, unless the build directory is in memory.
        _ => file(Path::new(env!("CARGO_TARGET_TMPDIR")), size, pool),
    }
}

/// Blocks, short requests, no zeroing and no FUA: everything must be derived.
fn derived(size: usize) -> Model {
    let all = Model::new(size).info().abilities;
    Model::with(
        size,
        Abilities { fua: false, zero: false, fast_zero: false, ..all },
        BlockSizes { minimum: 512, preferred: 4096, maximum: 8192 },
    )
}

fn file(directory: &Path, size: usize, pool: &WorkPool) -> Arc<dyn Device> {
    let name = format!("diskferry-stack-{}-{:?}", std::process::id(), std::thread::current().id());
    let path = directory.join(name);
    let options = OpenOptions { lock: false, ..OpenOptions::read_write() };
    std::fs::File::create(&path).and_then(|file| file.set_len(size as u64)).unwrap();
    let disk = devices::Named::of(&Name::Path(path.display().to_string()))
        .and_then(|disk| disk.open(&options, &runtime::Context::new(pool.clone())))
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    disk
}

/// `disk`, as if it waited in that way.
pub(crate) fn waiting<B: Blocking>(disk: Arc<B>, wait: Wait, pool: &WorkPool) -> Arc<dyn Device> {
    let below = disk.clone();
    let blank = TestDevice::blank(disk.info().clone()).hooked(move |operation| {
        if wait == Wait::Disk {
            check_thread();
            // Others have their turn.
            std::thread::yield_now();
        }
        Fate::Answer(run_blocking(&*below, operation))
    });
    match wait {
        Wait::Never => Simple::shared(disk, pool),
        Wait::Disk => Simple::device(blank.waiting(), pool),
        Wait::Outside => blank.late(1).shared(),
    }
}

/// The name of threads that must not block, as a server's reactors are called.
pub(crate) const REACTOR: &str = "reactor";

/// A device may be waited for here.
fn check_thread() {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default();
    assert!(!["timers", REACTOR, "late"].contains(&name), "the thread {name} would have to wait");
}

/// A format as simple as can be: it has only blocking methods, and each of them waits for the
/// device below, which may be a filter that waits for the same threads. No [`TestDevice`]: that one
/// is a bottom.
pub(crate) struct Format {
    info: Info,
    below: Edge,
}

impl Format {
    pub(crate) fn over(below: Edge) -> Edge {
        let pool = below.pool().clone();
        let info = Info { flat: None, ..below.info().clone() };
        Simple::edge(Self { info, below }, &pool)
    }
}

impl Blocking for Format {
    fn info(&self) -> &Info {
        &self.info
    }

    fn waits(&self) -> bool {
        true
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        check_thread();
        self.below.read(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        check_thread();
        self.below.write(data, offset, fua)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        check_thread();
        self.below.zero(offset, len, flags)
    }

    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        check_thread();
        self.below.trim(offset, len, fua)
    }

    fn flush(&self) -> Result<()> {
        check_thread();
        self.below.flush()
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        check_thread();
        self.below.prefetch(offset, len)
    }

    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        check_thread();
        self.below.resolve(offset, len, max, out)?;
        out.iter_mut().for_each(|extent| extent.place = None);
        Ok(())
    }

    fn status(
        &self,
        context: &str,
        offset: u64,
        len: u64,
        max: usize,
        out: &mut Vec<StatusRun>,
    ) -> Result<()> {
        check_thread();
        self.below.status(context, offset, len, max, out)
    }
}

/// Ends the tests when something waits for ever. Nothing is measured with it.
pub(crate) struct Guard {
    _alive: mpsc::Sender<()>,
}

impl Guard {
    pub(crate) fn new() -> Self {
        let (alive, ended) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if ended.recv_timeout(Duration::from_secs(300)) == Err(mpsc::RecvTimeoutError::Timeout)
            {
                eprintln!("a deadlock");
                std::process::abort();
            }
        });
        Self { _alive: alive }
    }
}
