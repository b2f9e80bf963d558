//! A disk that is attached, as all front ends see it: one client of its export, like those that
//! come over a network, and what that client has in flight.
//!
//! It is in the list of clients, counts in the metrics of its export, has a voice in the log, and
//! takes its memory from the budget of all. No more than [`IN_FLIGHT`] bytes are its own at a time,
//! and one that holds nothing may always have a small request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use device::{
    BufferPool, Client, Credentials, Edge, Error, ErrorKind, Fault, Operation, OperationKind,
    Outcome, Peer, Presence, Result,
};
use runtime::{Behalf, Condvar, Mutex};
use serving::{ClientAccess, Dismiss, HeldExport, Hub, MemoryAccount, Severity, Tally, Voice};

/// Bytes of requests in flight, at most: each counts its data, and [`FLOOR`].
const IN_FLIGHT: u64 = 64 << 20;
/// What a request costs at least, in bytes.
const FLOOR: u64 = 8 << 10;
/// Requests of at most this many bytes are run also when memory is short, one at a time.
const SMALL: u64 = 64 << 10;
/// Bytes of buffers that are kept for the next requests.
const KEPT: usize = 8 << 20;
/// How often a request looks that waits for memory of all, or for its export: there is no event for
/// that.
const PAUSE: Duration = Duration::from_millis(5);

/// A client that is attached. All of it may be used by any thread.
pub(crate) struct AttachedClient {
    pub(crate) edge: Edge,
    pub(crate) buffers: BufferPool,
    pub(crate) is_read_only: bool,
    /// Where it is attached, for people.
    point: String,
    number: u64,
    hub: Arc<Hub>,
    /// It does not end before.
    export: Arc<HeldExport>,
    account: Arc<MemoryAccount>,
    tally: Arc<Tally>,
    voice: Arc<Voice>,
    presence: Presence,
    behalf: Behalf,
    load: Mutex<Load>,
    less: Condvar,
    stopping: AtomicBool,
    has_left: AtomicBool,
}

/// Requests in flight.
#[derive(Default)]
struct Load {
    requests: u64,
    bytes: u64,
    /// Threads that wait for less of it.
    waiting: u64,
}

runtime::debug_as!(AttachedClient, |it| "AttachedClient({})", it.point);

impl AttachedClient {
    /// A client of the export of this name, attached at `point`; it writes unless it
    /// `is_read_only`, or the export is.
    ///
    /// # Errors
    /// There is no such export, or it is not for this client: the user of this process.
    pub(crate) fn connect(
        hub: &Arc<Hub>,
        export: &str,
        point: &str,
        is_read_only: bool,
    ) -> Result<Arc<Self>> {
        let refused = |kind, why: &str| {
            Error::new(kind, Fault::User, format!("attach: the export `{export}` {why}"))
        };
        let found = hub.exports.find(export);
        let found = found.ok_or_else(|| refused(ErrorKind::NotFound, "is not there"))?;
        let peer = Peer::Unix { credentials: Some(own_credentials()) };
        if found.allow.access(&peer, None) != ClientAccess::Granted {
            let why = "does not allow this user (see --allow)";
            return Err(refused(ErrorKind::PermissionDenied, why));
        }
        let (number, presence) = (hub.next_client(), Presence::default());
        let edge = own_edge(&found, number, &peer, &presence)?;
        let voice = Arc::new(Voice::named(hub.log.clone(), Some(point.to_owned())));
        voice.chose(export);
        let client = Arc::new(Self {
            is_read_only: is_read_only || found.is_read_only() || !edge.info().abilities.write,
            edge,
            buffers: BufferPool::new(KEPT),
            point: point.to_owned(),
            number,
            account: hub.budget.account(&peer),
            tally: hub.metrics.of(&found.name),
            hub: hub.clone(),
            voice,
            presence,
            behalf: Behalf::of_client(number),
            load: Mutex::default(),
            less: Condvar::new(),
            stopping: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            export: found.clone(),
        });
        let way: Weak<Self> = Arc::downgrade(&client);
        hub.present.enter(number, way, &client.voice);
        hub.present.chose(number, &found);
        client.voice.event(Severity::Info, format_args!("attached"));
        Ok(client)
    }

    /// Refuses a disk that is not made of sectors, for `what` that takes nothing else.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn in_sectors(&self, what: &str) -> Result<()> {
        if self.edge.info().size.is_multiple_of(512) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "attach: {what} takes sectors of 512 bytes, and the size of the disk is no multiple of \
             that; `--filter 'truncate round-up=512'` adds zeroes"
        )))
    }

    /// Runs a request; whether that ended without a panic, which is counted.
    pub(crate) fn run(&self, request: impl FnOnce()) -> bool {
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

    /// Makes durable what was written, once nothing is in flight, and leaves.
    ///
    /// # Errors
    /// The flush failed: writes may be lost.
    pub(crate) fn finish(&self) -> Result<()> {
        let flushed = if self.is_read_only { Ok(()) } else { self.drain().edge.flush() };
        self.leave();
        flushed
    }

    /// Is no client any more.
    pub(crate) fn leave(&self) {
        if !self.has_left.swap(true, Ordering::SeqCst) {
            self.hub.present.left(self.number);
            self.presence.leave();
            self.voice.ended("it is detached");
        }
    }

    /// Does an operation: a read or a write here and now where that needs no waiting, so nobody is
    /// woken for it; everything else in its time.
    pub(crate) fn perform(
        &self,
        mut operation: Operation,
        done: impl FnOnce(Result<Outcome>) + Send + 'static,
    ) {
        let now = match &mut operation {
            Operation::Read { offset, buffer } => self.edge.read_now(buffer, *offset),
            Operation::Write { offset, data, fua } => self.edge.write_now(data, *offset, *fua),
            _ => Ok(false),
        };
        match (now, operation) {
            (Ok(true), Operation::Read { buffer, .. }) => done(Ok(Outcome::Read(buffer))),
            (Ok(true), _) => done(Ok(Outcome::Done)),
            (Ok(false), operation) => self.edge.submit(operation, Box::new(done)),
            (Err(e), _) => done(Err(e)),
        }
    }

    /// Counts a request for `len` bytes that is in flight, until the result is dropped, once there
    /// is room for its data. Of no `kind`, it is none that is told in the metrics.
    pub(crate) fn admit(self: &Arc<Self>, kind: Option<OperationKind>, len: u64) -> PendingRequest {
        let has_data = matches!(kind, Some(OperationKind::Read | OperationKind::Write));
        let bytes = if has_data { len } else { 0 }.clamp(FLOOR, IN_FLIGHT / 2);
        let mut load = self.load.lock();
        loop {
            let is_small = load.requests == 0 && bytes <= SMALL;
            let fits = load.bytes <= IN_FLIGHT - bytes;
            let has_room = is_small || self.account.has_room(bytes);
            if fits && has_room && self.may_begin(kind) {
                break;
            }
            load.waiting += 1;
            load = if fits {
                if !has_room {
                    self.account.wait(bytes);
                }
                self.less.wait_timeout(load, PAUSE).0
            } else {
                self.less.wait(load)
            };
            load.waiting -= 1;
        }
        load.requests += 1;
        load.bytes += bytes;
        self.account.take(bytes);
        self.export.flow().begun(kind, len);
        // Under the lock: one thread counts at a time.
        self.tally.begun(kind, len);
        if kind.is_some() {
            self.voice.asked(kind, len);
        }
        drop(load);
        PendingRequest { client: self.clone(), kind, bytes, begun: Instant::now() }
    }

    /// Whether the export is neither paused nor over its rate; the end waits for neither.
    fn may_begin(&self, kind: Option<OperationKind>) -> bool {
        kind.is_none() || self.export.flow().allows() || self.is_stopping()
    }

    /// Waits until nothing is in flight.
    pub(crate) fn drain(&self) -> &Self {
        let mut load = self.load.lock();
        while load.requests > 0 {
            load.waiting += 1;
            load = self.less.wait(load);
            load.waiting -= 1;
        }
        drop(load);
        self
    }

    /// Logs a failure that the program which asked gets only as a number.
    pub(crate) fn complain(&self, e: &Error) {
        self.voice.failed(format_args!("{e}"));
    }
}

/// What a process that connected to a socket would be known by.
fn own_credentials() -> Credentials {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Credentials { pid: std::process::id(), uid: uid.as_raw(), gid: gid.as_raw() }
}

/// The disk of the export, or the one that it has for this client.
fn own_edge(export: &HeldExport, number: u64, peer: &Peer, presence: &Presence) -> Result<Edge> {
    let client = Client {
        number,
        peer: peer.clone(),
        export: export.name.clone(),
        tls: None,
        presence: presence.clone(),
    };
    let own = runtime::wait_for(|promise| {
        export.edge.device().connect(&client, Box::new(move |result| promise.keep(result)));
    });
    let own = own.unwrap_or_else(|| Err(Error::unanswered()))?;
    Ok(own.map_or_else(|| export.edge.clone(), |device| export.edge.beside(device)))
}

/// It is detached where it is attached, by who attached it.
impl Dismiss for AttachedClient {
    fn dismiss(&self) -> Result<()> {
        let what = format!("client {} is attached at {}: detach it there", self.number, self.point);
        Err(Error::new(ErrorKind::Locked, Fault::User, what))
    }
}

impl Drop for AttachedClient {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A request in flight.
pub(crate) struct PendingRequest {
    client: Arc<AttachedClient>,
    kind: Option<OperationKind>,
    bytes: u64,
    begun: Instant,
}

impl PendingRequest {
    /// It is answered with an error.
    pub(crate) fn failed(&self, kind: ErrorKind) {
        if self.kind.is_some() {
            self.client.tally.failed(kind.errno().1);
            self.client.voice.refused();
        }
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let client = &self.client;
        client.tally.answered(self.kind, 1, self.begun.elapsed());
        client.account.put(self.bytes);
        let mut load = client.load.lock();
        load.requests -= 1;
        load.bytes -= self.bytes;
        let is_awaited = load.waiting > 0;
        drop(load);
        if is_awaited {
            // A system call.
            client.less.notify_all();
        }
    }
}

#[cfg(any(test, feature = "played"))]
#[expect(clippy::unwrap_used, reason = "it is in no program")]
impl AttachedClient {
    /// The only client of a disk.
    pub(crate) fn of(edge: &Edge, is_read_only: bool) -> Arc<Self> {
        Self::beside(edge, is_read_only, 512 << 20).1
    }

    /// The same, with what it shares: so many bytes of memory.
    pub(crate) fn beside(edge: &Edge, read_only: bool, memory: u64) -> (Arc<Hub>, Arc<Self>) {
        let exports = serving::Exports::new();
        exports.add(serving::Export {
            name: "e".into(),
            description: String::new(),
            edge: edge.clone(),
            read_only,
            allow: serving::Allowed::default(),
        });
        let hub = Arc::new(Hub::new(exports, serving::ServerLog::nowhere(), memory, 1));
        let client = Self::connect(&hub, "e", "a point", read_only);
        (hub, client.unwrap())
    }
}

#[cfg(test)]
mod tests {
    use device::Simple;
    use device::model::Model;
    use runtime::WorkPool;
    use serving::Live;

    use super::*;

    const READ: Option<OperationKind> = Some(OperationKind::Read);

    fn disk() -> Edge {
        Simple::shared_edge(Arc::new(Model::new(1 << 20)), &WorkPool::new(1))
    }

    #[test]
    fn an_attachment_is_listed_counted_and_not_kicked_until_it_leaves() {
        let (hub, client) = AttachedClient::beside(&disk(), false, 512 << 20);
        let live = Live::of(&hub);
        let request = client.admit(READ, 4096);
        client.admit(Some(OperationKind::Write), 512).failed(ErrorKind::NoSpace);
        let [there] = &live.clients()[..] else { panic!("{:?}", live.clients()) };
        assert_eq!((there.number, there.requests, there.errors), (1, 2, 1));
        assert_eq!((there.read, there.written), (4096, 512));
        assert_eq!(there.address.as_deref(), Some("a point"));
        assert_eq!(there.export.as_deref(), Some("e"));
        let refused = live.dismiss(1).unwrap().unwrap_err().to_string();
        assert!(refused.contains("client 1 is attached at a point"), "{refused}");
        let text = live.open_metrics(&[]);
        for line in [
            "diskferry_connections 1\n",
            "diskferry_requests_total{export=\"e\",command=\"read\"} 1\n",
            "diskferry_requests_in_flight{export=\"e\",command=\"read\"} 1\n",
            "diskferry_request_seconds_count{export=\"e\",command=\"write\"} 1\n",
            "diskferry_errors_total{export=\"e\",error=\"ENOSPC\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        drop(request);
        client.finish().unwrap();
        assert!(live.clients().is_empty());
        assert_eq!(hub.budget.used_of().0, 0);
    }

    #[test]
    fn an_attachment_waits_for_the_memory_that_others_hold_but_is_not_shut_out() {
        let (hub, client) = AttachedClient::beside(&disk(), false, 1 << 20);
        let other = hub.budget.account(&Peer::Vsock { cid: 7, port: 1 });
        let all = serving::Share::take(&other, 1 << 20);
        let small = client.admit(READ, SMALL);
        let (begun, told) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn({
            let client = client.clone();
            move || {
                let held = client.admit(READ, SMALL);
                begun.send(()).unwrap();
                drop(held);
            }
        });
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "there is no room");
        assert_eq!(hub.budget.used_of().0, (1 << 20) + SMALL);
        drop(all);
        told.recv().unwrap();
        waiting.join().unwrap();
        drop(small);
    }

    #[test]
    fn rules_of_an_export_are_for_attachments_as_well() {
        let (hub, _) = AttachedClient::beside(&disk(), false, 1 << 20);
        let mut rules = device::access::Rules::default();
        rules.add("10.0.0.0/8").unwrap();
        hub.exports.find("e").unwrap().allow.change(Some(rules));
        let refused = AttachedClient::connect(&hub, "e", "p", false).unwrap_err().to_string();
        assert!(refused.contains("does not allow this user"), "{refused}");
        assert!(AttachedClient::connect(&hub, "f", "p", false).is_err());
    }
}
