//! Credentials for a server: a login, a token, headers, cookies, and scripts that print them.
//!
//! None of it goes to another origin than that of the URL that was named: not after a redirect, not
//! to another port. None of it is ever printed.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Result};
use hyper::header::{self as h, HeaderName, HeaderValue};
use programs::{Program, StandardStreams};
use runtime::Mutex;

use super::signing::Signer;

/// Bytes that a script may print.
const PRINTED: u64 = 64 << 10;

/// Something that must not be shown.
#[derive(Clone, Default, Eq, PartialEq)]
pub(super) struct Secret(pub(super) String);

runtime::debug_as!(Secret);

/// A header as it was asked for: with a value, or none where it is to be left out.
pub(super) type Header = (HeaderName, Option<HeaderValue>);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HttpCredentials {
    /// The value of Authorization.
    pub(super) authorization: Option<Secret>,
    pub(super) headers: Vec<Header>,
    pub(super) cookie: Option<Secret>,
    pub(super) header_script: Option<Script>,
    pub(super) cookie_script: Option<Script>,
    /// What signs each request.
    pub(super) signer: Option<Arc<dyn Signer>>,
}

impl HttpCredentials {
    /// The headers to send, in which later ones replace earlier ones of the same name, as those
    /// without a value remove them.
    ///
    /// # Errors
    /// A script failed, or printed something that is not a header.
    pub(super) fn headers(&self) -> Result<Vec<Header>> {
        let mut all = Vec::new();
        if let Some(Secret(login)) = &self.authorization {
            all.push((h::AUTHORIZATION, Some(secret_value("Authorization", login)?)));
        }
        let cookie = match &self.cookie_script {
            Some(script) => Some(Secret(script.output()?.trim().to_owned())),
            None => self.cookie.clone(),
        };
        if let Some(Secret(cookie)) = cookie.filter(|cookie| !cookie.0.is_empty()) {
            all.push((h::COOKIE, Some(secret_value("Cookie", &cookie)?)));
        }
        all.extend(self.headers.iter().cloned());
        if let Some(script) = &self.header_script {
            for line in script.output()?.lines().filter(|line| !line.trim().is_empty()) {
                all.push(header(line).map_err(|e| {
                    Error::new(ErrorKind::InvalidInput, Fault::User, "header-script").with_source(e)
                })?);
            }
        }
        Ok(all)
    }

    /// Makes scripts run again before the next request, and a signer fetch what it signs with.
    /// Returns whether that may help.
    pub(super) fn renew(&self) -> bool {
        let scripts = [&self.header_script, &self.cookie_script];
        let renewed = scripts.into_iter().flatten().map(Script::forget).count() > 0;
        self.signer.as_ref().map_or(renewed, |signer| signer.renew())
    }
}

/// Reads `Name: value`, `Name:` (leave it out) or `Name;` (send it empty). Errors do not show it.
///
/// # Errors
/// It is none of these, or a header that only this program may set.
pub(super) fn header(line: &str) -> Result<Header> {
    let line = line.trim_end_matches(['\r', '\n']);
    let wrong = |why: &str| Error::invalid(format!("header: {why}"));
    let (name, value) = match line.split_once(':') {
        Some((name, value)) => (name, Some(value.trim()).filter(|value| !value.is_empty())),
        None => (line.strip_suffix(';').ok_or_else(|| wrong("is not `Name: value`"))?, Some("")),
    };
    let name: HeaderName = name.trim().parse().map_err(|_| wrong("its name is not valid"))?;
    let ours = [
        h::RANGE,
        h::IF_MATCH,
        h::IF_RANGE,
        h::IF_NONE_MATCH,
        h::IF_MODIFIED_SINCE,
        h::IF_UNMODIFIED_SINCE,
        h::ACCEPT_ENCODING,
        h::CONTENT_LENGTH,
        h::TRANSFER_ENCODING,
        h::CONNECTION,
        h::EXPECT,
        h::UPGRADE,
    ];
    if ours.contains(&name) {
        return Err(wrong(&format!("{name} cannot be set: the requested range depends on it")));
    }
    let value = value.map(|value| secret_value(name.as_str(), value)).transpose()?;
    Ok((name, value))
}

fn secret_value(name: &str, value: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        Error::invalid(format!("the value of {name} has characters that a header cannot have"))
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// A login as the value of Authorization.
pub(super) fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", base64(format!("{user}:{password}").as_bytes()))
}

pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let all = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let digit = (all >> (18 - 6 * i)) as usize & 63;
            let digit = DIGITS.get(digit).copied().unwrap_or(b'=');
            text.push(if i <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// A command whose output is used for a while.
#[derive(Debug)]
pub(super) struct Script {
    program: Program,
    /// The URL as it was given, only for the script.
    url: Secret,
    /// After how long it is run again; never, if it is none.
    renew: Option<Duration>,
    /// How long it may take.
    patience: Duration,
    state: Mutex<Printed>,
}

#[derive(Debug, Default)]
struct Printed {
    /// How often it has run.
    runs: u64,
    last: Option<(Instant, Secret)>,
}

impl Script {
    pub(super) fn new(
        command: &str,
        url: &str,
        renew: Option<Duration>,
        patience: Duration,
    ) -> Self {
        Self {
            program: Self::program(command),
            url: Secret(url.to_owned()),
            renew,
            patience,
            state: Mutex::default(),
        }
    }

    /// What is started for a command, in a group of its own: what it starts is killed with it.
    pub(super) fn program(command: &str) -> Program {
        Program { is_apart: true, ..Program::script(command, &["url", "iteration"]) }
    }

    /// What it printed.
    ///
    /// # Errors
    /// It could not be run, failed, took too long, or printed too much or something that is not
    /// text.
    fn output(&self) -> Result<String> {
        let mut state = self.state.lock();
        if let Some((at, Secret(text))) = &state.last
            && self.renew.is_none_or(|renew| at.elapsed() < renew)
        {
            return Ok(text.clone());
        }
        let runs = state.runs;
        state.runs += 1;
        let text = self.run(runs)?;
        state.last = Some((Instant::now(), Secret(text.clone())));
        Ok(text)
    }

    fn forget(&self) {
        self.state.lock().last = None;
    }

    fn run(&self, iteration: u64) -> Result<String> {
        let wrong = |why: String| {
            Error::new(ErrorKind::PermissionDenied, Fault::User, format!("run a script: {why}"))
        };
        let failed = |e| Error::os("run a script", e);
        let (output, printed) = std::io::pipe().map_err(failed)?;
        let input = Some(programs::nothing().map_err(failed)?);
        let streams = StandardStreams { input, output: Some(printed.into()) };
        let iteration = iteration.to_string();
        let values = [("url", self.url.0.as_str()), ("iteration", &iteration)];
        let child = programs::start(&self.program, &values, streams).map_err(failed)?;
        let (tell, told) = std::sync::mpsc::channel();
        let reader = std::thread::Builder::new().name("script".into()).spawn(move || {
            let mut bytes = Vec::new();
            let read = output.take(PRINTED + 1).read_to_end(&mut bytes);
            // The caller may have given up.
            let _ = tell.send(read.map(|_| bytes));
        });
        reader.map_err(|e| Error::os("start a thread", e))?;
        let bytes = told.recv_timeout(self.patience);
        if bytes.is_err() {
            // It may have ended, and left something behind that keeps its output open.
            let _ = child.kill_group();
        }
        let begun = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(None) if begun.elapsed() > self.patience => {
                    let _ = child.kill_group();
                    let _ = child.wait();
                    break None;
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                Ok(Some(status)) => break Some(status),
                Err(e) => return Err(failed(e)),
            }
        };
        let seconds = self.patience.as_secs_f64();
        let (Ok(bytes), Some(status)) = (bytes, status) else {
            return Err(wrong(format!("it did not end within {seconds} seconds")));
        };
        let bytes = bytes.map_err(failed)?;
        if !status.success() {
            return Err(wrong(format!("it failed ({status})")));
        }
        if bytes.len() as u64 > PRINTED {
            return Err(wrong("it printed more than 64 KiB".into()));
        }
        String::from_utf8(bytes).map_err(|_| wrong("it printed something that is not text".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_encoded() {
        for (text, wanted) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("\u{ff}", "w78="),
        ] {
            assert_eq!(base64(text.as_bytes()), wanted);
        }
        assert_eq!(basic("Aladdin", "open sesame"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }

    #[test]
    fn headers_are_read_as_curl_reads_them_and_never_shown() {
        let read = |line: &str| {
            header(line).map(|(name, value)| {
                (name.to_string(), value.map(|value| value.to_str().unwrap().to_owned()))
            })
        };
        assert_eq!(read("X-A: b: c \r").unwrap(), ("x-a".into(), Some("b: c".into())));
        assert_eq!(read("User-Agent:").unwrap(), ("user-agent".into(), None));
        assert_eq!(read("X-Empty;").unwrap(), ("x-empty".into(), Some(String::new())));
        for wrong in [
            "secret",
            "a b: secret",
            ": secret",
            "X: sec\u{1}ret",
            "Range: bytes=0-secret",
            "accept-encoding: gzip secret",
        ] {
            let error = header(wrong).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        let (_, value) = header("Authorization: Bearer secret").unwrap();
        assert!(!format!("{value:?}").contains("secret"));
    }

    #[test]
    fn a_script_runs_when_it_is_due_and_not_before() {
        let script = |renew| {
            Script::new("echo X-N: $iteration $url", "http://h/", renew, Duration::from_secs(60))
        };
        let never = script(None);
        for _ in 0..3 {
            assert_eq!(never.output().unwrap(), "X-N: 0 http://h/\n");
        }
        let always = script(Some(Duration::ZERO));
        assert_eq!(always.output().unwrap(), "X-N: 0 http://h/\n");
        assert_eq!(always.output().unwrap(), "X-N: 1 http://h/\n");
        let credentials =
            HttpCredentials { header_script: Some(never), ..HttpCredentials::default() };
        assert!(credentials.renew());
        assert_eq!(credentials.headers().unwrap().len(), 1);
        assert!(!HttpCredentials::default().renew());
    }

    #[test]
    fn a_script_that_fails_or_never_ends_or_prints_without_end_is_an_error() {
        let run = |text: &str, millis| {
            let patience = Duration::from_millis(millis);
            Script::new(text, "", None, patience).output().unwrap_err().to_string()
        };
        assert!(run("exit 3", 60_000).contains("failed"));
        assert!(run("exec sleep 1000", 50).contains("did not end"));
        assert!(run("echo secret; exec yes", 60_000).contains("script"));
        let debug = format!("{:?}", Script::new("secret", "secret", None, Duration::ZERO));
        assert!(!debug.contains("secret"), "{debug}");
    }

    #[test]
    fn what_a_script_has_started_is_killed_with_it() {
        let scratch = trial::Scratch::new("/tmp");
        let temp = scratch.path("script");
        let file = temp.display();
        // A child that the shell waits for, one that it has left behind, with its output and
        // without it.
        for text in [
            format!("sh -c 'echo $$ > {file}; exec sleep 1000'; true"),
            format!("sh -c 'echo $$ > {file}; exec sleep 1000' &"),
            format!("sh -c 'echo $$ > {file}; exec sleep 1000' >&- & exec >&-; wait"),
        ] {
            let _ = std::fs::remove_file(&temp);
            let script = Script::new(&text, "", None, Duration::from_secs(2));
            let error = script.output().unwrap_err().to_string();
            assert!(error.contains("did not end"), "{text}: {error}");
            let pid = std::fs::read_to_string(&temp).unwrap();
            let state = format!("/proc/{}/stat", pid.trim());
            // It may not have been waited for yet, by whatever is the parent of orphans.
            let runs = || std::fs::read_to_string(&state).is_ok_and(|stat| !stat.contains(") Z "));
            let begun = Instant::now();
            while runs() {
                assert!(begun.elapsed() < Duration::from_secs(60), "{text}: it still runs");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}
