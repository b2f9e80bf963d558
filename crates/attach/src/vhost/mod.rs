//! A disk for virtual machines: the device side of vhost-user-blk, over a Unix socket. A front end
//! (QEMU, Cloud Hypervisor, libblkio) shares the memory of its guest, whose requests are done
//! without it.
//!
//! One front end at a time is served; another one may follow. What was in flight when this process
//! was stopped is done by the next one at the same socket, if the front end keeps track of it.
//! A guest can do no more than its disk allows, whatever its memory holds; a front end is believed
//! to be of the user who may open the socket, and its memory must be sealed against becoming
//! shorter.

mod block;
mod front_end;
mod long;
mod memory;
mod messages;
#[cfg(any(test, feature = "played"))]
#[allow(unreachable_pub, reason = "it is reached with the feature")]
pub(crate) mod played;
mod queue;
mod session;
#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use device::{Error, ErrorKind, Fault, Result};
use net::{Listener, SocketRights};
use runtime::Mutex;

use crate::point::SocketOptions;
use crate::resized::SizeWatch;
use crate::{AttachedExport, start_thread};
use block::SECTOR;
use front_end::FrontEnd;
use session::{StopSign, VhostSession};

/// How long nothing is accepted after a failure.
const PAUSE: Duration = Duration::from_millis(50);

/// A socket that no disk is attached at yet. Front ends that connect wait.
#[derive(Debug)]
pub struct VhostSocket {
    listener: Listener,
    options: SocketOptions,
    is_read_only: bool,
}

/// A disk that is attached at a socket. The socket is removed when this is dropped.
#[derive(Debug)]
pub struct AttachedSocket {
    session: Arc<VhostSession>,
    stop: Arc<StopSign>,
    thread: Option<JoinHandle<()>>,
    _size: Option<SizeWatch>,
}

impl VhostSocket {
    /// Listens at `path`, which only this user can open.
    ///
    /// # Errors
    /// It is in use, is something else, or cannot be made.
    pub fn listen(path: &Path, options: &SocketOptions, is_read_only: bool) -> Result<Self> {
        let rights = SocketRights { mode: Some(0o600), ..SocketRights::default() };
        let listener = Listener::unix_with(path, &rights)?;
        listener.set_nonblocking().map_err(|e| Error::os("listen", e).on(path.display()))?;
        Ok(Self { listener, options: options.clone(), is_read_only })
    }

    /// Attaches a disk.
    ///
    /// # Errors
    /// It is not made of sectors of 512 bytes, refuses this client, or the system gives no thread.
    pub fn attach(self, export: &AttachedExport<'_>) -> Result<AttachedSocket> {
        let client = export.client(self.is_read_only)?;
        client.in_sectors("a virtual machine")?;
        let SocketOptions { is_unsealed, serial } = self.options;
        let own = client.edge.info().serial.clone().unwrap_or_default();
        let names = [serial.as_str(), &*own, export.name, "diskferry"];
        let serial = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default().to_owned();
        let features = AtomicU64::new(0);
        let notices = Mutex::default();
        let session = Arc::new(VhostSession { client, serial, is_unsealed, features, notices });
        let teller = session.clone();
        let size = SizeWatch::begin(&session.client.edge, SECTOR, move |_| teller.tell_size());
        let stop = StopSign::new()?;
        let (own, stopped) = (session.clone(), stop.clone());
        let work = move || serve(&own, &self.listener, &stopped);
        let thread = Some(start_thread("vhost", work)?);
        Ok(AttachedSocket { session, stop, thread, _size: size })
    }
}

impl AttachedSocket {
    /// Ends it: takes no more requests, waits for those in flight, flushes, and removes the socket.
    ///
    /// # Errors
    /// The flush failed: writes may be lost.
    pub fn end(mut self) -> Result<()> {
        // What waits for its export is done now: its guest counts on it.
        self.session.client.stop();
        self.stop();
        self.session.client.finish()
    }

    fn stop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            // A panic of it is counted.
            let _ = thread.join();
        }
    }
}

impl Drop for AttachedSocket {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The front end, or its guest, does what it must not.
fn protocol(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, Fault::Peer, what)
}

/// Serves one front end after the other.
fn serve(session: &Arc<VhostSession>, listener: &Listener, stop: &StopSign) {
    let serve_one = || -> Result<()> {
        if !stop.wait(listener.as_fd())? {
            return Ok(());
        }
        let say = |e| Error::os("accept a front end", e);
        let Some(stream) = listener.accept().map_err(|e| say(e.into()))? else { return Ok(()) };
        let socket = stream.as_fd().try_clone_to_owned().map_err(say)?;
        let run = || FrontEnd::new(session, socket).run(stop);
        // A panic has ended its connection, and stopped its queues.
        runtime::contained("a front end of an attached disk", run).unwrap_or(Ok(()))
    };
    while !stop.is_set() {
        if let Err(e) = serve_one() {
            session.client.complain(&e);
            // There are no descriptors, perhaps, and the front end waits on.
            std::thread::sleep(PAUSE);
        }
    }
}
