//! Which export is meant, and how many connections it may have. Nothing is opened here.

use device::{Error, Params, Result};
use wire::{DEFAULT_PORT, Scheme, Transport, Uri};

use crate::OpenOptions;

/// Most connections to one export.
const MOST: usize = 64;

/// An export, named.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) uri: Uri,
    /// Connections at most, if the server allows more than one.
    pub(crate) connections: usize,
    /// Whether the map of the export is wanted.
    pub(crate) map: bool,
    /// Whether to open them all at once.
    pub(crate) eager: bool,
}

impl Target {
    pub(crate) fn of(uri: Uri, options: &OpenOptions) -> Self {
        Self {
            uri,
            connections: options.connections.clamp(1, MOST),
            map: options.map,
            eager: false,
        }
    }

    pub(crate) fn parse(params: &Params, options: &OpenOptions) -> Result<Self> {
        let mut target = Self::of(uri(params)?, options);
        if let Some(text) = params.get("connections") {
            let number = text.parse().ok().filter(|n| (1..=MOST).contains(n));
            target.connections = number.ok_or_else(|| {
                Error::invalid(format!("connections={text}: not a number from 1 to {MOST}"))
            })?;
            target.eager = true;
        }
        Ok(target)
    }
}

/// The URI that the parameters spell, whole or in pieces.
fn uri(params: &Params) -> Result<Uri> {
    let either = |a: &str, b: &str| match (params.get(a), params.get(b)) {
        (Some(_), Some(_)) => Err(Error::invalid(format!("{a}= and {b}= say the same; give one"))),
        (one, other) => Ok(one.or(other).map(str::to_owned)),
    };
    let host = either("host", "hostname")?;
    let socket = params.get("socket");
    let mut uri = match (params.get("uri"), socket, host) {
        (Some(text), None, None) => Uri::parse(text).map_err(|e| bad_uri(text, &e))?,
        // `nbd:nbd+unix:///x?socket=/s` arrives in two pieces.
        (Some(text), Some(socket), None) => {
            let joint = if text.contains('?') { '&' } else { '?' };
            let whole = format!("{text}{joint}socket={}", escaped(socket));
            Uri::parse(&whole).map_err(|e| bad_uri(&whole, &e))?
        }
        (None, Some(""), None) => return Err(Error::invalid("socket= is empty")),
        (None, Some(socket), None) => plain(
            Scheme::NbdUnix,
            match socket.strip_prefix('@') {
                Some(name) => Transport::UnixAbstract { name: name.into() },
                None => Transport::Unix { path: socket.into() },
            },
        ),
        (None, None, Some(host)) => {
            let port = params.get("port").map_or(Ok(DEFAULT_PORT), port)?;
            plain(Scheme::Nbd, Transport::Tcp { host, port })
        }
        (None, None, None) => {
            return Err(Error::invalid("no server is named; give uri=, socket= or host="));
        }
        _ => return Err(Error::invalid("the server is named twice; give uri=, socket= or host=")),
    };
    if params.contains("port") && !(params.contains("host") || params.contains("hostname")) {
        return Err(Error::invalid("port= needs host="));
    }
    if let Some(export) = params.get("export") {
        if !uri.export.is_empty() {
            return Err(Error::invalid("export= is given, and the URI names an export too"));
        }
        uri.export = export.into();
    }
    Ok(uri)
}

fn plain(scheme: Scheme, transport: Transport) -> Uri {
    Uri { scheme, transport, tls: false, export: String::new(), user: None, params: Vec::new() }
}

fn port(text: &str) -> Result<u16> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| Error::invalid(format!("port={text}: not a number from 0 to 65535")))
}

fn bad_uri(text: &str, e: &wire::UriError) -> Error {
    Error::invalid(e.to_string()).on(text)
}

/// The value of a parameter as it was already decoded, made fit for a URI again, unless the user
/// wrote it escaped.
fn escaped(value: &str) -> String {
    if value.contains('%') {
        return value.to_owned();
    }
    value.replace('&', "%26").replace('#', "%23")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> std::result::Result<String, String> {
        let params = Params::parse(words.iter().copied()).unwrap();
        match Target::parse(&params, &OpenOptions::default()) {
            Ok(target) => Ok(target.uri.to_string()),
            Err(e) => Err(e.to_string()),
        }
    }

    #[test]
    fn a_server_is_named_by_a_uri_or_in_pieces() {
        assert_eq!(parse(&["uri=nbd://h:99/x"]).unwrap(), "nbd://h:99/x");
        assert_eq!(parse(&["socket=/tmp/s"]).unwrap(), "nbd+unix:///?socket=/tmp/s");
        assert_eq!(parse(&["socket=@s", "export=e"]).unwrap(), "nbd+unix:///e?socket=%00s");
        assert_eq!(parse(&["hostname=h", "port=1"]).unwrap(), "nbd://h:1/");
        let whole = "nbd+unix:///e?socket=/tmp/s%26t";
        assert_eq!(parse(&["uri=nbd+unix:///e", "socket=/tmp/s&t"]).unwrap(), whole);
    }

    #[test]
    fn contradictions_are_refused() {
        for words in [
            &["host=a", "hostname=b"][..],
            &["uri=nbd://a/", "host=b"],
            &["socket=/s", "host=b"],
            &["port=1"],
            &["uri=nbd://a/", "port=1"],
            &["uri=nbd://a/x", "export=y"],
            &["host=a", "port=+1"],
            &["uri=nbd://a/", "connections=0"],
            &["uri=nbd://a/", "connections=1000"],
            &["socket="],
            &[],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
