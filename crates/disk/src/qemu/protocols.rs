//! QEMU's protocol drivers, and which disk a node of each is here.

use device::{Error, Name, Params, Result, parse_size};
use devices::Named;

use super::NodeObjects;
use super::keys::Keys;

type ToDisk = fn(&Keys, &NodeObjects) -> Result<Named>;

/// A driver for bytes.
struct ByteDriver {
    words: &'static [&'static str],
    /// Its keys.
    keys: &'static [&'static str],
    disk: ToDisk,
}

static PROTOCOLS: &[ByteDriver] = &[
    ByteDriver {
        words: &["file", "host_device", "host_cdrom"],
        keys: &["filename", "hdev", "x-max-transfer"],
        disk: |keys, _| Named::of(&Name::Path(keys.need("filename")?.to_owned())),
    },
    ByteDriver {
        words: &["nbd"],
        keys: &[
            "export",
            "filename",
            "host",
            "open-timeout",
            "path",
            "port",
            "reconnect-delay",
            "server.cid",
            "server.host",
            "server.ipv4",
            "server.ipv6",
            "server.keep-alive",
            "server.numeric",
            "server.path",
            "server.port",
            "server.type",
            "tls-creds",
            "tls-hostname",
        ],
        disk: of_nbd,
    },
    ByteDriver {
        words: &["http", "https"],
        keys: &["cookie", "filename", "readahead", "sslverify", "timeout", "url", "username"],
        disk: of_http,
    },
    ByteDriver {
        words: &["null-co", "null-aio"],
        keys: &["filename", "latency-ns", "read-zeroes", "size"],
        disk: of_null,
    },
];

/// Bytes of a null disk whose size is not named.
const NULL_SIZE: &str = "1G";

fn find(word: &str) -> Option<&'static ByteDriver> {
    PROTOCOLS.iter().find(|protocol| protocol.words.contains(&word))
}

pub(crate) fn is_one(word: &str) -> bool {
    find(word).is_some()
}

/// The disk that a node with this driver is.
pub(crate) fn named(driver: &str, keys: &Keys, objects: &NodeObjects) -> Result<Named> {
    let protocol = find(driver)
        .ok_or_else(|| Error::invalid(format!("there is no driver for bytes `{driver}`")))?;
    keys.check(protocol.keys, false)?;
    (protocol.disk)(keys, objects)
}

/// The disk that a name in a node means.
pub(crate) fn of_filename(name: &str) -> Result<Named> {
    Named::parse(name)
}

/// An export of a server.
fn of_nbd(keys: &Keys, objects: &NodeObjects) -> Result<Named> {
    let either = |key: &str| keys.get(key).or(keys.get(&format!("server.{key}")));
    let mut params = Params::default();
    for (key, own) in [("open-timeout", "open-timeout"), ("reconnect-delay", "reconnect-delay")] {
        if let Some(value) = keys.get(key) {
            params.set(own, value)?;
        }
    }
    if let Some(id) = keys.get("tls-creds") {
        for (key, value) in NodeObjects::find(&objects.credentials, "tls-creds", id)?.iter() {
            params.set(key, value)?;
        }
        if let Some(name) = keys.get("tls-hostname") {
            params.set("tls-hostname", name)?;
        }
    }
    let export = escaped(keys.get("export").unwrap_or_default());
    let uri = match (keys.get("filename"), either("path"), either("host"), keys.get("server.cid")) {
        (Some(name), ..) => name.to_owned(),
        (None, Some(path), ..) => format!("nbd+unix:///{export}?socket={}", escaped(path)),
        (None, None, None, Some(cid)) => {
            format!("nbd+vsock://{cid}:{}/{export}", either("port").unwrap_or("10809"))
        }
        (None, None, Some(host), _) => {
            let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
            let port = either("port").map(|port| format!(":{port}")).unwrap_or_default();
            format!("nbd://{host}{port}/{export}")
        }
        (None, None, None, None) => {
            return Err(Error::invalid("there is neither `server.host` nor `server.path`"));
        }
    };
    if params.is_empty() {
        return Named::parse(&uri);
    }
    Named::of(&Name::Device { kind: "nbd".into(), arg: uri, params })
}

/// A file on a web server.
fn of_http(keys: &Keys, _: &NodeObjects) -> Result<Named> {
    let url = keys.get("url").or(keys.get("filename"));
    let url = url.ok_or_else(|| Error::invalid("there is no `url`"))?;
    let mut params = Params::default();
    let own = [("cookie", "cookie"), ("sslverify", "sslverify"), ("timeout", "timeout")];
    for (key, own) in own.into_iter().chain([("username", "user")]) {
        if let Some(value) = keys.get(key) {
            params.set(own, value)?;
        }
    }
    if params.is_empty() {
        return Named::parse(url);
    }
    Named::of(&Name::Device { kind: "http".into(), arg: url.to_owned(), params })
}

/// A disk that forgets what is written.
fn of_null(keys: &Keys, _: &NodeObjects) -> Result<Named> {
    let size = keys.get("size").unwrap_or(NULL_SIZE);
    parse_size(size).map_err(|e| Error::invalid(format!("size: {e}")))?;
    Named::parse(&format!("null:{size}"))
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
