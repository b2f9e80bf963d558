//! The scripted NBD server of the crates' tests: an honest handshake (by `wire`), then whatever the
//! test wants. The black-box tests have one of their own, `blackbox::fake`, since a mistake of
//! `wire` must not be made again there.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use devices::OpenOptions;
use rustix::event::{PollFd, PollFlags, poll};
use wire::{
    Command, ExportCatalog, ExportOffer, Negotiated, OptionRefusal, ReplyWriter, Request,
    ServerHandshake, ServerPolicy, ServerStep, StatusExtent, TransmissionFlags,
};

/// What the client of a scripted server may do.
pub(crate) const EVERYTHING: TransmissionFlags = TransmissionFlags::HAS_FLAGS
    .with(TransmissionFlags::SEND_FLUSH)
    .with(TransmissionFlags::SEND_FUA)
    .with(TransmissionFlags::SEND_TRIM)
    .with(TransmissionFlags::SEND_WRITE_ZEROES)
    .with(TransmissionFlags::SEND_FAST_ZERO)
    .with(TransmissionFlags::SEND_CACHE);

/// An offer of `size` bytes with everything but several connections.
pub(crate) fn offer(size: u64) -> ExportOffer {
    ExportOffer {
        size,
        flags: EVERYTHING,
        contexts: vec!["base:allocation".into()],
        ..ExportOffer::default()
    }
}

/// The same with several connections.
pub(crate) fn several(size: u64) -> ExportOffer {
    let flags = EVERYTHING.with(TransmissionFlags::CAN_MULTI_CONN);
    ExportOffer { flags, ..offer(size) }
}

struct One(ExportOffer);

impl ExportCatalog for One {
    fn list(&self) -> Result<Vec<(String, String)>, OptionRefusal> {
        Ok(vec![(self.0.name.clone(), self.0.description.clone())])
    }

    fn open(&self, _name: &str) -> Result<ExportOffer, OptionRefusal> {
        Ok(self.0.clone())
    }

    fn contexts(&self, _name: &str) -> Result<Vec<String>, OptionRefusal> {
        Ok(self.0.contexts.clone())
    }
}

/// A client, after the handshake.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    pub(crate) session: Negotiated,
    buffered: Vec<u8>,
    /// How many came before it.
    pub(crate) number: usize,
}

impl Client {
    /// The next request with its payload; `None` at the end of the stream.
    pub(crate) fn request(&mut self) -> Option<(Request, Vec<u8>)> {
        let len = wire::request_header_len(self.session.mode);
        let header = self.take(len)?;
        let request = wire::parse_request(self.session.mode, &header).unwrap().unwrap();
        let payload = self.take(usize::try_from(request.payload).unwrap())?;
        Some((request, payload))
    }

    /// The next request of a test that knows what it is.
    pub(crate) fn expect(&mut self, command: Command) -> Request {
        let (request, _) = self.request().expect("the client is gone");
        assert_eq!(request.kind(), Some(command));
        request
    }

    fn take(&mut self, n: usize) -> Option<Vec<u8>> {
        let mut block = vec![0; 64 << 10];
        while self.buffered.len() < n {
            match self.stream.read(&mut block) {
                Ok(0) | Err(_) => return None,
                Ok(got) => self.buffered.extend_from_slice(&block[..got]),
            }
        }
        Some(self.buffered.drain(..n).collect())
    }

    /// Whether a request can be read without waiting.
    pub(crate) fn has_more(&mut self) -> bool {
        if !self.buffered.is_empty() {
            return true;
        }
        self.stream.set_nonblocking(true).unwrap();
        let mut block = vec![0; 64 << 10];
        let got = self.stream.read(&mut block);
        self.stream.set_nonblocking(false).unwrap();
        match got {
            Ok(n) if n > 0 => {
                self.buffered.extend_from_slice(&block[..n]);
                true
            }
            _ => false,
        }
    }

    /// Answers a request well: a read with bytes of `fill`, and the map is one hole.
    pub(crate) fn answer(&mut self, request: &Request, fill: u8) {
        let writer = ReplyWriter::new(self.session.mode, request);
        let mut out = Vec::new();
        match request.kind() {
            Some(Command::Read) => {
                let len = u32::try_from(request.length).unwrap();
                writer.read_data(request.offset, len, true, &mut out);
                out.resize(out.len() + len as usize, fill);
            }
            Some(Command::Disconnect) => {}
            Some(Command::BlockStatus) => {
                let all = StatusExtent { length: request.length, flags: 3 };
                writer.block_status(self.session.contexts[0].0, [all], 10, true, &mut out);
            }
            _ => writer.done(&mut out),
        }
        self.send(&out);
    }

    /// Sends; a client that is gone is no failure of the server.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Waits until the client has closed its side.
    pub(crate) fn drain(&mut self) {
        while self.request().is_some() {}
    }
}

/// A scripted server; its threads end with the test.
pub(crate) struct Server {
    pub(crate) uri: String,
    /// The value of `socket=`.
    pub(crate) socket: String,
}

impl Server {
    /// Serves `offer`; each client is handed to `play` after the handshake, on a thread.
    pub(crate) fn start(
        offer: ExportOffer,
        policy: ServerPolicy,
        play: impl Fn(Client) + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(move || offer.clone(), policy, play)
    }

    /// The same with an offer that may differ from client to client.
    pub(crate) fn start_with(
        offer: impl Fn() -> ExportOffer + Send + 'static,
        policy: ServerPolicy,
        play: impl Fn(Client) + Send + Sync + 'static,
    ) -> Self {
        Self::start_after(0, offer, policy, play)
    }

    /// The same, but this many of the first clients are closed without a reply.
    pub(crate) fn start_after(
        turned_away: usize,
        offer: impl Fn() -> ExportOffer + Send + 'static,
        policy: ServerPolicy,
        play: impl Fn(Client) + Send + Sync + 'static,
    ) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("diskferry-test-{}-{number}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let play = Arc::new(play);
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().skip(turned_away).enumerate() {
                let (offer, policy, play) = (offer(), policy.clone(), play.clone());
                std::thread::spawn(move || {
                    if let Some(client) = shake(stream.unwrap(), offer, policy, number) {
                        play(client);
                    }
                });
            }
        });
        Self { uri: format!("nbd+unix:///?socket=%00{name}"), socket: format!("@{name}") }
    }

    /// Opens it for reading and writing.
    pub(crate) fn open(&self) -> Arc<dyn device::Device> {
        self.try_open(1).unwrap()
    }

    /// Opens it with at most this many connections.
    pub(crate) fn try_open(&self, connections: usize) -> device::Result<Arc<dyn device::Device>> {
        let options = OpenOptions { connections, ..OpenOptions::read_write() };
        devices::Named::parse(&self.uri)?.open(&options, &runtime::Context::default())
    }

    /// Opens it for reading only, with at most this many connections.
    pub(crate) fn open_to_read(&self, connections: usize) -> Arc<dyn device::Device> {
        let options = OpenOptions { connections, ..OpenOptions::read_only() };
        let named = devices::Named::parse(&self.uri).unwrap();
        named.open(&options, &runtime::Context::default()).unwrap()
    }

    /// Opens it with parameters of the `nbd` device.
    pub(crate) fn try_open_with(&self, words: &[&str]) -> device::Result<Arc<dyn device::Device>> {
        let mut params = device::Params::parse(words.iter().copied()).unwrap();
        params.add("socket", &self.socket);
        devices::Named::new(devices::kind("nbd")?, params)?
            .open(&OpenOptions::read_write(), &runtime::Context::default())
    }
}

fn shake(
    mut stream: UnixStream,
    offer: ExportOffer,
    policy: ServerPolicy,
    number: usize,
) -> Option<Client> {
    let mut handshake = ServerHandshake::new(policy);
    let mut out = handshake.greeting();
    let exports = One(offer);
    let mut block = vec![0; 4096];
    loop {
        stream.write_all(&out).ok()?;
        out.clear();
        let n = stream.read(&mut block).ok().filter(|n| *n > 0)?;
        let (consumed, step) = handshake.advance(&block[..n], &exports, &mut out);
        match step {
            ServerStep::NeedMore | ServerStep::Wait => {}
            ServerStep::Transmit(session) => {
                stream.write_all(&out).ok()?;
                let buffered = block[consumed..n].to_vec();
                return Some(Client { stream, session: *session, buffered, number });
            }
            _ => {
                let _ = stream.write_all(&out);
                return None;
            }
        }
    }
}

/// The bytes of a read.
pub(crate) fn read(
    device: &dyn device::Device,
    offset: u64,
    len: usize,
) -> device::Result<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    trial::BlockingCalls::read_at(device, &mut bytes, offset).map(|()| bytes)
}

/// Starts an operation that another thread completes.
pub(crate) fn start(
    device: &dyn device::Device,
    operation: device::Operation,
) -> Receiver<device::Result<device::Outcome>> {
    let (tell, told) = channel();
    device.submit(operation, Box::new(move |outcome| drop(tell.send(outcome))));
    told
}

/// What a device gives a client of a server of ours.
pub(crate) fn greet(
    device: &dyn device::Device,
) -> device::Result<Option<Arc<dyn device::Device>>> {
    let (sender, answer) = channel();
    let client = device::Client {
        number: 1,
        peer: device::Peer::Other,
        export: String::new(),
        tls: None,
        presence: device::Presence::default(),
    };
    device.connect(&client, Box::new(move |result| sender.send(result).unwrap()));
    answer.recv().unwrap()
}

/// The operations that have ended, and their results.
type Ended = Vec<(u64, device::Result<device::Outcome>)>;

/// Turns a lane until nothing is in flight, as a copying thread would.
pub(crate) fn finish(lane: &mut dyn device::Lane) -> Ended {
    let mut ended = Vec::new();
    while lane.in_flight() > 0 {
        ended.append(&mut turn_or_wait(lane));
    }
    ended
}

/// Turns a lane once, and waits until it is worth another turn if nothing moved.
pub(crate) fn turn_or_wait(lane: &mut dyn device::Lane) -> Ended {
    let mut ended = Vec::new();
    if lane.turn(&mut ended) == device::LaneStep::Idle
        && let Some((fd, interest)) = lane.waits_on()
    {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, interest.read);
        flags.set(PollFlags::OUT, interest.write);
        let minute = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&minute));
        assert_ne!(ready, Ok(0), "nothing happened for a minute");
    }
    ended.into_iter().map(|c| (c.ticket, c.outcome)).collect()
}

/// A structured chunk.
pub(crate) fn chunk(cookie: u64, done: bool, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = 0x668e_33ef_u32.to_be_bytes().to_vec();
    bytes.extend(u16::from(done).to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A structured data chunk.
pub(crate) fn data(cookie: u64, done: bool, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut payload = offset.to_be_bytes().to_vec();
    payload.extend(bytes);
    chunk(cookie, done, 1, &payload)
}

/// A structured error chunk.
pub(crate) fn error(cookie: u64, error: u32, message: &str) -> Vec<u8> {
    let mut payload = error.to_be_bytes().to_vec();
    payload.extend(u16::try_from(message.len()).unwrap().to_be_bytes());
    payload.extend(message.as_bytes());
    chunk(cookie, true, 32769, &payload)
}

/// A simple reply.
pub(crate) fn simple(cookie: u64, error: u32) -> Vec<u8> {
    let mut bytes = 0x6744_6698_u32.to_be_bytes().to_vec();
    bytes.extend(error.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes
}

/// Everything but extended headers.
pub(crate) fn structured() -> ServerPolicy {
    ServerPolicy { extended: false, ..ServerPolicy::default() }
}

/// Simple replies only.
pub(crate) fn plain() -> ServerPolicy {
    ServerPolicy { extended: false, structured: false, ..ServerPolicy::default() }
}
