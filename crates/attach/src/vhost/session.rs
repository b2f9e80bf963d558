//! A disk that is attached to guests, and the threads that take their requests: one for a queue.
//! What a device does not do at once is ended by the thread that completes it, so as many requests
//! are in flight as a guest has, within a limit of bytes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use device::{Error, Result};
use runtime::{Bell, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::block::{self, feature};
use super::long::LongCopies;
use super::messages::tell_change;
use super::queue::Virtqueue;
use crate::client::AttachedClient;
use crate::{new_bell, start_thread};

/// A guest that has asked again within this is looked at for as long before its thread sleeps: a
/// sleep and a wake-up cost more than the wait, most of all in a virtual machine.
const BRISK: Duration = Duration::from_micros(50);

/// Whether a thread that waits is to end.
#[derive(Debug)]
pub(super) struct StopSign {
    is_set: AtomicBool,
    bell: Bell,
}

impl StopSign {
    /// # Errors
    /// The system has no room for one.
    pub(super) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self { is_set: AtomicBool::new(false), bell: new_bell()? }))
    }

    pub(super) fn set(&self) {
        self.is_set.store(true, Ordering::SeqCst);
        self.bell.ring();
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    /// Waits until there may be something to read from `file`, or this is set; whether it is not.
    ///
    /// # Errors
    /// The system is out of memory.
    pub(super) fn wait(&self, file: BorrowedFd<'_>) -> Result<bool> {
        let wanted = |file| PollFd::from_borrowed_fd(file, PollFlags::IN);
        match poll(&mut [wanted(file), wanted(self.bell.as_fd())], None) {
            Ok(_) | Err(Errno::INTR) => Ok(!self.is_set()),
            Err(e) => Err(Error::os("wait for a guest", e)),
        }
    }
}

/// What all queues of all front ends of a disk share.
#[derive(Debug)]
pub(super) struct VhostSession {
    pub(super) client: Arc<AttachedClient>,
    /// What guests know the disk by.
    pub(super) serial: String,
    /// Memory of guests need not be sealed.
    pub(super) is_unsealed: bool,
    /// What the front end has agreed to.
    pub(super) features: AtomicU64,
    /// Where it is told of what it did not ask for.
    pub(super) notices: Mutex<Option<OwnedFd>>,
}

impl VhostSession {
    /// Says that the disk has another size.
    ///
    /// # Errors
    /// There is a front end that cannot be told now.
    pub(super) fn tell_size(&self) -> Result<()> {
        self.notices.lock().as_ref().map_or(Ok(()), tell_change)
    }

    /// Whether the guest flushes.
    pub(super) fn knows_flush(&self) -> bool {
        self.features.load(Ordering::Relaxed) & feature::FLUSH != 0
    }
}

/// A queue whose requests are taken.
#[derive(Debug)]
pub(super) struct RunningQueue {
    pub(super) queue: Arc<Virtqueue>,
    stop: Arc<StopSign>,
    thread: JoinHandle<()>,
}

impl RunningQueue {
    /// Takes the requests of a queue from now on, also what is there already; `kick` is readable
    /// when there may be more, and `broken` is told when the queue is of no use any more.
    pub(super) fn start(
        session: &Arc<VhostSession>,
        queue: Virtqueue,
        kick: Arc<OwnedFd>,
        broken: Option<Arc<OwnedFd>>,
    ) -> Result<Self> {
        let (stop, queue) = (StopSign::new()?, Arc::new(queue));
        let (own, stopped, session) = (queue.clone(), stop.clone(), session.clone());
        let work = move || {
            let long = Arc::new(LongCopies::new());
            let served = serve(&session, &own, &long, &kick, &stopped);
            while long.read() {}
            // Also of a queue that is of no use any more.
            own.rest();
            if let Err(e) = served {
                session.client.complain(&e);
                if let Some(broken) = broken {
                    let _ = rustix::io::write(&broken, &1_u64.to_ne_bytes());
                }
            }
        };
        let thread = start_thread("vhost-queue", work)?;
        Ok(Self { queue, stop, thread })
    }

    /// Takes no more, and waits for what is in flight; where the ring of available requests goes
    /// on.
    pub(super) fn stop(self) -> u16 {
        self.stop.set();
        // A panic of it is counted.
        let _ = self.thread.join();
        self.queue.drain()
    }
}

/// Takes requests until it is stopped.
fn serve(
    session: &Arc<VhostSession>,
    queue: &Arc<Virtqueue>,
    long: &Arc<LongCopies>,
    kick: &OwnedFd,
    stop: &StopSign,
) -> Result<()> {
    let mut brisk = false;
    while !stop.is_set() {
        queue.gather();
        while !stop.is_set() {
            let Some(chain) = queue.pop()? else {
                if long.read() {
                    continue;
                }
                break;
            };
            let mut done = Ok(());
            // A panic has failed the request, as it was dropped.
            session.client.run(|| done = block::run(session, queue, long, chain));
            done?;
        }
        let begun = Instant::now();
        if brisk && queue.look_out(BRISK) {
            continue;
        }
        if !stop.is_set() && !queue.rest() && stop.wait(kick.as_fd())? {
            // It fails where it was not that, and where the front end made it something else.
            let _ = rustix::io::read(kick, &mut [0; 8]);
        }
        brisk = begun.elapsed() < BRISK;
    }
    Ok(())
}
