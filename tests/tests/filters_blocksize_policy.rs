//! A client that writes more than `blocksize-write-disconnect` loses its connection, without an
//! answer, as with servers that cannot read past a long payload; the others keep theirs.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use blackbox::launch::{Serve, needs_ours};
use blackbox::session::{Mode, Request};

#[test]
fn a_client_that_writes_too_much_at_once_is_dropped_and_others_are_not() {
    if needs_ours("filters") {
        return;
    }
    let server = Serve::device(["memory", "1M", "blocksize-write-disconnect=64K"])
        .option("--filter=blocksize-policy")
        .start();
    for mode in [Mode::Simple, Mode::Structured, Mode::Extended] {
        let mut other = server.session(mode, "");
        let mut session = server.session(mode, "");
        session.write(0, &vec![1; 65536]);
        let long = session.bytes(&Request::write(0, &vec![2; 65537]), 1);
        session.socket.send(&long);
        session.socket.assert_closed();
        assert_eq!(other.read(65535, 1), Ok(vec![1]), "nothing of it was written");
        other.write(0, &[3]);
    }
}
