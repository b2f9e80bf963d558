//! Checks 79 to 84: extents.

use blackbox::launch::{Serve, Server, needs_ours};
use blackbox::nbd::{alloc, cflag, cmd, err};
use blackbox::session::{Mode, Request, Session};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

const HOLE_ZERO: u64 = alloc::HOLE | alloc::ZERO;

/// The extents of the one context selected.
fn extents(session: &mut Session, offset: u64, length: u64, flags: u16) -> Vec<(u64, u64)> {
    let id = session.contexts[0].0;
    session.status(offset, length, flags).unwrap().remove(&id).unwrap()
}

/// Memory with data in the second 64 KiB of 1 MiB.
fn dotted() -> Server {
    let server = Serve::memory("1M").start();
    server.session(Mode::Simple, "").write(64 << 10, &pattern(0, 64 << 10));
    server
}

#[test]
fn server_check_79_extents_tell_data_from_holes() {
    let server = dotted();
    for mode in [Mode::Structured, Mode::Extended] {
        let Some(mut session) = server.try_session(mode, "") else { continue };
        let map = session.map();
        assert_eq!(map.iter().map(|(size, _)| size).sum::<u64>(), MIB, "{map:?}");
        let data: u64 = map.iter().filter(|(_, f)| f & alloc::ZERO == 0).map(|(s, _)| s).sum();
        // A server may see less than there is to see, but never zeroes where data is.
        assert!(data >= 64 << 10, "{map:?}");
        assert!(map.iter().all(|(_, f)| f & !HOLE_ZERO == 0), "{map:?}");
        if !needs_ours("exact extents") {
            assert_eq!(map, [(64 << 10, HOLE_ZERO), (64 << 10, 0), (MIB - (128 << 10), HOLE_ZERO)]);
        }
    }
}

#[test]
fn server_check_79_extents_follow_writes_and_zeroes() {
    let server = Serve::memory("4M").start();
    let mut session = server.session(Mode::Structured, "");
    session.write(MIB, &pattern(0, index(MIB)));
    let map = session.map();
    let data: u64 = map.iter().filter(|(_, f)| f & alloc::ZERO == 0).map(|(s, _)| s).sum();
    assert!(data >= MIB, "{map:?}");
    session.ask(&Request::new(cmd::WRITE_ZEROES, MIB, MIB));
    assert_eq!(session.read(MIB, MIB).unwrap(), vec![0; index(MIB)]);
    session.write(2 * MIB - 1, &[7]);
    // Wherever the map calls bytes zero, they must read as zeroes.
    let mut at = 0;
    for (size, flags) in session.map() {
        let bytes = session.read(at, size).unwrap();
        let zero = bytes.iter().all(|b| *b == 0);
        assert!(zero || flags & alloc::ZERO == 0, "data called zero at {at}");
        at += size;
    }
}

#[test]
fn server_check_79_an_answer_may_begin_anywhere() {
    let server = dotted();
    let mut session = server.session(Mode::Structured, "");
    let (start, end) = ((64 << 10) + 1000, (96 << 10) + 1);
    let list = extents(&mut session, start, end - start, 0);
    assert_eq!(list[0].1 & alloc::ZERO, 0, "data begins here: {list:?}");
    assert!(list[0].0 <= (128 << 10) - start, "it is data only to 128 KiB: {list:?}");
}

#[test]
fn server_check_80_one_extent_on_request() {
    let server = dotted();
    for mode in [Mode::Structured, Mode::Extended] {
        let Some(mut session) = server.try_session(mode, "") else { continue };
        for (offset, length) in [(0, MIB), (100, 200), (64 << 10, MIB / 2), (MIB - 1, 1)] {
            let list = extents(&mut session, offset, length, cflag::REQ_ONE);
            assert_eq!(list.len(), 1, "{list:?}");
            assert!(list[0].0 <= length, "{} of {length}", list[0].0);
        }
    }
}

#[test]
fn server_check_81_longest_request_on_a_huge_hole() {
    let server = Serve::memory("8T").start();
    let mut session = server.session(Mode::Structured, "");
    let length = u64::from(u32::MAX);
    for offset in [0, 1, 512, 5 << 30] {
        let list = extents(&mut session, offset, length, 0);
        let end = offset + list.iter().map(|(size, _)| size).sum::<u64>();
        assert!(end > offset && end <= session.export.size, "{list:?}");
        let list = extents(&mut session, offset, length, cflag::REQ_ONE);
        assert!((1..=length).contains(&list[0].0), "{list:?}");
    }
    session.assert_alive();
    let Some(mut session) = server.try_session(Mode::Extended, "") else { return };
    let list = extents(&mut session, 0, 8 << 40, 0);
    assert!(!list.is_empty());
    if !needs_ours("wide extents") {
        assert_eq!(list, [(8 << 40, HOLE_ZERO)], "8 TiB of nothing in one extent");
    }
}

#[test]
fn server_check_82_past_the_end_is_invalid() {
    let server = dotted();
    for mode in [Mode::Structured, Mode::Extended] {
        let Some(mut session) = server.try_session(mode, "") else { continue };
        for (offset, length) in [(MIB, 1), (MIB - 1, 2), (u64::MAX, 2), (0, MIB + 1), (1 << 63, 1)]
        {
            let answer = session.ask(&Request::new(cmd::BLOCK_STATUS, offset, length));
            assert_eq!(answer.error, err::EINVAL, "{length} at {offset}");
            session.assert_alive();
        }
    }
}

#[test]
fn server_check_83_unaligned_end_of_the_export() {
    let temp = TempDir::new();
    let size = MIB + 100;
    let path = temp.sparse_file("odd", size);
    let server = Serve::file(&path).option("-r").start();
    for mode in [Mode::Structured, Mode::Extended] {
        let Some(mut session) = server.try_session(mode, "") else { continue };
        if session.export.size != size {
            assert!(needs_ours("sizes that are no multiple of 512"), "{:?}", session.export);
            return;
        }
        for offset in [0, 1, MIB, MIB + 99] {
            let list = extents(&mut session, offset, size - offset, 0);
            let end = offset + list.iter().map(|(size, _)| size).sum::<u64>();
            assert!(end <= size, "extents end at {end}: {list:?}");
        }
        assert_eq!(session.map().iter().map(|(size, _)| size).sum::<u64>(), size);
        assert_eq!(session.read(MIB + 90, 10).unwrap(), [0; 10]);
        assert_eq!(session.read(MIB + 90, 11), Err(err::EINVAL));
    }
}

#[test]
fn server_check_84_dense_fragmentation_stays_within_a_chunk() {
    if needs_ours("sparse-random in this form") {
        return;
    }
    // Runs of one block: about two million extents in 16 GiB.
    let server =
        Serve::device(["sparse-random", "16G", "percent=50", "runlength=4096", "seed=3"]).start();
    let mut session = server.session(Mode::Extended, "");
    // `Session` asserts that no chunk holds more than 2^20 extents.
    let wide = extents(&mut session, 0, 16 << 30, 0);
    let total: u64 = wide.iter().map(|(size, _)| size).sum();
    assert!((4096..=16 << 30).contains(&total));
    let mut session = server.session(Mode::Structured, "");
    let narrow = extents(&mut session, 0, u64::from(u32::MAX), 0);
    let shared = wide.len().min(narrow.len()) - 1;
    assert_eq!(wide[..shared], narrow[..shared], "both forms tell the same");
    session.assert_alive();
}

#[test]
fn server_check_84_thousands_of_extents_come_in_order() {
    let server = Serve::memory("64M").start();
    let mut session = server.session(Mode::Structured, "");
    let block = 64 << 10;
    for n in (0..64 * MIB / block).step_by(2) {
        session.write(n * block, &pattern(n, index(block)));
    }
    let map = session.map();
    let zeroes: u64 = map.iter().filter(|(_, f)| f & alloc::ZERO != 0).map(|(s, _)| s).sum();
    assert!(zeroes <= 32 * MIB, "{map:?}");
    if !needs_ours("exact extents") {
        assert_eq!(map.len(), 1024, "{map:?}");
        assert!(map.iter().all(|(size, _)| *size == block), "{map:?}");
    }
}
