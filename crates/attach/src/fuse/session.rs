//! An attached disk: the threads that take requests from the kernel, and what is in flight.
//!
//! A thread runs a request to its end where that may be done here, also if it blocks: the other
//! threads go on, and only users of this disk wait. What a device completes later (a server's reply
//! on the network) is answered by the thread that completes it, so as many requests are in flight
//! as the kernel hands out, within a limit of bytes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::SystemTime;

use device::{Error, Result};
use runtime::{Mutex, taking_time};

use super::abi::MOST;
use super::mount::FuseMount;
use super::{calls, ioctl, requests};
use crate::client::AttachedClient;
use crate::{AttachedExport, start_thread};

/// A disk that is attached. It is unmounted when dropped.
#[derive(Debug)]
pub struct AttachedFile {
    session: Arc<FuseSession>,
    mount: FuseMount,
    threads: Vec<JoinHandle<()>>,
}

/// What all threads of an attachment share.
pub(super) struct FuseSession {
    pub(super) client: Arc<AttachedClient>,
    pub(super) is_cached: bool,
    /// When it was attached, in seconds since 1970: the times of the file.
    pub(super) since: u64,
    backing: OnceLock<u32>,
    first: Weak<OwnedFd>,
    detached: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

runtime::debug_as!(FuseSession, |it| "FuseSession({:?})", it.client);

impl FuseMount {
    /// Attaches a disk. `detached` is called once when the kernel has unmounted it.
    ///
    /// # Errors
    /// The disk refuses this client, or the system gives no thread.
    pub fn attach(
        self,
        export: &AttachedExport<'_>,
        detached: impl FnOnce() + Send + 'static,
    ) -> Result<AttachedFile> {
        let Some(first) = self.connections.first() else { return Err(Error::unanswered()) };
        let client = export.client(self.is_read_only)?;
        let session = FuseSession::new(client, self.is_cached, Arc::downgrade(first), detached);
        let session = Arc::new(session);
        let mut threads = Vec::new();
        for connection in self.connections.clone() {
            let session = session.clone();
            threads.push(start_thread("attached", move || session.serve(&connection))?);
        }
        Ok(AttachedFile { session, mount: self, threads })
    }
}

impl AttachedFile {
    /// Ends it: takes no more requests, waits for those in flight, flushes, and unmounts.
    ///
    /// # Errors
    /// The flush failed: writes may be lost.
    pub fn end(self) -> Result<()> {
        let Self { session, mount, threads } = self;
        session.detached.lock().take();
        session.client.stop();
        let flushed = session.client.finish();
        // Its threads end when the last program has closed the file, or with this process.
        drop((mount, threads));
        flushed
    }
}

impl FuseSession {
    /// For a client. `first` is a descriptor of the connection.
    pub(super) fn new(
        client: Arc<AttachedClient>,
        is_cached: bool,
        first: Weak<OwnedFd>,
        detached: impl FnOnce() + Send + 'static,
    ) -> Self {
        Self {
            client,
            is_cached,
            since: now(),
            backing: OnceLock::new(),
            first,
            detached: Mutex::new(Some(Box::new(detached))),
        }
    }

    /// Takes requests until the file system is unmounted.
    pub(super) fn serve(self: &Arc<Self>, connection: &Arc<OwnedFd>) {
        let mut payload = self.client.buffers.take(MOST);
        loop {
            match calls::receive(connection, &mut payload) {
                Ok(Some(received)) => {
                    let (kind, len) = requests::weigh(&received);
                    let flight = self.client.admit(kind, len);
                    // No one else waits for this thread.
                    let run = || requests::run(self, connection, &received, &mut payload, flight);
                    if !self.client.run(|| taking_time(run)) {
                        // Who waits for the request must not wait for ever.
                        requests::give_up(connection, &received);
                    }
                }
                Ok(None) => break,
                Err(e) => {
                    self.client.complain(&Error::os("read a request from the kernel", e));
                    break;
                }
            }
        }
        let detached = self.detached.lock().take();
        if let Some(detached) = detached {
            self.client.drain().leave();
            detached();
        }
    }

    /// The kernel's number for the disk's own file, if it reads from that itself: all of the disk
    /// is one file, as it is, and nobody looks at what is read. 0 otherwise.
    pub(super) fn backing(&self) -> u32 {
        *self.backing.get_or_init(|| self.open_backing().unwrap_or(0))
    }

    fn open_backing(&self) -> Option<u32> {
        let info = self.client.edge.info();
        let flat = info.flat.as_ref()?;
        let is_whole = flat.offset() == 0 && !flat.is_kept() && flat.guard().is_none();
        let length = rustix::fs::fstat(flat.fd()).ok()?.st_size;
        // What is written must pass through the disk's filters; and so must what they look at.
        if !self.client.is_read_only
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
