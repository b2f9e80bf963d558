//! Checks that a block device really zeroed a range: samples are read back.
//!
//! The kernel passes on what the hardware says, and there is hardware that says more than it does.
//! The first [`FIRST`] ranges are looked at, then one in [`EVERY`], each at both ends and at a few
//! places between. What is not zero is zeroed once more before anything is concluded, because
//! another may have written there meanwhile; bytes that are others then are still being written,
//! and say nothing of the device. A device that is found untrue at once is not asked again; one
//! that was believed before is an error, since other ranges may hold old bytes too.
//!
//! It is a sample: bytes between the places are not checked.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use device::samples;

use crate::file::transfer;
use runtime::to_usize;

/// The first ranges, all of which are checked.
const FIRST: u64 = 64;
/// Of later ones, one in this many.
const EVERY: u64 = 16;
/// Bytes at a place.
const LONG: u64 = 4 << 10;
/// Places in a range, at most.
const PLACES: u64 = 8;
/// Bytes from one place to the next, at least.
const APART: u64 = 256 << 10;
/// A device that was believed has left the same bytes so often before that is held against it.
const SURE: u32 = 3;
/// So often a range is zeroed once more, at most.
const TRIES: u32 = 16;

/// The record of one zero request.
#[derive(Debug, Default)]
pub(crate) struct Proof {
    /// How many ranges it reported as zeroed.
    said: AtomicU64,
    /// How many were checked and are zero.
    true_so_far: AtomicU64,
}

/// The result for a range.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// The samples are zero, or none were read.
    Zero,
    /// The range may hold anything.
    Untrue,
}

impl Proof {
    /// Samples `len` bytes from `offset`, which should be zero now; `again` zeroes them once more.
    ///
    /// # Errors
    /// They are not, though others before were; or they cannot be read.
    pub(crate) fn look(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        mut again: impl FnMut() -> io::Result<()>,
    ) -> io::Result<Verdict> {
        let said = self.said.fetch_add(1, Relaxed);
        if said >= FIRST && !said.is_multiple_of(EVERY) {
            return Ok(Verdict::Zero);
        }
        let (mut found, mut same) = (old_bytes(fd, offset, len)?, 0);
        for tries in 1.. {
            let Some(old) = found else { break };
            again()?;
            found = old_bytes(fd, offset, len)?;
            same = if found.as_ref() == Some(&old) { same + 1 } else { 0 };
            let was_true = self.true_so_far.load(Relaxed) > 0;
            if same > 0 && !was_true {
                return Ok(Verdict::Untrue);
            }
            if same >= SURE {
                let text = format!(
                    "the device reported {len} bytes as zeroed, and byte {} is not zero; its \
                     earlier zeroes are in doubt",
                    old.at
                );
                return Err(io::Error::other(text));
            }
            if tries >= TRIES {
                // Other programs write there all the time: what they leave is not ours to judge. Of
                // a device that has shown nothing yet that is not known, and zeroes that are
                // written are right either way.
                return Ok(if was_true { Verdict::Zero } else { Verdict::Untrue });
            }
        }
        self.true_so_far.fetch_add(1, Relaxed);
        Ok(Verdict::Zero)
    }
}

/// Bytes that are not zero.
#[derive(Debug, Eq, PartialEq)]
struct OldBytes {
    /// The first that is not.
    at: u64,
    /// All of its place.
    place: Vec<u8>,
}

/// The first place of a range that is not zero.
fn old_bytes(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<Option<OldBytes>> {
    let mut bytes = [0; 4 << 10];
    for (at, n) in places(offset, len) {
        let bytes = bytes.get_mut(..to_usize(n)).unwrap_or_default();
        transfer::read_exact(fd, bytes, at)?;
        if let Some(found) = bytes.iter().position(|byte| *byte != 0) {
            let at = at.saturating_add(found as u64);
            return Ok(Some(OldBytes { at, place: bytes.to_vec() }));
        }
    }
    Ok(None)
}

/// Both ends, and what lies evenly between; offsets and lengths.
fn places(offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let n = len.min(LONG);
    let steps = ((len - n) / APART).clamp(1, PLACES - 1);
    samples(len, LONG, steps).map(move |at| (offset + at, n))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use super::*;

    const SIZE: u64 = 4 << 20;

    fn file(bytes: &[(u64, u8)]) -> OwnedFd {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, SIZE).unwrap();
        for (at, byte) in bytes {
            transfer::write_all(file.as_fd(), &[*byte], *at).unwrap();
        }
        file
    }

    #[test]
    fn places_are_inside_the_range_and_at_both_ends() {
        for len in [1, 512, 4095, 4096, 4097, 8192, 1 << 20, (1 << 40) + 512, u64::MAX - 512] {
            let places: Vec<_> = places(512, len).collect();
            assert!(places.len() as u64 <= PLACES, "{len}");
            assert_eq!(places[0].0, 512);
            assert!(places.iter().all(|(at, n)| *n > 0 && *n <= len - (at - 512)), "{len}");
            assert!(places.iter().any(|(at, n)| at - 512 + n == len), "{len}");
        }
    }

    #[test]
    fn a_device_that_does_not_zero_is_found_out_at_once() {
        for at in [0, SIZE - 1, SIZE / 2] {
            // The middle one stands for any sector: the whole range holds old bytes.
            let old: Vec<_> = (0..SIZE / 512).map(|i| (i * 512, 0xaa)).collect();
            let file = file(if at == SIZE / 2 { &old } else { &[] });
            transfer::write_all(file.as_fd(), &[0xaa], at).unwrap();
            let mut again = 0;
            let verdict = Proof::default().look(file.as_fd(), 0, SIZE, || {
                again += 1;
                Ok(())
            });
            assert_eq!((verdict.unwrap(), again), (Verdict::Untrue, 1));
        }
    }

    #[test]
    fn a_device_that_was_believed_and_does_not_zero_later_is_an_error() {
        let (proof, clean, old) = (Proof::default(), file(&[]), file(&[(7, 1)]));
        assert_eq!(proof.look(clean.as_fd(), 0, SIZE, || Ok(())).unwrap(), Verdict::Zero);
        let error = proof.look(old.as_fd(), 0, SIZE, || Ok(())).unwrap_err();
        assert!(error.to_string().contains("byte 7 is not zero"), "{error}");
    }

    #[test]
    fn what_another_program_wrote_meanwhile_is_not_held_against_the_device() {
        let (proof, file) = (Proof::default(), file(&[(7, 1)]));
        let again = || transfer::write_all(file.as_fd(), &[0], 7);
        assert_eq!(proof.look(file.as_fd(), 0, SIZE, again).unwrap(), Verdict::Zero);
    }

    #[test]
    fn what_other_programs_write_all_the_time_is_not_held_against_a_device_that_was_believed() {
        let (proof, clean, file) = (Proof::default(), file(&[]), file(&[(7, 1)]));
        assert_eq!(proof.look(clean.as_fd(), 0, SIZE, || Ok(())).unwrap(), Verdict::Zero);
        for writes in [1, 2, 3, 7, u8::MAX] {
            let mut left = writes;
            // It is zeroed, and another writes there before it is looked at, so many times.
            let again = || {
                left = left.saturating_sub(1);
                transfer::write_all(file.as_fd(), &[left], 7)
            };
            transfer::write_all(file.as_fd(), &[9], 7).unwrap();
            assert_eq!(proof.look(file.as_fd(), 0, SIZE, again).unwrap(), Verdict::Zero);
        }
        // Of one that has shown nothing yet it is not assumed.
        let (unknown, mut left) = (Proof::default(), u8::MAX);
        let again = || {
            left -= 1;
            transfer::write_all(file.as_fd(), &[left], 7)
        };
        transfer::write_all(file.as_fd(), &[u8::MAX], 7).unwrap();
        assert_eq!(unknown.look(file.as_fd(), 0, SIZE, again).unwrap(), Verdict::Untrue);
    }

    #[test]
    fn of_many_ranges_only_some_are_looked_at() {
        let (proof, old) = (Proof::default(), file(&[(0, 1)]));
        for _ in 0..FIRST {
            proof.look(file(&[]).as_fd(), 0, 512, || Ok(())).unwrap();
        }
        let looked = (0..EVERY * 4).filter(|_| proof.look(old.as_fd(), 0, 512, || Ok(())).is_err());
        assert_eq!(looked.count(), 4);
    }
}
