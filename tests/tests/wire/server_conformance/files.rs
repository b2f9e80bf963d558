//! What needs a certain device, an option of the program, or a file.

use blackbox::launch::{Serve, allocated};
use blackbox::nbd::{alloc, cflag, cmd, opt};
use blackbox::session::{Mode, Request};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

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
