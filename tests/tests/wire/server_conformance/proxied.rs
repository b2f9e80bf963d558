//! Checks 46, 61, 63 and 70 need a backend that lacks or refuses something. Our server stands in
//! front of a scripted one, through its `nbd` device.

use blackbox::fake::{ALL_FLAGS, Fake, Script, Step};
use blackbox::launch::{Serve, Server};
use blackbox::nbd::{cflag, cmd, err, tflag};
use blackbox::session::{Mode, Request};
use blackbox::temp::pattern;
use blackbox::{MIB, index};

/// Our server in front of a fake. Dropped in this order: ours first.
struct Proxy {
    server: Server,
    upstream: Fake,
}

fn proxy(script: Script) -> Proxy {
    let upstream = script.start();
    let server = Serve::proxy(&upstream.uri("")).start();
    Proxy { server, upstream }
}

fn with_flags(flags: u16) -> Script {
    Script { flags, ..Script::new(MIB) }
}

#[test]
fn server_check_61_fua_that_is_not_offered_is_invalid() {
    // A backend that can neither flush nor write through: durability cannot be promised.
    let proxy = proxy(with_flags(tflag::HAS_FLAGS));
    let mut session = proxy.server.session(Mode::Simple, "proxy");
    assert!(!session.has(tflag::SEND_FUA), "FUA is offered over a backend without flush");
    let error = session.error_of(&Request::write(0, &[1; 4096]).flags(cflag::FUA));
    assert_eq!(error, err::EINVAL);
    session.assert_alive();
    assert_eq!(session.read(0, 4096).unwrap(), pattern(0, 4096), "nothing was written");
    proxy.upstream.finish();
}

#[test]
fn server_check_61_fua_by_flush_flushes_before_the_reply() {
    let proxy = proxy(with_flags(tflag::HAS_FLAGS | tflag::SEND_FLUSH));
    let mut session = proxy.server.session(Mode::Simple, "proxy");
    let request = Request::write(0, &[1; 4096]).flags(cflag::FUA);
    assert_eq!(session.error_of(&request), 0);
    let requests = proxy.upstream.finish().requests;
    let write = requests.iter().rposition(|r| r.command == cmd::WRITE).expect("the write");
    let flushed = requests[write..].iter().any(|r| r.command == cmd::FLUSH);
    assert!(flushed, "FUA was answered, but never reached the backend: {requests:?}");
}

#[test]
fn server_check_63_misaligned_requests_are_right_or_refused() {
    let script = Script { block_sizes: Some((512, 4096, 1 << 20)), ..Script::new(MIB) };
    let proxy = proxy(script);
    let mut session = proxy.server.session(Mode::Structured, "proxy");
    let mut disk = pattern(0, index(MIB));
    for (offset, length) in [(1, 511), (511, 2), (700, 5000), (MIB - 3, 3), (0, 1), (4096, 4097)] {
        match session.read(offset, length) {
            Ok(data) => assert!(data == disk[index(offset)..index(offset + length)]),
            Err(error) => assert_eq!(error, err::EINVAL),
        }
        let data = vec![0xcc; index(length)];
        let write = Request::write(offset, &data);
        let zero = Request::new(cmd::WRITE_ZEROES, offset, length);
        for (request, bytes) in [(write, data), (zero, vec![0; index(length)])] {
            match session.error_of(&request) {
                0 => disk[index(offset)..index(offset + length)].copy_from_slice(&bytes),
                error => assert_eq!(error, err::EINVAL),
            }
            assert!(session.read(0, MIB).unwrap() == disk, "corrupted by {length} at {offset}");
        }
    }
    assert!(proxy.upstream.disk() == disk);
    // The fake judged the alignment of what reached it.
    proxy.upstream.finish();
}

#[test]
fn server_check_70_fast_zero_that_the_backend_refuses() {
    let script = with_flags(ALL_FLAGS).at(cmd::WRITE_ZEROES, |peer, request| {
        if request.flags & cflag::FAST_ZERO != 0 {
            peer.answer(request, err::ENOTSUP);
            return Step::Done;
        }
        Step::Honest
    });
    let proxy = proxy(script);
    let mut session = proxy.server.session(Mode::Structured, "proxy");
    let before = session.read(0, 65536).unwrap();
    let zero = Request::new(cmd::WRITE_ZEROES, 0, 65536);
    let error = session.error_of(&zero.clone().flags(cflag::FAST_ZERO));
    assert_eq!(error, err::ENOTSUP);
    assert!(session.read(0, 65536).unwrap() == before);
    assert_eq!(session.error_of(&zero), 0, "unflagged it must succeed");
    assert_eq!(session.read(0, 65536).unwrap(), [0; 65536]);
    proxy.upstream.finish();
}

#[test]
fn server_check_70_zeroes_longer_than_a_write_reach_a_backend_without_zeroes() {
    // More than any single write may carry: split, and every piece written.
    let flags = tflag::HAS_FLAGS | tflag::SEND_FLUSH;
    let proxy = proxy(Script { flags, ..Script::new(96 * MIB) });
    let mut session = proxy.server.session(Mode::Simple, "proxy");
    let request = Request::new(cmd::WRITE_ZEROES, 1000, 96 * MIB - 2000);
    assert_eq!(session.error_of(&request), 0);
    let disk = proxy.upstream.disk();
    let end = disk.len() - 1000;
    assert!(disk[1000..end].iter().all(|b| *b == 0), "stale bytes");
    assert!(disk[..1000] == pattern(0, 1000));
    assert!(disk[end..] == pattern(96 * MIB - 1000, 1000));
    proxy.upstream.finish();
}

#[test]
fn server_check_46_an_error_of_the_backend_is_never_turned_into_zeroes() {
    let script = with_flags(ALL_FLAGS).on_request(|peer, request, _| {
        let bad = request.offset < 8192 && request.offset + request.length > 4096;
        if matches!(request.command, cmd::READ | cmd::WRITE) && bad {
            peer.answer(request, err::EIO);
            return Step::Done;
        }
        Step::Honest
    });
    let proxy = proxy(script);
    for mode in [Mode::Simple, Mode::Structured, Mode::Extended] {
        let mut session = proxy.server.session(mode, "proxy");
        assert_eq!(session.read(4096, 4096), Err(err::EIO));
        assert_eq!(session.read(0, MIB), Err(err::EIO));
        assert_eq!(session.error_of(&Request::write(5000, &[1; 10])), err::EIO);
        session.assert_alive();
        assert_eq!(session.read(8192, 4096).unwrap(), pattern(8192, 4096));
    }
    proxy.upstream.finish();
}
