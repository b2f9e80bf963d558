//! A disk that is attached to guests, and the threads that take their requests: one for a queue.
//! What a device does not do at once is ended by the thread that completes it, so as many requests
//! are in flight as a guest has, within a limit of bytes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use device::{Error, Result};
use runtime::{Bell, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::block::{self, feature};
use super::messages::tell_change;
use super::queue::Virtqueue;
use crate::client::AttachedClient;
use crate::{new_bell, start_thread};

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
    stop: Arc<(AtomicBool, Bell)>,
    thread: JoinHandle<()>,
}

impl RunningQueue {
    /// Takes the requests of a queue from now on, also what is there already; `kick` is readable
    /// when there may be more, and `broken` is told when the queue is of no use any more.
    pub(super) fn start(
        session: &Arc<VhostSession>,
        queue: Virtqueue,
        kick: OwnedFd,
        broken: Option<OwnedFd>,
    ) -> Result<Self> {
        let stop = Arc::new((AtomicBool::new(false), new_bell()?));
        let queue = Arc::new(queue);
        let (own, stopped, session) = (queue.clone(), stop.clone(), session.clone());
        let work = move || {
            let served = serve(&session, &own, &kick, &stopped);
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
        let (is_over, bell) = &*self.stop;
        is_over.store(true, Ordering::SeqCst);
        bell.ring();
        // A panic of it is counted.
        let _ = self.thread.join();
        self.queue.drain()
    }
}

/// Takes requests until it is stopped.
fn serve(
    session: &Arc<VhostSession>,
    queue: &Arc<Virtqueue>,
    kick: &OwnedFd,
    stop: &(AtomicBool, Bell),
) -> Result<()> {
    let (is_over, bell) = stop;
    loop {
        queue.gather();
        while !is_over.load(Ordering::SeqCst) {
            let Some(chain) = queue.pop()? else { break };
            let mut done = Ok(());
            // A panic has failed the request, as it was dropped.
            session.client.run(|| done = block::run(session, queue, chain));
            done?;
        }
        if is_over.load(Ordering::SeqCst) {
            return Ok(());
        }
        if queue.rest() {
            continue;
        }
        let mut wanted = [
            PollFd::new(kick, PollFlags::IN),
            PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN),
        ];
        match poll(&mut wanted, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(Error::os("wait for a guest", e)),
        }
        // It fails where it was not that, and where the front end made it something else.
        let _ = rustix::io::read(kick, &mut [0; 8]);
    }
}
