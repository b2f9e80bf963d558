//! What front ends and guests do, played.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use device::model::Model;
use device::{
    Abilities, BlockSizes, Blocking, Error, ErrorKind, Extent, ExtentKind, Fault, Granules, Info,
    Keeper, Place, Simple,
};
use runtime::WorkPool;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create, open};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use trial::TestDice;

use super::block::{configuration, feature};
use super::memory::{GuestBytes, GuestMemory, GuestRegion};
use super::messages::request;
use super::played::*;
use super::queue::{QueueParts, RingAddresses, Virtqueue, region_len};
use super::{AttachedExport, SocketOptions, VhostSocket};
use crate::client::AttachedClient;
use crate::resized::SizeWatch;

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
fn long_copies_that_several_threads_do_are_each_of_the_right_bytes() {
    const SIZED: u32 = 128 << 10;
    const LEN: usize = SIZED as usize;
    let model = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
    let back = Back::model(&model);
    let mut guest = back.connect();
    guest.start(VERSION_1 | feature::FLUSH, 0);
    let mut expected = model.bytes();
    let at = |place: usize| GUEST + place as u64;
    for round in 0..40 {
        // Of all but the last, another one waits. Writes are of ranges that do not overlap.
        let is_write = round % 2 == 0;
        let sectors = (0..5_u16).map(|n| (n, u64::from(n) * 256 + round * 61 % 768));
        for (n, sector) in sectors.clone() {
            let (head, number) = (n * 3, usize::from(n));
            let header = [u32::from(is_write), 0].map(u32::to_le_bytes);
            let header = [header.as_flattened(), &sector.to_le_bytes()].concat();
            guest.memory.write(HEADER + number * 16, &header).unwrap();
            guest.memory.write(STATUS + number, &[0xee]).unwrap();
            guest.describe(TABLE, head, (at(HEADER + number * 16), 16, NEXT, head + 1));
            let flags = if is_write { NEXT } else { NEXT | WRITE };
            let data = (at(DATA + number * LEN), SIZED, flags, head + 2);
            guest.describe(TABLE, head + 1, data);
            guest.describe(TABLE, head + 2, (at(STATUS + number), 1, WRITE, 0));
            let entry = AVAILABLE + 4 + usize::from((guest.next + n) % LENGTH) * 2;
            guest.memory.store(entry, head).unwrap();
            if is_write {
                let byte = u8::try_from(round * 5 + u64::from(n)).unwrap();
                guest.memory.write(DATA + number * LEN, &[byte; LEN]).unwrap();
                let from = usize::try_from(sector * 512).unwrap();
                expected[from..from + LEN].fill(byte);
            }
        }
        guest.next = guest.next.wrapping_add(5);
        guest.memory.store(AVAILABLE + 2, guest.next).unwrap();
        rustix::io::write(&guest.kick, &1_u64.to_ne_bytes()).unwrap();
        guest.wait();
        assert!(model.bytes() == expected, "{round}");
        for (n, sector) in sectors {
            let (mut data, mut status) = (vec![0; LEN], [0xee]);
            guest.memory.read(DATA + usize::from(n) * LEN, &mut data).unwrap();
            guest.memory.read(STATUS + usize::from(n), &mut status).unwrap();
            let from = usize::try_from(sector * 512).unwrap();
            assert!(status == [0] && data == expected[from..from + LEN], "{round}: {n}");
        }
    }
    assert_eq!(guest.end(), Ok(()));
}

/// A disk that says where its bytes lie, and has other ones, `0xaa`, when it is asked for them.
struct Placed {
    info: Info,
    extents: Vec<Extent>,
}

impl Blocking for Placed {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> device::Result<()> {
        buf.fill(0xaa);
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: u64, _: bool) -> device::Result<()> {
        Err(Error::new(ErrorKind::Unsupported, Fault::User, "write"))
    }

    fn flush(&self) -> device::Result<()> {
        Ok(())
    }

    fn resolve(&self, _: u64, _: u64, _: usize, out: &mut Vec<Extent>) -> device::Result<()> {
        out.extend(self.extents.clone());
        Ok(())
    }
}

/// Never lets bytes be taken.
struct Refusing;

impl Keeper for Refusing {
    fn passes(&self, _: u64, _: u64) -> bool {
        false
    }
}

#[test]
fn a_long_read_comes_from_its_place_only_where_all_of_it_can_be_taken_there() {
    const LEN: u64 = 128 << 10;
    const HALF: u64 = LEN / 2;
    let holding = |byte, len: u64, flags| {
        let file = memfd_create("disk", MemfdFlags::CLOEXEC).unwrap();
        rustix::io::pwrite(&file, &vec![byte; usize::try_from(len).unwrap()], 0).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Place::new(Arc::new(open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()), 0)
    };
    let place = |byte| holding(byte, SIZE, OFlags::RDONLY).in_memory();
    let kept = holding(0xbb, SIZE, OFlags::RDONLY).kept_by(Arc::new(Refusing));
    let short = holding(0xbb, LEN - 1, OFlags::RDONLY).in_memory();
    let unreadable = holding(0xbb, SIZE, OFlags::WRONLY).in_memory();
    let data = |start, place| Extent::new(start, HALF, ExtentKind::Data).at(place);
    let two = |second| vec![data(0, Some(place(0xbb))), second];
    let hole = Extent::new(HALF, HALF, ExtentKind::Hole);
    let here = [0xbb, 0xbb];
    let asked = [0xaa, 0xaa];
    for (name, flat, observed, extents, len, expected) in [
        ("all of it", Some(place(0xbb)), false, vec![], LEN, here),
        ("a short one", Some(place(0xbb)), false, vec![], HALF / 2, asked),
        ("observed", Some(place(0xbb)), true, vec![], LEN, asked),
        ("kept", Some(kept), false, vec![], LEN, asked),
        ("behind the end", Some(short), false, vec![], LEN, asked),
        ("unreadable", Some(unreadable), false, vec![], LEN, asked),
        ("two files", None, false, two(data(HALF, Some(place(0xcc)))), LEN, [0xbb, 0xcc]),
        ("observed, two", None, true, two(data(HALF, Some(place(0xcc)))), LEN, asked),
        ("half of it", None, false, two(data(HALF, None)), LEN, asked),
        ("with a hole", None, false, two(hole), LEN, asked),
        ("half a map", None, false, vec![data(0, Some(place(0xbb)))], LEN, asked),
    ] {
        let abilities = Abilities { observed, extents: true, ..Abilities::all(false) };
        let info = Info { flat, abilities, ..Info::new("placed", SIZE) };
        let disk = Arc::new(Placed { info, extents });
        let back = Back::of(&Simple::shared_edge(disk, &WorkPool::new(2)), true);
        let mut guest = back.connect();
        guest.start(VERSION_1, 0);
        let len = usize::try_from(len).unwrap();
        assert_eq!(guest.run(0, 0, &[], len, false), 0, "{name}");
        let (first, second) = (vec![expected[0]; len / 2], vec![expected[1]; len / 2]);
        assert!(guest.data(len) == [first, second].concat(), "{name}");
        assert_eq!(guest.end(), Ok(()));
    }
}

#[test]
fn a_queue_that_looks_out_sees_the_next_request_and_gives_up_otherwise() {
    let file = sealed(MEMORY);
    let bytes = GuestBytes::map(&file, 0, MEMORY, true).unwrap();
    let region = GuestRegion { guest: GUEST, user: USER, bytes: bytes.clone() };
    let [descriptors, used, available] = [TABLE, USED, AVAILABLE].map(|at| USER + at as u64);
    let rings = RingAddresses { descriptors, used, available };
    let memory = Arc::new(GuestMemory(vec![region]));
    let queue = Virtqueue::new(QueueParts { size: LENGTH, rings, memory, ..QueueParts::default() });
    let queue = queue.unwrap();
    assert!(!queue.look_out(Duration::from_micros(50)) && !queue.has_more());
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| queue.look_out(Duration::MAX));
        bytes.store(AVAILABLE + 2, 1).unwrap();
        assert!(looks.join().unwrap());
    });
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
        any_ring(&back, &mut |most| dice.below(most));
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
        any_messages(&back, &mut |most| {
            // Few bits in each byte, so that what they say is near what makes sense.
            let bits = if most == 256 { dice.below(256) & 0x81 } else { u64::MAX };
            dice.below(most) & bits
        });
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
    assert!(said.contains("not an eventfd"), "{said}");
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
    back.stop.set();

    // A disk of sectors of 512 bytes on a medium of 4096, that frees 64 KiB together.
    let granules = Granules { physical: 4096, trim: 64 << 10, zero: 0 };
    let config = configuration(&Info { granules, ..Info::new("disk", SIZE) }, SIZE, 16);
    assert_eq!(config[20..24], 512_u32.to_le_bytes());
    assert_eq!(config[24..32], [3, 0, 8, 0, 8, 0, 0, 0]);
    assert_eq!(config[44..48], 128_u32.to_le_bytes());
    let shifted = granules.from(8192);
    assert_eq!(shifted, Granules { trim: 0, ..granules });
}

/// A disk that is only described.
struct Described(Info);

impl Blocking for Described {
    fn info(&self) -> &Info {
        &self.0
    }

    fn read_at(&self, _: &mut [u8], _: u64) -> device::Result<()> {
        Err(device::Error::unsupported("read"))
    }

    fn write_at(&self, _: &[u8], _: u64, _: bool) -> device::Result<()> {
        Err(device::Error::unsupported("write"))
    }

    fn flush(&self) -> device::Result<()> {
        Ok(())
    }
}

#[test]
fn what_a_disk_says_of_itself_reaches_its_guest() {
    let folder = std::env::temp_dir().join(format!("diskferry-{}-described", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("vm.sock");
    let granules = Granules { physical: 16384, trim: 1 << 20, zero: 65536 };
    for (wanted, own, seen) in
        [("", Some("QM00001"), "QM00001"), ("", None, "e"), ("root", Some("QM00001"), "root")]
    {
        let abilities = Abilities::all(true);
        let serial = own.map(Arc::from);
        let info = Info { granules, abilities, serial, ..Info::new("disk", SIZE) };
        let edge = Simple::shared_edge(Arc::new(Described(info)), &WorkPool::new(1));
        let (hub, _) = AttachedClient::beside(&edge, false, 64 << 20);
        let options = SocketOptions { serial: wanted.into(), ..SocketOptions::default() };
        let socket = VhostSocket::listen(&path, &options, false).unwrap();
        let connect = || Err(device::Error::unanswered());
        let export =
            AttachedExport { hub: &hub, name: "e", point: "p", disk: "d", connect: &connect };
        let attached = socket.attach(&export).unwrap();
        let mut guest = Guest::over(UnixStream::connect(&path).unwrap().into());
        let offered = guest.number(request::GET_FEATURES);
        assert_ne!(offered & (feature::TOPOLOGY | feature::DISCARD), 0);
        let mut ask = [0_u32, 60, 0].map(u32::to_ne_bytes).as_flattened().to_vec();
        ask.extend([0; 60]);
        let (answer, _) = guest.ask(request::GET_CONFIG, &ask);
        let config = &answer[12..];
        assert_eq!(config[20..24], 512_u32.to_le_bytes(), "logical blocks");
        assert_eq!(config[24], 5, "32 of them are a physical one");
        assert_eq!(config[44..48], 2048_u32.to_le_bytes(), "sectors that a discard frees");
        guest.start(VERSION_1, 0);
        assert_eq!(guest.run(8, 0, &[], 20, false), 0);
        assert_eq!(String::from_utf8(guest.data(20)).unwrap().trim_end_matches('\0'), seen);
        drop(guest);
        attached.end().unwrap();
    }
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn a_front_end_is_told_of_another_size_and_its_guest_uses_all_of_it() {
    let size = usize::try_from(SIZE).unwrap();
    let model = Arc::new(Model::new(size));
    let back = Back::model(&model);
    let mut guest = back.connect();
    assert_ne!(guest.number(request::GET_PROTOCOL_FEATURES) & 1 << 5, 0);
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.unwrap();
    guest.send(request::SET_BACKEND_REQ_FD, &[], Some(&theirs));
    drop(theirs);
    guest.start(VERSION_1, 0);
    let (end, data) = (SIZE / 512, [9; 1024]);
    assert_eq!(guest.run(1, end, &data, 0, false), 1, "it has not grown");
    let sectors = |guest: &Guest| {
        let mut ask = [0_u32, 8, 0].map(u32::to_ne_bytes).as_flattened().to_vec();
        ask.extend([0; 8]);
        let (answer, _) = guest.ask(request::GET_CONFIG, &ask);
        u64::from_le_bytes(answer[12..].try_into().unwrap())
    };
    let session = back.session.clone();
    let tell = move |_| session.tell_size();
    let watch = SizeWatch::begin(&back.session.client.edge, 512, tell).unwrap();
    for (size, after) in [(size + 1024, end + 2), (size - 512 + 100, end - 1)] {
        model.give(size);
        let mut message = [0; 12];
        let n = rustix::io::read(&ours, &mut message).unwrap();
        assert_eq!(message[..n], *[2_u32, 1, 0].map(u32::to_ne_bytes).as_flattened());
        assert_eq!(sectors(&guest), after);
        assert_eq!(guest.run(1, after - 2, &data, 0, false), 0);
        assert_eq!(guest.run(1, after - 1, &data, 0, false), 1, "it ends inside of that");
    }
    drop(watch);
    assert_eq!(guest.end(), Ok(()));
    assert!(back.session.tell_size().is_ok(), "there is nobody to be told");
}

#[test]
fn the_fuzzer_s_way_through_rings_and_messages_ends_whatever_the_bytes_are() {
    let mut dice = TestDice(11);
    for len in 0..200 {
        let bytes: Vec<u8> = (0..len * 3).map(|_| u8::try_from(dice.below(256)).unwrap()).collect();
        run(&bytes);
    }
}
