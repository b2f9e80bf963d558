//! What `info` and `list` say of an export, in nbdinfo's keys, as JSON or as lines for people.
//!
//! Names and descriptions come from a server: in text they are quoted, or cleaned of control
//! characters before they got here.

use std::io::{self, Write};

use serde_json::{Map, Value, json};
use wire::{Mode, Session, TransmissionFlags as Flags};

/// One export, by nbdinfo's keys in nbdinfo's order.
pub(crate) type Export = Map<String, Value>;

/// How the server speaks; `exports` is to be added.
pub(crate) fn protocol(session: Option<&Session>) -> Export {
    let mode = session.map_or(Mode::Extended, |s| s.mode);
    let mut keys = Export::new();
    let mut put = |key: &str, value| keys.insert(key.into(), value);
    put("protocol", json!(session.map_or("newstyle-fixed", |s| s.protocol.name())));
    put("TLS", json!(session.is_some_and(|s| s.tls)));
    put("structured", json!(mode != Mode::Simple));
    put("extended", json!(mode == Mode::Extended));
    keys
}

/// What a session tells of its export; `name` is what it can be opened by, a URI mostly.
///
/// As in nbdinfo an export that the server calls by a name of its own goes by that one.
pub(crate) fn session(session: &Session, name: &str) -> Export {
    let offers = |flag| session.flags.contains(flag);
    let mut keys = Export::new();
    let mut put = |key: &str, value| keys.insert(key.into(), value);
    put("export-name", json!(session.canonical_name.as_ref().unwrap_or(&session.export)));
    if let Some(text) = session.description.as_ref().filter(|d| !d.is_empty()) {
        put("description", json!(text));
    }
    put("uri", json!(name));
    // Without structured replies they cannot be asked about.
    let contexts = session.available_contexts.as_ref().filter(|_| session.mode != Mode::Simple);
    if let Some(contexts) = contexts.filter(|c| !c.is_empty()) {
        put("contexts", json!(contexts));
    }
    put("is_rotational", json!(offers(Flags::ROTATIONAL)));
    put("is_read_only", json!(offers(Flags::READ_ONLY)));
    if session.mode == Mode::Extended {
        put("can_block_status_payload", json!(offers(Flags::BLOCK_STATUS_PAYLOAD)));
    }
    put("can_cache", json!(offers(Flags::SEND_CACHE)));
    put("can_df", json!(offers(Flags::SEND_DF)));
    put("can_fast_zero", json!(offers(Flags::SEND_FAST_ZERO)));
    put("can_flush", json!(offers(Flags::SEND_FLUSH)));
    put("can_fua", json!(offers(Flags::SEND_FUA)));
    put("can_multi_conn", json!(offers(Flags::CAN_MULTI_CONN)));
    put("can_trim", json!(offers(Flags::SEND_TRIM)));
    put("can_zero", json!(offers(Flags::SEND_WRITE_ZEROES)));
    if session.blocks_advertised {
        blocks(&mut keys, session.blocks.minimum, session.blocks.preferred, session.blocks.maximum);
    }
    size(&mut keys, session.size);
    keys
}

/// What a device tells of itself that is no NBD server. What depends on being opened for writing
/// is left out: looking must not lock or change anything.
pub(crate) fn device(info: &device::Info) -> Export {
    let mut keys = Export::new();
    let mut put = |key: &str, value| keys.insert(key.into(), value);
    put("name", json!(info.name));
    if !info.description.is_empty() {
        put("description", json!(info.description));
    }
    put("is_rotational", json!(info.abilities.rotational));
    put("can_cache", json!(info.abilities.prefetch));
    put("can_map", json!(info.abilities.extents));
    put("can_multi_conn", json!(info.abilities.multi_conn));
    blocks(&mut keys, info.blocks.minimum, info.blocks.preferred, info.blocks.maximum);
    size(&mut keys, info.size);
    keys
}

fn blocks(keys: &mut Export, minimum: u32, preferred: u32, maximum: u32) {
    keys.insert("block_size_minimum".into(), json!(minimum));
    keys.insert("block_size_preferred".into(), json!(preferred));
    keys.insert("block_size_maximum".into(), json!(maximum));
}

fn size(keys: &mut Export, size: u64) {
    keys.insert("export-size".into(), json!(size));
    keys.insert("export-size-str".into(), json!(exact_size(size)));
}

/// A size in the largest unit of which it is a whole number: `10T`, `9765625000K`, `1500`.
pub(crate) fn exact_size(bytes: u64) -> String {
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
pub(crate) fn write_protocol(out: &mut impl Write, keys: &Export) -> io::Result<()> {
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

/// One export, for people: `head` (with its name quoted as in JSON), then a key a line.
pub(crate) fn write_export(out: &mut impl Write, head: &str, keys: &Export) -> io::Result<()> {
    let name = keys.get("export-name").or(keys.get("name")).unwrap_or(&Value::Null);
    writeln!(out, "{head}={name}:")?;
    let early = ["description", "export-size", "uri", "contexts"];
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

fn write_key(out: &mut impl Write, key: &str, value: &Value, all: &Export) -> io::Result<()> {
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

/// A number of bytes, with its short form where that is another.
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
pub(crate) fn write_json(out: &mut impl Write, keys: Export) -> io::Result<()> {
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
