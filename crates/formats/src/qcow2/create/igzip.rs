//! Deflate by ISA-L (igzip), Intel's library: two to four times as fast as zlib-rs, and a little longer.
//!
//! Its output stays within QEMU's window of 4 KiB and within the given room. It picks its instructions for the
//! processor at the first call. It is a library of the system, and used only with the feature `isal`.
//!
//! `unsafe`: the library is C, and the safe crate over it cannot narrow the window. It gets a cluster and room for the
//! output, and keeps neither after the call.
#![expect(unsafe_code, reason = "see above")]

use isal_sys::igzip_lib::{
    COMP_OK, ISAL_DEF_LVL1_REQ, ISAL_DEF_LVL1_TOKEN_SIZE, ISAL_DEF_LVL3_REQ,
    ISAL_DEF_LVL3_TOKEN_SIZE, NO_FLUSH, STATELESS_OVERFLOW, isal_deflate_init, isal_deflate_reset,
    isal_deflate_stateless, isal_zstate_state_ZSTATE_END as ENDED, isal_zstream,
};

use super::encoder::{Unusable, WINDOW_BITS};

/// The level. A deflate block, which has its own codes, ends after so many thousands of literals and matches:
/// smaller blocks compress a little better, and slower.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effort {
    /// Level 1.
    Little,
    /// Level 3.
    Much,
}

/// Its working memory.
pub(super) struct Igzip {
    stream: Box<isal_zstream>,
    /// Aligned as memory of C's is.
    work: Box<[u128]>,
}

impl Igzip {
    pub(super) fn new(effort: Effort) -> Option<Self> {
        let (level, work) = match effort {
            Effort::Little => (1, ISAL_DEF_LVL1_REQ + ISAL_DEF_LVL1_TOKEN_SIZE * (16 << 10)),
            Effort::Much => (3, ISAL_DEF_LVL3_REQ + ISAL_DEF_LVL3_TOKEN_SIZE * (8 << 10)),
        };
        let words = usize::try_from(work).ok()? / size_of::<u128>();
        // SAFETY: its fields are numbers, arrays of numbers and pointers, which all may be zero.
        let mut stream = unsafe { Box::<isal_zstream>::new_zeroed().assume_init() };
        // SAFETY: it is a stream, not shared, and the call sets its fields.
        unsafe { isal_deflate_init(&raw mut *stream) };
        stream.level = level;
        stream.level_buf_size = work;
        stream.hist_bits = u16::from(WINDOW_BITS);
        stream.flush = u16::try_from(NO_FLUSH).ok()?;
        stream.end_of_stream = 1;
        Some(Self { stream, work: vec![0; words].into_boxed_slice() })
    }

    /// Returns how many bytes of `room` it used; `None` if that is too small.
    pub(super) fn pack(
        &mut self,
        cluster: &[u8],
        room: &mut [u8],
    ) -> Result<Option<usize>, Unusable> {
        let stream = &mut *self.stream;
        // SAFETY: `new` has made the stream.
        unsafe { isal_deflate_reset(stream) };
        stream.next_in = cluster.as_ptr().cast_mut();
        stream.avail_in = u32::try_from(cluster.len()).map_err(|_| Unusable)?;
        stream.next_out = room.as_mut_ptr();
        stream.avail_out = u32::try_from(room.len()).map_err(|_| Unusable)?;
        stream.level_buf = self.work.as_mut_ptr().cast();
        // SAFETY: each pointer leads to as much memory as the length beside it says, which lives and is not used
        // otherwise until the call returns. The memory at `next_in` is only read.
        let outcome = unsafe { isal_deflate_stateless(stream) };
        let left = usize::try_from(stream.avail_out).map_err(|_| Unusable)?;
        if outcome == STATELESS_OVERFLOW {
            return Ok(None);
        }
        let whole = stream.avail_in == 0 && stream.internal_state.state == ENDED;
        if u32::try_from(outcome) != Ok(COMP_OK) || !whole {
            return Err(Unusable);
        }
        room.len().checked_sub(left).map(Some).ok_or(Unusable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_behind_the_room_is_touched_and_too_little_room_is_reported() {
        // Digits, which compress to less than half.
        let digits: Vec<u8> = (0..20_000u32)
            .flat_map(|i| (i.wrapping_mul(40503) >> 7).to_string().into_bytes())
            .collect();
        let cluster = &digits[..65536];
        for effort in [Effort::Little, Effort::Much] {
            let mut codec = Igzip::new(effort).unwrap();
            let mut whole = vec![0; cluster.len()];
            let len = codec.pack(cluster, &mut whole).ok().flatten().unwrap();
            for room in (0..400).chain(len.saturating_sub(40)..len + 40).chain([65535]) {
                let mut out = vec![0xA5; 65536 + 4096];
                let packed = codec.pack(cluster, &mut out[..room]).ok().unwrap();
                assert!(packed.is_none_or(|found| found == len), "room of {room}");
                assert!(packed.is_some() || room < len + 16, "room of {room} for {len}");
                assert!(out[room..].iter().all(|byte| *byte == 0xA5), "behind a room of {room}");
                if packed.is_some() {
                    assert!(out[..len] == whole[..len]);
                }
            }
        }
    }
}
