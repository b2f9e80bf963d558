//! A front end and its guest, played over a pair of sockets and memory that both have mapped: for
//! tests, and for the fuzzer, which decides what rings and messages hold.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    dead_code,
    reason = "a failure is what is looked for; it is in no program"
)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use device::model::Model;
use device::{Edge, Simple};
use runtime::WorkPool;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    recvmsg, sendmsg, socketpair,
};

use super::front_end::FrontEnd;
use super::memory::GuestBytes;
use super::messages::request;
use super::session::{StopSign, VhostSession};
use crate::client::AttachedClient;

pub(super) const SIZE: u64 = 1 << 20;
pub(super) const MEMORY: u64 = 1 << 20;
/// Where the guest's memory begins: as it counts, and as the front end does.
pub(super) const GUEST: u64 = 0x10_0000;
pub(super) const USER: u64 = 0x7000_0000;
/// Where things lie in it.
pub(super) const TABLE: usize = 0;
pub(super) const AVAILABLE: usize = 0x1000;
pub(super) const USED: usize = 0x2000;
pub(super) const INDIRECT: usize = 0x3000;
pub(super) const HEADER: usize = 0x4000;
pub(super) const STATUS: usize = 0x4100;
pub(super) const DATA: usize = 0x1_0000;
pub(super) const LENGTH: u16 = 16;
pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const IS_TABLE: u16 = 4;

/// The disk's side.
pub(super) struct Back {
    pub(super) session: Arc<VhostSession>,
    pub(super) stop: Arc<StopSign>,
}

impl Back {
    pub(super) fn of(edge: &Edge, is_read_only: bool) -> Self {
        let session = VhostSession {
            client: AttachedClient::of(edge, is_read_only),
            serial: "a-disk".into(),
            is_unsealed: false,
            features: AtomicU64::new(0),
            notices: runtime::Mutex::default(),
        };
        Self { session: Arc::new(session), stop: StopSign::new().unwrap() }
    }

    pub(super) fn model(model: &Arc<Model>) -> Self {
        Self::of(&Simple::shared_edge(model.clone(), &WorkPool::new(2)), false)
    }

    /// A front end that connects.
    pub(super) fn connect(&self) -> Guest {
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (socket, theirs) = pair.unwrap();
        let (session, stop) = (self.session.clone(), self.stop.clone());
        let thread = std::thread::spawn(move || {
            FrontEnd::new(&session, theirs).run(&stop).map_err(|e| e.to_string())
        });
        Guest { thread: Some(thread), ..Guest::over(socket) }
    }
}

pub(super) fn sealed(len: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("guest", flags).unwrap();
    ftruncate(&file, len).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    file
}

pub(super) struct Guest {
    pub(super) socket: OwnedFd,
    pub(super) thread: Option<std::thread::JoinHandle<Result<(), String>>>,
    pub(super) file: OwnedFd,
    pub(super) memory: GuestBytes,
    pub(super) kick: OwnedFd,
    pub(super) call: OwnedFd,
    /// The next entry of the ring of available requests.
    pub(super) next: u16,
    pub(super) events: bool,
}

/// A descriptor of the guest: where, how long, flags, and the next one.
pub(super) type Entry = (u64, u32, u16, u16);

impl Guest {
    /// One whose front end is at the other end of `socket`.
    pub(super) fn over(socket: OwnedFd) -> Self {
        let file = sealed(MEMORY);
        let memory = GuestBytes::map(&file, 0, MEMORY, true).unwrap();
        let event = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (kick, call) = (event(), event());
        Self { socket, thread: None, file, memory, kick, call, next: 0, events: false }
    }

    pub(super) fn send(&self, kind: u32, payload: &[u8], file: Option<&OwnedFd>) {
        let len = u32::try_from(payload.len()).unwrap();
        let header = [kind, 1, len].map(u32::to_ne_bytes);
        let message = [header.as_flattened(), payload].concat();
        let files: Vec<_> = file.into_iter().map(std::os::fd::AsFd::as_fd).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let parts = [std::io::IoSlice::new(&message)];
        // The other side may have gone.
        let _ = sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL);
    }

    /// Asks, and returns the answer and the descriptor that came with it.
    pub(super) fn ask(&self, kind: u32, payload: &[u8]) -> (Vec<u8>, Option<OwnedFd>) {
        self.send(kind, payload, None);
        let mut bytes = vec![0; 1024];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        let flags = rustix::net::RecvFlags::CMSG_CLOEXEC;
        // The fuzzer has a timer.
        let got = retry_on_intr(|| recvmsg(&self.socket, &mut parts, &mut control, flags)).unwrap();
        let file = control.drain().find_map(|message| match message {
            rustix::net::RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        (bytes[12..got.bytes].to_vec(), file)
    }

    pub(super) fn number(&self, kind: u32) -> u64 {
        u64::from_ne_bytes(self.ask(kind, &[]).0.try_into().unwrap())
    }

    pub(super) fn pair(&self, kind: u32, first: u32, second: u32) {
        self.send(kind, [first, second].map(u32::to_ne_bytes).as_flattened(), None);
    }

    /// Shares the memory.
    pub(super) fn share(&self) {
        let mut table = [1_u32, 0].map(u32::to_ne_bytes).as_flattened().to_vec();
        table.extend([GUEST, MEMORY, USER, 0].map(u64::to_ne_bytes).as_flattened());
        self.send(request::SET_MEM_TABLE, &table, Some(&self.file));
    }

    /// Agrees to `features`, and starts queue 0 at `base`.
    pub(super) fn start(&mut self, features: u64, base: u16) {
        self.events = features & 1 << 29 != 0;
        self.next = base;
        self.send(request::SET_FEATURES, &features.to_ne_bytes(), None);
        self.share();
        self.pair(request::SET_VRING_NUM, 0, LENGTH.into());
        let at = |place: usize| USER + place as u64;
        let mut rings = [0_u32, 0].map(u32::to_ne_bytes).as_flattened().to_vec();
        let places = [at(TABLE), at(USED), at(AVAILABLE), 0];
        rings.extend(places.map(u64::to_ne_bytes).as_flattened());
        self.send(request::SET_VRING_ADDR, &rings, None);
        self.pair(request::SET_VRING_BASE, 0, base.into());
        self.send(request::SET_VRING_CALL, &0_u64.to_ne_bytes(), Some(&self.call));
        self.send(request::SET_VRING_KICK, &0_u64.to_ne_bytes(), Some(&self.kick));
        if features & 1 << 30 != 0 {
            self.pair(request::SET_VRING_ENABLE, 0, 1);
        }
    }

    pub(super) fn describe(&self, table: usize, number: u16, (address, len, flags, next): Entry) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend([flags, next].map(u16::to_le_bytes).as_flattened());
        self.memory.write(table + usize::from(number) * 16, &bytes).unwrap();
    }

    /// Makes a request available whose first descriptor is `head`.
    pub(super) fn offer(&mut self, head: u16) {
        self.memory.store(AVAILABLE + 4 + usize::from(self.next % LENGTH) * 2, head).unwrap();
        self.next = self.next.wrapping_add(1);
        if self.events {
            // Tell me of the one that is next.
            self.memory.store(AVAILABLE + 4 + usize::from(LENGTH) * 2, self.next.wrapping_sub(1));
        }
        self.memory.store(AVAILABLE + 2, self.next).unwrap();
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).unwrap();
    }

    pub(super) fn used(&self) -> u16 {
        self.memory.load(USED + 2).unwrap()
    }

    /// Waits until all that was offered is used.
    pub(super) fn wait(&self) {
        while self.used() != self.next {
            let mut wanted = [PollFd::new(&self.call, PollFlags::IN)];
            retry_on_intr(|| poll(&mut wanted, None)).unwrap();
            rustix::io::read(&self.call, &mut [0; 8]).unwrap();
        }
    }

    /// Does one request; its status, and what it wrote to the data.
    pub(super) fn run(
        &mut self,
        kind: u32,
        sector: u64,
        out: &[u8],
        room: usize,
        is_indirect: bool,
    ) -> u8 {
        let mut header = [kind, 0].map(u32::to_le_bytes).as_flattened().to_vec();
        header.extend(sector.to_le_bytes());
        self.memory.write(HEADER, &header).unwrap();
        self.memory.write(STATUS, &[0xee]).unwrap();
        self.memory.write(DATA, out).unwrap();
        let at = |place: usize| GUEST + place as u64;
        let mut entries = vec![(at(HEADER), 16, 0)];
        let flags = if room > 0 { WRITE } else { 0 };
        let len = out.len().max(room);
        // In two parts, the first of an odd length.
        let first = (len / 2) | 1;
        if len > 1 {
            entries.push((at(DATA), u32::try_from(first).unwrap(), flags));
            entries.push((at(DATA + first), u32::try_from(len - first).unwrap(), flags));
        }
        entries.push((at(STATUS), 1, WRITE));
        let table = if is_indirect { INDIRECT } else { TABLE };
        let count = u16::try_from(entries.len()).unwrap();
        for (number, (address, len, flags)) in (0..).zip(entries) {
            let (more, next) = if number + 1 < count { (NEXT, number + 1) } else { (0, 0) };
            self.describe(table, number, (address, len, flags | more, next));
        }
        if is_indirect {
            self.describe(TABLE, 5, (at(INDIRECT), u32::from(count) * 16, IS_TABLE, 0));
        }
        self.offer(if is_indirect { 5 } else { 0 });
        self.wait();
        let mut status = [0];
        self.memory.read(STATUS, &mut status).unwrap();
        status[0]
    }

    pub(super) fn data(&self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory.read(DATA, &mut data).unwrap();
        data
    }

    /// Hangs up; what the other side said of this one.
    pub(super) fn end(mut self) -> Result<(), String> {
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).unwrap();
        self.thread.take().unwrap().join().unwrap()
    }
}

pub(super) const VERSION_1: u64 = 1 << 32;
pub(super) const PROTOCOL: u64 = 1 << 30;
pub(super) const EVENTS: u64 = 1 << 29;
pub(super) const TABLES: u64 = 1 << 28;

/// Chooses a number below another.
pub(super) type Choice<'a> = &'a mut dyn FnMut(u64) -> u64;

/// A ring that holds whatever is chosen: the request ends, or its queue does, and the front end is
/// answered.
pub(super) fn any_ring(back: &Back, choose: Choice<'_>) {
    let mut guest = back.connect();
    let broken = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    guest.send(request::SET_VRING_ERR, &0_u64.to_ne_bytes(), Some(&broken));
    guest.start(VERSION_1 | TABLES | if choose(2) == 0 { EVENTS } else { 0 }, 0);
    for table in [TABLE, INDIRECT] {
        for n in 0..LENGTH {
            let place = [HEADER, DATA, STATUS, INDIRECT, USED][usize::try_from(choose(5)).unwrap()];
            let address = match choose(12) {
                0 => u64::MAX - choose(600),
                1 => GUEST + MEMORY - choose(600),
                _ => GUEST + place as u64,
            };
            let len = [0, 1, 16, 48, 512, u32::MAX][usize::try_from(choose(6)).unwrap()];
            let flags = u16::try_from(choose(8) & choose(16)).unwrap();
            let next = u16::try_from(choose(u64::from(LENGTH) + 1)).unwrap();
            guest.describe(table, n, (address, len, flags, next));
        }
    }
    let (kind, sector) = (u32::try_from(choose(16)).unwrap(), choose(2 * SIZE / 512));
    guest.memory.write(HEADER, &kind.to_le_bytes()).unwrap();
    guest.memory.write(HEADER + 8, &sector.to_le_bytes()).unwrap();
    guest.offer(u16::try_from(choose(u64::from(LENGTH))).unwrap());
    let (answer, _) = guest.ask(request::GET_VRING_BASE, &[0; 8]);
    assert_eq!(answer.len(), 8);
    assert_eq!(guest.end(), Ok(()));
}

/// Messages of whatever is chosen, after those that begin a session.
pub(super) fn any_messages(back: &Back, choose: Choice<'_>) {
    let mut guest = back.connect();
    guest.start(VERSION_1 | PROTOCOL, 0);
    for _ in 0..1 + choose(4) {
        let kind = u32::try_from(choose(40)).unwrap();
        let len = usize::try_from(choose(64)).unwrap();
        let byte = |_| u8::try_from(choose(256)).unwrap();
        let payload: Vec<u8> = (0..len).map(byte).collect();
        let file = (choose(2) == 0).then_some(&guest.file);
        guest.send(kind, &payload, file);
    }
    // Whatever it made of that.
    let _ = guest.end();
}

/// The bytes choose what a guest has in a ring, and what a front end says, of a disk that is
/// read-only. It is as it was then, and the next machine is served.
pub fn run(bytes: &[u8]) {
    let model = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
    let back = Back::of(&Simple::shared_edge(model.clone(), &WorkPool::new(1)), true);
    let mut left = bytes.iter();
    let mut choose = |most: u64| {
        let mut next = || u64::from(left.next().copied().unwrap_or(0));
        let number = if most > 256 { next() << 8 | next() } else { next() };
        number % most
    };
    any_ring(&back, &mut choose);
    any_messages(&back, &mut choose);
    let mut guest = back.connect();
    guest.start(VERSION_1, 0);
    assert_eq!(guest.run(0, 0, &[], 512, false), 0);
    assert_eq!(guest.end(), Ok(()));
    assert!(model.bytes().iter().all(|byte| *byte == 0));
}
