//! Checks 27 to 30 and 32 to 35: replies that lie about what they hold.

use std::io::Write;

use blackbox::MIB;
use blackbox::conformance::replies::{self, Reply, Verdict};
use blackbox::fake::{Fake, Peer, Script, Step};
use blackbox::nbd::{CHUNK, EXT_CHUNK, Message, chunk, cmd};
use blackbox::rules::Seen;
use blackbox::session::Mode;

use super::{CHUNKED, copy_is_right, copy_is_right_or_fails, copy_out, verb};

/// A fake whose READs are answered by the hook.
fn at_read(mode: Mode, hook: impl Fn(&mut Peer, &Seen) + Send + Sync + 'static) -> Fake {
    let script = Script::new(MIB).mode(mode).on_request(move |peer, request, _| {
        if request.command != cmd::READ {
            return Step::Honest;
        }
        hook(peer, request);
        Step::Done
    });
    script.start()
}

/// One data chunk of the disk's bytes `from..to`, placed at `at`.
fn data(peer: &mut Peer, request: &Seen, flags: u16, at: u64, from: u64, size: u64) {
    let bytes = peer.bytes(from, size);
    let payload = Message::new().u64(at).bytes(&bytes).0;
    peer.chunk(request, flags, chunk::OFFSET_DATA, &payload);
}

/// The list of replies, over a socket: none is believed, whatever the verb, and an honest answer
/// after it makes nothing good.
fn judged(command: u16, replies: &[Reply]) {
    for (reply, mode) in replies.iter().flat_map(|r| r.modes.iter().map(move |mode| (*r, *mode))) {
        let script = Script::new(MIB).mode(mode).on_request(move |peer, request, _| {
            if request.command != command {
                return Step::Honest;
            }
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
fn client_check_30_a_chunk_of_terabytes_is_not_believed() {
    for mode in CHUNKED {
        for kind in [chunk::OFFSET_DATA, chunk::ERROR, chunk::NONE, chunk::BLOCK_STATUS, 77, 40000]
        {
            let fake = at_read(mode, move |peer, request| {
                let head = match peer.mode {
                    Mode::Extended => Message::new()
                        .u32(EXT_CHUNK)
                        .u16(chunk::DONE)
                        .u16(kind)
                        .u64(request.cookie)
                        .u64(request.offset)
                        .u64(1 << 42),
                    _ => Message::new()
                        .u32(CHUNK)
                        .u16(chunk::DONE)
                        .u16(kind)
                        .u64(request.cookie)
                        .u32(u32::MAX),
                };
                peer.send(&head.0);
                let part = vec![0; 1 << 20];
                for _ in 0..256 {
                    if peer.stream.write_all(&part).is_err() {
                        return;
                    }
                }
                // The client swallowed 256 MiB of it: cut it short.
                let _ = peer.stream.shutdown(std::net::Shutdown::Both);
            });
            let (outcome, _) = copy_out(&fake);
            outcome.fits_in(128 * MIB).failed();
            fake.finish();
        }
    }
}

#[test]
fn client_check_28_content_in_many_pieces_and_holes_is_put_together() {
    // The honest counterpart: pieces of odd sizes, in any order, holes where zeroes are.
    for mode in CHUNKED {
        let mut script = Script::new(MIB).mode(mode);
        let (from, to) = (100_000, 300_000);
        script.disk[from..to].fill(0);
        let fake = script
            .on_request(move |peer, request, _| {
                if request.command != cmd::READ {
                    return Step::Honest;
                }
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
                    if peer.bytes(at, size).iter().all(|b| *b == 0) {
                        let hole = Message::new().u64(at).u32(size.try_into().unwrap()).0;
                        peer.chunk(request, 0, chunk::OFFSET_HOLE, &hole);
                    } else {
                        data(peer, request, 0, at, at, size);
                    }
                }
                peer.chunk(request, chunk::DONE, chunk::NONE, &[]);
                Step::Done
            })
            .start();
        copy_is_right(&fake);
    }
}
