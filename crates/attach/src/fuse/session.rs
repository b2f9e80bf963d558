//! An attached disk: the threads that take requests from the kernel, and what is in flight.
//!
//! A thread runs a request to its end where that may be done here, also if it blocks: the other
//! threads go on, and only users of this disk wait. What a device completes later (a server's reply
//! on the network) is answered by the thread that completes it, so as many requests are in flight
//! as the kernel hands out, within a limit of bytes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::SystemTime;

use device::{BufferPool, Client, Edge, Error, Identity, Peer, Result};
use runtime::{Behalf, Condvar, Mutex, OperatorLog, taking_time};

use super::abi::MOST;
use super::mount::FuseMount;
use super::{calls, ioctl, requests};

/// Bytes of requests in flight, at most: each counts its data, and [`FLOOR`].
const IN_FLIGHT: u64 = 64 << 20;
/// What a request costs beside its data, in bytes.
const FLOOR: u64 = 8 << 10;
/// Failures that are logged; later ones are known from their programs.
const LOGGED: u32 = 10;

/// A disk that is attached. It is unmounted when dropped.
#[derive(Debug)]
pub struct AttachedFile {
    session: Arc<FuseSession>,
    mount: FuseMount,
    threads: Vec<JoinHandle<()>>,
}

/// What all threads of an attachment share.
pub(super) struct FuseSession {
    pub(super) edge: Edge,
    pub(super) buffers: BufferPool,
    pub(super) is_read_only: bool,
    pub(super) is_cached: bool,
    /// When it was attached, in seconds since 1970: the times of the file.
    pub(super) since: u64,
    backing: OnceLock<u32>,
    first: Weak<OwnedFd>,
    behalf: Behalf,
    load: Mutex<Load>,
    less: Condvar,
    stopping: AtomicBool,
    log: OperatorLog,
    logged: AtomicU32,
    requests: AtomicU64,
    detached: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

/// Requests in flight.
#[derive(Default)]
struct Load {
    requests: u64,
    bytes: u64,
    /// Threads that wait for less of it.
    waiting: u64,
}

runtime::debug_as!(FuseSession, |it| "FuseSession({:?})", it.edge);

impl FuseMount {
    /// Attaches the disk of `edge`, as the client `number` of this process. `detached` is called
    /// once when the kernel has unmounted it.
    ///
    /// # Errors
    /// The disk refuses this client, or the system gives no thread.
    pub fn attach(
        self,
        edge: &Edge,
        number: u64,
        log: OperatorLog,
        detached: impl FnOnce() + Send + 'static,
    ) -> Result<AttachedFile> {
        let edge = for_client(edge, number)?;
        let Some(first) = self.connections.first() else { return Err(Error::unanswered()) };
        let is_read_only = self.is_read_only || !edge.info().abilities.write;
        let how = (is_read_only, self.is_cached);
        let session = FuseSession::new(edge, how, Arc::downgrade(first), number, log, detached);
        let session = Arc::new(session);
        let mut threads = Vec::new();
        for connection in self.connections.clone() {
            let session = session.clone();
            let thread = std::thread::Builder::new().name("attached".into());
            let thread = thread.spawn(move || session.serve(&connection));
            threads.push(thread.map_err(|e| Error::os("start a thread", e))?);
        }
        Ok(AttachedFile { session, mount: self, threads })
    }
}

/// The disk for this client, which the device may have one of its own for.
fn for_client(edge: &Edge, number: u64) -> Result<Edge> {
    let client = Client {
        number,
        peer: Peer::Other,
        export: String::new(),
        tls: None::<Arc<Identity>>,
        presence: device::Presence::default(),
    };
    let own = runtime::wait_for(|promise| {
        edge.device().connect(&client, Box::new(move |result| promise.keep(result)));
    });
    let own = own.unwrap_or_else(|| Err(Error::unanswered()))?;
    Ok(own.map_or_else(|| edge.clone(), |device| edge.beside(device)))
}

impl AttachedFile {
    /// Counts the requests.
    pub fn counter(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let session = self.session.clone();
        move || session.requests.load(Ordering::Relaxed)
    }

    /// Ends it: takes no more requests, waits for those in flight, flushes, and unmounts.
    ///
    /// # Errors
    /// The flush failed: writes may be lost.
    pub fn end(self) -> Result<()> {
        let Self { session, mount, threads } = self;
        session.detached.lock().take();
        session.stopping.store(true, Ordering::SeqCst);
        let flushed = if session.is_read_only { Ok(()) } else { session.drain().edge.flush() };
        // Its threads end when the last program has closed the file, or with this process.
        drop((mount, threads));
        flushed
    }
}

impl FuseSession {
    /// For the client `number`. `first` is a descriptor of the connection.
    pub(super) fn new(
        edge: Edge,
        (is_read_only, is_cached): (bool, bool),
        first: Weak<OwnedFd>,
        number: u64,
        log: OperatorLog,
        detached: impl FnOnce() + Send + 'static,
    ) -> Self {
        Self {
            edge,
            buffers: BufferPool::new(8 * MOST),
            is_read_only,
            is_cached,
            since: now(),
            backing: OnceLock::new(),
            first,
            behalf: Behalf::of_client(number),
            load: Mutex::default(),
            less: Condvar::new(),
            stopping: AtomicBool::new(false),
            log,
            logged: AtomicU32::new(0),
            requests: AtomicU64::new(0),
            detached: Mutex::new(Some(Box::new(detached))),
        }
    }

    /// Takes requests until the file system is unmounted.
    pub(super) fn serve(self: &Arc<Self>, connection: &Arc<OwnedFd>) {
        let mut payload = self.buffers.take(MOST);
        loop {
            match calls::receive(connection, &mut payload) {
                Ok(Some(received)) => {
                    self.requests.fetch_add(1, Ordering::Relaxed);
                    // Also what is answered at once is in flight: the end waits for it.
                    let _running = self.admit();
                    let run = || {
                        self.behalf.clone().run(|| {
                            taking_time(|| {
                                requests::run(self, connection, &received, &mut payload)
                            });
                        });
                    };
                    if runtime::contained("a request of an attached disk", run).is_err() {
                        // The panic is counted. Who waits for the request must not wait for ever.
                        requests::give_up(connection, &received);
                    }
                }
                Ok(None) => break,
                Err(e) => {
                    self.complain(&Error::os("read a request of the kernel", e));
                    break;
                }
            }
        }
        let detached = self.detached.lock().take();
        if let Some(detached) = detached {
            self.drain();
            detached();
        }
    }

    /// Whether no request is to be begun any more.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Counts a request that is in flight, until the result is dropped.
    pub(super) fn begin(self: &Arc<Self>, bytes: usize) -> PendingRequest {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).max(FLOOR);
        let mut load = self.load.lock();
        load.requests += 1;
        load.bytes += bytes;
        PendingRequest { session: self.clone(), bytes }
    }

    /// Counts a request that came, once there is room for it.
    fn admit(self: &Arc<Self>) -> PendingRequest {
        self.wait_until(|load| load.bytes < IN_FLIGHT);
        self.begin(0)
    }

    fn wait_until(&self, is_so: impl Fn(&Load) -> bool) {
        let mut load = self.load.lock();
        while !is_so(&load) {
            load.waiting += 1;
            load = self.less.wait(load);
            load.waiting -= 1;
        }
    }

    /// Waits until nothing is in flight.
    fn drain(&self) -> &Self {
        self.wait_until(|load| load.requests == 0);
        self
    }

    /// Logs a failure that the program which asked gets only as a number.
    pub(super) fn complain(&self, e: &Error) {
        if self.logged.fetch_add(1, Ordering::Relaxed) < LOGGED {
            self.log.say(format_args!("attached disk: {e}"));
        }
    }

    /// The kernel's number for the disk's own file, if it reads from that itself: all of the disk
    /// is one file, as it is, and nobody looks at what is read. 0 otherwise.
    pub(super) fn backing(&self) -> u32 {
        *self.backing.get_or_init(|| self.open_backing().unwrap_or(0))
    }

    fn open_backing(&self) -> Option<u32> {
        let info = self.edge.info();
        let flat = info.flat.as_ref()?;
        let is_whole = flat.offset() == 0 && !flat.is_kept() && flat.guard().is_none();
        let length = rustix::fs::fstat(flat.fd()).ok()?.st_size;
        // What is written must pass through the disk's filters; and so must what they look at.
        if !self.is_read_only
            || !is_whole
            || u64::try_from(length) != Ok(info.size)
            || info.abilities.observed
        {
            return None;
        }
        let connection = self.first.upgrade()?;
        // Refused without the right to, or by a kernel that was not asked at the beginning.
        let opened = ioctl::open_backing(connection.as_fd(), flat.fd()).ok()?;
        u32::try_from(opened).ok()
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

/// A request in flight.
pub(super) struct PendingRequest {
    session: Arc<FuseSession>,
    bytes: u64,
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let mut load = self.session.load.lock();
        load.requests -= 1;
        load.bytes -= self.bytes;
        let is_awaited = load.waiting > 0;
        drop(load);
        if is_awaited {
            // A system call.
            self.session.less.notify_all();
        }
    }
}
