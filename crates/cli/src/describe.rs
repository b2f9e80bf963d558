//! How `info` and `list` describe a disk, in nbdinfo's keys, as JSON or as lines for people.
//!
//! Names and descriptions come from a server: in text they are quoted, or cleaned of control
//! characters before they got here.

use std::io::{self, Write};

use disk::{Fact, Facts, Inspection};
use serde_json::{Map, Value, json};

/// What is known of one thing, by key.
type Keys = Map<String, Value>;

/// Facts as JSON.
pub(crate) fn keys(facts: Facts) -> Keys {
    let mut keys = Keys::new();
    for (key, fact) in facts {
        let value = match fact {
            Fact::Flag(flag) => json!(flag),
            Fact::Number(number) => json!(number),
            Fact::Size(size) => {
                keys.insert(key.into(), json!(size));
                keys.insert(format!("{key}-str"), json!(exact_size(size)));
                continue;
            }
            Fact::Text(text) => json!(text),
            Fact::Texts(texts) => json!(texts),
        };
        keys.insert(key.into(), value);
    }
    keys
}

/// What was found, as JSON or for people.
pub(crate) fn write(mut out: &mut dyn Write, found: Inspection, json: bool) -> io::Result<()> {
    let mut place = keys(found.place);
    let disks = found.disks.into_iter().map(keys);
    if json {
        place.insert("exports".into(), Value::Array(disks.map(Value::Object).collect()));
        return write_json(&mut out, place);
    }
    match place.get("device").and_then(Value::as_str) {
        Some(device) => writeln!(out, "device: {device}")?,
        None => write_protocol(&mut out, &place)?,
    }
    for disk in disks {
        write_disk(&mut out, &disk)?;
    }
    Ok(())
}

/// A size in the largest unit of which it is a whole number: `10T`, `9765625000K`, `1500`.
fn exact_size(bytes: u64) -> String {
    let mut number = bytes;
    let mut units = ["", "K", "M", "G", "T", "P", "E"].into_iter();
    let mut unit = units.next();
    while number >= 1024 && number.is_multiple_of(1024) {
        number /= 1024;
        unit = units.next();
    }
    format!("{number}{}", unit.unwrap_or_default())
}

/// The line that begins a description for people.
fn write_protocol(out: &mut impl Write, keys: &Keys) -> io::Result<()> {
    let is = |key: &str| keys.get(key).and_then(Value::as_bool) == Some(true);
    let with = if is("TLS") { "with" } else { "without" };
    let packets = match (is("extended"), is("structured")) {
        (true, _) => "extended",
        (false, true) => "structured",
        (false, false) => "simple",
    };
    let protocol = keys.get("protocol").and_then(Value::as_str).unwrap_or_default();
    writeln!(out, "protocol: {protocol} {with} TLS, using {packets} packets")
}

/// One disk, for people: its name, quoted as in JSON, then a key a line.
fn write_disk(out: &mut impl Write, keys: &Keys) -> io::Result<()> {
    match (keys.get("export-name"), keys.get("name")) {
        (Some(name), _) => writeln!(out, "export={name}:")?,
        (None, name) => writeln!(out, "disk={}:", name.unwrap_or(&Value::Null))?,
    }
    let early = ["description", "export-size", "content", "uri", "contexts"];
    for key in early {
        if let Some(value) = keys.get(key) {
            write_key(out, key, value, keys)?;
        }
    }
    let said = ["export-name", "name", "export-size-str"];
    for (key, value) in keys {
        if !early.contains(&key.as_str()) && !said.contains(&key.as_str()) {
            write_key(out, key, value, keys)?;
        }
    }
    Ok(())
}

fn write_key(out: &mut impl Write, key: &str, value: &Value, all: &Keys) -> io::Result<()> {
    match (key, value) {
        ("export-size", size) => {
            let exact = all.get("export-size-str").and_then(Value::as_str).unwrap_or_default();
            write_size(out, key, size, exact)
        }
        (key, size) if key.starts_with("block_size_") => {
            write_size(out, key, size, &exact_size(size.as_u64().unwrap_or(0)))
        }
        (_, Value::Array(items)) => {
            writeln!(out, "\t{key}:")?;
            for item in items {
                writeln!(out, "\t\t{}", plain(item))?;
            }
            Ok(())
        }
        (_, value) => writeln!(out, "\t{key}: {}", plain(value)),
    }
}

/// A number of bytes, with its short form where that differs.
fn write_size(out: &mut impl Write, key: &str, size: &Value, exact: &str) -> io::Result<()> {
    if exact.bytes().all(|b| b.is_ascii_digit()) {
        writeln!(out, "\t{key}: {size}")
    } else {
        writeln!(out, "\t{key}: {size} ({exact})")
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => {
            text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
        }
        other => other.to_string(),
    }
}

/// All of it, as JSON.
fn write_json(out: &mut impl Write, keys: Keys) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &Value::Object(keys))?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_told_in_the_largest_unit_that_leaves_a_whole_number() {
        for (bytes, text) in [
            (0, "0"),
            (1500, "1500"),
            (1 << 20, "1M"),
            (10 << 40, "10T"),
            (10_000_000_000_000, "9765625000K"),
            (7 << 60, "7E"),
        ] {
            assert_eq!(exact_size(bytes), text);
        }
    }
}
