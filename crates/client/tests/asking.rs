//! The NBD client's requests, and over which connections it sends them: only what was advertised,
//! as long as a server takes it, and in another way where it was refused.

use crate::script;

use std::sync::Arc;

use device::{Buffer, ErrorKind, Fault, Operation, Outcome, ZeroFlags};
use script::{Server, data, finish, offer, plain, read, several, simple, structured};
use trial::BlockingCalls;
use wire::{Command, CommandFlags, ReplyWriter, ServerPolicy, StatusExtent, TransmissionFlags};

const SIZE: u64 = 1 << 20;

/// Serves reads of zeroes and everything else with success, and notes what it was asked.
fn notes(
    offer: wire::ExportOffer,
    policy: ServerPolicy,
) -> (Server, Arc<std::sync::Mutex<Vec<Note>>>) {
    let log = Arc::new(std::sync::Mutex::new(Vec::new()));
    let notes = log.clone();
    let server = Server::start(offer, policy, move |mut client| {
        while let Some((request, _)) = client.request() {
            let kind = request.kind().unwrap();
            notes.lock().unwrap().push((kind, request.flags, request.offset, request.length));
            client.answer(&request, 0);
        }
    });
    (server, log)
}

type Note = (Command, CommandFlags, u64, u64);

#[test]
fn writes_beyond_the_limit_of_unsent_bytes_are_all_done() {
    let (server, log) = notes(offer(SIZE), structured());
    let device = server.open();
    let mut lane = device.lane().unwrap().unwrap();
    // 100 MiB; the socket takes 4 MiB, and 32 MiB may wait.
    for ticket in 0..100 {
        let data = device::Slice::from(Buffer::zeroed(1 << 20));
        lane.start(ticket, Operation::Write { offset: 0, data, fua: false });
    }
    let ended = finish(&mut *lane);
    assert!(ended.len() == 100 && ended.iter().all(|(_, outcome)| outcome.is_ok()));
    assert_eq!(log.lock().unwrap().len(), 100);
}

#[test]
fn check_40_nothing_is_sent_that_was_not_offered() {
    let bare = wire::ExportOffer {
        flags: TransmissionFlags::HAS_FLAGS,
        contexts: Vec::new(),
        ..offer(SIZE)
    };
    let (server, log) = notes(bare, structured());
    let device = server.open();
    let flags = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
    assert!(device.zero(0, 4096, flags).unwrap_err().is_unsupported());
    let fast = ZeroFlags { fast_only: true, ..flags };
    assert_eq!(device.zero(0, 4096, fast).unwrap_err().kind(), ErrorKind::NotFast);
    assert!(device.write_at(&[1; 512], 0, true).unwrap_err().is_unsupported());
    assert!(device.flush().unwrap_err().is_unsupported());
    device.trim(0, 4096, false).unwrap();
    device.prefetch(0, 4096).unwrap();
    let mut extents = Vec::new();
    device.resolve(0, SIZE, 10, &mut extents).unwrap();
    assert_eq!(extents.len(), 1);
    assert_eq!(extents[0].kind, device::ExtentKind::Data);
    for (offset, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1)] {
        let error = read(&*device, offset, len).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfBounds);
    }
    assert_eq!(device.info().lanes.map_or(0, std::num::NonZeroUsize::get), 1);
    assert!(log.lock().unwrap().is_empty(), "{:?}", log.lock().unwrap());
}

#[test]
fn a_server_that_sends_all_extents_of_a_range_is_asked_for_those_that_are_used() {
    const DISK: u64 = 64 << 20;
    let sent = Arc::new(std::sync::Mutex::new((0, 0)));
    let count = sent.clone();
    let server = Server::start(offer(DISK), structured(), move |mut client| {
        while let Some((request, _)) = client.request() {
            let (first, last) = (request.offset >> 12, (request.offset + request.length) >> 12);
            let teeth = (first..last).map(|at| StatusExtent { length: 4096, flags: at % 2 * 3 });
            let mut sent = count.lock().unwrap();
            (sent.0, sent.1) = (sent.0 + 1, sent.1 + (last - first));
            let mut out = Vec::new();
            let context = client.session.contexts[0].0;
            let writer = ReplyWriter::new(client.session.mode, &request);
            writer.block_status(context, teeth, usize::MAX, true, &mut out);
            client.send(&out);
        }
    });
    let device = server.open();
    let (mut at, mut extents) = (0, Vec::new());
    while at < DISK {
        let mut more = Vec::new();
        device.resolve(at, DISK - at, 64, &mut more).unwrap();
        at = more.last().unwrap().end();
        extents.extend(more);
    }
    assert_eq!(extents.len(), 16384);
    assert!(extents.iter().zip(0..).all(|(extent, n)| {
        (extent.start, extent.len, extent.kind.reads_zero()) == (n << 12, 4096, n % 2 == 1)
    }));
    let (requests, told) = *sent.lock().unwrap();
    assert!(requests <= 260 && told <= 3 * 16384, "{requests} requests, {told} extents");
}

#[test]
fn check_40_a_second_connection_needs_multi_conn() {
    let (server, _) = notes(offer(SIZE), structured());
    let device = server.try_open(4).unwrap();
    assert_eq!(device.info().lanes.map_or(0, std::num::NonZeroUsize::get), 1);
    let lane = device.lane().unwrap();
    assert!(lane.is_some());
    assert_eq!(device.lane().err().unwrap().kind(), ErrorKind::Limit);
    drop(lane);
    assert!(device.lane().unwrap().is_some());
}

#[test]
fn every_lane_has_a_connection_of_its_own_where_several_are_allowed() {
    let server = Server::start(several(SIZE), structured(), |mut client| {
        while let Some((request, _)) = client.request() {
            let number = u8::try_from(client.number).unwrap();
            client.answer(&request, number);
        }
    });
    let device = server.try_open(3).unwrap();
    assert_eq!(device.info().lanes.map_or(0, std::num::NonZeroUsize::get), 3);
    let mut lanes: Vec<_> = (0..3).map(|_| device.lane().unwrap().unwrap()).collect();
    assert_eq!(device.lane().err().unwrap().kind(), ErrorKind::Limit);
    for (number, lane) in lanes.iter_mut().enumerate() {
        lane.start(0, Operation::Read { offset: 0, buffer: Buffer::zeroed(8) });
        let (_, outcome) = finish(&mut **lane).remove(0);
        let Ok(Outcome::Read(buffer)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(usize::from(buffer[0]), number);
    }
}

#[test]
fn lanes_asked_for_at_once_are_all_given() {
    let (server, _) = notes(several(SIZE), structured());
    for _ in 0..10 {
        let device = server.try_open(8).unwrap();
        let lanes: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| device.lane().unwrap())).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(lanes.iter().all(Option::is_some));
    }
}

#[test]
fn a_second_connection_to_another_size_is_refused() {
    // The listener is one, the exports are two: each client gets a new offer.
    let size = std::sync::atomic::AtomicU64::new(SIZE);
    let offers = move || several(size.fetch_add(512, std::sync::atomic::Ordering::Relaxed));
    let server = Server::start_with(offers, structured(), |mut client| client.drain());
    let device = server.try_open(2).unwrap();
    let _first = device.lane().unwrap().unwrap();
    assert_eq!(device.lane().err().unwrap().kind(), ErrorKind::Protocol);
}

#[test]
fn long_zeroes_are_split_on_whole_blocks_without_extended_headers() {
    let blocks = wire::BlockConstraints { minimum: 4096, preferred: 4096, maximum: 1 << 20 };
    let huge = wire::ExportOffer { blocks: Some(blocks), ..offer(10 << 30) };
    let (server, log) = notes(huge.clone(), structured());
    let device = server.open();
    device.zero(4096, (9 << 30) + 4096, ZeroFlags::default()).unwrap();
    device.trim(0, 5 << 30, true).unwrap();
    let asked = std::mem::take(&mut *log.lock().unwrap());
    let mut at = 4096;
    let zeroes: Vec<_> = asked.iter().filter(|(c, ..)| *c == Command::WriteZeroes).collect();
    for (_, flags, offset, len) in &zeroes {
        assert_eq!((*offset, *flags), (at, CommandFlags::NO_HOLE));
        assert!(len % 4096 == 0 && *len <= u64::from(u32::MAX));
        at += len;
    }
    assert_eq!((at, zeroes.len()), ((9 << 30) + 8192, 3));
    assert!(asked.iter().any(|(c, f, ..)| *c == Command::Trim && *f == CommandFlags::FUA));

    let (server, log) = notes(huge, ServerPolicy::default());
    server.open().zero(0, 10 << 30, ZeroFlags::default()).unwrap();
    let first = log.lock().unwrap()[0];
    assert_eq!(first, (Command::WriteZeroes, CommandFlags::NO_HOLE, 0, 10 << 30));
}

#[test]
fn a_refused_df_read_is_asked_again_without_it() {
    let flags = script::EVERYTHING.with(TransmissionFlags::SEND_DF);
    let server =
        Server::start(wire::ExportOffer { flags, ..offer(SIZE) }, structured(), |mut client| {
            let mut refused = 0;
            while let Some((request, _)) = client.request() {
                if request.flags.contains(CommandFlags::DF) {
                    refused += 1;
                    client.send(&simple(request.cookie, 22));
                } else {
                    client.send(&data(request.cookie, true, request.offset, &[refused; 8]));
                }
            }
        });
    let device = server.open();
    for _ in 0..3 {
        // Refused once, and never asked again.
        assert_eq!(read(&*device, 0, 8).unwrap(), [1; 8]);
    }
}

#[test]
fn a_zero_refused_for_its_length_is_asked_again_in_shorter_pieces() {
    let server = Server::start(offer(1 << 30), structured(), |mut client| {
        while let Some((request, _)) = client.request() {
            let code = if request.length > 32 << 20 { 75 } else { 0 };
            client.send(&simple(request.cookie, code));
        }
    });
    server.open().zero(0, 1 << 30, ZeroFlags::default()).unwrap();
}

#[test]
fn a_fast_zero_is_not_fast_only_if_nothing_was_changed() {
    // The server is fast in the first 4 GiB.
    let server = Server::start(offer(16 << 30), structured(), |mut client| {
        while let Some((request, _)) = client.request() {
            let fast = request.flags.contains(CommandFlags::FAST_ZERO);
            let code = if fast && request.offset >= 1 << 30 { 95 } else { 0 };
            client.send(&simple(request.cookie, code));
        }
    });
    let device = server.open();
    let fast = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
    device.zero(0, 8 << 30, fast).unwrap();
    let error = device.zero(8 << 30, 8 << 30, fast).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFast);
    device.zero(8 << 30, 4096, ZeroFlags::default()).unwrap();
}

#[test]
fn a_fast_zero_that_can_be_finished_in_no_way_is_an_error_and_not_a_refusal() {
    let server = Server::start(offer(16 << 30), structured(), |mut client| {
        while let Some((request, _)) = client.request() {
            let code = if request.offset >= 1 << 30 { 95 } else { 0 };
            client.send(&simple(request.cookie, code));
        }
    });
    let device = server.open();
    let fast = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
    let edge = device::Edge::new(device, runtime::WorkPool::new(1));
    let error = edge.zero(0, 8 << 30, fast).unwrap_err();
    assert_eq!((error.kind(), error.fault()), (ErrorKind::Io, Fault::Peer), "{error}");
    // Nothing was begun: that is a refusal.
    assert_eq!(edge.zero(2 << 30, 4096, fast).unwrap_err().kind(), ErrorKind::NotFast);
}

#[test]
fn a_zero_that_the_server_cannot_do_after_all_is_left_to_the_edge() {
    let server = Server::start(offer(SIZE), plain(), |mut client| {
        while let Some((request, _)) = client.request() {
            let code = if request.kind() == Some(Command::WriteZeroes) { 95 } else { 0 };
            client.send(&simple(request.cookie, code));
        }
    });
    let device = server.open();
    assert!(device.zero(0, 4096, ZeroFlags::default()).unwrap_err().is_unsupported());
    device::Edge::new(device, runtime::WorkPool::new(1))
        .zero(0, 65_536, ZeroFlags::default())
        .unwrap();
}
