//! A disk that is attached, as all front ends see it: one client of its export, and what that
//! client has in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use device::{BufferPool, Client, Edge, Error, Identity, Peer, Result};
use runtime::{Behalf, Condvar, Mutex, MutexGuard, OperatorLog};

/// Bytes of requests in flight, at most: each counts its data, and [`FLOOR`].
const IN_FLIGHT: u64 = 64 << 20;
/// What a request costs beside its data, in bytes.
const FLOOR: u64 = 8 << 10;
/// Bytes of buffers that are kept for the next requests.
const KEPT: usize = 8 << 20;
/// Failures that are logged; later ones are known from their programs.
const LOGGED: u32 = 10;

/// A client that is attached. All of it may be used by any thread.
pub(crate) struct AttachedClient {
    pub(crate) edge: Edge,
    pub(crate) buffers: BufferPool,
    pub(crate) is_read_only: bool,
    behalf: Behalf,
    load: Mutex<Load>,
    less: Condvar,
    stopping: AtomicBool,
    log: OperatorLog,
    logged: AtomicU32,
    requests: AtomicU64,
}

/// Requests in flight.
#[derive(Default)]
struct Load {
    requests: u64,
    bytes: u64,
    /// Threads that wait for less of it.
    waiting: u64,
}

runtime::debug_as!(AttachedClient, |it| "AttachedClient({:?})", it.edge);

impl AttachedClient {
    /// The client `number` of this process, for whom the device may have a disk of its own; it
    /// writes unless it `is_read_only`, or the disk is.
    ///
    /// # Errors
    /// The disk refuses this client.
    pub(crate) fn connect(
        edge: &Edge,
        number: u64,
        is_read_only: bool,
        log: OperatorLog,
    ) -> Result<Arc<Self>> {
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
        let edge = own.map_or_else(|| edge.clone(), |device| edge.beside(device));
        Ok(Arc::new(Self {
            is_read_only: is_read_only || !edge.info().abilities.write,
            edge,
            buffers: BufferPool::new(KEPT),
            behalf: Behalf::of_client(number),
            load: Mutex::default(),
            less: Condvar::new(),
            stopping: AtomicBool::new(false),
            log,
            logged: AtomicU32::new(0),
            requests: AtomicU64::new(0),
        }))
    }

    /// Counts the requests.
    pub(crate) fn counter(self: &Arc<Self>) -> impl Fn() -> u64 + Send + Sync + use<> {
        let client = self.clone();
        move || client.requests.load(Ordering::Relaxed)
    }

    /// Runs a request that came, once there is room for it; whether that ended without a panic,
    /// which is counted.
    pub(crate) fn run(self: &Arc<Self>, request: impl FnOnce()) -> bool {
        self.requests.fetch_add(1, Ordering::Relaxed);
        // Also what is answered at once is in flight: the end waits for it.
        let _running = self.counted(FLOOR, |load| load.bytes < IN_FLIGHT);
        let run = || self.behalf.clone().run(request);
        runtime::contained("a request of an attached disk", run).is_ok()
    }

    /// No request is to be begun any more.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Whether no request is to be begun any more.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Makes durable what was written, once nothing is in flight.
    ///
    /// # Errors
    /// The flush failed: writes may be lost.
    pub(crate) fn finish(&self) -> Result<()> {
        if self.is_read_only { Ok(()) } else { self.drain().edge.flush() }
    }

    /// Counts a request that is in flight, until the result is dropped, once there is room for its
    /// bytes: for no more than half of what may be in flight.
    pub(crate) fn admit(self: &Arc<Self>, bytes: u64) -> PendingRequest {
        let bytes = bytes.clamp(FLOOR, IN_FLIGHT / 2);
        self.counted(bytes, |load| load.bytes <= IN_FLIGHT - bytes)
    }

    /// Counts a request that is in flight, until the result is dropped.
    pub(crate) fn begin(self: &Arc<Self>, bytes: usize) -> PendingRequest {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).max(FLOOR);
        self.counted(bytes, |_| true)
    }

    fn counted(self: &Arc<Self>, bytes: u64, has_room: impl Fn(&Load) -> bool) -> PendingRequest {
        let mut load = self.wait_until(has_room);
        load.requests += 1;
        load.bytes += bytes;
        PendingRequest { client: self.clone(), bytes }
    }

    fn wait_until(&self, is_so: impl Fn(&Load) -> bool) -> MutexGuard<'_, Load> {
        let mut load = self.load.lock();
        while !is_so(&load) {
            load.waiting += 1;
            load = self.less.wait(load);
            load.waiting -= 1;
        }
        load
    }

    /// Waits until nothing is in flight.
    pub(crate) fn drain(&self) -> &Self {
        drop(self.wait_until(|load| load.requests == 0));
        self
    }

    /// Logs a failure that the program which asked gets only as a number.
    pub(crate) fn complain(&self, e: &Error) {
        if self.logged.fetch_add(1, Ordering::Relaxed) < LOGGED {
            self.log.say(format_args!("attached disk: {e}"));
        }
    }
}

/// A request in flight.
pub(crate) struct PendingRequest {
    client: Arc<AttachedClient>,
    bytes: u64,
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let mut load = self.client.load.lock();
        load.requests -= 1;
        load.bytes -= self.bytes;
        let is_awaited = load.waiting > 0;
        drop(load);
        if is_awaited {
            // A system call.
            self.client.less.notify_all();
        }
    }
}
