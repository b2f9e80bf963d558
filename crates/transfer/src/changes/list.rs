//! Lists of ranges, in the forms that other programs print:
//!
//! - an array of objects with `start` or `offset` and `length`: `nbdinfo --map=CONTEXT --json` and
//!   `diskferry map --context --json` (of which the dirty ones are taken), `qemu-img map
//!   --output=json` (what the top layer holds), `rbd diff --format json` (all of it), or anything
//!   else that has no more than those keys;
//! - an object with such an array as `changedArea`: VMware's `QueryChangedDiskAreas`;
//! - the XML of `thin_delta`: what is different, or on one side only;
//! - a mapfile of GNU ddrescue: what is not finished.

use std::ops::Range;

use device::{Error, Result};
use runtime::RangeSet;
use serde_json::{Map, Value};

use super::{RANGES, limit};
use crate::mapfile;

/// Bytes of a sector, the unit of thin_delta's block size.
const SECTOR: u64 = 512;

/// The ranges that a list says have changed.
pub(super) fn read(text: &[u8]) -> Result<RangeSet> {
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    let ranges = match first {
        Some(b'<') => of_thin_delta(std::str::from_utf8(text).map_err(|_| wrong("is not text"))?),
        Some(b'[' | b'{') => of_json(text),
        Some(b'#') => mapfile::unfinished(text),
        _ => Err(wrong(
            "has an unknown form; known are a manifest, JSON with offset and length, the XML of \
             thin_delta, or a mapfile of ddrescue",
        )),
    }?;
    if ranges.len() > RANGES {
        return Err(limit(format!("has more than {RANGES} ranges")));
    }
    Ok(ranges.into_iter().filter(|range| !range.is_empty()).collect())
}

fn wrong(what: &str) -> Error {
    Error::invalid(format!("read the list of changes: it {what}"))
}

fn of_json(text: &[u8]) -> Result<Vec<Range<u64>>> {
    let value: Value =
        serde_json::from_slice(text).map_err(|e| wrong(&format!("is not JSON: {e}")))?;
    let list = match &value {
        Value::Object(object) => object.get("changedArea"),
        value => Some(value),
    };
    let list = list.and_then(Value::as_array);
    let list = list.ok_or_else(|| wrong("is an object without changedArea"))?;
    let entry = |entry: &Value| match entry.as_object() {
        Some(entry) => of_entry(entry).transpose(),
        None => Some(Err(wrong("has an entry that is not an object"))),
    };
    list.iter().filter_map(entry).collect()
}

/// One entry, if it changed.
fn of_entry(entry: &Map<String, Value>) -> Result<Option<Range<u64>>> {
    let number = |keys: &[&str]| keys.iter().find_map(|key| entry.get(*key)?.as_u64());
    let has = |key| entry.contains_key(key);
    // qemu-img's entries have both: `offset` is where the bytes lie in a file.
    let (Some(start), Some(len)) = (number(&["start", "offset"]), number(&["length"])) else {
        return Err(wrong("has an entry without a start (or offset) and a length"));
    };
    let end = start.checked_add(len);
    let range = start..end.ok_or_else(|| wrong("has an entry beyond the end of any disk"))?;
    let is_changed = if has("depth") {
        let is_present = entry.get("present").is_none_or(|present| *present == Value::Bool(true));
        entry.get("depth").and_then(Value::as_u64) == Some(0) && is_present
    } else if has("description") || has("type") {
        match (entry.get("description").and_then(Value::as_str), number(&["type"])) {
            (Some("dirty"), _) => true,
            (Some("clean"), _) => false,
            _ => {
                return Err(wrong(
                    "is a map of another context than a dirty bitmap (map --context=qemu:dirty-bitmap:NAME --json)",
                ));
            }
        }
    } else {
        true
    };
    Ok(is_changed.then_some(range))
}

/// The output of `thin_delta`: elements without contents, of which the attributes are numbers of
/// blocks.
fn of_thin_delta(text: &str) -> Result<Vec<Range<u64>>> {
    let (mut block, mut ranges) = (None, Vec::new());
    for element in text.split('<').skip(1) {
        let (word, rest) = element.split_once([' ', '>', '/']).unwrap_or((element, ""));
        let attribute = |name: &str| {
            let at = rest.find(&format!("{name}=\""))? + name.len() + 2;
            rest.get(at..)?.split('"').next()?.parse::<u64>().ok()
        };
        match word {
            "superblock" => {
                block = attribute("data_block_size").and_then(|n| n.checked_mul(SECTOR))
            }
            "different" | "left_only" | "right_only" => {
                let found = || {
                    let (begin, len) = (attribute("begin")?, attribute("length")?);
                    let start = begin.checked_mul(block?)?;
                    Some(start..start.checked_add(len.checked_mul(block?)?)?)
                };
                ranges.push(found().ok_or_else(|| {
                    wrong("has a range without begin and length, or no data_block_size")
                })?);
            }
            _ => {}
        }
    }
    match block {
        Some(_) => Ok(ranges),
        None => Err(wrong("is not output of thin_delta: it has no superblock")),
    }
}
