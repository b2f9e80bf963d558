//! A front end and its guest, played over a pair of sockets and memory that both have mapped.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use device::model::Model;
use device::{Abilities, BlockSizes, Edge, Granules, Info, Simple};
use runtime::{Bell, WorkPool};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use trial::TestDice;

use super::block::{configuration, feature};
use super::front_end::FrontEnd;
use super::memory::GuestBytes;
use super::messages::request;
use super::queue::region_len;
use super::session::VhostSession;
use crate::client::AttachedClient;

const SIZE: u64 = 1 << 20;
const MEMORY: u64 = 1 << 20;
/// Where the guest's memory begins: as it counts, and as the front end does.
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7000_0000;
/// Where things lie in it.
const TABLE: usize = 0;
const AVAILABLE: usize = 0x1000;
const USED: usize = 0x2000;
const INDIRECT: usize = 0x3000;
const HEADER: usize = 0x4000;
const STATUS: usize = 0x4100;
const DATA: usize = 0x1_0000;
const LENGTH: u16 = 16;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const IS_TABLE: u16 = 4;

/// The disk's side.
struct Back {
    session: Arc<VhostSession>,
    stop: Arc<(AtomicBool, Bell)>,
}

impl Back {
    fn of(edge: &Edge, is_read_only: bool) -> Self {
        let session = VhostSession {
            client: AttachedClient::of(edge, is_read_only),
            serial: "a-disk".into(),
            is_unsealed: false,
            features: AtomicU64::new(0),
        };
        Self {
            session: Arc::new(session),
            stop: Arc::new((AtomicBool::new(false), Bell::new().unwrap())),
        }
    }

    fn model(model: &Arc<Model>) -> Self {
        Self::of(&Simple::shared_edge(model.clone(), &WorkPool::new(2)), false)
    }

    /// A front end that connects.
    fn connect(&self) -> Guest {
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (socket, theirs) = pair.unwrap();
        let (session, stop) = (self.session.clone(), self.stop.clone());
        let thread = std::thread::spawn(move || {
            FrontEnd::new(&session, theirs).run(&stop.1, &stop.0).map_err(|e| e.to_string())
        });
        let file = sealed(MEMORY);
        let memory = GuestBytes::map(&file, 0, MEMORY, true).unwrap();
        let event = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (kick, call) = (event(), event());
        Guest { socket, thread: Some(thread), file, memory, kick, call, next: 0, events: false }
    }
}

fn sealed(len: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("guest", flags).unwrap();
    ftruncate(&file, len).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    file
}

struct Guest {
    socket: OwnedFd,
    thread: Option<std::thread::JoinHandle<Result<(), String>>>,
    file: OwnedFd,
    memory: GuestBytes,
    kick: OwnedFd,
    call: OwnedFd,
    /// The next entry of the ring of available requests.
    next: u16,
    events: bool,
}

/// A descriptor of the guest: where, how long, flags, and the next one.
type Entry = (u64, u32, u16, u16);

impl Guest {
    fn send(&self, kind: u32, payload: &[u8], file: Option<&OwnedFd>) {
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
    fn ask(&self, kind: u32, payload: &[u8]) -> (Vec<u8>, Option<OwnedFd>) {
        self.send(kind, payload, None);
        let mut bytes = vec![0; 1024];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        let flags = rustix::net::RecvFlags::CMSG_CLOEXEC;
        let got = rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags).unwrap();
        let file = control.drain().find_map(|message| match message {
            rustix::net::RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        (bytes[12..got.bytes].to_vec(), file)
    }

    fn number(&self, kind: u32) -> u64 {
        u64::from_ne_bytes(self.ask(kind, &[]).0.try_into().unwrap())
    }

    fn pair(&self, kind: u32, first: u32, second: u32) {
        self.send(kind, [first, second].map(u32::to_ne_bytes).as_flattened(), None);
    }

    /// Shares the memory.
    fn share(&self) {
        let mut table = [1_u32, 0].map(u32::to_ne_bytes).as_flattened().to_vec();
        table.extend([GUEST, MEMORY, USER, 0].map(u64::to_ne_bytes).as_flattened());
        self.send(request::SET_MEM_TABLE, &table, Some(&self.file));
    }

    /// Agrees to `features`, and starts queue 0 at `base`.
    fn start(&mut self, features: u64, base: u16) {
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

    fn describe(&self, table: usize, number: u16, (address, len, flags, next): Entry) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend([flags, next].map(u16::to_le_bytes).as_flattened());
        self.memory.write(table + usize::from(number) * 16, &bytes).unwrap();
    }

    /// Makes a request available whose first descriptor is `head`.
    fn offer(&mut self, head: u16) {
        self.memory.store(AVAILABLE + 4 + usize::from(self.next % LENGTH) * 2, head).unwrap();
        self.next = self.next.wrapping_add(1);
        if self.events {
            // Tell me of the one that is next.
            self.memory.store(AVAILABLE + 4 + usize::from(LENGTH) * 2, self.next.wrapping_sub(1));
        }
        self.memory.store(AVAILABLE + 2, self.next).unwrap();
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).unwrap();
    }

    fn used(&self) -> u16 {
        self.memory.load(USED + 2).unwrap()
    }

    /// Waits until all that was offered is used.
    fn wait(&self) {
        while self.used() != self.next {
            let mut wanted = [PollFd::new(&self.call, PollFlags::IN)];
            poll(&mut wanted, None).unwrap();
            rustix::io::read(&self.call, &mut [0; 8]).unwrap();
        }
    }

    /// Does one request; its status, and what it wrote to the data.
    fn run(&mut self, kind: u32, sector: u64, out: &[u8], room: usize, is_indirect: bool) -> u8 {
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

    fn data(&self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory.read(DATA, &mut data).unwrap();
        data
    }

    /// Hangs up; what the other side said of this one.
    fn end(mut self) -> Result<(), String> {
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).unwrap();
        self.thread.take().unwrap().join().unwrap()
    }
}

const VERSION_1: u64 = 1 << 32;
const PROTOCOL: u64 = 1 << 30;
const EVENTS: u64 = 1 << 29;
const TABLES: u64 = 1 << 28;

#[test]
fn what_a_guest_does_is_done_as_by_the_model() {
    for (seed, features) in (0..).zip([
        VERSION_1 | feature::FLUSH,
        VERSION_1 | PROTOCOL,
        VERSION_1 | PROTOCOL | EVENTS | TABLES | feature::FLUSH,
    ]) {
        let model = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
        let mut expected = model.bytes();
        let back = Back::model(&model);
        let mut guest = back.connect();
        assert_eq!(guest.number(request::GET_FEATURES) & features, features);
        guest.start(features, 0);
        let mut dice = TestDice(seed);
        for n in 0..600_u32 {
            let sector = dice.below(SIZE / 512);
            let count = dice.below((SIZE / 512 - sector).min(64)) + 1;
            let (from, len) = (sector * 512, count.min(SIZE / 512 - sector) * 512);
            let range = usize::try_from(from).unwrap()..usize::try_from(from + len).unwrap();
            let is_indirect = features & TABLES != 0 && n % 2 == 0;
            match dice.below(5) {
                0 | 1 => {
                    let byte = u8::try_from(dice.below(256)).unwrap();
                    let data = vec![byte; range.len()];
                    expected[range].copy_from_slice(&data);
                    assert_eq!(guest.run(1, sector, &data, 0, is_indirect), 0);
                }
                2 => {
                    let status = guest.run(0, sector, &[], range.len(), is_indirect);
                    assert_eq!(status, 0);
                    assert!(guest.data(range.len()) == expected[range], "{n}");
                }
                3 => {
                    let mut segment = sector.to_le_bytes().to_vec();
                    let sectors = u32::try_from(len / 512).unwrap();
                    segment.extend([sectors, n % 2].map(u32::to_le_bytes).as_flattened());
                    expected[range].fill(0);
                    assert_eq!(guest.run(13, 0, &segment, 0, is_indirect), 0);
                }
                _ => assert_eq!(guest.run(4, 0, &[], 0, is_indirect), 0),
            }
        }
        assert!(model.bytes() == expected);
        assert_eq!(guest.end(), Ok(()));
    }
}

#[test]
fn a_guest_that_knows_no_flush_has_its_writes_durable_when_they_are_acknowledged() {
    let model = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
    let back = Back::model(&model);
    let mut guest = back.connect();
    guest.start(VERSION_1, 0);
    assert_eq!(guest.run(1, 3, &[7; 512], 0, false), 0);
    let log = model.log();
    assert!(log.iter().any(|line| line.contains("fua") || line.contains("flush")), "{log:?}");
    assert_eq!(guest.end(), Ok(()));
}

#[test]
fn what_lies_outside_of_the_disk_or_changes_a_read_only_one_fails_and_changes_nothing() {
    let model = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
    let edge = Simple::shared_edge(model.clone(), &WorkPool::new(2));
    for is_read_only in [false, true] {
        let back = Back::of(&edge, is_read_only);
        let mut guest = back.connect();
        let offered = guest.number(request::GET_FEATURES);
        assert_eq!(offered & feature::READ_ONLY != 0, is_read_only);
        guest.start(VERSION_1, 0);
        let end = SIZE / 512;
        for sector in [end, end - 1, u64::MAX, u64::MAX / 512] {
            assert_eq!(guest.run(0, sector, &[], 1024, false), 1, "read {sector}");
            assert_eq!(guest.run(1, sector, &[9; 1024], 0, false), 1, "write {sector}");
            let mut segment = sector.to_le_bytes().to_vec();
            segment.extend([2_u32, 0].map(u32::to_le_bytes).as_flattened());
            for kind in [11, 13] {
                assert_eq!(guest.run(kind, 0, &segment, 0, false), 1, "{kind} {sector}");
            }
        }
        assert_eq!(guest.run(0, 0, &[], 511, false), 1, "no whole sector");
        assert_eq!(guest.run(77, 0, &[], 0, false), 2, "unknown");
        assert_eq!(guest.run(8, 0, &[], 20, false), 0);
        assert_eq!(&guest.data(8), b"a-disk\0\0");
        if is_read_only {
            assert_eq!(guest.run(1, 0, &[9; 512], 0, false), 1);
        }
        assert_eq!(guest.run(0, 0, &[], 512, false), 0);
        assert_eq!(guest.end(), Ok(()));
    }
    assert!(model.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn a_ring_that_makes_no_sense_ends_its_queue_and_nothing_else() {
    let model = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
    let back = Back::model(&model);
    let at = |place: usize| GUEST + place as u64;
    let table = u32::from(LENGTH) * 16;
    let odd: [(&str, Vec<Entry>); 9] = [
        ("loops", vec![(at(HEADER), 16, NEXT, 1), (at(DATA), 1, NEXT, 0)]),
        ("lies nowhere", vec![(u64::MAX - 8, 16, NEXT, 1), (at(STATUS), 1, WRITE, 0)]),
        ("ends outside", vec![(GUEST + MEMORY - 8, 16, NEXT, 1), (at(STATUS), 1, WRITE, 0)]),
        ("leads out of the table", vec![(at(HEADER), 16, NEXT, LENGTH)]),
        ("has no status", vec![(at(HEADER), 16, 0, 0)]),
        (
            "is read behind what is written",
            vec![(at(HEADER), 16, NEXT, 1), (at(STATUS), 1, WRITE | NEXT, 2), (at(DATA), 1, 0, 0)],
        ),
        ("is a table in a table", vec![(at(TABLE), table, IS_TABLE, 0)]),
        ("is a table without end", vec![(at(INDIRECT), !15, IS_TABLE, 0)]),
        ("is a table of odd length", vec![(at(INDIRECT), 17, IS_TABLE, 0)]),
    ];
    for (name, entries) in odd {
        let mut guest = back.connect();
        let broken = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        guest.send(request::SET_VRING_ERR, &0_u64.to_ne_bytes(), Some(&broken));
        guest.start(VERSION_1 | TABLES, 0);
        for (number, entry) in (0..).zip(entries) {
            guest.describe(TABLE, number, entry);
        }
        if name.contains("without end") {
            // Each leads to the next, up to the end of the memory.
            for number in 0..4000 {
                guest.describe(INDIRECT, number, (at(DATA), 1, NEXT, number + 1));
            }
        }
        guest.offer(0);
        poll(&mut [PollFd::new(&broken, PollFlags::IN)], None).unwrap();
        assert_eq!(guest.end(), Ok(()), "{name}");
    }
    for (head, index) in [(LENGTH, 1), (0, LENGTH + 1), (0, 0x8000)] {
        let mut guest = back.connect();
        let broken = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        guest.send(request::SET_VRING_ERR, &0_u64.to_ne_bytes(), Some(&broken));
        guest.start(VERSION_1, 0);
        guest.next = index - 1;
        guest.memory.store(AVAILABLE + 4, head).unwrap();
        guest.offer(head);
        poll(&mut [PollFd::new(&broken, PollFlags::IN)], None).unwrap();
        assert_eq!(guest.end(), Ok(()));
    }
    let mut guest = back.connect();
    guest.start(VERSION_1, 0);
    assert_eq!(guest.run(1, 0, &[5; 512], 0, false), 0);
    assert_eq!(guest.end(), Ok(()));
    assert!(model.bytes().iter().skip(512).all(|byte| *byte == 0));
}

#[test]
fn whatever_a_ring_holds_a_request_ends_or_its_queue_does() {
    let model = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
    let back = Back::of(&Simple::shared_edge(model.clone(), &WorkPool::new(2)), true);
    let mut dice = TestDice(3);
    for _ in 0..600 {
        let mut guest = back.connect();
        let broken = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        guest.send(request::SET_VRING_ERR, &0_u64.to_ne_bytes(), Some(&broken));
        guest.start(VERSION_1 | TABLES | if dice.below(2) == 0 { EVENTS } else { 0 }, 0);
        let mut number = |most: u64| dice.below(most);
        for table in [TABLE, INDIRECT] {
            for n in 0..LENGTH {
                let place =
                    [HEADER, DATA, STATUS, INDIRECT, USED][usize::try_from(number(5)).unwrap()];
                let address = match number(12) {
                    0 => u64::MAX - number(600),
                    1 => GUEST + MEMORY - number(600),
                    _ => GUEST + place as u64,
                };
                let len = [0, 1, 16, 48, 512, u32::MAX][usize::try_from(number(6)).unwrap()];
                let flags = u16::try_from(number(8) & number(16)).unwrap();
                let next = u16::try_from(number(u64::from(LENGTH) + 1)).unwrap();
                guest.describe(table, n, (address, len, flags, next));
            }
        }
        let head = u16::try_from(number(u64::from(LENGTH))).unwrap();
        guest.offer(head);
        // Whether it was done or given up, the front end is answered.
        let (answer, _) = guest.ask(request::GET_VRING_BASE, &[0; 8]);
        assert_eq!(answer.len(), 8);
        assert_eq!(guest.end(), Ok(()));
    }
    assert!(model.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn the_longest_request_may_lie_in_a_table_that_is_longer_than_its_queue() {
    let model = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
    let back = Back::model(&model);
    let mut guest = back.connect();
    guest.start(VERSION_1 | TABLES, 0);
    guest.memory.write(HEADER, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    guest.memory.write(DATA, &[6; 254 * 512]).unwrap();
    let table = DATA + 254 * 512;
    let at = |place: usize| GUEST + place as u64;
    guest.describe(table, 0, (at(HEADER), 16, NEXT, 1));
    for n in 1..255_u16 {
        guest.describe(table, n, (at(DATA) + u64::from(n - 1) * 512, 512, NEXT, n + 1));
    }
    guest.describe(table, 255, (at(STATUS), 1, WRITE, 0));
    guest.describe(TABLE, 0, (at(table), 256 * 16, IS_TABLE, 0));
    guest.offer(0);
    guest.wait();
    assert!(model.bytes()[..254 * 512].iter().all(|byte| *byte == 6));
    assert_eq!(guest.end(), Ok(()));
}

#[test]
fn odd_messages_end_their_connection_and_the_next_front_end_is_served() {
    let model = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
    let back = Back::model(&model);
    let mut dice = TestDice(7);
    for _ in 0..400 {
        let mut guest = back.connect();
        guest.start(VERSION_1 | PROTOCOL, 0);
        for _ in 0..1 + dice.below(4) {
            let kind = u32::try_from(dice.below(40)).unwrap();
            let len = usize::try_from(dice.below(64)).unwrap();
            let byte = |_| u8::try_from(dice.below(256) & dice.below(256) & 0x81).unwrap();
            let payload: Vec<u8> = (0..len).map(byte).collect();
            let file = (dice.below(2) == 0).then_some(&guest.file);
            guest.send(kind, &payload, file);
        }
        // Whatever it made of that.
        let _ = guest.end();
    }
    let mut guest = back.connect();
    guest.start(VERSION_1, 0);
    assert_eq!(guest.run(0, 0, &[], 512, false), 0);
    assert_eq!(guest.end(), Ok(()));
}

#[test]
fn memory_that_can_become_shorter_and_what_is_no_eventfd_is_refused() {
    let model = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
    let back = Back::model(&model);
    let mut guest = back.connect();
    guest.file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&guest.file, MEMORY).unwrap();
    guest.share();
    let said = guest.thread.take().unwrap().join().unwrap().unwrap_err();
    assert!(said.contains("can become shorter"), "{said}");
    let mut guest = back.connect();
    guest.send(request::SET_VRING_KICK, &0_u64.to_ne_bytes(), Some(&guest.file));
    let said = guest.thread.take().unwrap().join().unwrap().unwrap_err();
    assert!(said.contains("no eventfd"), "{said}");
}

#[test]
fn memory_that_is_taken_away_is_not_touched_any_more() {
    let model = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
    let back = Back::model(&model);
    let mut guest = back.connect();
    assert_eq!(guest.number(request::GET_MAX_MEM_SLOTS), 128);
    guest.start(VERSION_1, 0);
    let more = sealed(4096);
    let beyond = GUEST + MEMORY;
    let region = [0, beyond, 4096, USER + MEMORY, 0].map(u64::to_ne_bytes);
    guest.send(request::ADD_MEM_REG, region.as_flattened(), Some(&more));
    guest.number(request::GET_FEATURES);
    let read = |guest: &mut Guest| {
        guest.memory.write(HEADER, &[0; 16]).unwrap();
        guest.describe(TABLE, 0, (GUEST + HEADER as u64, 16, NEXT, 1));
        guest.describe(TABLE, 1, (beyond - 256, 512, NEXT | WRITE, 2));
        guest.describe(TABLE, 2, (GUEST + STATUS as u64, 1, WRITE, 0));
        guest.offer(0);
        guest.wait();
        let mut status = [0xee];
        guest.memory.read(STATUS, &mut status).unwrap();
        status[0]
    };
    assert_eq!(read(&mut guest), 0, "it lies in both");
    guest.send(request::REM_MEM_REG, region.as_flattened(), None);
    guest.number(request::GET_FEATURES);
    assert_eq!(read(&mut guest), 1);
    assert_eq!(guest.end(), Ok(()));
}

#[test]
fn a_queue_that_is_stopped_goes_on_where_it_was() {
    let model = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
    let back = Back::model(&model);
    let mut guest = back.connect();
    // Across the end of the numbers.
    let base = u16::MAX - 1;
    guest.memory.store(USED + 2, base).unwrap();
    guest.memory.store(AVAILABLE + 2, base).unwrap();
    guest.start(VERSION_1 | PROTOCOL, base);
    for n in 0..4_u8 {
        assert_eq!(guest.run(1, n.into(), &[n + 1; 512], 0, false), 0);
        let (answer, _) = guest.ask(request::GET_VRING_BASE, &[0; 8]);
        assert_eq!(answer[4..6], guest.next.to_ne_bytes(), "{n}");
        let next = guest.next;
        guest.start(VERSION_1 | PROTOCOL, next);
    }
    assert_eq!(guest.end(), Ok(()));
    let bytes = model.bytes();
    assert!((0..4_u8).all(|n| bytes[usize::from(n) * 512] == n + 1));
}

/// A write of `byte` to `sector`, whose descriptors begin with `head`.
fn place(guest: &Guest, head: u16, sector: u64, byte: u8) {
    let shift = usize::from(head) * 0x40;
    let at = |place: usize| GUEST + place as u64;
    let mut header = [1_u32, 0].map(u32::to_le_bytes).as_flattened().to_vec();
    header.extend(sector.to_le_bytes());
    guest.memory.write(HEADER + 0x1000 + shift, &header).unwrap();
    let data = DATA + usize::from(head) * 512;
    guest.memory.write(data, &[byte; 512]).unwrap();
    guest.describe(TABLE, head, (at(HEADER + 0x1000 + shift), 16, NEXT, head + 1));
    guest.describe(TABLE, head + 1, (at(data), 512, NEXT, head + 2));
    guest.describe(TABLE, head + 2, (at(STATUS), 1, WRITE, 0));
}

#[test]
fn what_was_in_flight_when_the_process_was_killed_is_done_once_by_the_next_one() {
    let queue = region_len(LENGTH);
    // Where it was killed: before and after the guest was told of the request 0.
    for was_told in [false, true] {
        let model = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
        let back = Back::model(&model);
        let mut guest = back.connect();
        let mut ask = [0_u64, 0].map(u64::to_ne_bytes).as_flattened().to_vec();
        ask.extend([1, LENGTH, 0, 0].map(u16::to_ne_bytes).as_flattened());
        let (answer, file) = guest.ask(request::GET_INFLIGHT_FD, &ask);
        assert_eq!(answer.len(), ask.len(), "with what QEMU pads it with");
        let file = file.unwrap();
        let region = GuestBytes::map(&file, 0, queue as u64, true).unwrap();
        // Requests 0, 6 and 3 were taken, in this order; the last one of the ring was not.
        for (head, counter) in [(0, 1_u64), (3, 3), (6, 2)] {
            let state = 16 + head * 16;
            region.write(state, &[1, 0]).unwrap();
            region.write(state + 8, &counter.to_ne_bytes()).unwrap();
        }
        region.store(8, 1).unwrap();
        // As the firmware left it, whose queue was shorter.
        region.store(10, LENGTH / 2).unwrap();
        region.store(12, 0).unwrap();
        place(&guest, 0, 0, 1);
        // Both of one sector: the later one counts.
        place(&guest, 6, 1, 2);
        place(&guest, 3, 1, 3);
        place(&guest, 9, 2, 4);
        for (entry, head) in [0, 6, 3, 9].into_iter().enumerate() {
            guest.memory.store(AVAILABLE + 4 + entry * 2, head).unwrap();
        }
        guest.memory.store(AVAILABLE + 2, 4).unwrap();
        guest.memory.store(USED + 2, u16::from(was_told)).unwrap();
        guest.send(request::SET_INFLIGHT_FD, &answer, Some(&file));
        // The front end knows no better than what the guest was told.
        guest.start(VERSION_1 | PROTOCOL, u16::from(was_told));
        guest.next = 4;
        guest.wait();
        let bytes = model.bytes();
        let sectors: Vec<u8> = (0..4).map(|n| bytes[n * 512]).collect();
        assert_eq!(sectors, [u8::from(!was_told), 3, 4, 0], "told: {was_told}");
        assert_eq!(guest.end(), Ok(()));
        assert!((0..16).all(|head| region.load(16 + head * 16) == Some(0)));
        assert_eq!(region.load(14), Some(4));
    }
}

#[test]
fn the_configuration_says_what_the_disk_is() {
    let blocks = BlockSizes { minimum: 4096, ..BlockSizes::default() };
    let model = Arc::new(Model::with(usize::try_from(SIZE).unwrap(), Abilities::READ, blocks));
    let back = Back::model(&model);
    let guest = back.connect();
    assert_ne!(guest.number(request::GET_FEATURES) & feature::READ_ONLY, 0);
    let mut ask = [0_u32, 96, 0].map(u32::to_ne_bytes).as_flattened().to_vec();
    ask.extend([0; 96]);
    let (answer, _) = guest.ask(request::GET_CONFIG, &ask);
    assert_eq!(answer.len(), 12 + 96);
    let config = &answer[12..];
    assert_eq!(config[..8], (SIZE / 512).to_le_bytes());
    assert_eq!(config[20..24], 4096_u32.to_le_bytes());
    assert_eq!(config[34..36], 16_u16.to_le_bytes());
    assert!(config[60..].iter().all(|byte| *byte == 0));
    assert_eq!(guest.end(), Ok(()));
    back.stop.0.store(true, Ordering::SeqCst);

    // A disk of sectors of 512 bytes on a medium of 4096, that frees 64 KiB together.
    let granules = Granules { physical: 4096, trim: 64 << 10, zero: 0 };
    let config = configuration(&Info { granules, ..Info::new("disk", SIZE) }, 16);
    assert_eq!(config[20..24], 512_u32.to_le_bytes());
    assert_eq!(config[24..32], [3, 0, 8, 0, 8, 0, 0, 0]);
    assert_eq!(config[44..48], 128_u32.to_le_bytes());
    let shifted = granules.from(8192);
    assert_eq!(shifted, Granules { trim: 0, ..granules });
}
