//! Block sizes that are advertised to clients, and the limits of those below.
//!
//! A client that writes more than `blocksize-write-disconnect` loses its connection, without an
//! answer, as with servers that cannot read past a long payload; the others keep theirs.

use blackbox::launch::Serve;
use blackbox::nbd::{BASE_ALLOCATION, alloc, cflag, cmd};
use blackbox::session::{Mode, Request, Session};

#[test]
fn a_client_that_writes_too_much_at_once_is_dropped_and_others_are_not() {
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

/// Lengths and flags of a range.
fn status(session: &mut Session, offset: u64, length: u64, flags: u16) -> Vec<(u64, u64)> {
    let id = session.context(BASE_ALLOCATION);
    session.status(offset, length, flags).unwrap().remove(&id).unwrap()
}

#[test]
fn block_status_comes_in_multiples_of_the_smallest_block_that_is_advertised() {
    let hole = alloc::HOLE | alloc::ZERO;
    // The end of the disk is rounded up by another filter, below or above.
    for words in [&["truncate", "blocksize-policy"], &["blocksize-policy", "truncate"]] {
        let server = Serve::device(["data", "@32k 1", "round-up=512", "blocksize-minimum=512"])
            .option(format!("--filter={}", words[0]))
            .option(format!("--filter={}", words[1]))
            .start();
        let mut session = server.session(Mode::Structured, "");
        let size = session.export.size;
        assert_eq!(size, 33280);
        assert_eq!(status(&mut session, 0, size, 0), [(32768, hole), (512, 0)], "{words:?}");
    }
    let server = Serve::device(["memory", "256K", "blocksize-minimum=64K"])
        .option("--filter=blocksize-policy")
        .start();
    let mut session = server.session(Mode::Extended, "");
    session.write(0, &[1; 65536]);
    assert_eq!(session.error_of(&Request::new(cmd::TRIM, 4096, 4096)), 0);
    assert_eq!(status(&mut session, 0, 256 << 10, 0), [(65536, 0), (196_608, hole)]);
    // Of which one extent is only a part.
    assert_eq!(status(&mut session, 0, 256 << 10, cflag::REQ_ONE), [(65536, 0)]);
}

#[test]
fn blocksize_asks_for_the_map_in_whole_blocks_also_within_one() {
    let server = Serve::device(["data", "1 @131072 1", "size=256K", "blocksize-minimum=64k"])
        .option("--filter=blocksize?minblock=64k")
        .option("--filter=blocksize-policy?blocksize-error-policy=error")
        .start();
    let mut session = server.session(Mode::Structured, "");
    let hole = alloc::HOLE | alloc::ZERO;
    assert_eq!(status(&mut session, 20000, 512, cflag::REQ_ONE), [(512, hole)]);
}
