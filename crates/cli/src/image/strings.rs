//! Images as QEMU's option strings name them: `driver=qcow2,file.filename=disk.qcow2`, or the same
//! in JSON.
//!
//! An option that is not supported here is refused by its name, never ignored: without its window,
//! overlay or throttle it would be another disk.

use device::Params;
use disk::{Image, Named};
use serde_json::Value;

use super::options::words;
use crate::failure::Failure;

/// What a node with these keys is called here.
type ToName = fn(&Keys) -> Result<String, Failure>;

/// QEMU's protocol drivers, and how each becomes a name.
const PROTOCOLS: &[(&str, ToName)] = &[
    ("file", |keys| keys.need("filename")),
    ("host_device", |keys| keys.need("filename")),
    ("nbd", uri_of_nbd),
];

/// Options that any node takes and that change no byte of what is read.
const HARMLESS: &[&str] = &[
    "aio",
    "auto-read-only",
    "cache.direct",
    "cache.no-flush",
    "detect-zeroes",
    "discard",
    "force-share",
    "locking",
    "node-name",
    "read-only",
];

/// Depth of objects in JSON.
const DEEPEST: usize = 8;

/// Keys with dots, as QEMU has them.
#[derive(Debug, Default)]
struct Keys(Params);

impl Keys {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)
    }

    fn need(&self, key: &str) -> Result<String, Failure> {
        let value = self.get(key).map(str::to_owned);
        value.ok_or_else(|| Failure::usage(format!("the image's options have no `{key}`")))
    }

    /// Those of the node below.
    fn below(&self) -> Self {
        let mut below = Params::default();
        for (key, value) in self.0.iter() {
            if let Some(key) = key.strip_prefix("file.") {
                below.add(key, value);
            }
        }
        Self(below)
    }

    /// Refuses unknown options.
    fn check(&self, known: &[&str]) -> Result<(), Failure> {
        let all: Vec<_> = known.iter().chain(HARMLESS).copied().collect();
        self.0.check(&all).map_err(|e| Failure::usage(format!("the image's options: {e}")))
    }
}

/// The image that `text` names.
pub(super) fn parse(text: &str) -> Result<(Named, Image), Failure> {
    let keys = match text.strip_prefix("json:") {
        Some(json) => of_json(json)?,
        None => of_words(text)?,
    };
    let below = keys.below();
    let driver = keys.get("driver").unwrap_or_default().to_owned();
    if PROTOCOLS.iter().any(|(word, _)| *word == driver) {
        // No format: the bytes are the disk.
        return Ok((named(&keys, &driver)?, Image::default()));
    }
    let mut image = if driver.is_empty() { Image::guessed() } else { Image::of(&driver)? };
    let has_file = !below.0.is_empty();
    let (holder, word) = match below.get("driver") {
        Some(word) => (&below, word.to_owned()),
        None if has_file => (&below, String::new()),
        None => (&keys, String::new()),
    };
    let disk = named(holder, &word)?;
    let params = image.format().map_or(&[][..], |format| format.params);
    let mut known = vec!["driver", "filename"];
    for (key, value) in keys.0.iter().filter(|(key, _)| !key.starts_with("file.")) {
        // QEMU's words for the encryption inside of an image.
        let own = if key == "encrypt.key-secret" { "key-secret" } else { key };
        if params.iter().any(|param| param.key == own) {
            image.params.set(own, value)?;
            known.push(key);
        } else if key == "encrypt.format" && value == "luks" {
            known.push(key);
        }
    }
    if has_file {
        let own = keys.0.iter().filter(|(key, _)| !key.starts_with("file."));
        let mut rest = Params::default();
        own.for_each(|(key, value)| rest.add(key, value));
        Keys(rest).check(&known)?;
    }
    Ok((disk, image))
}

/// What a node of `driver` is called here. Without a driver the file's name says it.
fn named(keys: &Keys, driver: &str) -> Result<Named, Failure> {
    let Some((_, name)) = PROTOCOLS.iter().find(|(word, _)| *word == driver) else {
        if !driver.is_empty() {
            let there = PROTOCOLS.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
            let what =
                format!("the image's options: there is no driver `{driver}`; there is {there}");
            return Err(Failure::usage(what));
        }
        keys.check(&["driver", "filename"])?;
        return Ok(Named::parse(&keys.need("filename")?)?);
    };
    let server = ["server.type", "server.host", "server.port", "server.path"];
    let known = ["driver", "filename", "host", "port", "path", "export"];
    keys.check(&[&known[..], &server].concat())?;
    Ok(Named::parse(&name(keys)?)?)
}

/// The URI of an export.
fn uri_of_nbd(keys: &Keys) -> Result<String, Failure> {
    let either = |key: &str| keys.get(key).or(keys.get(&format!("server.{key}")));
    let export = escaped(keys.get("export").unwrap_or_default());
    if let Some(path) = either("path") {
        return Ok(format!("nbd+unix:///{export}?socket={}", escaped(path)));
    }
    let host = match either("host") {
        Some(host) if host.contains(':') => format!("[{host}]"),
        Some(host) => host.to_owned(),
        None => return Err(Failure::usage("the image's options have neither `host` nor `path`")),
    };
    let port = either("port").map(|port| format!(":{port}")).unwrap_or_default();
    Ok(format!("nbd://{host}{port}/{export}"))
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(char::from(byte));
            }
            other => out += &format!("%{other:02X}"),
        }
    }
    out
}

fn of_words(text: &str) -> Result<Keys, Failure> {
    let mut keys = Params::default();
    for word in words(text) {
        let (key, value) = word.split_once('=').ok_or_else(|| {
            Failure::usage(format!(
                "the image's options: `{word}` has no value; write {word}=VALUE"
            ))
        })?;
        keys.set(key, value)?;
    }
    Ok(Keys(keys))
}

fn of_json(text: &str) -> Result<Keys, Failure> {
    let wrong = |e: &dyn std::fmt::Display| Failure::usage(format!("the image's JSON: {e}"));
    let value: Value = serde_json::from_str(text).map_err(|e| wrong(&e))?;
    let mut keys = Params::default();
    flatten(&value, "", DEEPEST, &mut keys).map_err(|e| wrong(&e))?;
    Ok(Keys(keys))
}

fn flatten(value: &Value, name: &str, depth: usize, out: &mut Params) -> Result<(), String> {
    let text = match value {
        Value::Object(map) if depth > 0 => {
            for (key, value) in map {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                flatten(value, &name, depth - 1, out)?;
            }
            return Ok(());
        }
        Value::String(text) => text.clone(),
        Value::Bool(flag) => if *flag { "on" } else { "off" }.to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Object(_) | Value::Array(_) | Value::Null => {
            return Err(format!("`{name}` has a type that makes no sense here"));
        }
    };
    out.set(name, &text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_qemu_would_open_is_named_as_here() {
        for (text, name) in [
            ("driver=raw,file.filename=/a,,b", "/a,b"),
            ("driver=raw,file.driver=file,file.filename=x,file.locking=off", "x"),
            ("driver=file,filename=x", "x"),
            ("filename=x", "x"),
            ("driver=nbd,host=h,port=1,export=a b", "nbd://h:1/a%20b"),
            ("driver=raw,file.driver=nbd,file.server.type=unix,file.server.path=/s", "/s"),
            (r#"json:{"driver":"raw","file":{"driver":"file","filename":"x"}}"#, "x"),
            (r#"json:{"file.filename":"x","read-only":true}"#, "x"),
        ] {
            let (disk, _) = parse(text).unwrap();
            assert!(disk.to_string().ends_with(name) || disk.to_string().contains(name), "{disk}");
        }
    }

    #[test]
    fn the_secret_of_an_encrypted_image_is_named_in_either_way() {
        for text in [
            "driver=luks,key-secret=s,file.filename=x",
            "driver=qcow2,encrypt.format=luks,encrypt.key-secret=s,file.filename=x",
            r#"json:{"driver":"qcow2","encrypt":{"key-secret":"s"},"file":{"filename":"x"}}"#,
        ] {
            assert_eq!(parse(text).unwrap().1.params.get("key-secret"), Some("s"), "{text}");
        }
    }

    #[test]
    fn what_has_no_meaning_here_is_refused() {
        for text in [
            "driver=qcow2,encrypt.format=aes,encrypt.key-secret=s,file.filename=x",
            "driver=raw,encrypt.key-secret=s,file.filename=x",
            "driver=raw,offset=512,file.filename=x",
            "driver=raw,file.driver=curl,file.filename=x",
            "driver=throttle,file.filename=x",
            "driver=raw",
            "driver=nbd",
            "file.filename",
            "json:{",
            r#"json:{"driver":["raw"]}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
