//! What needs a certain device, an option of the program, or a file.

use blackbox::launch::{Serve, allocated};
use blackbox::nbd::{alloc, cflag, chunk, cmd, err, info, opt};
use blackbox::session::{Mode, Request, Session};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

const MODES: [Mode; 3] = [Mode::Simple, Mode::Structured, Mode::Extended];

/// The extents of the one context selected.
fn extents(session: &mut Session, offset: u64, length: u64) -> Vec<(u64, u64)> {
    let id = session.contexts[0].0;
    session.status(offset, length, 0).unwrap().remove(&id).unwrap()
}

#[test]
fn server_check_10_abort_then_reset_is_survived() {
    let server = Serve::memory("1M").start();
    for _ in 0..20 {
        let mut haggler = server.haggle();
        haggler.send(opt::ABORT, &[]);
        haggler.socket.reset();
    }
    server.haggle().assert_alive();
}

#[test]
fn server_check_15_the_default_export_is_the_one_that_is_named() {
    let server = Serve::exports(&[("alpha", "memory:1M"), ("beta", "memory:2M")])
        .option("--default-export")
        .option("beta")
        .start();
    assert_eq!(server.haggle().export(opt::GO, "", &[]).unwrap().size, 2 * MIB);
}

#[test]
fn server_check_21_description_is_sent_when_there_is_one() {
    let server = Serve::memory("1M").option("--description").option("A disk of ours").start();
    let export = server.haggle().export(opt::GO, "", &[info::DESCRIPTION]).unwrap();
    assert_eq!(export.description.as_deref(), Some("A disk of ours"));
    let list = server.haggle().list();
    assert!(list.iter().any(|(_, text)| text == "A disk of ours"), "{list:?}");
}

#[test]
fn server_check_46_a_failing_backend_gives_its_error_and_no_bytes() {
    let server = Serve::device(["full", "1M"]).start();
    for mode in MODES {
        let mut session = server.session(mode, "");
        assert_eq!(session.error_of(&Request::write(0, &[1; 512])), err::ENOSPC);
        assert_eq!(session.read(0, 512).unwrap(), [0; 512]);
        let last = session.ask(&Request::new(cmd::READ, 0, 512));
        let done = |c: &blackbox::session::Chunk| c.flags & chunk::DONE != 0;
        assert!(last.simple || last.chunks.iter().filter(|c| done(c)).count() == 1);
    }
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
fn server_check_84_dense_fragmentation_stays_within_a_chunk() {
    // Runs of one block: about two million extents in 16 GiB.
    let server =
        Serve::device(["sparse-random", "16G", "percent=50", "runlength=4096", "seed=3"]).start();
    let mut session = server.session(Mode::Extended, "");
    // `Session` asserts that no chunk holds more than 2^20 extents.
    let wide = extents(&mut session, 0, 16 << 30);
    let total: u64 = wide.iter().map(|(size, _)| size).sum();
    assert!((4096..=16 << 30).contains(&total));
    let mut session = server.session(Mode::Structured, "");
    let narrow = extents(&mut session, 0, u64::from(u32::MAX));
    let shared = wide.len().min(narrow.len()) - 1;
    assert_eq!(wide[..shared], narrow[..shared], "both forms tell the same");
    session.assert_alive();
}
