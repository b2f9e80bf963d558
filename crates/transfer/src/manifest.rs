//! A manifest: what a disk held, stretch by stretch, in a file of JSON lines.
//!
//! The first line says how: `{"manifest":1,"digest":"sha256/64K","stretch":4194304}`, and the size
//! of the disk where it is known: `"disk":1073741824`. A line for each stretch that is not zero
//! follows, in order: `{"start":0,"length":4194304,"digest":"…"}`, and each digest is that of the
//! stretch as if it were a disk. The last line has the size of what was digested, and the digest of
//! all of it: `{"size":1073741824,"digest":"…"}`. Without it the file is not complete.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::ops::Range;
use std::sync::Arc;

use copy::{Cancel, Options, Progress};
use device::{Edge, Result};
use runtime::{Context, Mutex, RangeSet};
use serde_json::{Value, json};

use crate::digest::{DigestStep, read};
use crate::steps::ManifestSteps;
use crate::{ContentDigest, DigestKind, DigestedRange, Digester};

/// The version of the form.
pub(crate) const VERSION: u64 = 1;
/// The shortest stretch.
const SHORTEST: u64 = 4 << 20;
/// Most stretches, where the program chooses their length.
const MOST: u64 = 1 << 20;

/// How long stretches are of a disk of `size` bytes, where nothing is said.
#[must_use]
pub fn stretch_for(size: u64) -> u64 {
    size.div_ceil(MOST).next_power_of_two().max(SHORTEST)
}

/// Writes one, line by line. A failure is kept for the end.
#[derive(Debug)]
pub struct ManifestWriter<W> {
    to: W,
    /// Each line is passed on at once.
    is_live: bool,
    failed: Option<std::io::Error>,
}

impl<W: Write> ManifestWriter<W> {
    /// Begins one, of a disk of so many bytes, if that is known. `is_live`: it is read while it is
    /// written, so each line is passed on at once.
    pub fn new(
        to: W,
        kind: DigestKind,
        stretch: u64,
        (disk, is_live): (Option<u64>, bool),
    ) -> Self {
        let mut writer = Self { to, is_live, failed: None };
        let mut head = json!({"manifest": VERSION, "digest": kind.to_string(), "stretch": stretch});
        if let Some(disk) = disk {
            head["disk"] = disk.into();
        }
        writer.line(&head);
        writer
    }

    /// Whether something could not be written: the manifest will not be complete.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// What could not be written, once.
    pub(crate) fn take_failure(&mut self) -> Option<std::io::Error> {
        self.failed.take()
    }

    /// The next stretch, or several that are zero.
    pub fn add(&mut self, range: &DigestedRange) {
        let DigestedRange { range: Range { start, end }, digest } = range;
        if let Some(digest) = digest {
            let digest = digest.to_string();
            self.line(&json!({"start": start, "length": end - start, "digest": digest}));
        }
    }

    /// That was all. Returns what it was written to.
    ///
    /// # Errors
    /// It could not be written.
    pub fn finish(mut self, size: u64, digest: &ContentDigest) -> std::io::Result<W> {
        self.line(&json!({"size": size, "digest": digest.to_string()}));
        match self.failed {
            None => self.to.flush().map(|()| self.to),
            Some(e) => Err(e),
        }
    }

    fn line(&mut self, value: &Value) {
        if self.failed.is_none() {
            let written = writeln!(self.to, "{value}");
            let passed_on =
                written.and_then(|()| if self.is_live { self.to.flush() } else { Ok(()) });
            self.failed = passed_on.err();
        }
    }
}

/// One that was read.
#[derive(Debug)]
pub struct Manifest {
    /// How its digests are computed.
    pub kind: DigestKind,
    /// Bytes in a stretch.
    pub stretch: u64,
    /// Bytes of the disk.
    pub size: u64,
    /// The digest of all of it.
    pub digest: ContentDigest,
    /// By the first byte of the stretch; those that are missing are zero.
    stretches: BTreeMap<u64, ContentDigest>,
}

impl Manifest {
    /// Reads one.
    ///
    /// # Errors
    /// It is none, or not complete, with the number of the line.
    pub fn read(from: impl BufRead) -> Result<Self> {
        let mut steps = ManifestSteps::begin(from)?;
        let (kind, stretch) = (steps.kind(), steps.stretch());
        let mut stretches = BTreeMap::new();
        loop {
            match steps.step()? {
                DigestStep::Stretch { start, digest } => drop(stretches.insert(start, digest)),
                DigestStep::End { size, digest } => {
                    return Ok(Self { kind, stretch, size, digest, stretches });
                }
            }
        }
    }

    /// Reads a disk of the same size, and compares it: which of its stretches differ, and its own
    /// digest. Of the options those on zeroes and durability mean nothing.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn compare(
        self: &Arc<Self>,
        disk: &Edge,
        options: &Options,
        watched: (&Progress, &Cancel),
        context: &Context,
    ) -> Result<(RangeSet, ContentDigest)> {
        let differing = Arc::new(Mutex::new(RangeSet::default()));
        let (seen, known) = (differing.clone(), self.clone());
        let digester = Digester::new(self.kind).with_stretches(self.stretch, move |found| {
            seen.lock().add_all(&known.differing(&found).into_iter().collect());
        });
        let digest = read(disk, &Arc::new(digester), options, watched, context)?;
        let differing = std::mem::take(&mut *differing.lock());
        Ok((differing, digest))
    }

    /// The parts of a range, which came from a disk of the same size and kind and the same
    /// stretches, that are not as the manifest says.
    fn differing(&self, found: &DigestedRange) -> Vec<Range<u64>> {
        let DigestedRange { range, digest } = found;
        let whole = |start: u64| start..start.saturating_add(self.stretch).min(self.size);
        match digest {
            Some(digest) if self.stretches.get(&range.start) == Some(digest) => Vec::new(),
            Some(_) => vec![range.clone()],
            None => self.stretches.range(range.clone()).map(|(start, _)| whole(*start)).collect(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges are what is compared")]
mod tests {
    use std::sync::Arc;

    use copy::Witness;
    use runtime::Mutex;

    use super::*;
    use crate::Digester;

    const KIND: &str = "sha256/512";

    fn ranges(disk: &[u8]) -> (Vec<DigestedRange>, ContentDigest) {
        let found = Arc::new(Mutex::new(Vec::new()));
        let each = found.clone();
        let digester = Digester::new(DigestKind::parse(KIND).unwrap())
            .with_stretches(1024, move |range| each.lock().push(range));
        digester.data(0, disk);
        let digest = digester.finish(disk.len() as u64).unwrap();
        let ranges = std::mem::take(&mut *found.lock());
        (ranges, digest)
    }

    fn written(disk: &[u8]) -> Vec<u8> {
        let (ranges, digest) = ranges(disk);
        let kind = DigestKind::parse(KIND).unwrap();
        let mut writer =
            ManifestWriter::new(Vec::new(), kind, 1024, (Some(disk.len() as u64), false));
        ranges.iter().for_each(|range| writer.add(range));
        writer.finish(disk.len() as u64, &digest).unwrap()
    }

    fn disk() -> Vec<u8> {
        let mut disk = vec![0; 9 * 1024 + 100];
        disk[..1500].fill(1);
        disk[5000..5200].fill(2);
        disk[9 * 1024 + 50] = 3;
        disk
    }

    #[test]
    fn a_change_shows_in_its_stretch_and_no_other() {
        let disk = disk();
        let manifest = Manifest::read(&*written(&disk)).unwrap();
        assert_eq!(manifest.size, disk.len() as u64);
        for at in (0..disk.len()).step_by(311).chain([disk.len() - 1]) {
            let mut changed = disk.clone();
            changed[at] ^= 0x40;
            let found: Vec<_> =
                ranges(&changed).0.iter().flat_map(|range| manifest.differing(range)).collect();
            let start = at as u64 / 1024 * 1024;
            assert_eq!(found, [start..(start + 1024).min(disk.len() as u64)], "{at}");
        }
        let zeroed = ranges(&vec![0; disk.len()]).0;
        let found: Vec<_> = zeroed.iter().flat_map(|range| manifest.differing(range)).collect();
        assert_eq!(found, [0..1024, 1024..2048, 4096..5120, 5120..6144, 9216..9316]);
        assert!(ranges(&disk).0.iter().all(|range| manifest.differing(range).is_empty()));
    }

    #[test]
    fn a_manifest_that_is_cut_off_or_changed_is_refused() {
        let whole = written(&disk());
        for len in 0..whole.len() {
            assert!(Manifest::read(&whole[..len]).is_err(), "{len}");
        }
        let text = String::from_utf8(whole).unwrap();
        let line = text.lines().nth(1).unwrap();
        for (from, to) in [
            ("\"manifest\":1", "\"manifest\":2"),
            ("sha256/512", "sha257/512"),
            ("sha256/512", "sha512/512"),
            ("\"stretch\":1024", "\"stretch\":1000"),
            ("\"stretch\":1024", "\"stretch\":0"),
            (line, &format!("{line}\n{line}")),
            ("\"length\":1024", "\"length\":1025"),
            ("\"length\":1024", "\"length\":0"),
            ("\"start\":4096", "\"start\":18446744073709550592"),
            ("\"size\":9316", "\"size\":9000"),
            ("\"size\":9316", "\"size\":-1"),
        ] {
            assert!(text.contains(from), "{from}");
            assert!(Manifest::read(text.replacen(from, to, 1).as_bytes()).is_err(), "{to}");
        }
    }
}
