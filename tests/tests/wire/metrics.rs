//! Metrics: their values, in a form that OpenMetrics allows, and readers of all kinds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use blackbox::launch::{Serve, Server};
use blackbox::nbd::cmd;
use blackbox::session::{Mode, Request};
use blackbox::temp::TempDir;
use blackbox::{GUARD, eventually, wait_for, wait_for_lines};
use rustix::process::Signal;

/// A server with metrics, and their address.
fn start(temp: &TempDir, serve: Serve) -> (Server, PathBuf) {
    let place = temp.join("metrics");
    let server = serve.option(format!("--metrics={}", place.display())).start();
    (server, place)
}

/// Asks for a path; the whole answer.
fn ask(place: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(place).unwrap();
    stream.set_read_timeout(Some(GUARD)).unwrap();
    // One that is refused may be so before it has asked.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// The metrics, when a reader has its turn.
fn scrape(place: &Path) -> Metrics {
    let answer = eventually("a reader gets an answer", || {
        let answer = ask(place, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        answer.contains("\r\n\r\n").then_some(answer)
    });
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.to_lowercase().contains("openmetrics-text; version=1.0.0"), "{head}");
    Metrics::parse(body)
}

const KINDS: [&str; 3] = ["gauge", "counter", "histogram"];

/// A text whose form has been checked: its samples, and its families.
struct Metrics(BTreeMap<String, f64>, BTreeSet<String>);

impl Metrics {
    fn parse(text: &str) -> Self {
        let lines: Vec<&str> =
            text.strip_suffix("# EOF\n").expect("it ends with EOF").lines().collect();
        let (mut families, mut samples) = (BTreeSet::new(), BTreeMap::new());
        let mut now: Option<(String, String)> = None;
        for line in lines {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(is_name(name) && KINDS.contains(&kind), "{line}");
                assert!(families.insert(name.to_owned()), "twice: {line}");
                now = Some((name.to_owned(), kind.to_owned()));
                continue;
            }
            let (family, kind) = now.as_ref().expect("a family comes first");
            if let Some(rest) = line.strip_prefix("# HELP ") {
                assert_eq!(rest.split(' ').next(), Some(family.as_str()));
                continue;
            }
            let (name, labels, value) = sample(line);
            let suffix = name.strip_prefix(family.as_str()).unwrap_or_else(|| panic!("{line}"));
            let allowed: &[&str] = match kind.as_str() {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_count", "_sum"],
                _ => &[""],
            };
            assert!(allowed.contains(&suffix), "{line}");
            assert_eq!(suffix == "_bucket", labels.contains_key("le"));
            let key = format!("{name}{labels:?}");
            assert!(samples.insert(key, value).is_none(), "twice: {line}");
        }
        Self(samples, families)
    }

    /// The sum of all samples of this name with these labels among theirs.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |key: &str| {
            key.split('{').next() == Some(name)
                && labels.iter().all(|(label, text)| key.contains(&format!("{label:?}: {text:?}")))
        };
        self.0.iter().filter(|(key, _)| fits(key)).map(|(_, value)| value).sum()
    }
}

fn is_name(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit())
        && name.starts_with(|c: char| c.is_ascii_lowercase())
}

/// `name{label="text",...} value`
fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}"));
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        let mut chars = inner.chars();
        loop {
            let label: String = chars.by_ref().take_while(|c| *c != '=').collect();
            assert!(is_name(&label), "{line}");
            assert_eq!(chars.next(), Some('"'), "{line}");
            let mut text = String::new();
            loop {
                match chars.next().unwrap_or_else(|| panic!("{line}")) {
                    '"' => break,
                    '\\' => text.push(match chars.next() {
                        Some('n') => '\n',
                        Some(c @ ('"' | '\\')) => c,
                        other => panic!("{other:?} in {line}"),
                    }),
                    c => text.push(c),
                }
            }
            assert!(labels.insert(label, text).is_none(), "{line}");
            match chars.next() {
                Some(',') => {}
                Some('}') => break,
                other => panic!("{other:?} in {line}"),
            }
        }
        rest = chars.as_str();
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    (name.to_owned(), labels, value.parse().unwrap_or_else(|_| panic!("{line}")))
}

#[test]
fn what_clients_did_is_counted_by_export_and_command() {
    let temp = TempDir::new();
    let exports = Serve::exports(&[("one", "memory:1M"), ("a \"b\\\nc", "memory:2M")]);
    let (server, place) = start(&temp, exports);
    // The client that saw that the server was ready has gone.
    eventually("no client is there", || {
        (scrape(&place).sum("diskferry_connections", &[]) < 0.5).then_some(())
    });
    let mut one = server.session(Mode::Structured, "one");
    let mut odd = server.session(Mode::Structured, "a \"b\\\nc");
    for i in 0..100 {
        one.read(i * 512, 512).unwrap();
    }
    odd.write(0, &[7; 65_536]);
    odd.flush();
    assert!(one.error_of(&Request::new(cmd::READ, 2 << 20, 512)) != 0);
    let metrics = scrape(&place);
    let is = |name: &str, labels: &[(&str, &str)], wanted: f64| {
        let sum = metrics.sum(name, labels);
        assert!((sum - wanted).abs() < 0.5, "{name} {labels:?}: {sum}, not {wanted}");
    };
    is("diskferry_connections", &[], 2.0);
    let reads = [("export", "one"), ("command", "read")];
    is("diskferry_requests_total", &reads, 100.0);
    is("diskferry_request_bytes_total", &reads, 51_200.0);
    is("diskferry_request_seconds_count", &reads, 100.0);
    assert!(metrics.sum("diskferry_request_seconds_sum", &reads) > 0.0);
    let all = [reads[0], reads[1], ("le", "+Inf")];
    is("diskferry_request_seconds_bucket", &all, 100.0);
    let writes = [("export", "a \"b\\\nc"), ("command", "write")];
    is("diskferry_requests_total", &writes, 1.0);
    is("diskferry_request_bytes_total", &writes, 65_536.0);
    is("diskferry_requests_total", &[writes[0], ("command", "flush")], 1.0);
    is("diskferry_errors_total", &[("export", "one"), ("error", "EINVAL")], 1.0);
    is("diskferry_requests_in_flight", &[], 0.0);
    is("diskferry_limit", &[("option", "max-connections")], 1000.0);
    assert!(metrics.sum("diskferry_memory_limit_bytes", &[]) > 1e6);
    is("diskferry_queue_length", &[], 0.0);
}

#[test]
fn replies_in_the_turn_of_a_disconnect_are_counted_for_their_own_export() {
    let temp = TempDir::new();
    let exports = Serve::exports(&[("one", "memory:1M"), ("two", "memory:1M")]);
    let (server, place) = start(&temp, exports);
    for _ in 0..20 {
        let mut leaving = server.session(Mode::Simple, "one");
        let read = Request::new(cmd::READ, 0, 512);
        let bytes = [leaving.bytes(&read, 1), leaving.bytes(&Request::new(2, 0, 0), 2)].concat();
        leaving.socket.send(&bytes);
        assert_eq!(leaving.socket.drain().len(), 16 + 512);
        server.session(Mode::Simple, "two").assert_alive();
    }
    // The default export has a name, too.
    server.session(Mode::Simple, "").assert_alive();
    let metrics = scrape(&place);
    for (export, wanted) in [("one", 21.0), ("two", 20.0), ("", 0.0)] {
        let of = [("export", export), ("command", "read")];
        let answered = metrics.sum("diskferry_request_seconds_count", &of);
        assert!((answered - wanted).abs() < 0.5, "{export}: {answered}, not {wanted}");
    }
}

#[test]
fn the_rules_and_the_dashboard_ask_for_metrics_that_there_are() {
    let temp = TempDir::new();
    let (_server, place) = start(&temp, Serve::memory("1M"));
    let Metrics(_, families) = scrape(&place);
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/monitoring");
    for file in ["rules.yml", "dashboard.json"] {
        let text = std::fs::read_to_string(examples.join(file)).unwrap();
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let names: BTreeSet<_> = words
            .filter(|word| word.starts_with("diskferry_") || word.starts_with("process_"))
            .collect();
        assert!(names.len() > 4, "{file}: {names:?}");
        for name in names {
            let is_of = |suffix| name.strip_suffix(suffix).is_some_and(|it| families.contains(it));
            let is_there = ["", "_total", "_bucket"].into_iter().any(is_of);
            assert!(is_there, "{file}: {name}");
        }
    }
}

#[test]
fn requests_that_wait_count_as_in_flight() {
    let temp = TempDir::new();
    let slow = Serve::device(["--filter=delay", "memory", "1M", "rdelay=3"]);
    let (server, place) = start(&temp, slow);
    let mut session = server.session(Mode::Structured, "");
    let cookies: Vec<u64> =
        (0..3).map(|i| session.send(&Request::new(cmd::READ, i * 512, 512))).collect();
    wait_for("they are seen", || {
        scrape(&place).sum("diskferry_requests_in_flight", &[("command", "read")]) > 2.5
    });
    for cookie in cookies {
        session.wait(cookie);
    }
    let metrics = scrape(&place);
    assert!(metrics.sum("diskferry_requests_in_flight", &[]) < 0.5);
    let within = |bound| metrics.sum("diskferry_request_seconds_bucket", &[("le", bound)]);
    assert!(within("1.073741824") < 0.5 && within("+Inf") > 2.5);
}

#[test]
fn refused_and_closed_clients_are_counted_with_the_reason() {
    let temp = TempDir::new();
    let (server, place) = start(&temp, Serve::memory("1M").option("--handshake-timeout=1"));
    let mut silent = UnixStream::connect(server.socket()).unwrap();
    let mut rest = Vec::new();
    silent.read_to_end(&mut rest).unwrap();
    let metrics = scrape(&place);
    let closed = metrics.sum("diskferry_connections_closed_total", &[("reason", "handshake")]);
    assert!((closed - 1.0).abs() < 0.5, "{closed}");
}

#[test]
fn readers_that_misbehave_harm_neither_clients_nor_other_readers() {
    let temp = TempDir::new();
    let (server, place) = start(&temp, Serve::memory("1M"));
    let mut session = server.session(Mode::Structured, "");
    for garbage in
        ["\0\0\0\0garbage\r\n\r\n", "GET", "GET / HTTP/9\r\n\r\n", &"x".repeat(100_000), ""]
    {
        let mut stream = UnixStream::connect(&place).unwrap();
        // It may have gone before all is sent.
        let _ = stream.write_all(garbage.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{garbage:.20}");
        session.assert_alive();
    }
    let head = "Host: x\r\n\r\n";
    for (request, status) in [
        (format!("GET /etc/passwd HTTP/1.1\r\n{head}"), "404"),
        (format!("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n{head}"), "404"),
    ] {
        assert!(ask(&place, &request).starts_with(&format!("HTTP/1.1 {status}")), "{request}");
    }
    // Many silent ones, and many that ask and never read.
    let crowd: Vec<UnixStream> = (0..50)
        .map(|i| {
            let mut stream = UnixStream::connect(&place).unwrap();
            if i % 2 == 0 {
                let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
            }
            stream
        })
        .collect();
    session.assert_alive();
    // The accepted ones have five seconds.
    scrape(&place);
    drop(crowd);
    assert!(session.read(0, 4096).is_ok());
    assert!(server.anonymous_memory() < 64 << 20);
}

#[test]
fn sigusr1_says_what_goes_on() {
    let temp = TempDir::new();
    let log = temp.join("log");
    let mut server = Serve::memory("1M")
        .option("--max-requests=1000")
        .option(format!("--log={}", log.display()))
        .start();
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let mut session = server.session(Mode::Structured, "");
    session.read(0, 4096).unwrap();
    server.signal(Signal::USR1);
    wait_for_lines(&log, "read: 1 requests, 4096 bytes", 1);
    let log = said();
    assert!(log.contains("1 clients") && log.contains("--max-requests: 1000"), "{log}");
}

#[test]
fn the_socket_goes_with_the_server() {
    let temp = TempDir::new();
    let (mut server, place) = start(&temp, Serve::memory("1M"));
    assert!(place.exists());
    server.signal(Signal::TERM);
    server.wait();
    assert!(!place.exists());
}
