//! The parameters of `nbd`: which export of which server, and how to connect.

use std::os::fd::RawFd;
use std::time::Duration;

use client::{ExportSpec, MOST_CONNECTIONS, ServerSpec};
use device::{Error, Params, Result, values};
use runtime::Patience;
use wire::{DEFAULT_PORT, Transport, Uri};

use crate::OpenOptions;
use crate::nbd::encryption::calling;

/// The parsed parameters.
#[derive(Clone, Debug)]
pub(crate) struct NbdParams {
    pub(crate) target: ExportSpec,
    /// Whether all clients of a server of ours use the same connections.
    pub(crate) shared: bool,
}

impl NbdParams {
    /// The target, as far as its parameters leave it to the options.
    pub(crate) fn of(target: ExportSpec, options: &OpenOptions, patience: Patience) -> Self {
        let connections = options.connections.clamp(1, MOST_CONNECTIONS);
        let OpenOptions { map, contexts, .. } = *options;
        let (open_within, reconnect, silence) =
            (patience.open, patience.reconnect, patience.request);
        let target =
            ExportSpec { connections, map, contexts, open_within, reconnect, silence, ..target };
        Self { target, shared: true }
    }

    /// Parses `params`.
    pub(crate) fn parse(
        params: &Params,
        options: &OpenOptions,
        patience: Patience,
    ) -> Result<Self> {
        let (server, export) = server(params)?;
        let mut wanted = Self::of(ExportSpec::new(server, export), options, patience);
        let target = &mut wanted.target;
        target.tls = calling(params, &target.server)?;
        if let Some(text) = params.get("connections") {
            let number = text.parse().ok().filter(|n| (1..=MOST_CONNECTIONS).contains(n));
            target.connections = number.ok_or_else(|| {
                let range = format!("a number from 1 to {MOST_CONNECTIONS}");
                values::not_a("connections", text, &range)
            })?;
            target.eager = true;
        }
        if let Some(number) = values::number(params, "retry")? {
            target.retries = u32::try_from(number).map_err(|e| values::wrong("retry", e))?;
        }
        // 0 is nbd-client's word for "never", and QEMU's for "not at all".
        let time = |key| -> Result<Option<Option<Duration>>> {
            let given = values::duration(params, key)?;
            Ok(given.map(|time| Some(time).filter(|time| !time.is_zero())))
        };
        if let Some(timeout) = time("timeout")? {
            (target.timeout, target.silence) = (timeout, timeout);
        }
        target.silence = time("request-timeout")?.unwrap_or(target.silence);
        target.open_within = time("open-timeout")?.unwrap_or(target.open_within);
        target.reconnect = time("reconnect-delay")?.unwrap_or(target.reconnect);
        wanted.shared = values::flag(params, "shared")?.unwrap_or(true);
        if matches!(wanted.target.server, ServerSpec::Descriptor(_)) {
            wanted.is_one_connection(params)?;
        }
        Ok(wanted)
    }

    /// A connection that was given to us is the only one, now and later.
    fn is_one_connection(&mut self, params: &Params) -> Result<()> {
        for (key, wrong) in [
            ("connections", self.target.eager && self.target.connections > 1),
            ("retry", self.target.retries > 0),
            ("shared", !self.shared),
            ("open-timeout", params.contains("open-timeout") && self.target.open_within.is_some()),
            (
                "reconnect-delay",
                params.contains("reconnect-delay") && self.target.reconnect.is_some(),
            ),
        ] {
            if wrong {
                let value = params.get(key).unwrap_or_default();
                return Err(Error::invalid(format!(
                    "{key}={value} cannot be combined with socket-fd=, which is one connection"
                )));
            }
        }
        self.target.connections = 1;
        (self.target.open_within, self.target.reconnect) = (None, None);
        Ok(())
    }
}

/// The server and the export that the parameters name.
pub(super) fn server(params: &Params) -> Result<(ServerSpec, String)> {
    let ways = ["uri", "socket", "host", "hostname", "vsock", "socket-fd", "command"];
    let given: Vec<_> = ways.into_iter().filter(|key| params.contains(key)).collect();
    let needs = |key: &str, others: &[&str]| {
        let met = !params.contains(key) || others.iter().any(|other| params.contains(other));
        met.then_some(())
            .ok_or_else(|| Error::invalid(format!("{key}= needs {}=", others.join("= or "))))
    };
    needs("port", &["host", "hostname", "vsock"])?;
    needs("arg", &["command"])?;
    let export = params.get("export").map(str::to_owned);
    let server = match given.as_slice() {
        ["command"] => ServerSpec::Command(command(params)?),
        ["socket-fd"] => ServerSpec::Descriptor(descriptor(params)?),
        _ => {
            let mut uri = uri(params, &given)?;
            if let Some(export) = export {
                if !uri.export.is_empty() {
                    let action = "export= is given, and the URI names an export too";
                    return Err(Error::invalid(action));
                }
                uri.export = export;
            }
            let export = uri.export.clone();
            return Ok((ServerSpec::Address(uri), export));
        }
    };
    Ok((server, export.unwrap_or_default()))
}

/// The words of the command line.
fn command(params: &Params) -> Result<Vec<String>> {
    let words = params.all("command").chain(params.all("arg"));
    let words: Vec<String> = words.map(str::to_owned).collect();
    if words.first().is_none_or(String::is_empty) {
        return Err(Error::invalid("command= is empty"));
    }
    Ok(words)
}

fn descriptor(params: &Params) -> Result<RawFd> {
    let number = values::number(params, "socket-fd")?.and_then(|n| RawFd::try_from(n).ok());
    number.ok_or_else(|| Error::invalid("socket-fd= is not the number of a descriptor"))
}

/// The URI that the parameters form, whole or in pieces; `given` is how they name the server.
fn uri(params: &Params, given: &[&str]) -> Result<Uri> {
    let value = |key: &str| params.get(key).unwrap_or_default();
    match given {
        ["uri"] => match old_name(value("uri")) {
            Some(uri) => uri,
            None => Uri::parse(value("uri")).map_err(|e| bad_uri(value("uri"), &e)),
        },
        // `nbd:nbd+unix:///x?socket=/s` arrives in two pieces.
        ["uri", "socket"] => {
            let text = value("uri");
            let joint = if text.contains('?') { '&' } else { '?' };
            let whole = format!("{text}{joint}socket={}", escaped(value("socket")));
            Uri::parse(&whole).map_err(|e| bad_uri(&whole, &e))
        }
        ["socket"] => match value("socket") {
            "" => Err(Error::invalid("socket= is empty")),
            path => Ok(plain(match path.strip_prefix('@') {
                Some(name) => Transport::UnixAbstract { name: name.into() },
                None => Transport::Unix { path: path.into() },
            })),
        },
        ["host" | "hostname"] => {
            let host = given.first().map_or("", |key| value(key)).to_owned();
            let port = params.get("port").map_or(Ok(DEFAULT_PORT), |text| digits("port", text))?;
            Ok(plain(Transport::Tcp { host, port }))
        }
        ["vsock"] => {
            let cid = digits("vsock", value("vsock"))?;
            let port = params.get("port").map_or(Ok(DEFAULT_PORT.into()), |t| digits("port", t))?;
            Ok(plain(Transport::Vsock { cid, port }))
        }
        ["host", "hostname"] => Err(Error::invalid("host= and hostname= are the same; give one")),
        [] => Err(Error::invalid(
            "no server is named; give uri=, socket=, host=, vsock=, socket-fd= or command=",
        )),
        [one, another, ..] => Err(Error::invalid(format!(
            "the server is named twice, by {one}= and {another}=; give one"
        ))),
        [one] => Err(Error::invalid(format!("{one}= does not name a server"))),
    }
}

/// QEMU's old names, which arrive without their `nbd:`: `unix:PATH[:exportname=NAME]` and
/// `HOST:PORT[:exportname=NAME]`. `None`: it is none.
fn old_name(text: &str) -> Option<Result<Uri>> {
    if text.contains("://") {
        return None;
    }
    let (server, export) = text.split_once(":exportname=").unwrap_or((text, ""));
    let transport = match server.strip_prefix("unix:") {
        Some("") => return Some(Err(Error::invalid("which socket? write nbd:unix:PATH").on(text))),
        Some(path) => Transport::Unix { path: path.into() },
        None => {
            let (host, port) = server.rsplit_once(':')?;
            let port = digits("port", port).ok()?;
            let host =
                host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            if host.is_empty() || host.contains('/') {
                return None;
            }
            Transport::Tcp { host: host.to_owned(), port }
        }
    };
    Some(Ok(Uri::to(transport, false, export.to_owned())))
}

fn plain(transport: Transport) -> Uri {
    Uri::to(transport, false, String::new())
}

/// A number that is written in digits, and fits.
fn digits<T: std::str::FromStr>(key: &str, text: &str) -> Result<T> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|_| plain);
    number.ok_or_else(|| values::not_a(key, text, "a number in range"))
}

fn bad_uri(text: &str, e: &wire::UriError) -> Error {
    let hint = match text.split_once(':') {
        Some((host, port)) if !text.contains('/') && host != "unix" && !port.is_empty() => {
            format!("; write nbd://{text}")
        }
        _ => String::new(),
    };
    Error::invalid(format!("{e}{hint}")).on(super::shown(text))
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
        match NbdParams::parse(&params, &OpenOptions::default(), Patience::default()) {
            Ok(NbdParams { target, .. }) => match target.server {
                ServerSpec::Address(uri) => Ok(uri.to_string()),
                other => Ok(format!("{other:?} {}", target.export)),
            },
            Err(e) => Err(e.to_string()),
        }
    }

    #[test]
    fn a_server_is_named_by_a_uri_or_in_pieces() {
        assert_eq!(parse(&["uri=nbd://h:99/x"]).unwrap(), "nbd://h:99/x");
        assert_eq!(parse(&["uri=h:99"]).unwrap(), "nbd://h:99/");
        assert_eq!(parse(&["uri=[::1]:99:exportname=a:b"]).unwrap(), "nbd://[::1]:99/a:b");
        assert_eq!(parse(&["uri=unix:/s"]).unwrap(), "nbd+unix:///?socket=/s");
        assert_eq!(parse(&["uri=unix:/s:exportname=x"]).unwrap(), "nbd+unix:///x?socket=/s");
        assert!(parse(&["uri=unix:"]).is_err() && parse(&["uri=h"]).is_err());
        assert_eq!(parse(&["socket=/tmp/s"]).unwrap(), "nbd+unix:///?socket=/tmp/s");
        assert_eq!(parse(&["socket=@s", "export=e"]).unwrap(), "nbd+unix:///e?socket=%00s");
        assert_eq!(parse(&["hostname=h", "port=1"]).unwrap(), "nbd://h:1/");
        assert_eq!(parse(&["vsock=2", "port=70000", "export=e"]).unwrap(), "nbd+vsock://2:70000/e");
        let whole = "nbd+unix:///e?socket=/tmp/s%26t";
        assert_eq!(parse(&["uri=nbd+unix:///e", "socket=/tmp/s&t"]).unwrap(), whole);
    }

    #[test]
    fn a_server_is_named_by_its_command_or_by_a_connection() {
        let words = ["command=server", "arg=-f", "export=e", "arg=a=b"];
        assert_eq!(parse(&words).unwrap(), r#"Command(["server", "-f", "a=b"]) e"#);
        assert_eq!(parse(&["socket-fd=7"]).unwrap(), "Descriptor(7) ");
    }

    #[test]
    fn an_export_is_called_as_it_can_be_typed() {
        for (words, name) in [
            (&["host=h", "export=x"][..], "nbd://h/a b&c"),
            (
                &["command=sh", "arg=-c", "arg=a && b"],
                r"nbd:?command=sh&arg=-c&arg=a \&\& b&export=a b\&c",
            ),
            (&["socket-fd=7"], r"nbd:?socket-fd=7&export=a b\&c"),
        ] {
            let params = Params::parse(words.iter().copied()).unwrap();
            let wanted =
                NbdParams::parse(&params, &OpenOptions::default(), Patience::default()).unwrap();
            let told = wanted.target.name_of("a b&c");
            assert_eq!(told.replace("%20", " "), name);
        }
    }

    #[test]
    fn whether_to_share_and_to_retry_is_read() {
        let wanted = |words: &[&str]| {
            let params = Params::parse(words.iter().copied()).unwrap();
            let wanted =
                NbdParams::parse(&params, &OpenOptions::default(), Patience::default()).unwrap();
            (wanted.shared, wanted.target.retries)
        };
        assert_eq!(wanted(&["host=a"]), (true, 0));
        assert_eq!(wanted(&["host=a", "shared=false", "retry=12"]), (false, 12));
    }

    #[test]
    fn a_timeout_is_a_time_and_0_is_none() {
        let timeout = |word: &str| {
            let params = Params::parse(["host=a", word]).unwrap();
            NbdParams::parse(&params, &OpenOptions::default(), Patience::default())
                .map(|wanted| wanted.target.timeout)
        };
        assert_eq!(timeout("timeout=1.5").unwrap(), Some(Duration::from_millis(1500)));
        assert_eq!(timeout("timeout=200ms").unwrap(), Some(Duration::from_millis(200)));
        assert_eq!(timeout("timeout=0").unwrap(), None);
        assert_eq!(timeout("retry=1").unwrap(), None);
        assert!(timeout("timeout=soon").is_err());
    }

    #[test]
    fn how_long_to_wait_is_read_and_parameters_come_before_options() {
        let seconds = |n| Some(Duration::from_secs(n));
        let patience = Patience { open: seconds(1), reconnect: seconds(2), request: seconds(3) };
        let options = OpenOptions::default();
        let read = |words: &[&str]| {
            let params = Params::parse([&["host=a"], words].concat()).unwrap();
            let NbdParams { target, .. } = NbdParams::parse(&params, &options, patience).unwrap();
            (target.open_within, target.reconnect, target.silence, target.timeout)
        };
        assert_eq!(read(&[]), (seconds(1), seconds(2), seconds(3), None));
        assert_eq!(read(&["timeout=7"]), (seconds(1), seconds(2), seconds(7), seconds(7)));
        let all = ["open-timeout=4", "reconnect-delay=5", "request-timeout=6", "timeout=7"];
        assert_eq!(read(&all), (seconds(4), seconds(5), seconds(6), seconds(7)));
        let none = ["open-timeout=0", "reconnect-delay=0", "request-timeout=0"];
        assert_eq!(read(&none), (None, None, None, None));
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
            &["uri=nbd://a/", "connections=all"],
            &["uri=nbd://a/", "retry=-1"],
            &["uri=nbd://a/", "retry=4294967296"],
            &["uri=nbd://a/", "shared=perhaps"],
            &["uri=nbd://a/", "arg=x"],
            &["socket=/s", "command=x"],
            &["socket=/s", "vsock=2"],
            &["vsock=2", "port=x"],
            &["vsock=-1"],
            &["command="],
            &["command=x", "port=1"],
            &["socket-fd=x"],
            &["socket-fd=-1"],
            &["socket-fd=99999999999"],
            &["socket-fd=3", "retry=1"],
            &["socket-fd=3", "shared=false"],
            &["socket-fd=3", "connections=2"],
            &["socket-fd=3", "reconnect-delay=5"],
            &["socket-fd=3", "open-timeout=5"],
            &["host=a", "reconnect-delay=soon"],
            &["socket="],
            &[],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
