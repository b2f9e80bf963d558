//! By what a disk is recognised when a copy goes on: size, samples of the bytes, and of a file its
//! node and when it was last written.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use device::{Edge, Result, text};
use disk::Named;
use serde_json::{Value, json};

use crate::digest::{DigestAlgorithm, digest_of};

/// Places that are read to recognise a disk, and bytes read at each.
pub(crate) const PLACES: u64 = 32;
pub(crate) const SAMPLE: u64 = 4 << 10;
/// Bytes of a part of a disk for each place in it, where it is short.
const APART: u64 = 1 << 20;

/// By what a disk is recognised.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiskIdentity(Value);

impl DiskIdentity {
    /// That of a source: another time of the last write is another source, and so is another
    /// `version`, by its server (an ETag, or a date).
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_source(named: &Named, disk: &Edge, version: Option<&str>) -> Result<Self> {
        let size = disk.info().size;
        let sample = sample(disk, 0..size, PLACES)?;
        let mut all = Self::anywhere(named, size, version);
        all.0["sample"] = sample.into();
        if let Some(about) = about(named) {
            all.0["file"] = json!([about.dev(), about.ino(), about.rdev()]);
        }
        Ok(all)
    }

    /// The same as each machine sees it: without the numbers that a system gives to its files, and
    /// without its content. Nothing is read.
    pub(crate) fn anywhere(named: &Named, size: u64, version: Option<&str>) -> Self {
        let mut all = json!({"name": named.to_string(), "size": size});
        if let Some(version) = version {
            all["version"] = version.into();
        }
        // The time of a block device is that of its node.
        if let Some(about) = about(named).filter(|about| about.file_type().is_file()) {
            all["written"] = json!([about.mtime(), about.mtime_nsec()]);
        }
        Self(all)
    }

    /// As JSON.
    pub(crate) fn json(&self) -> &Value {
        &self.0
    }

    /// That of a target, which the copy itself writes.
    #[must_use]
    pub fn of_target(named: &Named) -> Self {
        let mut all = json!({"name": named.to_string()});
        if let Some(about) = about(named) {
            all["file"] = json!([about.dev(), about.ino(), about.rdev()]);
        }
        Self(all)
    }

    /// What differs from another one, in words; `None`: nothing.
    pub(crate) fn differs(&self, then: &Value) -> Option<String> {
        let words = [
            ("name", "its name"),
            ("size", "its size"),
            ("file", "the file of that name"),
            ("written", "its modification time"),
            ("version", "its version on the server (ETag, or date)"),
            ("sample", "its content"),
        ];
        let (key, what) = words.iter().find(|(key, _)| self.0.get(key) != then.get(key))?;
        let shown = |value: Option<&Value>| match value {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => "unknown".to_owned(),
        };
        Some(match *key {
            "name" | "size" => {
                format!("{what} was {}, and is {}", shown(then.get(key)), shown(self.0.get(key)))
            }
            _ => format!("{what} has changed"),
        })
    }
}

fn about(named: &Named) -> Option<std::fs::Metadata> {
    std::fs::metadata(text::path(named.path()?)).ok()
}

/// A digest of a part of a disk, of few bytes beside those in it.
pub(crate) fn sample_of_part(disk: &Edge, range: Range<u64>) -> Result<String> {
    let count = (range.end.saturating_sub(range.start) / APART).clamp(4, PLACES);
    sample(disk, range, count)
}

/// A digest of bytes at so many places all over a range of a disk.
fn sample(disk: &Edge, range: Range<u64>, count: u64) -> Result<String> {
    let mut all = Vec::new();
    for place in places(range.end.saturating_sub(range.start), count) {
        all.extend(bytes(disk, &(range.start + place.start..range.start + place.end))?);
    }
    Ok(digest_of(DigestAlgorithm::Blake3, &all).to_string())
}

/// So many places of a disk of `size` bytes, and its last byte.
fn places(size: u64, count: u64) -> impl Iterator<Item = Range<u64>> {
    let step = (size / count).max(SAMPLE);
    let starts = (0..count).map(move |n| n.saturating_mul(step)).filter(move |at| *at < size);
    let last = size.saturating_sub(SAMPLE);
    starts.chain((size > 0).then_some(last)).map(move |at| at..size.min(at + SAMPLE))
}

pub(crate) fn bytes(disk: &Edge, place: &Range<u64>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(place.end - place.start).unwrap_or(0)];
    let read = disk.read(&mut bytes, place.start);
    read.map_err(|e| e.on(&disk.info().name).at(place.start))?;
    Ok(bytes)
}
