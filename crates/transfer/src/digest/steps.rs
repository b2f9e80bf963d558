//! Comparing two disks by the digests of their stretches, as these come.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use copy::{Cancel, Options, Progress};
use device::{Edge, Error, ErrorKind, Fault, Result};
use runtime::Context;

use super::digester::Digester;
use super::kind::{ContentDigest, DigestKind};
use super::read::read_as;

/// Stretches that one disk may be ahead of the other. Then it waits.
const AHEAD: usize = 1 << 14;

/// What is known next of a disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DigestStep {
    /// The next stretch that is not zero.
    Stretch {
        /// Its first byte.
        start: u64,
        /// Its digest, as if it were a disk.
        digest: ContentDigest,
    },
    /// That was all.
    End {
        /// Bytes that were digested.
        size: u64,
        /// The digest of all of it.
        digest: ContentDigest,
    },
}

/// How a disk is digested.
#[derive(Clone, Copy, Debug)]
pub struct StepForm {
    /// The digest.
    pub kind: DigestKind,
    /// Bytes in a stretch.
    pub stretch: u64,
    /// Bytes of the disk; behind its end are zeroes.
    pub size: u64,
}

/// The steps of a disk that another thread reads.
#[derive(Debug)]
pub struct DiskSteps(Receiver<Result<DigestStep>>);

impl DiskSteps {
    /// The steps, and what reads the disk for them: it is called in a thread of its own, and ends
    /// when all is read, at a failure, and soon after the steps were dropped.
    pub fn of<'a>(
        disk: &'a Edge,
        StepForm { kind, stretch, size }: StepForm,
        options: &'a Options,
        context: &'a Context,
    ) -> (Self, impl FnOnce() + Send + 'a) {
        let (tell, told) = sync_channel(AHEAD);
        let reads = move || {
            let cancel = Cancel::default();
            let digester = Digester::new(kind).with_stretches(stretch, each(&tell, &cancel));
            let watched = (&Progress::default(), &cancel);
            let read = read_as(disk, size, &Arc::new(digester), options, watched, context);
            // It may have been dropped.
            let _ = tell.send(read.map(|digest| DigestStep::End { size, digest }));
        };
        (Self(told), reads)
    }

    /// The next one, when it is there.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub fn step(&mut self) -> Result<DigestStep> {
        self.0.recv().unwrap_or_else(|_| Err(Error::unanswered()))
    }
}

/// Tells of each stretch that is not zero; when there is no one to tell, the reading ends.
fn each(
    tell: &SyncSender<Result<DigestStep>>,
    cancel: &Cancel,
) -> impl FnMut(super::DigestedRange) + Send + 'static {
    let (tell, cancel) = (tell.clone(), cancel.clone());
    move |found| {
        let Some(digest) = found.digest else { return };
        if tell.send(Ok(DigestStep::Stretch { start: found.range.start, digest })).is_err() {
            cancel.cancel();
        }
    }
}

/// Where two disks first differ, by steps of the same form: the first byte of a stretch. `passed`
/// is told how far they are the same.
///
/// # Errors
/// Of either side; or the two are not of one size and form.
pub fn first_difference<E: From<Error>>(
    mut first: impl FnMut() -> std::result::Result<DigestStep, E>,
    mut second: impl FnMut() -> std::result::Result<DigestStep, E>,
    mut passed: impl FnMut(u64),
) -> std::result::Result<Option<u64>, E> {
    use DigestStep::{End, Stretch};
    loop {
        match (first()?, second()?) {
            (a, b) if a == b => match a {
                Stretch { start, .. } => passed(start),
                End { .. } => return Ok(None),
            },
            (Stretch { start: a, .. }, Stretch { start: b, .. }) => return Ok(Some(a.min(b))),
            (Stretch { start, .. }, End { .. }) | (End { .. }, Stretch { start, .. }) => {
                return Ok(Some(start));
            }
            (End { .. }, End { .. }) => {
                let action =
                    "compare: no stretch differs, and the digests of all do; this is a defect";
                return Err(Error::new(ErrorKind::Protocol, Fault::Peer, action).into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(start: u64, byte: u8) -> DigestStep {
        DigestStep::Stretch { start, digest: ContentDigest::of(&[byte; 32]) }
    }

    fn end(byte: u8) -> DigestStep {
        DigestStep::End { size: 100, digest: ContentDigest::of(&[byte; 32]) }
    }

    #[test]
    fn the_first_stretch_that_one_of_them_lacks_or_has_otherwise_is_found() {
        for (first, second, wanted) in [
            (&[end(0)][..], &[end(0)][..], Some(None)),
            (&[step(0, 1), step(8, 2), end(3)], &[step(0, 1), step(8, 2), end(3)], Some(None)),
            (&[step(0, 1), step(8, 2), end(3)], &[step(0, 1), step(8, 4), end(5)], Some(Some(8))),
            (&[step(0, 1), step(8, 2), end(3)], &[step(8, 2), end(5)], Some(Some(0))),
            (&[step(0, 1), end(3)], &[step(0, 1), step(16, 4), end(5)], Some(Some(16))),
            (&[step(0, 1), end(3)], &[step(0, 1), end(4)], None),
        ] {
            for (a, b) in [(first, second), (second, first)] {
                let (mut a, mut b) = (a.iter().copied(), b.iter().copied());
                let found = first_difference::<Error>(
                    || Ok(a.next().unwrap()),
                    || Ok(b.next().unwrap()),
                    |_| {},
                );
                assert_eq!(found.ok(), wanted, "{first:?}, {second:?}");
            }
        }
    }
}
