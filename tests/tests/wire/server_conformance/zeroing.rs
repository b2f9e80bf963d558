//! Checks 68 to 73: zeroing, trimming and caching.

use blackbox::launch::{Serve, allocated, stand_in};
use blackbox::nbd::{alloc, cflag, cmd, err, tflag};
use blackbox::session::{Mode, Request};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

use super::requests::each_mode;

#[test]
fn server_check_68_write_zeroes_reads_as_zeroes() {
    each_mode("4M", |_, session| {
        for (offset, length) in [(0, 4096), (1, 511), (4096, 65536), (99_999, MIB), (MIB, 3 * MIB)]
        {
            for flags in [0, cflag::NO_HOLE] {
                let disk = pattern(0, index(4 * MIB));
                session.write(0, &disk);
                let request = Request::new(cmd::WRITE_ZEROES, offset, length).flags(flags);
                assert_eq!(session.error_of(&request), 0);
                let seen = session.read(0, 4 * MIB).unwrap();
                let (from, to) = (index(offset), index(offset + length));
                assert!(seen[from..to].iter().all(|b| *b == 0), "not zeroes at {offset}");
                assert!(seen[..from] == disk[..from], "the bytes before {offset}");
                assert!(seen[to..] == disk[to..], "the bytes after {length} at {offset}");
            }
        }
    });
}

#[test]
fn server_check_68_no_hole_keeps_a_file_allocated() {
    let temp = TempDir::new();
    let path = temp.file("full", &pattern(0, index(4 * MIB)));
    let full = allocated(&path);
    let server = Serve::file(&path).start();
    let mut session = server.session(Mode::Structured, "");
    let zero = Request::new(cmd::WRITE_ZEROES, MIB, 2 * MIB);
    assert_eq!(session.error_of(&zero.clone().flags(cflag::NO_HOLE | cflag::FUA)), 0);
    assert!(allocated(&path) >= full, "NO_HOLE made a hole");
    assert_eq!(session.read(MIB, 2 * MIB).unwrap(), vec![0; index(2 * MIB)]);
    let id = session.contexts[0].0;
    let extents = session.status(MIB, 2 * MIB, 0).unwrap().remove(&id).unwrap();
    assert!(extents.iter().all(|(_, f)| f & alloc::HOLE == 0), "told as a hole: {extents:?}");
    // Without the flag it may become one, and reads the same.
    assert_eq!(session.error_of(&zero), 0);
    assert_eq!(session.read(MIB, 2 * MIB).unwrap(), vec![0; index(2 * MIB)]);
}

#[test]
fn server_check_69_zeroing_what_is_huge_is_answered() {
    let server = Serve::memory("4T").start();
    let mut session = server.session(Mode::Structured, "");
    let length = (1 << 32) - 512;
    session.write(length - 512, &[5; 1024]);
    let before = server.peak_memory();
    let error = session.error_of(&Request::new(cmd::WRITE_ZEROES, 0, length));
    // A server may call this too long; ours zeroes holes at no cost.
    assert!(error == 0 || stand_in().is_some(), "error {error}");
    session.assert_alive();
    if error == 0 {
        let seen = session.read(length - 512, 1024).unwrap();
        assert!(seen[..512].iter().all(|b| *b == 0) && seen[512..] == [5; 512]);
    }
    assert_eq!(session.error_of(&Request::new(cmd::TRIM, 0, length)), 0);
    let Some(mut session) = server.try_session(Mode::Extended, "") else { return };
    let error = session.error_of(&Request::new(cmd::WRITE_ZEROES, 512, 1 << 40));
    assert!(error == 0 || stand_in().is_some(), "error {error}");
    session.error_of(&Request::new(cmd::TRIM, 0, 1 << 40));
    session.error_of(&Request::new(cmd::CACHE, 0, 1 << 40));
    session.assert_alive();
    let grown = server.peak_memory() - before;
    assert!(grown < 64 * MIB, "{grown} bytes for a tebibyte of zeroes");
}

#[test]
fn server_check_70_fast_zero_is_fast_or_changes_nothing() {
    each_mode("1M", |_, session| {
        if !session.has(tflag::SEND_FAST_ZERO) {
            return;
        }
        for flags in [0, cflag::NO_HOLE] {
            session.write(0, &[7; 65536]);
            let request = Request::new(cmd::WRITE_ZEROES, 0, 65536).flags(flags);
            let error = session.error_of(&request.clone().flags(cflag::FAST_ZERO));
            let expected = match error {
                0 => 0,
                err::ENOTSUP => 7,
                other => panic!("FAST_ZERO: error {other}"),
            };
            assert_eq!(session.read(0, 65536).unwrap(), [expected; 65536]);
            assert_eq!(session.error_of(&request), 0, "unflagged it must succeed");
            assert_eq!(session.read(0, 65536).unwrap(), [0; 65536]);
        }
    });
}

#[test]
fn server_check_72_trim_leaves_the_neighbours_alone() {
    let temp = TempDir::new();
    let disk = pattern(0, index(MIB));
    let path = temp.file("disk", &disk);
    let servers = [Serve::memory("1M").start(), Serve::file(&path).start()];
    for server in servers {
        let mut session = server.session(Mode::Structured, "");
        if !session.has(tflag::SEND_TRIM) {
            continue;
        }
        for (offset, length) in [(4096, 4096), (1, 4094), (65535, 65538), (MIB - 5000, 5000)] {
            session.write(0, &disk);
            assert_eq!(session.error_of(&Request::new(cmd::TRIM, offset, length)), 0);
            let seen = session.read(0, MIB).unwrap();
            let (from, to) = (index(offset), index(offset + length));
            assert!(seen[..from] == disk[..from], "the bytes before {offset}");
            assert!(seen[to..] == disk[to..], "the bytes after {length} at {offset}");
        }
    }
}

#[test]
fn server_check_73_cache_changes_nothing() {
    each_mode("1M", |_, session| {
        let disk = pattern(0, index(MIB));
        session.write(0, &disk);
        for (offset, length) in [(0, MIB), (1, 1), (4095, 8192)] {
            // It may fail, but not by hanging up; where it is offered ours succeeds.
            let error = session.error_of(&Request::new(cmd::CACHE, offset, length));
            assert!(error == 0 || !session.has(tflag::SEND_CACHE), "error {error}");
        }
        let error = session.error_of(&Request::new(cmd::CACHE, 0, 512).flags(cflag::DF));
        assert_eq!(error, err::EINVAL);
        assert!(session.read(0, MIB).unwrap() == disk);
    });
}
