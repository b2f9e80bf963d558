//! Checks 27 to 29 and 32 to 35: replies that lie about what they hold.

use blackbox::MIB;
use blackbox::conformance::replies::{self, Reply, Verdict};
use blackbox::fake::{Script, Step};
use blackbox::nbd::{Message, chunk, cmd};

use super::{CHUNKED, copy_is_right, copy_is_right_or_fails, copy_out, verb};

/// The list of replies, over a socket: none is believed, whatever the verb, and an honest answer
/// after it makes nothing good.
fn judged(command: u16, replies: &[Reply]) {
    for (reply, mode) in replies.iter().flat_map(|r| r.modes.iter().map(move |mode| (*r, *mode))) {
        let script = Script::new(MIB).mode(mode).at(command, move |peer, request| {
            peer.send(&reply.bytes(request, mode));
            if reply.verdict == Verdict::Ends { Step::Honest } else { Step::Done }
        });
        let fake = script.start();
        let outcome = match command {
            cmd::READ => copy_out(&fake).0,
            _ => verb("map", &fake),
        };
        assert!(!outcome.status.success(), "{} is believed in {mode:?}: {outcome:#?}", reply.name);
        outcome.fits_in(128 * MIB).failed();
        assert!(!outcome.stderr.contains('\x1b'), "{}: {outcome:?}", reply.name);
        fake.finish();
        // A map that was not believed may be done without; all of them call data a hole.
        if command == cmd::BLOCK_STATUS {
            copy_is_right_or_fails(&fake);
        }
    }
}

#[test]
fn replies_to_reads_are_judged_by_the_list() {
    judged(cmd::READ, &replies::of_read());
}

#[test]
fn replies_to_block_status_are_judged_by_the_list() {
    judged(cmd::BLOCK_STATUS, &replies::of_status());
}

#[test]
fn client_check_28_content_in_many_pieces_and_holes_is_put_together() {
    // The honest counterpart: pieces of odd sizes, in any order, holes where zeroes are.
    for mode in CHUNKED {
        let mut script = Script::new(MIB).mode(mode);
        let (from, to) = (100_000, 300_000);
        script.disk[from..to].fill(0);
        let fake = script
            .at(cmd::READ, |peer, request| {
                let end = request.offset + request.length;
                let mut pieces = Vec::new();
                let mut at = request.offset;
                while at < end {
                    let size = (end - at).min(1 + at % 7919);
                    pieces.push((at, size));
                    at += size;
                }
                pieces.reverse();
                for (at, size) in pieces {
                    let bytes = peer.bytes(at, size);
                    if bytes.iter().all(|b| *b == 0) {
                        let hole = Message::new().u64(at).u32(size.try_into().unwrap()).0;
                        peer.chunk(request, 0, chunk::OFFSET_HOLE, &hole);
                    } else {
                        let data = Message::new().u64(at).bytes(&bytes).0;
                        peer.chunk(request, 0, chunk::OFFSET_DATA, &data);
                    }
                }
                peer.chunk(request, chunk::DONE, chunk::NONE, &[]);
                Step::Done
            })
            .start();
        copy_is_right(&fake);
    }
}
