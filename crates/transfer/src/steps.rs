//! Reading a manifest stretch by stretch, maybe while it is written.

use std::io::{BufRead, Read, Take};

use device::{Error, ErrorKind, Fault, Result};
use serde_json::Value;

use crate::digest::DigestStep;
use crate::manifest::VERSION;
use crate::{ContentDigest, DigestKind};

/// Bytes in the longest line, and in the longest manifest.
const LINE: u64 = 4096;
const LONGEST: u64 = 1 << 30;

/// A manifest of which the first line was read, and the others are as they are asked for.
#[derive(Debug)]
pub struct ManifestSteps<R> {
    lines: Lines<R>,
    kind: DigestKind,
    stretch: u64,
    disk: Option<u64>,
    /// Where the last stretch ended.
    end: u64,
}

impl<R: BufRead> ManifestSteps<R> {
    /// Reads the first line.
    ///
    /// # Errors
    /// It is no manifest.
    pub fn begin(from: R) -> Result<Self> {
        let mut lines = Lines { from: from.take(LONGEST), at: 0 };
        let head = lines.next()?.ok_or_else(|| lines.wrong("is empty"))?;
        if number(&head, "manifest") != Some(VERSION) {
            return Err(lines.wrong("is not a manifest of `digest --manifest`"));
        }
        let kind = text(&head, "digest").and_then(|text| DigestKind::parse(text).ok());
        let kind = kind.ok_or_else(|| lines.wrong("names an unknown digest"))?;
        let stretch = number(&head, "stretch").filter(|n| *n > 0 && n.is_multiple_of(kind.block));
        let stretch = stretch.ok_or_else(|| lines.wrong("names no length of stretches"))?;
        let disk = number(&head, "disk");
        Ok(Self { lines, kind, stretch, disk, end: 0 })
    }

    /// How its digests are computed.
    pub fn kind(&self) -> DigestKind {
        self.kind
    }

    /// Bytes in a stretch.
    pub fn stretch(&self) -> u64 {
        self.stretch
    }

    /// Bytes of the disk, if that was known from the beginning.
    pub fn disk(&self) -> Option<u64> {
        self.disk
    }

    /// The next stretch that is not zero, or the end, once.
    ///
    /// # Errors
    /// It is not complete, or is no manifest, with the number of the line.
    pub fn step(&mut self) -> Result<DigestStep> {
        let Self { lines, kind, stretch, end, .. } = self;
        let line = lines.next()?.ok_or_else(|| lines.wrong("has no last line"))?;
        let digest = text(&line, "digest").and_then(ContentDigest::parse);
        let fits = |digest: &ContentDigest| digest.bytes().len() == kind.algorithm.length();
        let digest = digest.filter(fits).ok_or_else(|| lines.wrong("has no digest"))?;
        if let Some(size) = number(&line, "size") {
            if size < *end {
                return Err(lines.wrong("has stretches outside of the disk"));
            }
            return Ok(DigestStep::End { size, digest });
        }
        let start = number(&line, "start").filter(|n| n >= end && n.is_multiple_of(*stretch));
        let start = start.ok_or_else(|| lines.wrong("has a stretch that is not in order"))?;
        let length = number(&line, "length").filter(|n| *n > 0 && n <= stretch);
        let last = length.and_then(|length| start.checked_add(length));
        *end = last.ok_or_else(|| lines.wrong("has a stretch that is not in order"))?;
        Ok(DigestStep::Stretch { start, digest })
    }
}

/// The lines of a file, one JSON object each.
#[derive(Debug)]
struct Lines<R> {
    from: Take<R>,
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
        value.filter(Value::is_object).map(Some).ok_or_else(|| self.wrong("is not a JSON object"))
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
