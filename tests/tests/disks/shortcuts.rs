//! The shortcuts on the server's data path, each in the case in which it must not be taken. What
//! they are for, `alone/syscalls.rs` counts.
//!
//! Long reads leave a file by sendfile, long writes are received straight into memory that was
//! written before, holes are not sent, and the map is remembered. All of it only as long as no
//! difference can be seen.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use blackbox::launch::Serve;
use blackbox::nbd::{cflag, chunk, cmd, err};
use blackbox::session::{Mode, Request};
use blackbox::storage::Mounted;
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

/// A directory in memory, where the server never waits.
fn in_memory() -> TempDir {
    TempDir::below(Path::new("/dev/shm"))
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn a_file_that_became_shorter_is_never_read_as_zeroes() {
    for temp in [TempDir::new(), in_memory()] {
        let path = temp.file("disk", &pattern(0, index(8 * MIB)));
        let server = Serve::file(&path).start();
        for mode in [Mode::Simple, Mode::Structured, Mode::Extended] {
            let mut session = server.session(mode, "");
            assert_eq!(session.read(0, 8 * MIB).unwrap(), pattern(0, index(8 * MIB)));
            open(&path).set_len(3 * MIB).unwrap();
            // An error, or the end of the connection: both are honest.
            session.socket.set_timeout(Duration::from_secs(20));
            let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                session.read(2 * MIB, 4 * MIB)
            }));
            assert!(!matches!(read, Ok(Ok(_))), "{mode:?}: bytes were made up");
            std::fs::write(&path, pattern(0, index(8 * MIB))).unwrap();
        }
        server.session(Mode::Simple, "").assert_alive();
    }
}

#[test]
fn a_hole_that_another_program_fills_is_data_at_the_next_read() {
    for temp in [TempDir::new(), in_memory()] {
        let path = temp.sparse_file("disk", 16 * MIB);
        let server = Serve::file(&path).start();
        let mut session = server.session(Mode::Structured, "");
        for n in 0..4 {
            let at = 4 * n * MIB + 4096;
            assert_eq!(session.read(at, MIB).unwrap(), vec![0; index(MIB)]);
            // Another process, as far as the server can see.
            open(&path).write_all_at(&pattern(at, index(MIB)), at).unwrap();
            assert_eq!(session.read(at, MIB).unwrap(), pattern(at, index(MIB)));
        }
    }
}

/// A read of a hole is a hole, not zeroes.
fn assert_holes_are_holes(serve: Serve) {
    let server = serve.start();
    let mut session = server.session(Mode::Structured, "");
    session.write(0, &pattern(0, index(MIB)));
    let answer = session.ask(&Request::new(cmd::READ, 0, 4 * MIB));
    assert!(answer.data[index(MIB)..].iter().all(|byte| *byte == 0));
    let has_hole = answer.chunks.iter().any(|part| part.kind == chunk::OFFSET_HOLE);
    assert!(has_hole, "the hole came as zeroes");
}

#[test]
fn a_hole_is_sent_as_a_hole_through_a_transparent_filter_and_by_a_proxy() {
    for temp in [in_memory(), TempDir::new()] {
        let disk = temp.sparse_file("disk", 4 * MIB);
        assert_holes_are_holes(Serve::file(&disk));
        assert_holes_are_holes(Serve::file(&disk).option("--filter=limit?limit=0"));
    }
    let behind = Serve::memory("4M").start();
    assert_holes_are_holes(Serve::proxy(&behind.uri("")));
}

#[test]
fn a_read_that_must_be_one_piece_is_data_places_and_zeroes_in_order() {
    for (temp, filter) in [(TempDir::new(), false), (TempDir::new(), true), (in_memory(), false)] {
        let disk = temp.sparse_file("disk", 8 * MIB);
        let mut want = vec![0; index(8 * MIB)];
        for (at, len) in [(MIB, 100_000), (2 * MIB, MIB), (5 * MIB + 4096, 4096), (7 * MIB, MIB)] {
            want[index(at)..][..index(len)].copy_from_slice(&pattern(at, index(len)));
            open(&disk).write_all_at(&pattern(at, index(len)), at).unwrap();
        }
        let serve = Serve::file(&disk);
        let server = if filter { serve.option("--filter=limit?limit=0") } else { serve }.start();
        for mode in [Mode::Simple, Mode::Structured, Mode::Extended] {
            let mut session = server.session(mode, "");
            let flags = if mode == Mode::Simple { 0 } else { cflag::DF };
            for (at, len) in [(0, 8 * MIB), (MIB - 5, 3 * MIB + 9), (3 * MIB, MIB), (7 * MIB, 9)] {
                let answer = session.ask(&Request::new(cmd::READ, at, len).flags(flags));
                assert_eq!(answer.error, 0);
                assert!(answer.data == want[index(at)..][..index(len)], "{mode:?} {len} at {at}");
                assert!(answer.chunks.len() <= 1, "{mode:?}: {:?}", answer.chunks);
            }
        }
    }
}

#[test]
fn data_that_the_server_zeroed_is_never_sent_as_it_was() {
    for temp in [TempDir::new(), in_memory()] {
        let path = temp.file("disk", &pattern(0, index(8 * MIB)));
        let server = Serve::file(&path).start();
        let mut session = server.session(Mode::Extended, "");
        let mut want = pattern(0, index(8 * MIB));
        for (at, len) in [(MIB, MIB), (3 * MIB + 100, 300_000), (0, 4096), (7 * MIB, MIB)] {
            assert_eq!(session.read(0, 8 * MIB).unwrap(), want);
            assert_eq!(session.error_of(&Request::new(cmd::WRITE_ZEROES, at, len)), 0);
            want[index(at)..index(at + len)].fill(0);
        }
        assert_eq!(session.read(0, 8 * MIB).unwrap(), want);
    }
}

#[test]
fn long_writes_arrive_whole_however_they_are_cut_and_aligned() {
    let temp = in_memory();
    let disks = [temp.sparse_file("disk", 64 * MIB)];
    let mut servers: Vec<_> = disks.iter().map(|d| Serve::file(d).start()).collect();
    servers.push(Serve::memory("64M").start());
    servers.push(Serve::file(&TempDir::new().sparse_file("disk", 64 * MIB)).start());
    for server in &servers {
        let mut session = server.session(Mode::Structured, "");
        // (offset, bytes, and after how many bytes of the request the sender pauses)
        for (offset, len, cut) in [
            (0, 4 * MIB, 28),
            (5 * MIB + 1, 3 * MIB - 7, 100),
            (9 * MIB + 4095, 300_001, 28 + 4096),
            (20 * MIB, 32 * MIB, 1 << 20),
            (60 * MIB + 513, 40_000, 33_000),
        ] {
            let request = Request::write(offset, &pattern(offset, index(len)));
            let cookie = session.register(&request);
            let bytes = session.bytes(&request, cookie);
            let (head, tail) = bytes.split_at(index(cut));
            session.socket.send(head);
            std::thread::sleep(Duration::from_millis(20));
            session.socket.send(tail);
            assert_eq!(session.wait(cookie).error, 0);
            assert_eq!(session.read(offset, len).unwrap(), pattern(offset, index(len)));
        }
        assert_eq!(session.read(4 * MIB, MIB + 1).unwrap(), vec![0; index(MIB) + 1]);
    }
}

#[test]
fn a_disk_that_fills_up_inside_a_long_write_is_an_error_and_the_stream_stays_in_step() {
    let Some(small) = Mounted::new("tmpfs", 8 * MIB) else { return };
    let image = small.join("disk");
    File::create(&image).unwrap().set_len(64 * MIB).unwrap();
    let server = Serve::file(&image).start();
    let mut session = server.session(Mode::Structured, "");
    session.write(0, &pattern(0, index(2 * MIB)));
    assert_eq!(
        session.error_of(&Request::write(16 * MIB, &pattern(0, index(16 * MIB)))),
        err::ENOSPC
    );
    session.assert_alive();
    assert_eq!(session.error_of(&Request::new(cmd::TRIM, 16 * MIB, 16 * MIB)), 0);
    session.write(4 * MIB, &pattern(4 * MIB, index(2 * MIB)));
    assert_eq!(session.read(0, 2 * MIB).unwrap(), pattern(0, index(2 * MIB)));
    assert_eq!(session.read(4 * MIB, 2 * MIB).unwrap(), pattern(4 * MIB, index(2 * MIB)));
}

#[test]
fn replies_of_other_threads_never_come_between_a_header_and_its_data() {
    let temp = TempDir::new();
    let path = temp.file("disk", &pattern(0, index(8 * MIB)));
    let server = Serve::file(&path).start();
    for mode in [Mode::Simple, Mode::Structured] {
        let mut session = server.session(mode, "");
        assert_eq!(session.read(0, 8 * MIB).unwrap(), pattern(0, index(8 * MIB)));
        for round in 0..20 {
            let mut bytes = Vec::new();
            let mut reads = Vec::new();
            let mut others = Vec::new();
            for n in 0..24 {
                // Hot data leave at once from the reactor; syncs are answered by the pool.
                let at = (n * 7 + round) % 31 * 256 * 1024;
                let read = Request::new(cmd::READ, at, 128 * 1024);
                let cookie = session.register(&read);
                bytes.extend(session.bytes(&read, cookie));
                reads.push((cookie, at));
                let flush = Request::new(cmd::FLUSH, 0, 0);
                let cookie = session.register(&flush);
                bytes.extend(session.bytes(&flush, cookie));
                others.push(cookie);
            }
            session.socket.send(&bytes);
            for (cookie, at) in reads {
                assert!(session.wait(cookie).data == pattern(at, 128 * 1024), "round {round}");
            }
            for cookie in others {
                assert_eq!(session.wait(cookie).error, 0);
            }
        }
    }
}

#[test]
fn a_small_memory_limit_slows_down_and_never_blocks() {
    let path = TempDir::new();
    let disk = path.sparse_file("disk", 64 * MIB);
    let server = Serve::file(&disk).option("--memory-limit").option("1M").start();
    let mut sessions: Vec<_> = (0..4).map(|_| server.session(Mode::Structured, "")).collect();
    let mut begun = Vec::new();
    for (n, session) in (0..).zip(&mut sessions) {
        let request = Request::write(n * 16 * MIB, &pattern(n * 16 * MIB, index(8 * MIB)));
        let cookie = session.register(&request);
        let bytes = session.bytes(&request, cookie);
        // All of them have begun before any can end. No more than a socket holds: the server may
        // read one of them only.
        session.socket.send(&bytes[..64 * 1024]);
        begun.push((cookie, bytes));
    }
    // Each is a client of its own: which one goes on first is the server's choice.
    std::thread::scope(|scope| {
        for (session, (cookie, bytes)) in sessions.iter_mut().zip(begun) {
            scope.spawn(move || {
                session.socket.send(&bytes[64 * 1024..]);
                assert_eq!(session.wait(cookie).error, 0);
            });
        }
    });
    for (n, session) in (0..).zip(&mut sessions) {
        let at = n * 16 * MIB;
        assert!(session.read(at, 8 * MIB).unwrap() == pattern(at, index(8 * MIB)));
    }
}

#[test]
fn a_client_that_only_stops_sending_gets_its_last_reply() {
    for size in [4096, MIB] {
        let server = Serve::memory("4M").start();
        let mut session = server.session(Mode::Simple, "");
        let request = Request::write(0, &pattern(0, index(size)));
        let cookie = session.register(&request);
        let bytes = session.bytes(&request, cookie);
        session.socket.send(&bytes);
        session.socket.finish_sending();
        assert_eq!(session.wait(cookie).error, 0);
    }
}

#[test]
fn what_is_received_in_place_in_memory_is_whole_and_only_where_it_was_sent() {
    let server = Serve::memory("64M").start();
    let mut session = server.session(Mode::Structured, "");
    // The first time the pages are made, the second time the bytes go straight into them.
    for round in 0..3 {
        let data = pattern(round * 1000 + 7, index(MIB));
        for at in [0, 3 * MIB + 65_537, 8 * MIB - 1] {
            let request = Request::write(at, &data);
            let cookie = session.register(&request);
            let bytes = session.bytes(&request, cookie);
            let (head, tail) = bytes.split_at(300_000);
            session.socket.send(head);
            std::thread::sleep(Duration::from_millis(10));
            session.socket.send(tail);
            assert_eq!(session.wait(cookie).error, 0);
            assert_eq!(session.read(at, MIB).unwrap(), data);
        }
        assert_eq!(session.read(MIB, MIB).unwrap(), vec![0; index(MIB)]);
        assert_eq!(session.read(9 * MIB - 1, MIB).unwrap(), vec![0; index(MIB)]);
    }
    // What is zeroed in between is not there afterwards, and the map does not call it data.
    assert_eq!(session.error_of(&Request::new(cmd::WRITE_ZEROES, 0, 64 * MIB)), 0);
    assert_eq!(session.read(0, 16 * MIB).unwrap(), vec![0; index(16 * MIB)]);
}

#[test]
fn a_write_in_place_that_breaks_off_is_not_answered_and_harms_nothing_else() {
    let server = Serve::memory("16M").start();
    let mut session = server.session(Mode::Structured, "");
    let old = pattern(1, index(2 * MIB));
    session.write(4 * MIB, &old);
    session.write(5 * MIB, &old[..index(MIB)]);
    let before = session.read(0, 16 * MIB).unwrap();
    let mut doomed = server.session(Mode::Structured, "");
    let new = pattern(77, index(MIB));
    let request = Request::write(4 * MIB, &new);
    let cookie = doomed.register(&request);
    let bytes = doomed.bytes(&request, cookie);
    doomed.socket.send(&bytes[..500_000]);
    drop(doomed);
    // Each byte that it was about is old or new; all others are what they were.
    let after = session.read(0, 16 * MIB).unwrap();
    let (start, end) = (index(4 * MIB), index(5 * MIB));
    assert_eq!(after[..start], before[..start]);
    assert_eq!(after[end..], before[end..]);
    let range = start..end;
    let (old, was) = (&before[range.clone()], &after[range]);
    assert!(was.iter().zip(old.iter().zip(&new)).all(|(w, (o, n))| w == o || w == n));
    session.assert_alive();
}
