//! The devices at the bottom of a stack: what they can do × how they keep who asks waiting.
//!
//! A device that waits for a disk refuses to be asked by a thread that must not block; one that
//! waits for something outside answers later, from a thread of its own, and not in the order in
//! which it was asked.

use runtime::contained;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use device::model::Model;
use device::{
    Abilities, BlockSizes, Device, Done, Edge, Extent, Info, Name, Operation, Outcome, Place,
    Result, StatusRun, Wait, ZeroFlags,
};
use devices::OpenOptions;
use trial::SIZE;

/// The ways of waiting.
pub(crate) const WAITS: [Wait; 3] = [Wait::Never, Wait::Disk, Wait::Outside];
/// How many kinds of [`bottom`] there are.
pub(crate) const KINDS: usize = 8;
/// The kind that is a file in memory: it never waits, and has places.
pub(crate) const IN_MEMORY: usize = 6;

/// A device of [`SIZE`] bytes, all of them zero.
pub(crate) fn bottom(kind: usize) -> Arc<dyn Device> {
    match kind {
        0..3 => waiting(Arc::new(Model::new(SIZE)), WAITS[kind]),
        3..6 => waiting(Arc::new(derived()), WAITS[kind - 3]),
        IN_MEMORY => file(Path::new("/dev/shm")),
        // On a disk, unless the build directory is in memory.
        _ => file(Path::new(env!("CARGO_TARGET_TMPDIR"))),
    }
}

/// Blocks, short requests, no zeroing and no FUA: everything must be derived.
fn derived() -> Model {
    let all = Model::new(SIZE).info().abilities;
    Model::with(
        SIZE,
        Abilities { fua: false, zero: false, fast_zero: false, ..all },
        BlockSizes { minimum: 512, preferred: 4096, maximum: 8192 },
    )
}

fn file(directory: &Path) -> Arc<dyn Device> {
    let name = format!("diskferry-stack-{}-{:?}", std::process::id(), std::thread::current().id());
    let path = directory.join(name);
    let options = OpenOptions { lock: false, ..OpenOptions::read_write() };
    std::fs::File::create(&path).and_then(|file| file.set_len(SIZE as u64)).unwrap();
    let disk = devices::Named::of(&Name::Path(path.display().to_string()))
        .and_then(|disk| disk.open(&options, &runtime::Context::default()))
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    disk
}

/// `device`, as if it waited in that way.
pub(crate) fn waiting(device: Arc<dyn Device>, wait: Wait) -> Arc<dyn Device> {
    let info = Info { wait, ..device.info().clone() };
    match wait {
        Wait::Never => device,
        Wait::Disk => Arc::new(Slow { info, device }),
        Wait::Outside => Late::device(info, device),
    }
}

/// The name of threads that must not block, as a server's reactors are called.
pub(crate) const REACTOR: &str = "reactor";

/// A device may be waited for here.
fn check_thread() {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default();
    assert!(!["timers", REACTOR, LATE].contains(&name), "the thread {name} would have to wait");
}

/// Waits for a disk.
struct Slow {
    info: Info,
    device: Arc<dyn Device>,
}

impl Slow {
    /// The device, after a wait in which others have their turn.
    fn wait(&self) -> &dyn Device {
        check_thread();
        std::thread::yield_now();
        &*self.device
    }
}

impl Device for Slow {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.wait().read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        self.wait().write_at(data, offset, fua)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        self.wait().zero(offset, len, flags)
    }

    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.wait().trim(offset, len, fua)
    }

    fn flush(&self) -> Result<()> {
        self.wait().flush()
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.wait().prefetch(offset, len)
    }

    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        self.wait().resolve(offset, len, max, out)
    }

    fn status(
        &self,
        context: &str,
        offset: u64,
        len: u64,
        max: usize,
        out: &mut Vec<StatusRun>,
    ) -> Result<()> {
        self.wait().status(context, offset, len, max, out)
    }

    fn take(&self, offset: u64, len: u64, from: &Place, share_only: bool) -> Result<u64> {
        self.wait().take(offset, len, from, share_only)
    }

    fn place(&self, offset: u64) -> Option<Place> {
        self.device.place(offset)
    }

    fn write_place(&self, offset: u64) -> Option<Place> {
        self.device.write_place(offset)
    }
}

/// The thread of a [`Late`].
const LATE: &str = "late";

/// Waits for something outside.
struct Late {
    info: Info,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<(Vec<(Operation, Done)>, bool)>,
    wake: Condvar,
}

impl Late {
    fn device(info: Info, device: Arc<dyn Device>) -> Arc<dyn Device> {
        let queue = Arc::new(Queue::default());
        let outside = queue.clone();
        let work = move || outside.work(&*device);
        std::thread::Builder::new().name(LATE.into()).spawn(work).unwrap();
        Arc::new(Self { info, queue })
    }

    fn wait(&self, operation: Operation) -> Result<Outcome> {
        check_thread();
        let device: &dyn Device = self;
        device.submit_and_wait(operation)
    }
}

impl Queue {
    fn work(&self, device: &dyn Device) {
        let mut dice = 1_u64;
        loop {
            let mut state = self.state.lock().unwrap();
            while state.0.is_empty() {
                if state.1 {
                    return;
                }
                state = self.wake.wait(state).unwrap();
            }
            drop(state);
            // Others may come meanwhile.
            std::thread::yield_now();
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut state = self.state.lock().unwrap();
            let any = usize::try_from(dice >> 33).unwrap() % state.0.len();
            let (operation, done) = state.0.swap_remove(any);
            drop(state);
            let result = contained("outside", || device.run_blocking(operation));
            done(result.unwrap_or_else(|panic| Err(panic.into())));
        }
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.queue.state.lock().unwrap().1 = true;
        self.queue.wake.notify_one();
    }
}

impl Device for Late {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let buffer = device::Buffer::zeroed(buf.len());
        let Outcome::Read(read) = self.wait(Operation::Read { offset, buffer })? else {
            panic!("not what was asked for");
        };
        buf.copy_from_slice(&read);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        let data = device::Buffer::copy_of(data).into();
        self.wait(Operation::Write { offset, data, fua }).map(drop)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        self.wait(Operation::Zero { offset, len, flags }).map(drop)
    }

    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.wait(Operation::Trim { offset, len, fua }).map(drop)
    }

    fn flush(&self) -> Result<()> {
        self.wait(Operation::Flush).map(drop)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.wait(Operation::Prefetch { offset, len }).map(drop)
    }

    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        let Outcome::Extents(extents) = self.wait(Operation::Resolve { offset, len, max })? else {
            panic!("not what was asked for");
        };
        out.extend(extents);
        Ok(())
    }

    fn submit(&self, operation: Operation, done: Done) {
        self.queue.state.lock().unwrap().0.push((operation, done));
        self.queue.wake.notify_one();
    }
}

/// A format as simple as can be: it has only blocking methods, and each of them waits for the
/// device below, which may be a filter that waits for the same threads.
pub(crate) struct Format {
    info: Info,
    below: Edge,
}

impl Format {
    pub(crate) fn over(below: Edge) -> Edge {
        let pool = below.pool().clone();
        let info = Info { wait: Wait::Disk, ..below.info().clone() };
        Edge::new(Arc::new(Self { info, below }), pool)
    }
}

impl Device for Format {
    fn info(&self) -> &Info {
        &self.info
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
