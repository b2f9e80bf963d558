//! The NBD client against servers that are slow, strange or hostile, after an honest handshake.
//!
//! Each test says what the server does; the device must fail, or succeed, without a wrong byte.
//! The numbers in names are those of the client's conformance checklist; replies to a read that lie
//! are listed in `blackbox::conformance`.

use crate::script;

use blackbox::conformance::replies::{self, Reply, Verdict};
use blackbox::rules::Seen;
use blackbox::session::Mode;
use device::{Buffer, Error, ErrorKind, Fault, Operation, Outcome};
use script::{Server, chunk, data, error, finish, offer, plain, read, simple, structured};
use trial::BlockingCalls;
use wire::{Command, ServerPolicy};

const SIZE: u64 = 1 << 20;

/// The error of one read of 8 bytes at 4096, which the server answers with what `reply` makes of
/// the cookie; and the error of a read after it.
fn answers_with(reply: impl Fn(u64) -> Vec<u8> + Send + Sync + 'static) -> (Error, Option<Error>) {
    answers_in(structured(), reply)
}

fn answers_in(
    policy: ServerPolicy,
    reply: impl Fn(u64) -> Vec<u8> + Send + Sync + 'static,
) -> (Error, Option<Error>) {
    let server = Server::start(offer(SIZE), policy, move |mut client| {
        let request = client.expect(Command::Read);
        client.send(&reply(request.cookie));
        while let Some((request, _)) = client.request() {
            client.answer(&request, 1);
        }
    });
    let device = server.open();
    let first = read(&*device, 4096, 8).expect_err("the read succeeded");
    (first, read(&*device, 0, 8).err())
}

fn fails_alone((first, second): (Error, Option<Error>), kind: ErrorKind) {
    assert_eq!((first.kind(), first.fault()), (kind, Fault::Peer), "{first}");
    assert!(second.is_none(), "the connection is lost: {second:?}");
}

#[test]
fn replies_are_judged_by_the_list() {
    let each = |reply: Reply| {
        let extended = ServerPolicy::default();
        let forms =
            [(Mode::Simple, plain()), (Mode::Structured, structured()), (Mode::Extended, extended)];
        forms
            .into_iter()
            .filter(move |(mode, _)| reply.modes.contains(mode))
            .map(move |f| (reply, f))
    };
    for (reply, (mode, policy)) in replies::of_read().into_iter().flat_map(each) {
        let (first, second) = answers_in(policy, move |cookie| {
            let request = Seen { flags: 0, command: 0, cookie, offset: 4096, length: 8 };
            reply.bytes(&request, mode)
        });
        let is_lost = reply.verdict == Verdict::Ends;
        let place = (first.fault(), first.offset());
        assert_eq!(place, (Fault::Peer, Some(4096)), "{}: {first}", reply.name);
        assert_eq!(second.is_some(), is_lost, "{}: {first}, then {second:?}", reply.name);
        assert!(!is_lost || first.kind() == ErrorKind::Protocol, "{}: {first}", reply.name);
    }
}

#[test]
fn check_31_a_truncated_reply_fails_everything() {
    let server = Server::start(offer(SIZE), structured(), |mut client| {
        let first = client.expect(Command::Read);
        let second = client.expect(Command::Read);
        let reply = data(second.cookie, true, second.offset, &[7; 100_000]);
        client.send(&reply[..60_000]);
        let _ = first;
    });
    let device = server.open();
    let mut lane = device.lane().unwrap().unwrap();
    for ticket in 0..2 {
        let buffer = Buffer::zeroed(100_000);
        lane.start(ticket, Operation::Read { offset: ticket * 200_000, buffer });
    }
    let ended = finish(&mut *lane);
    assert_eq!(ended.len(), 2);
    for (_, outcome) in ended {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Disconnected);
    }
    assert_eq!(read(&*device, 0, 1).unwrap_err().kind(), ErrorKind::Disconnected);
}

#[test]
fn check_32_errors_are_reported_and_the_connection_goes_on() {
    for (code, kind) in [
        (1, ErrorKind::PermissionDenied),
        (5, ErrorKind::Io),
        (22, ErrorKind::InvalidInput),
        (95, ErrorKind::Io),
        (999, ErrorKind::InvalidInput),
    ] {
        let (first, second) = answers_with(move |cookie| error(cookie, code, "no\nsuch luck"));
        assert!(first.to_string().contains("such luck"), "{first}");
        assert!(!first.to_string().contains('\n'));
        fails_alone((first, second), kind);
    }
}

#[test]
fn a_write_that_succeeds_before_it_is_sent_ends_the_connection() {
    use std::io::Read;
    let server = Server::start(offer(64 << 20), structured(), |mut client| {
        let mut head = [0; 28];
        client.stream.read_exact(&mut head).unwrap();
        client.send(&simple(u64::from_be_bytes(head[8..16].try_into().unwrap()), 0));
        // It reads no more, and does not go before the client has looked.
        std::thread::sleep(std::time::Duration::from_secs(5));
    });
    let device = server.open();
    let mut lane = device.lane().unwrap().unwrap();
    let data = device::Slice::from(Buffer::zeroed(32 << 20));
    lane.start(0, Operation::Write { offset: 0, data, fua: false });
    let (_, outcome) = finish(&mut *lane).remove(0);
    let error = outcome.unwrap_err();
    assert_eq!((error.kind(), error.fault()), (ErrorKind::Protocol, Fault::Peer), "{error}");
}

/// The outcome of resolving the first half of the device when the server answers with `reply`.
fn resolve_with(
    policy: ServerPolicy,
    reply: impl Fn(u64, u32) -> Vec<u8> + Send + Sync + 'static,
) -> device::Result<Vec<device::Extent>> {
    let server = Server::start(offer(SIZE), policy, move |mut client| {
        let id = client.session.contexts[0].0;
        let request = client.expect(Command::BlockStatus);
        client.send(&reply(request.cookie, id));
        client.drain();
    });
    let device = server.open();
    let mut extents = Vec::new();
    device.resolve(0, SIZE / 2, 100, &mut extents).map(|()| extents)
}

fn status(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

#[test]
fn check_36_and_37_block_status_is_clamped_and_unknown_bits_are_ignored() {
    let extents = resolve_with(structured(), |c, id| {
        chunk(c, true, 5, &status(&[id, 4096, 0xfff0, 4096, 0xfff3, 8192, 1, u32::MAX, 2]))
    });
    use device::ExtentKind::{Data, Hole, Zero};
    let told: Vec<_> = extents.unwrap().iter().map(|e| (e.start, e.len, e.kind)).collect();
    let rest = SIZE / 2 - 16_384;
    let right = [(0, 4096, Data), (4096, 4096, Hole), (8192, 8192, Data), (16_384, rest, Zero)];
    assert_eq!(told, right);
}

#[test]
fn block_status_beyond_the_request_makes_the_block_data() {
    // A minimum of 64 KiB, and extents that are no multiples of it.
    let blocks = wire::BlockConstraints { minimum: 65_536, preferred: 65_536, maximum: 1 << 20 };
    let coarse = wire::ExportOffer { blocks: Some(blocks), ..offer(SIZE) };
    let server = Server::start(coarse, structured(), |mut client| {
        let id = client.session.contexts[0].0;
        let request = client.expect(Command::BlockStatus);
        client.send(&chunk(request.cookie, true, 5, &status(&[id, 4096, 3])));
        // Another request is not answered.
        client.request();
    });
    let device = server.open();
    let mut extents = Vec::new();
    device.resolve(8192, SIZE - 8192, 100, &mut extents).unwrap();
    let told: Vec<_> = extents.iter().map(|e| (e.start, e.len, e.kind)).collect();
    assert_eq!(told, [(8192, 65_536 - 8192, device::ExtentKind::Data)]);
}

#[test]
fn check_20_a_server_that_shuts_down_is_left_politely() {
    let (said, heard) = std::sync::mpsc::channel();
    let server = Server::start(offer(SIZE), structured(), move |mut client| {
        let request = client.expect(Command::Read);
        client.send(&error(request.cookie, 108, "closing"));
        let _ = said.send(client.request().map(|(request, _)| request.kind()));
    });
    let device = server.open();
    assert_eq!(read(&*device, 0, 8).unwrap_err().kind(), ErrorKind::Shutdown);
    assert_eq!(heard.recv().unwrap(), Some(Some(Command::Disconnect)));
    assert!(read(&*device, 0, 8).is_err());
}

/// Answers the first of two reads with ESHUTDOWN and, a little later, the second with data.
fn shuts_down_between_two() -> Server {
    Server::start(offer(SIZE), structured(), |mut client| {
        let (first, second) = (client.expect(Command::Read), client.expect(Command::Read));
        client.send(&error(first.cookie, 108, "closing"));
        std::thread::sleep(std::time::Duration::from_millis(50));
        client.send(&data(second.cookie, true, second.offset, &[7; 8]));
        client.drain();
    })
}

#[test]
fn check_20_requests_in_flight_at_a_shutdown_are_still_awaited() {
    let server = shuts_down_between_two();
    let device = server.open();
    let (said, heard) = std::sync::mpsc::channel();
    for number in 0..2 {
        let said = said.clone();
        let done = Box::new(move |outcome| said.send((number, outcome)).unwrap());
        device.submit(Operation::Read { offset: 0, buffer: Buffer::zeroed(8) }, done);
    }
    let next = || heard.recv_timeout(std::time::Duration::from_secs(10)).expect("it hangs");
    let (number, outcome) = next();
    assert_eq!((number, outcome.unwrap_err().kind()), (0, ErrorKind::Shutdown));
    let (_, outcome) = next();
    let Ok(Outcome::Read(buffer)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(buffer[..], [7; 8]);
}

#[test]
fn check_20_a_lane_waits_at_a_shutdown_without_spinning() {
    let server = shuts_down_between_two();
    let device = server.open();
    let mut lane = device.lane().unwrap().unwrap();
    for ticket in 0..2 {
        lane.start(ticket, Operation::Read { offset: 0, buffer: Buffer::zeroed(8) });
    }
    let (mut turns, mut ended) = (0, Vec::new());
    while lane.in_flight() > 0 {
        ended.append(&mut script::turn_or_wait(&mut *lane));
        turns += 1;
    }
    assert!(ended[0].1.is_err() && ended[1].1.is_ok(), "{ended:?}");
    assert!(turns < 20, "{turns} turns");
}

#[test]
fn a_dropped_device_sends_disc() {
    let (said, heard) = std::sync::mpsc::channel();
    let server = Server::start(offer(SIZE), ServerPolicy::default(), move |mut client| {
        let _ = said.send(client.request().map(|(request, _)| request.kind()));
        assert!(client.request().is_none());
    });
    drop(server.open());
    assert_eq!(heard.recv().unwrap(), Some(Some(Command::Disconnect)));
}

#[test]
fn requests_in_flight_when_the_device_is_dropped_end_with_an_error() {
    let server = Server::start(offer(SIZE), structured(), |mut client| client.drain());
    let device = server.open();
    let (said, heard) = std::sync::mpsc::channel();
    let buffer = Buffer::zeroed(8);
    let done = Box::new(move |outcome| said.send(outcome).unwrap());
    device.submit(Operation::Read { offset: 0, buffer }, done);
    drop(device);
    assert_eq!(heard.recv().unwrap().unwrap_err().kind(), ErrorKind::Disconnected);
}
