//! The description of an image: its header, snapshots and bitmaps, as in `qemu-img info`.

use device::{Edge, Result};
use runtime::Context;
use serde_json::{Map, Value, json};

use super::bitmap::{self, Bitmap, flags};
use super::header::{Encryption, Header, autoclear, compatible, incompatible};
use super::region::Region;
use super::snapshot;
use crate::luks::inside;
use crate::{Description, NamedFile, StoredBitmap};

/// Describes the image in `container`.
pub(super) fn describe(container: &Edge, _: &Context) -> Result<Description> {
    let header = Header::read(container)?;
    let (snapshots, _) = snapshot::read(container, &header)?;
    let bitmaps = bitmap::read(container, &header)?;
    let backing = header.backing.clone();
    let data_file = header.data_file.clone().filter(|_| header.has(incompatible::DATA_FILE));
    Ok(Description {
        virtual_size: header.size,
        cluster_size: Some(header.geometry().cluster()),
        backing: backing.map(|name| NamedFile { name, format: header.backing_format.clone() }),
        data_files: data_file
            .map(|name| NamedFile { name, format: Some("raw".to_owned()) })
            .into_iter()
            .collect(),
        encrypted: header.encryption != Encryption::None,
        compressed: false,
        dirty: header.has(incompatible::DIRTY),
        corrupt: header.has(incompatible::CORRUPT),
        unknown_features: header.unknown_features(),
        snapshots: snapshots.into_iter().map(|snapshot| snapshot.known).collect(),
        bitmaps: (header.version >= 3).then(|| bitmaps.iter().map(stored).collect()),
        specific: specific(container, &header, &bitmaps)?,
    })
}

/// `format-specific`.`data`, with the keys of `qemu-img info`.
fn specific(container: &Edge, header: &Header, bitmaps: &[Bitmap]) -> Result<Map<String, Value>> {
    let mut data = Map::new();
    let mut say = |key: &str, value: Value| data.insert(key.to_owned(), value);
    say("compat", json!(if header.version == 2 { "0.10" } else { "1.1" }));
    say("compression-type", json!(header.compression.word()));
    if header.version >= 3 {
        say("lazy-refcounts", json!(header.compatible & compatible::LAZY_REFCOUNTS != 0));
    }
    say("refcount-bits", json!(1 << header.refcount_order));
    match (header.encryption, header.encryption_header) {
        (Encryption::None, _) => {}
        (Encryption::Aes, _) => drop(say("encrypt", json!({ "format": "aes" }))),
        (Encryption::Luks, Some(Region { offset, .. })) => {
            say("encrypt", Value::Object(inside::described(container, offset)?));
        }
        (Encryption::Luks, None) => drop(say("encrypt", json!({ "format": "luks" }))),
    }
    if header.version >= 3 {
        say("corrupt", json!(header.has(incompatible::CORRUPT)));
        say("extended-l2", json!(header.has(incompatible::EXTENDED_L2)));
    }
    if !bitmaps.is_empty() {
        say("bitmaps", bitmaps.iter().map(bitmap).collect());
    }
    if header.has(incompatible::DATA_FILE) {
        let raw = header.autoclear & autoclear::DATA_FILE_RAW != 0;
        header.data_file.iter().for_each(|name| {
            say("data-file", json!(device::text::shown(name)));
        });
        say("data-file-raw", json!(raw));
    }
    Ok(data)
}

fn stored(bitmap: &Bitmap) -> StoredBitmap {
    StoredBitmap { name: bitmap.name.clone(), granularity: 1 << bitmap.granularity_bits }
}

fn bitmap(bitmap: &Bitmap) -> Value {
    let known = [(flags::IN_USE, "in-use"), (flags::AUTO, "auto")];
    let words = known.iter().filter(|(flag, _)| bitmap.flags & flag != 0).map(|(_, word)| *word);
    json!({
        "flags": words.collect::<Vec<_>>(),
        "name": device::text::shown(&bitmap.name),
        "granularity": 1u64 << bitmap.granularity_bits,
    })
}
