//! NBD URIs: `scheme://[user@][host][:port][/export][?key=value&…]`, as RFC 3986 has it.
//!
//! Parsing is strict where a mistake would lead to another server or another export: bad
//! percent-encoding, NUL, unknown parameters and parameters that do not fit the transport are
//! errors that say what is wrong. Nothing is resolved or opened here, and paths in parameters are
//! for the caller to trust or not.

use std::fmt;

use crate::percent::{percent_decode, percent_encode};

/// The port for NBD over TCP and vsock.
pub const DEFAULT_PORT: u16 = 10809;
/// The context id of a virtual machine's host.
pub const VSOCK_HOST: u32 = 2;

/// Parameters that may appear besides `socket`.
const PARAMETERS: [&str; 7] = [
    "tls-type",
    "tls-hostname",
    "tls-verify-peer",
    "tls-certificates",
    "tls-psk-file",
    "tls-username",
    "tls-priority",
];

/// Where the server listens.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Transport {
    /// TCP.
    Tcp {
        /// Name or address, without brackets; `localhost` when the URI has none.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket with a path.
    Unix {
        /// The path; never empty. Not always UTF-8.
        path: Vec<u8>,
    },
    /// A Unix socket in Linux's abstract namespace.
    UnixAbstract {
        /// The name, without the leading NUL; never empty.
        name: Vec<u8>,
    },
    /// A virtual machine's socket.
    Vsock {
        /// The context id.
        cid: u32,
        /// The port.
        port: u32,
    },
}

/// An NBD URI, taken apart and decoded.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Uri {
    /// Where the server listens.
    pub transport: Transport,
    /// Whether TLS is required.
    pub tls: bool,
    /// The export's name; empty for the default one.
    pub export: String,
    /// User name for TLS.
    pub user: Option<String>,
    /// The other known parameters, in order, each once; `x-` ones are left out.
    pub params: Vec<(String, String)>,
}

/// Why a text is not a usable NBD URI.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum UriError {
    /// The authority part is not what the scheme has there.
    Authority(&'static str),
    /// A `%` without two hexadecimal digits, or text that is not UTF-8 once decoded.
    Encoding(&'static str),
    /// The export's name cannot be one.
    Export(&'static str),
    /// A fragment; NBD has none.
    Fragment,
    /// A parameter is unknown.
    ParameterUnknown(String),
    /// A parameter's value is wrong, or it does not belong here.
    ParameterWrong(String, &'static str),
    /// The scheme is not one of NBD's.
    Scheme(String),
    /// No `//` after the scheme.
    Slashes,
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Authority(what) => f.write_str(what),
            Self::Encoding(what) => f.write_str(what),
            Self::Export(what) => write!(f, "export name {what}"),
            Self::Fragment => f.write_str("NBD URIs have no fragment (write # as %23)"),
            Self::ParameterUnknown(key) => write!(f, "unknown parameter {key:?}"),
            Self::ParameterWrong(key, what) => write!(f, "parameter {key:?} {what}"),
            Self::Scheme(scheme) => write!(
                f,
                "unknown scheme {scheme:?} (known are nbd, nbds, nbd+unix, nbds+unix, nbd+vsock, \
                 nbds+vsock)"
            ),
            Self::Slashes => f.write_str("not an NBD URI: no // after the scheme"),
        }
    }
}

impl std::error::Error for UriError {}

impl Uri {
    /// The URI of an export of a server.
    pub fn to(transport: Transport, tls: bool, export: String) -> Self {
        Self { transport, tls, export, user: None, params: Vec::new() }
    }

    /// The same for people: NBD has no passwords, so what a user wrote as one behind their name is
    /// for something else, and is shown to nobody.
    #[must_use]
    pub fn without_password(self) -> Self {
        let name = |user: String| user.split(':').next().unwrap_or_default().to_owned();
        Self { user: self.user.map(name), ..self }
    }

    /// The scheme, which goes with the transport.
    fn scheme(&self) -> &'static str {
        match (&self.transport, self.tls) {
            (Transport::Tcp { .. }, false) => "nbd",
            (Transport::Tcp { .. }, true) => "nbds",
            (Transport::Unix { .. } | Transport::UnixAbstract { .. }, false) => "nbd+unix",
            (Transport::Unix { .. } | Transport::UnixAbstract { .. }, true) => "nbds+unix",
            (Transport::Vsock { .. }, false) => "nbd+vsock",
            (Transport::Vsock { .. }, true) => "nbds+vsock",
        }
    }

    /// Whether `text` begins as one of the URIs that [`Uri::parse`] takes.
    pub fn has_known_scheme(text: &str) -> bool {
        text.split_once("://").is_some_and(|(scheme, _)| transport_of(scheme).is_some())
    }

    /// Takes a URI apart.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let (scheme, rest) = text.split_once(':').ok_or(UriError::Slashes)?;
        let rest = rest.strip_prefix("//").ok_or(UriError::Slashes)?;
        let (word, tls) =
            transport_of(scheme).ok_or_else(|| UriError::Scheme(shortened(scheme)))?;
        if rest.contains('#') {
            return Err(UriError::Fragment);
        }
        // Split first, decode afterwards: an encoded separator separates nothing.
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, query)| (rest, query));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let user = user.map(decode_text).transpose()?;
        let (socket, params) = parameters(query)?;
        let transport = match word {
            "unix" => unix(host, socket.clone())?,
            "vsock" => vsock(host)?,
            _ => tcp(host)?,
        };
        if socket.is_some() && word != "unix" {
            return Err(UriError::ParameterWrong(
                "socket".into(),
                "belongs to nbd+unix and nbds+unix only",
            ));
        }
        let export = export(path)?;
        Ok(Self { transport, tls, export, user, params })
    }

    /// Whether the server's certificate has to be believed, which it has unless the URI says
    /// otherwise.
    pub fn verifies_peer(&self) -> bool {
        self.param("tls-verify-peer").and_then(truth).unwrap_or(true)
    }

    /// The value of a parameter.
    pub fn param(&self, key: &str) -> Option<&str> {
        self.params.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }
}

impl std::str::FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        Self::parse(text)
    }
}

/// The canonical form: parsing it gives the same [`Uri`].
impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme())?;
        if let Some(user) = &self.user {
            write!(f, "{}@", encode(user.as_bytes(), b"!$&'()*+,;=:"))?;
        }
        let mut socket = None;
        match &self.transport {
            Transport::Tcp { host, port } => {
                if host.contains(':') {
                    write!(f, "[{}]", encode(host.as_bytes(), b":"))?;
                } else {
                    write!(f, "{}", encode(host.as_bytes(), b"!$&'()*+,;="))?;
                }
                if *port != DEFAULT_PORT {
                    write!(f, ":{port}")?;
                }
            }
            Transport::Vsock { cid, port } => {
                write!(f, "{cid}")?;
                if *port != u32::from(DEFAULT_PORT) {
                    write!(f, ":{port}")?;
                }
            }
            Transport::Unix { path } => socket = Some(encode(path, QUERY)),
            Transport::UnixAbstract { name } => {
                socket = Some(format!("%00{}", encode(name, QUERY)));
            }
        }
        // An empty path and `/` mean the same; the slash tells people that the name is empty.
        write!(f, "/{}", encode(self.export.as_bytes(), b"!$&'()*+,;=:@/"))?;
        let socket = socket.map(|value| ("socket".to_owned(), value));
        let params = self.params.iter().map(|(k, v)| (k.clone(), encode(v.as_bytes(), QUERY)));
        for (index, (key, value)) in socket.into_iter().chain(params).enumerate() {
            let separator = if index == 0 { '?' } else { '&' };
            write!(f, "{separator}{key}={value}")?;
        }
        Ok(())
    }
}

/// The transport that a scheme names, in one word, and whether TLS is required. `nbd+tcp` is
/// QEMU's.
fn transport_of(scheme: &str) -> Option<(&'static str, bool)> {
    Some(match scheme.to_ascii_lowercase().as_str() {
        "nbd" | "nbd+tcp" => ("tcp", false),
        "nbds" => ("tcp", true),
        "nbd+unix" => ("unix", false),
        "nbds+unix" => ("unix", true),
        "nbd+vsock" => ("vsock", false),
        "nbds+vsock" => ("vsock", true),
        _ => return None,
    })
}

/// What may stand for itself in a parameter's value. Not `+`: some would read a space.
const QUERY: &[u8] = b"!$'()*,;:@/?";

fn encode(bytes: &[u8], allowed: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    percent_encode(bytes, |byte| plain(byte) || allowed.contains(&byte))
}

fn decode(text: &str) -> Result<Vec<u8>, UriError> {
    let bad = UriError::Encoding("% is not followed by two hexadecimal digits (write % as %25)");
    let (bytes, is_sound) = percent_decode(text);
    if is_sound { Ok(bytes) } else { Err(bad) }
}

fn decode_text(text: &str) -> Result<String, UriError> {
    let bytes = decode(text)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| UriError::Encoding("text is not UTF-8 once decoded"))?;
    if text.contains('\0') {
        return Err(UriError::Encoding("text contains NUL"));
    }
    Ok(text)
}

/// A part of the user's text for an error message.
fn shortened(text: &str) -> String {
    crate::codec::clipped(text, 40).to_owned()
}

/// The path less exactly one leading slash.
fn export(path: &str) -> Result<String, UriError> {
    let name = decode(path.strip_prefix('/').unwrap_or(path))?;
    let name = String::from_utf8(name).map_err(|_| UriError::Export("is not UTF-8"))?;
    if name.contains('\0') {
        return Err(UriError::Export("contains NUL"));
    }
    if name.len() > crate::constants::MAX_STRING {
        return Err(UriError::Export("is longer than 4096 bytes"));
    }
    Ok(name)
}

/// The socket, if there is one, and the other parameters.
#[expect(clippy::type_complexity, reason = "a pair for the one caller")]
fn parameters(query: &str) -> Result<(Option<Vec<u8>>, Vec<(String, String)>), UriError> {
    let mut socket = None;
    let mut params: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let key = decode_text(key)?;
        if key.starts_with("x-") {
            decode(value)?;
            continue;
        }
        let wrong = |what| Err(UriError::ParameterWrong(key.clone(), what));
        if key == "socket" {
            if socket.replace(decode(value)?).is_some() {
                return wrong("is given twice");
            }
            continue;
        }
        if !PARAMETERS.contains(&key.as_str()) {
            return Err(UriError::ParameterUnknown(shortened(&key)));
        }
        let value = decode_text(value)?;
        match key.as_str() {
            "tls-type" if !["anon", "x509", "psk"].contains(&value.as_str()) => {
                return wrong("must be anon, x509 or psk");
            }
            "tls-verify-peer" if truth(&value).is_none() => {
                return wrong("must be 0 or 1");
            }
            _ if params.iter().any(|(known, _)| *known == key) => return wrong("is given twice"),
            _ => params.push((key, value)),
        }
    }
    Ok((socket, params))
}

/// The standard's 0 and 1, and the words that libnbd takes for them.
fn truth(value: &str) -> Option<bool> {
    match value {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

fn tcp(authority: &str) -> Result<Transport, UriError> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) =
            rest.split_once(']').ok_or(UriError::Authority("address has no closing ]"))?;
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(port),
            None if rest.is_empty() => None,
            None => return Err(UriError::Authority("text between ] and the port")),
        };
        (ipv6(host)?, port)
    } else {
        let (host, port) = with_port(authority);
        (host_name(host)?, port)
    };
    let port = match port {
        None | Some("") => DEFAULT_PORT,
        Some(port) => number(port)
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port != 0)
            .ok_or(UriError::Authority("port is not a number from 1 to 65535"))?,
    };
    let host = if host.is_empty() { "localhost".to_owned() } else { host };
    Ok(Transport::Tcp { host, port })
}

/// What comes before the port, and the port.
fn with_port(authority: &str) -> (&str, Option<&str>) {
    authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)))
}

/// An address from between brackets, with a zone if there is one. The zone follows a `%` that
/// should be (but often is not) encoded itself.
fn ipv6(host: &str) -> Result<String, UriError> {
    let (address, zone) = match host.split_once('%') {
        Some((address, zone)) => (address, Some(zone.strip_prefix("25").unwrap_or(zone))),
        None => (host, None),
    };
    if address.parse::<std::net::Ipv6Addr>().is_err() {
        return Err(UriError::Authority("address in brackets is not an IPv6 address"));
    }
    match zone {
        None => Ok(address.to_owned()),
        Some(zone) => Ok(format!("{address}%{}", host_name(zone)?)),
    }
}

/// A host name; what could be taken for another part of the URI is refused.
fn host_name(text: &str) -> Result<String, UriError> {
    let host = decode_text(text)?;
    let strange = |c: char| c.is_control() || c.is_whitespace() || ":/?#[]@%".contains(c);
    if host.contains(strange) {
        return Err(UriError::Authority("host contains a character that no host name has"));
    }
    Ok(host)
}

fn unix(authority: &str, socket: Option<Vec<u8>>) -> Result<Transport, UriError> {
    let wrong = |what| UriError::ParameterWrong("socket".into(), what);
    if !authority.is_empty() {
        return Err(UriError::Authority("a Unix socket has no host (write nbd+unix:///…)"));
    }
    let socket = socket.ok_or_else(|| wrong("is missing"))?;
    let (name, is_abstract) = match socket.strip_prefix(b"\0") {
        Some(name) => (name.to_vec(), true),
        None => (socket, false),
    };
    if name.is_empty() {
        return Err(wrong("is empty"));
    }
    if is_abstract {
        return Ok(Transport::UnixAbstract { name });
    }
    if name.contains(&0) {
        return Err(wrong("contains NUL"));
    }
    Ok(Transport::Unix { path: name })
}

fn vsock(authority: &str) -> Result<Transport, UriError> {
    let (cid, port) = with_port(authority);
    let cid = match cid {
        "" => VSOCK_HOST,
        cid => number(cid).ok_or(UriError::Authority("vsock context id is not a number"))?,
    };
    let port = match port {
        None | Some("") => DEFAULT_PORT.into(),
        Some(port) => number(port).ok_or(UriError::Authority("vsock port is not a number"))?,
    };
    Ok(Transport::Vsock { cid, port })
}

/// Decimal digits and nothing else (`parse` alone would take a sign).
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
