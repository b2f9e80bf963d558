//! The description of an encrypted disk: its header, as in `qemu-img info`. No key is needed.

use device::{Edge, Result};
use runtime::Context;
use serde_json::{Map, Value, json};

use super::cipher::SECTOR;
use super::header2::entries;
use super::{Header, header1, header2};
use crate::Description;

pub(super) fn describe(container: &Edge, _: &Context) -> Result<Description> {
    let size = container.info().size;
    let (virtual_size, unknown_features, specific) = match Header::read(container)? {
        Header::V1(header) => {
            let payload = u64::from(header.payload) * SECTOR as u64;
            (size.saturating_sub(payload), Vec::new(), first(&header, None))
        }
        Header::V2(header) => {
            let volume = header.volume();
            let size = volume.and_then(|volume| volume.segment.size_in(size)).unwrap_or(0);
            (size, header.requirements(), second(&header)?)
        }
    };
    Ok(Description {
        virtual_size,
        encrypted: true,
        unknown_features,
        specific,
        ..Description::default()
    })
}

/// What QEMU tells of LUKS1, with its keys; inside of an image with its `format`.
pub(super) fn first(header: &header1::Header, format: Option<&str>) -> Map<String, Value> {
    let (mode, vectors) = header.mode.split_once('-').unwrap_or((&header.mode, ""));
    let (vectors, vectors_hash) = vectors.split_once(':').unwrap_or((vectors, ""));
    let bits = u64::from(header.key_len) * if mode == "xts" { 4 } else { 8 };
    let shown = device::text::shown;
    let mut data = Map::new();
    let mut say = |key: &str, value: Value| data.insert(key.to_owned(), value);
    say("ivgen-alg", json!(shown(vectors)));
    if vectors == "essiv" {
        say("ivgen-hash-alg", json!(shown(vectors_hash)));
    }
    say("hash-alg", json!(shown(&header.hash)));
    say("cipher-alg", json!(format!("{}-{bits}", shown(&header.cipher))));
    say("uuid", json!(shown(&header.uuid)));
    if let Some(format) = format {
        say("format", json!(format));
    }
    say("cipher-mode", json!(shown(mode)));
    let slots = header.slots.iter().map(|slot| {
        let offset = u64::from(slot.offset) * SECTOR as u64;
        if !slot.is_used {
            return json!({ "active": false, "key-offset": offset });
        }
        json!({
            "active": true,
            "iters": slot.iterations,
            "key-offset": offset,
            "stripes": slot.stripes,
        })
    });
    say("slots", slots.collect());
    say("payload-offset", json!(u64::from(header.payload) * SECTOR as u64));
    say("master-key-iters", json!(header.iterations));
    data
}

/// The same of LUKS2, which QEMU does not know.
fn second(header: &header2::Header) -> Result<Map<String, Value>> {
    // A number of 64 bits is text in the header.
    let text = |text: &str| match text.parse::<u64>() {
        Ok(number) => json!(number),
        Err(_) => json!(device::text::shown(text)),
    };
    let shown = |value: Option<&Value>| match value {
        Some(Value::String(value)) => text(value),
        Some(Value::Number(number)) => json!(number),
        _ => Value::Null,
    };
    let mut data = Map::new();
    let mut say = |key: &str, value: Value| data.insert(key.to_owned(), value);
    say("version", json!(2));
    say("uuid", json!(device::text::shown(&header.uuid)));
    if !header.label.is_empty() {
        say("label", json!(device::text::shown(&header.label)));
    }
    if let Some(segment) = entries(&header.json, "segments")?.values().next() {
        say("cipher", shown(segment.get("encryption")));
        say("sector-size", shown(segment.get("sector_size")));
        say("payload-offset", shown(segment.get("offset")));
    }
    let slots = entries(&header.json, "keyslots")?.iter().map(|(name, slot)| {
        let kdf = slot.get("kdf");
        let of = |key: &str| shown(kdf.and_then(|kdf| kdf.get(key)));
        let mut said = Map::new();
        said.insert("number".to_owned(), text(name));
        said.insert("kdf".to_owned(), of("type"));
        let numbers = ["hash", "iterations", "time", "memory", "cpus"].into_iter();
        said.extend(numbers.map(|key| (key.to_owned(), of(key))).filter(|(_, of)| !of.is_null()));
        Value::Object(said)
    });
    say("slots", slots.collect());
    Ok(data)
}
