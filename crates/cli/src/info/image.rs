//! How `info` describes an image, in qemu-img's keys and words.

use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::{Duration, UNIX_EPOCH};

use device::{text, timestamp};
use disk::{Described, Facts, Snapshot};
use serde_json::{Map, Value, json};

use crate::describe::keys;
use crate::image::size_for_people;
use crate::names::is_qemu_img;

/// Bytes that the file of an image takes on its disk.
fn taken(image: &Described) -> Option<u64> {
    let found = std::fs::metadata(text::path(image.disk.path()?)).ok()?;
    Some(found.blocks().saturating_mul(512))
}

/// The size of the disk, under qemu-img's name of raw bytes in whole sectors, as it counts them.
fn size_of(image: &Described) -> u64 {
    let size = image.description.virtual_size;
    let in_sectors = is_qemu_img() && image.format.is_plain;
    if in_sectors { size.checked_next_multiple_of(512).unwrap_or(size) } else { size }
}

/// A backing image's name as seen from here: beside the image, unless it begins at the root.
fn seen_from_here(image: &Described, name: &str) -> String {
    let directory = image.disk.path().and_then(|path| path.rsplit_once('/'));
    match directory {
        Some((directory, _)) if !name.starts_with('/') => format!("{directory}/{name}"),
        _ => name.to_owned(),
    }
}

/// The file, server or other disk that the image lies in, as QEMU 8 and later tell of it: the kind
/// of it, and its bytes.
fn file_below(image: &Described) -> Option<(&'static str, u64)> {
    let kind = match image.disk.path() {
        Some(path) => {
            let about = std::fs::metadata(text::path(path)).ok()?;
            if about.file_type().is_block_device() { "host_device" } else { "file" }
        }
        None if image.disk.to_string().starts_with("https:") => "https",
        None => image.disk.kind().word,
    };
    // In whole sectors, as QEMU counts.
    Some((kind, image.container.info().size.next_multiple_of(512)))
}

fn shown(name: &str) -> String {
    text::shown(name).into_owned()
}

/// As JSON: an object.
pub(super) fn json(image: &Described) -> Value {
    let said = &image.description;
    let mut keys = Map::new();
    let mut say = |key: &str, value: Value| drop(keys.insert(key.to_owned(), value));
    if let Some((kind, size)) = file_below(image) {
        let mut info = json!({
            "children": [],
            "virtual-size": size,
            "filename": shown(&image.disk.to_string()),
            "format": kind,
        });
        if let Some(taken) = taken(image) {
            info["actual-size"] = json!(taken);
        }
        if image.disk.path().is_some() {
            info["format-specific"] = json!({ "type": "file", "data": {} });
            info["dirty-flag"] = json!(false);
        }
        say("children", json!([{ "name": "file", "info": info }]));
    }
    if !said.snapshots.is_empty() {
        say("snapshots", said.snapshots.iter().map(json_of_snapshot).collect());
    }
    let backing = said.backing.as_ref();
    if let Some(format) = backing.and_then(|backing| backing.format.as_ref()) {
        say("backing-filename-format", json!(format));
    }
    say("virtual-size", json!(size_of(image)));
    say("filename", json!(shown(&image.disk.to_string())));
    if let Some(size) = said.cluster_size {
        say("cluster-size", json!(size));
    }
    say("format", json!(image.format.word));
    if let Some(taken) = taken(image) {
        say("actual-size", json!(taken));
    }
    if said.encrypted {
        say("encrypted", json!(true));
    }
    if said.compressed {
        say("compressed", json!(true));
    }
    if !said.specific.is_empty() {
        say("format-specific", json!({ "type": image.format.word, "data": said.specific }));
    }
    if let Some(backing) = backing {
        say("full-backing-filename", json!(shown(&seen_from_here(image, &backing.name))));
        say("backing-filename", json!(shown(&backing.name)));
    }
    say("dirty-flag", json!(said.dirty));
    Value::Object(keys)
}

fn json_of_snapshot(snapshot: &Snapshot) -> Value {
    let second = 1_000_000_000;
    let mut value = json!({
        "vm-clock-nsec": snapshot.vm_clock % second,
        "name": shown(&snapshot.name),
        "date-sec": snapshot.date.0,
        "date-nsec": snapshot.date.1,
        "vm-clock-sec": snapshot.vm_clock / second,
        "id": shown(&snapshot.id),
        "vm-state-size": snapshot.vm_state_size,
    });
    if let Some(icount) = snapshot.icount {
        value["icount"] = json!(icount);
    }
    value
}

/// For people, and for scripts that take qemu-img's lines apart.
pub(super) fn print(image: &Described, out: &mut dyn Write) -> io::Result<()> {
    let said = &image.description;
    writeln!(out, "image: {}", clean(&image.disk.to_string()))?;
    writeln!(out, "file format: {}", image.format.word)?;
    let size = size_of(image);
    writeln!(out, "virtual size: {} ({size} bytes)", size_for_people(size))?;
    let taken = taken(image).map_or_else(|| "unavailable".to_owned(), size_for_people);
    writeln!(out, "disk size: {taken}")?;
    if said.encrypted {
        writeln!(out, "encrypted: yes")?;
    }
    if let Some(size) = said.cluster_size {
        writeln!(out, "cluster_size: {size}")?;
    }
    if said.dirty {
        writeln!(out, "cleanly shut down: no")?;
    }
    if let Some(backing) = &said.backing {
        let full = seen_from_here(image, &backing.name);
        write!(out, "backing file: {}", clean(&backing.name))?;
        if full != backing.name {
            write!(out, " (actual path: {})", clean(&full))?;
        }
        writeln!(out)?;
        if let Some(format) = &backing.format {
            writeln!(out, "backing file format: {}", clean(format))?;
        }
    }
    print_snapshots(&said.snapshots, out)?;
    if !said.specific.is_empty() {
        writeln!(out, "Format specific information:")?;
        print_keys(&said.specific, 1, out)?;
    }
    let Some((kind, size)) = file_below(image) else { return Ok(()) };
    writeln!(out, "Child node '/file':")?;
    writeln!(out, "    filename: {}", clean(&image.disk.to_string()))?;
    writeln!(out, "    protocol type: {kind}")?;
    writeln!(out, "    file length: {} ({size} bytes)", size_for_people(size))?;
    let taken = self::taken(image).map_or_else(|| "unavailable".to_owned(), size_for_people);
    writeln!(out, "    disk size: {taken}")
}

/// What the system tells of the block device that the image lies on.
pub(super) fn print_block_device(facts: Facts, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "Block device:")?;
    print_keys(&keys(facts), 1, out)
}

/// The snapshots in an image, a line each.
pub(crate) fn print_snapshots(snapshots: &[Snapshot], out: &mut dyn Write) -> io::Result<()> {
    if snapshots.is_empty() {
        return Ok(());
    }
    writeln!(out, "Snapshot list:")?;
    let (size, date, clock, icount) = ("VM_SIZE", "DATE", "VM_CLOCK", "ICOUNT");
    writeln!(out, "{:<7} {:<16} {size:>8}{date:>20}{clock:>16}{icount:>11}", "ID", "TAG")?;
    for snapshot in snapshots {
        let size = size_for_people(snapshot.vm_state_size);
        let at = UNIX_EPOCH.checked_add(Duration::from_secs(snapshot.date.0));
        let date = timestamp(at.unwrap_or(UNIX_EPOCH));
        let date = date.split('.').next().unwrap_or_default();
        let (millis, seconds) =
            (snapshot.vm_clock / 1_000_000 % 1000, snapshot.vm_clock / 1_000_000_000);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let clock = format!("{hours:04}:{minutes:02}:{seconds:02}.{millis:03}");
        let icount = snapshot.icount.map(|n| n.to_string()).unwrap_or_default();
        let (id, name) = (clean(&snapshot.id), clean(&snapshot.name));
        writeln!(out, "{id:<7} {name:<16} {size:>8}{date:>20}{clock:>16}{icount:>11}")?;
    }
    Ok(())
}

fn print_keys(keys: &Map<String, Value>, depth: usize, out: &mut dyn Write) -> io::Result<()> {
    for (key, value) in keys {
        print_value(&key.replace('-', " "), value, depth, out)?;
    }
    Ok(())
}

fn print_value(key: &str, value: &Value, depth: usize, out: &mut dyn Write) -> io::Result<()> {
    let indent = depth * 4;
    match value {
        Value::Object(keys) => {
            writeln!(out, "{:indent$}{key}:", "")?;
            print_keys(keys, depth + 1, out)
        }
        Value::Array(items) => {
            writeln!(out, "{:indent$}{key}:", "")?;
            let mut items = items.iter().enumerate();
            items.try_for_each(|(i, item)| print_value(&format!("[{i}]"), item, depth + 1, out))
        }
        Value::String(text) => writeln!(out, "{:indent$}{key}: {}", "", clean(text)),
        other => writeln!(out, "{:indent$}{key}: {other}", ""),
    }
}

/// A text from an image, for a terminal.
fn clean(text: &str) -> String {
    text::shown(text).chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
