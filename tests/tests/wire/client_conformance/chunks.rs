//! Checks 27 to 30 and 32: chunks that lie about what they hold.

use std::io::Write;

use blackbox::MIB;
use blackbox::fake::{Fake, Peer, Script, Step};
use blackbox::nbd::{CHUNK, EXT_CHUNK, Message, chunk, cmd, err};
use blackbox::rules::Seen;
use blackbox::session::Mode;

use super::{CHUNKED, copy_fails, copy_is_right, copy_is_right_or_fails, copy_out};

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

#[test]
fn client_check_27_content_outside_the_request() {
    type Place = fn(&Seen) -> (u64, u64);
    let places: [(&str, Place); 6] = [
        ("below", |r| (r.offset.wrapping_sub(512), r.length)),
        ("one byte above", |r| (r.offset + 1, r.length)),
        ("past the end", |r| (r.offset + r.length, 512)),
        ("far away", |r| (r.offset ^ (1 << 40), r.length)),
        ("overflowing", |r| (u64::MAX - 10, r.length)),
        ("longer", |r| (r.offset, r.length + 512)),
    ];
    for mode in CHUNKED {
        for (what, place) in places {
            let fake = at_read(mode, move |peer, request| {
                let (at, size) = place(request);
                data(peer, request, chunk::DONE, at, request.offset, size);
            });
            let (outcome, _) = copy_out(&fake);
            assert!(!outcome.status.success(), "{what} was believed: {outcome:#?}");
            outcome.failed();
            fake.finish();
        }
    }
}

#[test]
fn client_check_27_holes_outside_the_request() {
    type Place = fn(&Seen) -> (u64, u32);
    let places: [(&str, Place); 4] = [
        ("below", |r| (r.offset.wrapping_sub(512), 1024)),
        ("too long", |r| (r.offset, u32::MAX)),
        ("overflowing", |_| (u64::MAX - 10, 100)),
        ("past the end", |r| (r.offset + r.length, 1)),
    ];
    for mode in CHUNKED {
        for (what, place) in places {
            let fake = at_read(mode, move |peer, request| {
                let (at, size) = place(request);
                let payload = Message::new().u64(at).u32(size).0;
                peer.chunk(request, chunk::DONE, chunk::OFFSET_HOLE, &payload);
            });
            let (outcome, _) = copy_out(&fake);
            assert!(!outcome.status.success(), "{what} was believed: {outcome:#?}");
            outcome.failed();
        }
    }
}

#[test]
fn client_check_28_missing_coverage_is_a_failure() {
    for mode in CHUNKED {
        // Nothing at all, the first half, all but the last byte, all but the first.
        for (skip, cut) in [(0, 1), (1, 2), (2, 1), (3, 1)] {
            let fake = at_read(mode, move |peer, request| {
                let (offset, length) = (request.offset, request.length);
                match (skip, cut) {
                    (0, _) => {}
                    (1, _) => data(peer, request, 0, offset, offset, length / 2),
                    (2, _) => data(peer, request, 0, offset, offset, length - 1),
                    _ => data(peer, request, 0, offset + 1, offset + 1, length - 1),
                }
                peer.chunk(request, chunk::DONE, chunk::NONE, &[]);
            });
            copy_fails(&fake);
        }
    }
}

#[test]
fn client_check_28_overlapping_content_is_a_failure() {
    for mode in CHUNKED {
        let fake = at_read(mode, |peer, request| {
            let (offset, length) = (request.offset, request.length);
            data(peer, request, 0, offset, offset, length / 2 + 512);
            data(peer, request, chunk::DONE, offset + length / 2, offset, length / 2);
        });
        copy_fails(&fake);
        // As many bytes as asked for, but the first half twice and the second never.
        let fake = at_read(mode, |peer, request| {
            let (offset, length) = (request.offset, request.length);
            data(peer, request, 0, offset, offset, length / 2);
            data(peer, request, chunk::DONE, offset, offset, length / 2);
        });
        copy_fails(&fake);
        let fake = at_read(mode, |peer, request| {
            let (offset, length) = (request.offset, request.length);
            data(peer, request, 0, offset, offset, length);
            let hole = Message::new().u64(offset).u32(512).0;
            peer.chunk(request, chunk::DONE, chunk::OFFSET_HOLE, &hole);
        });
        copy_fails(&fake);
    }
}

#[test]
fn client_check_29_chunks_of_impossible_lengths() {
    type Payload = fn(&Seen) -> (u16, Vec<u8>);
    let cases: [(&str, Payload); 9] = [
        ("data of 0 bytes", |_| (chunk::OFFSET_DATA, Vec::new())),
        ("data of 7 bytes", |_| (chunk::OFFSET_DATA, vec![0; 7])),
        ("data without a byte", |r| (chunk::OFFSET_DATA, Message::new().u64(r.offset).0)),
        ("a hole of 11 bytes", |_| (chunk::OFFSET_HOLE, vec![0; 11])),
        ("a hole of 13 bytes", |r| {
            (chunk::OFFSET_HOLE, Message::new().u64(r.offset).u32(1).bytes(&[0]).0)
        }),
        ("an empty hole", |r| (chunk::OFFSET_HOLE, Message::new().u64(r.offset).u32(0).0)),
        ("NONE with payload", |_| (chunk::NONE, vec![0; 4])),
        ("status in answer to a read", |_| (chunk::BLOCK_STATUS, vec![0; 12])),
        ("an unknown type", |_| (77, vec![0; 12])),
    ];
    for mode in CHUNKED {
        for (what, case) in cases {
            let fake = at_read(mode, move |peer, request| {
                let (kind, payload) = case(request);
                peer.chunk(request, 0, kind, &payload);
                // Then the honest answer, as if nothing had been.
                peer.honest(request, &[]);
            });
            let (outcome, _) = copy_out(&fake);
            assert!(!outcome.status.success(), "{what} was accepted: {outcome:#?}");
            outcome.failed();
            fake.finish();
        }
    }
}

#[test]
fn client_check_29_none_without_done_is_a_violation() {
    for mode in CHUNKED {
        let fake = at_read(mode, |peer, request| {
            peer.chunk(request, 0, chunk::NONE, &[]);
            peer.honest(request, &[]);
        });
        copy_is_right_or_fails(&fake);
    }
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

/// An ERROR payload whose fields may lie.
fn error_payload(error: u32, told: u16, message: &[u8]) -> Vec<u8> {
    Message::new().u32(error).u16(told).bytes(message).0
}

#[test]
fn client_check_32_malformed_error_chunks_fail_the_request() {
    let cases = [
        ("error 0", chunk::ERROR, error_payload(0, 0, b"")),
        ("a message longer than the chunk", chunk::ERROR, error_payload(err::EIO, 100, b"short")),
        ("a message of 64 KiB that is not there", chunk::ERROR, error_payload(5, u16::MAX, b"")),
        ("bytes after the message", chunk::ERROR, error_payload(err::EIO, 2, b"ab and more")),
        ("no message length", chunk::ERROR, vec![0, 0, 0, 5]),
        ("nothing", chunk::ERROR, Vec::new()),
        ("an offset that is not there", chunk::ERROR_OFFSET, error_payload(err::EIO, 0, b"")),
        ("half an offset", chunk::ERROR_OFFSET, error_payload(err::EIO, 0, &[0; 4])),
        ("an offset far away", chunk::ERROR_OFFSET, error_payload(err::EIO, 0, &[0xff; 8])),
        ("an unknown error type", 0x8007, error_payload(err::EIO, 4, b"what")),
        ("an unknown error type, empty", 0xffff, Vec::new()),
        ("a message that is not text", chunk::ERROR, error_payload(err::EIO, 3, &[0xff, 0, 0x1b])),
    ];
    for mode in CHUNKED {
        for (what, kind, payload) in cases.clone() {
            let fake = at_read(mode, move |peer, request| {
                peer.chunk(request, chunk::DONE, kind, &payload);
            });
            let (outcome, _) = copy_out(&fake);
            assert!(!outcome.status.success(), "{what}: {outcome:#?}");
            outcome.failed();
            assert!(!outcome.stderr.contains('\x1b'), "{what}: {outcome:?}");
            fake.finish();
        }
    }
}

#[test]
fn client_check_32_an_error_after_all_the_content_voids_it() {
    for mode in CHUNKED {
        let fake = at_read(mode, |peer, request| {
            data(peer, request, 0, request.offset, request.offset, request.length);
            let payload = error_payload(err::EIO, 0, b"");
            peer.chunk(request, chunk::DONE, chunk::ERROR, &payload);
        });
        copy_fails(&fake);
        let fake = at_read(mode, |peer, request| {
            data(peer, request, 0, request.offset, request.offset, request.length);
            let payload = error_payload(err::EIO, 0, &(request.offset + 7).to_be_bytes());
            peer.chunk(request, 0, chunk::ERROR_OFFSET, &payload);
            peer.chunk(request, chunk::DONE, chunk::NONE, &[]);
        });
        copy_fails(&fake);
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
