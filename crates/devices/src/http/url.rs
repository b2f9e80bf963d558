//! An http or https URL: parsed, resolved against another, and shown without its secrets.
//!
//! The query of a URL may hold a signature, and the part before its `@` a password: neither is ever
//! printed.

use std::fmt;

use device::{Error, Result};
use wire::{percent_decode, percent_encode};

/// Bytes of a URL, at most.
pub(super) const LONGEST: usize = 32 << 10;

/// The scheme.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum HttpScheme {
    Http,
    Https,
}

impl HttpScheme {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        [Self::Http, Self::Https].into_iter().find(|s| s.name().eq_ignore_ascii_case(text))
    }
}

/// A URL.
#[derive(Clone, Eq, PartialEq)]
pub(super) struct Url {
    pub(super) scheme: HttpScheme,
    /// A name or an address, in lower case and without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Path and query as they go into a request; begins with `/`.
    pub(super) target: String,
    /// The part before the `@`, decoded.
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
}

impl Url {
    /// Reads a URL.
    ///
    /// # Errors
    /// It is not a URL, or neither http nor https. The error does not show it.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::invalid(format!("the URL {why}"));
        if text.len() > LONGEST {
            return Err(wrong("is longer than 32 KiB"));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("has no ://"))?;
        let scheme = HttpScheme::parse(scheme)
            .ok_or_else(|| wrong(&format!("is of the scheme {scheme:?}, not http or https")))?;
        let rest = rest.split('#').next().unwrap_or_default();
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(at);
        let (login, place) = match authority.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, authority),
        };
        let (host, port) =
            host_and_port(place).ok_or_else(|| wrong("has no host, or a wrong port"))?;
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, "")))
        {
            Some((user, password)) => {
                let password = Some(decoded(password)).filter(|_| !password.is_empty());
                (Some(decoded(user)), password)
            }
            None => (None, None),
        };
        let slash = if target.starts_with('/') { "" } else { "/" };
        let target = format!("{slash}{}", encoded(target));
        Ok(Self { scheme, host, port: port.unwrap_or(scheme.port()), target, user, password })
    }

    /// What a redirect from here to `location` leads to.
    ///
    /// # Errors
    /// It is not http or https, not a URL, or longer than [`LONGEST`].
    pub(super) fn join(&self, location: &str) -> Result<Self> {
        let location = location.split('#').next().unwrap_or_default();
        let colon = location.find(':').unwrap_or(usize::MAX);
        if colon < location.find(['/', '?']).unwrap_or(usize::MAX) {
            return Self::parse(location);
        }
        if let Some(rest) = location.strip_prefix("//") {
            return Self::parse(&format!("{}://{rest}", self.scheme.name()));
        }
        let path = self.target.split('?').next().unwrap_or_default();
        let target = if location.starts_with('/') {
            location.to_owned()
        } else if location.starts_with('?') || location.is_empty() {
            format!("{path}{location}")
        } else {
            let directory = path.rsplit_once('/').map_or("", |(before, _)| before);
            format!("{directory}/{location}")
        };
        if target.len() > LONGEST {
            return Err(Error::invalid("the URL is longer than 32 KiB"));
        }
        Ok(Self {
            target: encoded(&without_dots(&target)),
            user: None,
            password: None,
            ..self.clone()
        })
    }

    /// Whether secrets for one may be sent to the other.
    pub(super) fn is_same_origin(&self, other: &Self) -> bool {
        (self.scheme, &self.host, self.port) == (other.scheme, &other.host, other.port)
    }

    /// Host and port as the header Host has them.
    pub(super) fn authority(&self) -> String {
        if self.port == self.scheme.port() {
            self.bracketed()
        } else {
            format!("{}:{}", self.bracketed(), self.port)
        }
    }

    /// The same, always with the port.
    pub(super) fn endpoint(&self) -> String {
        format!("{}:{}", self.bracketed(), self.port)
    }

    fn bracketed(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }
}

/// Without what may be secret.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.target.split('?').next().unwrap_or_default();
        write!(f, "{}://{}{path}", self.scheme.name(), self.authority())?;
        if self.target.contains('?') { f.write_str("?…") } else { Ok(()) }
    }
}

runtime::debug_as!(Url, |url| "Url({url})");

/// The text of a URL, or of something that should be one, without what may be secret.
pub(super) fn redacted(text: &str) -> String {
    if let Ok(url) = Url::parse(text) {
        return url.to_string();
    }
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    format!("{scheme}://…")
}

/// A host and, if there is one, the port behind it.
pub(super) fn host_and_port(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        (host, rest.strip_prefix(':').or((rest.is_empty()).then_some(""))?)
    } else {
        text.split_once(':').unwrap_or((text, ""))
    };
    let is_plain = |b: u8| b.is_ascii_graphic() && !b"/?#@\\\"<>^`{|}%".contains(&b);
    if host.is_empty() || !host.bytes().all(is_plain) {
        return None;
    }
    let digits = port.bytes().all(|b| b.is_ascii_digit());
    let port = match port {
        "" => None,
        text => Some(text.parse().ok().filter(|port| digits && *port != 0)?),
    };
    Some((host.to_ascii_lowercase(), port))
}

/// Escapes characters that a request must not contain.
fn encoded(target: &str) -> String {
    percent_encode(target.as_bytes(), |b| b.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&b))
}

/// The bytes that percent signs stand for; one without two digits stands for itself.
fn decoded(text: &str) -> String {
    String::from_utf8_lossy(&percent_decode(text).0).into_owned()
}

/// A path, with a query or not, without `.` and `..`.
fn without_dots(target: &str) -> String {
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    let mut parts: Vec<&str> = Vec::new();
    let mut pieces = path.split('/').skip(1).peekable();
    while let Some(piece) = pieces.next() {
        match piece {
            "." | ".." => {
                if piece == ".." {
                    parts.pop();
                }
                if pieces.peek().is_none() {
                    parts.push("");
                }
            }
            _ => parts.push(piece),
        }
    }
    format!("/{}{query}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_and_told_without_its_secrets() {
        let url =
            Url::parse("HTTPS://us%40er:p%3Aw@Host.Example:8443/a b/c.img?sig=x&y#z").unwrap();
        assert_eq!(
            (url.scheme, url.host.as_str(), url.port),
            (HttpScheme::Https, "host.example", 8443)
        );
        assert_eq!(url.target, "/a%20b/c.img?sig=x&y");
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("us@er"), Some("p:w")));
        assert_eq!(url.to_string(), "https://host.example:8443/a%20b/c.img?…");
        assert_eq!(format!("{url:?}"), "Url(https://host.example:8443/a%20b/c.img?…)");
        let url = Url::parse("http://[::1]?q").unwrap();
        assert_eq!((url.host.as_str(), url.port, url.target.as_str()), ("::1", 80, "/?q"));
        assert_eq!((url.authority(), url.endpoint()), ("[::1]".into(), "[::1]:80".into()));
        assert_eq!(redacted("ftp://user:secret@host/x"), "ftp://…");
    }

    #[test]
    fn what_is_no_url_is_refused() {
        let wrong = "http:/x, ftp://h/, http://, http:///x, http://h:0/, http://h:99999/, \
             http://h:+1/, http://[::1/, http://[x]/, http://a b/, http://[::1]x/, http://h%00/, \
             file:///x";
        for text in wrong.split(", ") {
            assert!(Url::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_redirect_is_resolved_as_browsers_do() {
        let base = Url::parse("http://u:p@h:8080/a/b/c?q").unwrap();
        let to =
            |location: &str| base.join(location).map(|u| u.to_string().replace('…', &u.target));
        for (location, wanted) in [
            ("https://other/x", "https://other/x"),
            ("//other/x", "http://other/x"),
            ("/x/./y/../z", "http://h:8080/x/z"),
            ("d", "http://h:8080/a/b/d"),
            ("../d", "http://h:8080/a/d"),
            ("../../../d/", "http://h:8080/d/"),
            ("..", "http://h:8080/a/"),
        ] {
            assert_eq!(to(location).unwrap(), wanted, "{location}");
        }
        assert_eq!(base.join("?new").unwrap().target, "/a/b/c?new");
        assert_eq!(base.join("/a b").unwrap().target, "/a%20b");
        assert!(base.join("/x").unwrap().user.is_none());
        for location in ["file:///etc/passwd", "ftp://h/", "data:x", "http://"] {
            assert!(base.join(location).is_err(), "{location}");
        }
    }

    #[test]
    fn no_redirect_leads_to_a_url_that_is_too_long_however_it_is_said() {
        let base = Url::parse(&format!("http://h/{}/b", "a".repeat(100))).unwrap();
        let long = "x".repeat(LONGEST - 1);
        assert!(base.join(&format!("/{long}")).is_ok());
        for location in [
            format!("http://h/{long}"),
            format!("//h/{long}"),
            format!("/{long}x"),
            format!("?{long}"),
            long,
        ] {
            assert!(base.join(&location).is_err(), "{}", location.len());
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_a_panic_and_what_is_read_can_be_sent(
            text in "https?://[^ ]{0,40}", location in "\\PC{0,40}",
        ) {
            let sendable = |url: &Url| {
                let plain = |b: u8| b.is_ascii_graphic();
                url.target.starts_with('/') && url.target.bytes().chain(url.host.bytes()).all(plain)
            };
            if let Ok(url) = Url::parse(&text) {
                proptest::prop_assert!(sendable(&url), "{:?}", url.target);
                proptest::prop_assert!(url.join(&location).is_ok_and(|url| sendable(&url)) || url.join(&location).is_err());
            }
            let _ = redacted(&location);
        }
    }
}
