//! A manifest: what a disk held, stretch by stretch, in a file of JSON lines.
//!
//! The first line says how: `{"manifest":1,"digest":"sha256/64K","stretch":4194304}`. A line for
//! each stretch that is not zero follows, in order: `{"start":0,"length":4194304,"digest":"…"}`,
//! and each digest is that of the stretch as if it were a disk. The last line has the size of the
//! disk and the digest of all of it: `{"size":1073741824,"digest":"…"}`. Without it the file is not
//! complete.

use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write};
use std::ops::Range;

use device::{Error, ErrorKind, Fault, Result};
use serde_json::{Value, json};

use crate::{ContentDigest, DigestKind, DigestedRange};

/// The version of the form.
const VERSION: u64 = 1;
/// The shortest stretch.
const SHORTEST: u64 = 4 << 20;
/// Most stretches, where the program chooses their length.
const MOST: u64 = 1 << 20;
/// Bytes in the longest line, and in the longest manifest.
const LINE: u64 = 4096;
const LONGEST: u64 = 1 << 30;

/// How long stretches are of a disk of `size` bytes, where nothing is said.
#[must_use]
pub fn stretch_for(size: u64) -> u64 {
    size.div_ceil(MOST).next_power_of_two().max(SHORTEST)
}

/// Writes one, line by line. A failure is kept for the end.
#[derive(Debug)]
pub struct ManifestWriter<W> {
    to: W,
    failed: Option<std::io::Error>,
}

impl<W: Write> ManifestWriter<W> {
    /// Begins one.
    pub fn new(to: W, kind: DigestKind, stretch: u64) -> Self {
        let mut writer = Self { to, failed: None };
        writer.line(&json!({"manifest": VERSION, "digest": kind.to_string(), "stretch": stretch}));
        writer
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
            self.failed = writeln!(self.to, "{value}").err();
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
        let mut lines = Lines { from: from.take(LONGEST), at: 0 };
        let head = lines.next()?.ok_or_else(|| lines.wrong("is empty"))?;
        if head.get("manifest").and_then(Value::as_u64) != Some(VERSION) {
            return Err(lines.wrong("is no manifest that `digest --manifest` writes"));
        }
        let kind = text(&head, "digest").and_then(|text| DigestKind::parse(text).ok());
        let kind = kind.ok_or_else(|| lines.wrong("names no digest that is known here"))?;
        let stretch = number(&head, "stretch").filter(|n| *n > 0 && n.is_multiple_of(kind.block));
        let stretch = stretch.ok_or_else(|| lines.wrong("names no length of stretches"))?;
        let mut stretches = BTreeMap::new();
        let mut end = 0;
        loop {
            let line = lines.next()?.ok_or_else(|| lines.wrong("has no last line"))?;
            let digest = text(&line, "digest").and_then(ContentDigest::parse);
            let fits = |digest: &ContentDigest| digest.bytes().len() == kind.algorithm.length();
            let digest = digest.filter(fits).ok_or_else(|| lines.wrong("has no digest"))?;
            if let Some(size) = number(&line, "size") {
                if size < end {
                    return Err(lines.wrong("has stretches outside of the disk"));
                }
                return Ok(Self { kind, stretch, size, digest, stretches });
            }
            let start = number(&line, "start").filter(|n| *n >= end && n.is_multiple_of(stretch));
            let start = start.ok_or_else(|| lines.wrong("has a stretch that is not in order"))?;
            let length = number(&line, "length").filter(|n| *n > 0 && *n <= stretch);
            let last = length.and_then(|length| start.checked_add(length));
            end = last.ok_or_else(|| lines.wrong("has a stretch that is not in order"))?;
            stretches.insert(start, digest);
        }
    }

    /// The parts of a range, which came from a disk of the same size and kind and the same
    /// stretches, that are not as the manifest says.
    #[must_use]
    pub fn differing(&self, found: &DigestedRange) -> Vec<Range<u64>> {
        let DigestedRange { range, digest } = found;
        let whole = |start: u64| start..start.saturating_add(self.stretch).min(self.size);
        match digest {
            Some(digest) if self.stretches.get(&range.start) == Some(digest) => Vec::new(),
            Some(_) => vec![range.clone()],
            None => self.stretches.range(range.clone()).map(|(start, _)| whole(*start)).collect(),
        }
    }
}

/// The lines of a file, one JSON object each.
struct Lines<R> {
    from: std::io::Take<R>,
    at: u64,
}

impl<R: BufRead> Lines<R> {
    fn next(&mut self) -> Result<Option<Value>> {
        let mut line = Vec::new();
        self.at += 1;
        let read = self.from.by_ref().take(LINE).read_until(b'\n', &mut line);
        if read.map_err(|e| Error::os("read the manifest", e))? == 0 {
            return Ok(None);
        }
        let value = line.ends_with(b"\n").then(|| serde_json::from_slice(&line).ok()).flatten();
        value.filter(Value::is_object).map(Some).ok_or_else(|| self.wrong("is no JSON object"))
    }

    fn wrong(&self, what: &str) -> Error {
        let action = format!("read the manifest: line {} {what}", self.at);
        Error::new(ErrorKind::Corrupt, Fault::File, action)
    }
}

fn number(line: &Value, key: &str) -> Option<u64> {
    line.get(key)?.as_u64()
}

fn text<'a>(line: &'a Value, key: &str) -> Option<&'a str> {
    line.get(key)?.as_str()
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
        let mut writer = ManifestWriter::new(Vec::new(), kind, 1024);
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
