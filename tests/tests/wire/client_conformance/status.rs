//! Checks 35 to 37: extents that make no sense.

use blackbox::MIB;
use blackbox::fake::{Fake, Peer, Script, Step};
use blackbox::nbd::{alloc, cmd};
use blackbox::rules::Seen;
use blackbox::run::{extents, ferry};

use super::{CHUNKED, copy_is_right, copy_is_right_or_fails};

const HOLE_ZERO: u64 = alloc::HOLE | alloc::ZERO;

/// A fake whose BLOCK_STATUS is answered by the hook.
fn at_status(script: Script, hook: impl Fn(&mut Peer, &Seen) + Send + Sync + 'static) -> Fake {
    let hook = move |peer: &mut Peer, request: &Seen| {
        hook(peer, request);
        Step::Done
    };
    script.at(cmd::BLOCK_STATUS, hook).start()
}

/// What `map` prints, which must succeed.
fn map(fake: &Fake) -> Vec<(u64, u64, u64)> {
    extents(ferry(["map", "--json", &fake.uri("")]).succeeded())
}

/// Panics unless the extents follow each other from 0 to `size`.
fn assert_covers(map: &[(u64, u64, u64)], size: u64) {
    let mut at = 0;
    for (offset, length, _) in map {
        assert_eq!((*offset, *length > 0), (at, true), "{map:?}");
        at += length;
    }
    assert_eq!(at, size, "{map:?}");
}

#[test]
fn client_check_35_an_error_of_block_status_loses_no_data() {
    for mode in CHUNKED {
        let fake = at_status(Script::new(MIB).mode(mode), |peer, request| {
            peer.answer(request, blackbox::nbd::err::EIO);
        });
        // Without a map everything is data: going on is as good as giving up.
        copy_is_right_or_fails(&fake);
    }
}

#[test]
fn client_check_36_short_answers_are_continued() {
    for mode in CHUNKED {
        // 4 KiB at a time: data and holes in turns, whatever was asked.
        let mut script = Script::new(256 << 10).mode(mode);
        for (n, block) in script.disk.chunks_mut(4096).enumerate() {
            if n % 2 == 1 {
                block.fill(0);
            }
        }
        let fake = at_status(script, |peer, request| {
            let size = 4096 - request.offset % 4096;
            let flags = if request.offset / 4096 % 2 == 1 { HOLE_ZERO } else { 0 };
            peer.answer_status(request, &[(size.min(request.length), flags)]);
        });
        let map = map(&fake);
        assert_covers(&map, 256 << 10);
        assert_eq!(map.len(), 64, "{map:?}");
        copy_is_right(&fake);
    }
}

#[test]
fn client_check_37_a_hole_that_is_not_zero_is_data() {
    // HOLE without ZERO: unallocated, contents undefined. Reading it is the only safe answer.
    for mode in CHUNKED {
        let fake = at_status(Script::new(MIB).mode(mode), |peer, request| {
            peer.answer_status(request, &[(request.length, alloc::HOLE)]);
        });
        copy_is_right(&fake);
    }
}

#[test]
fn client_check_37_zero_that_is_allocated_is_not_read() {
    for mode in CHUNKED {
        let fake = at_status(Script::empty(64 * MIB).mode(mode), |peer, request| {
            peer.answer_status(request, &[(request.length, alloc::ZERO)]);
        });
        let (outcome, content) = super::copy_out(&fake);
        outcome.succeeded();
        assert!(content.unwrap().iter().all(|b| *b == 0));
        assert!(!fake.finish().asked(cmd::READ), "what is known to be zero was read");
    }
}
