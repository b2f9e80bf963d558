//! Lines of the log for people, for the journal and for programs; and the line on a terminal.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use blackbox::launch::Serve;
use blackbox::peers::{diskferry, peer};
use blackbox::run::{Job, ours, pid_in, run};
use blackbox::session::{Mode, Request};
use blackbox::temp::TempDir;
use blackbox::{eventually, wait_for_lines};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

/// The log while a client has an error, the client ends, and the server ends.
fn said(temp: &TempDir, options: &[&str]) -> String {
    let log = temp.join("log");
    let mut serve = Serve::exports(&[("a \"disk\"", "memory:1M")]).option("-v");
    serve = serve.option("--filter=error?error=ENOSPC&error-pwrite-rate=100%");
    serve = serve.option(format!("--log={}", log.display()));
    for option in options {
        serve = serve.option(*option);
    }
    let server = serve.start();
    let mut client = server.session(Mode::Simple, "a \"disk\"");
    assert_ne!(client.error_of(&Request::write(0, &[1; 512])), 0);
    client.disconnect();
    wait_for_lines(&log, "ended", 1);
    assert!(server.stop().success());
    fs::read_to_string(&log).unwrap()
}

#[test]
fn every_line_is_an_object_with_time_level_peer_and_export() {
    let temp = TempDir::new();
    let text = said(&temp, &["--log-format=json"]);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 5, "{text}");
    for line in &lines {
        let keys: Vec<&String> = line.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["time", "level", "peer", "export", "message"]);
        let time = line["time"].as_str().unwrap();
        assert!(time.contains('T') && time.ends_with('Z'), "{time}");
    }
    let of = |words: &str| {
        let found = lines.iter().find(|line| line["message"].as_str().unwrap().contains(words));
        found.unwrap_or_else(|| panic!("no line with {words}: {text}"))
    };
    let error = of("ENOSPC");
    assert_eq!((&error["level"], &error["export"]), (&"error".into(), &"a \"disk\"".into()));
    assert!(error["peer"].as_str().unwrap().starts_with("pid="), "{error}");
    assert_eq!((&of("stopping")["peer"], &of("stopping")["export"]), (&Value::Null, &Value::Null));
}

#[test]
fn text_is_what_it_is_without_the_option() {
    let temp = TempDir::new();
    let text = said(&temp, &["--log-format=text"]);
    assert!(text.lines().any(|line| line.ends_with("info - -: stopping")), "{text}");
}

/// A command whose standard error is a file that the environment calls the journal.
fn with_journal(temp: &TempDir, command: &mut Command) -> std::process::ExitStatus {
    let file = File::create(temp.join("journal")).unwrap();
    let meta = file.metadata().unwrap();
    command.env("JOURNAL_STREAM", format!("{}:{}", meta.dev(), meta.ino()));
    command.stdin(Stdio::null()).stderr(file).status().unwrap()
}

#[test]
fn the_journal_gets_priorities_and_no_times() {
    let temp = TempDir::new();
    let mut serve = ours(["serve", "-v", "--filter=readahead", "memory", "1M", "--run", "true"]);
    assert!(with_journal(&temp, &mut serve).success());
    let text = fs::read_to_string(temp.join("journal")).unwrap();
    assert!(text.lines().any(|line| line.starts_with("<4>warning - -: readahead: ")), "{text}");
    assert!(text.lines().any(|line| line == "<6>info - -: stopping"), "{text}");
    assert!(text.lines().all(|line| line.starts_with('<')), "{text}");
    let mut serve = ours(["serve", "--log-format=json", "-v", "memory", "1M", "--run", "true"]);
    assert!(with_journal(&temp, &mut serve).success());
    let text = fs::read_to_string(temp.join("journal")).unwrap();
    for line in text.lines() {
        serde_json::from_str::<Value>(line.strip_prefix("<6>").unwrap()).unwrap();
    }
    // What keeps it from starting is an error.
    assert_eq!(with_journal(&temp, &mut ours(["serve", "/none/disk.raw"])).code(), Some(1));
    let text = fs::read_to_string(temp.join("journal")).unwrap();
    assert!(text.starts_with("<3>diskferry: "), "{text}");
}

#[test]
fn standard_error_that_is_not_the_journal_is_for_people() {
    let mut serve = ours(["serve", "-v", "memory", "1M", "--run", "true"]);
    let outcome = run(serve.env("JOURNAL_STREAM", "1:1"));
    outcome.succeeded();
    assert!(outcome.stderr.lines().all(|line| line.starts_with("diskferry: 20")), "{outcome:?}");
}

#[test]
fn a_terminal_shows_what_is_served_where() {
    let Some(script) = peer("script") else { return };
    let temp = TempDir::new();
    let disk = temp.sparse_file("disk.raw", 1 << 30);
    let (typed, pid) = (temp.join("typed"), temp.join("pid"));
    let line = format!(
        "{} serve -r -U {} -P {} {} --export 'b=memory:1536K'",
        diskferry().canonicalize().unwrap().display(),
        temp.join("s").display(),
        pid.display(),
        disk.display()
    );
    let mut command = Command::new(script);
    command.args(["-q", "-e", "-f", "-c", &line]).arg(&typed).stdin(Stdio::null());
    let job = Job::start(&mut command);
    let shown = eventually("the line", || {
        let text = fs::read_to_string(&typed).unwrap_or_default();
        text.contains("Ctrl-C ends").then_some(text)
    });
    let socket = temp.join("s").display().to_string();
    let first =
        format!("serving {} (1 GiB, read-only) at nbd+unix:///?socket={socket}", disk.display());
    assert!(shown.contains(&first), "{shown}");
    let last = format!(
        "serving memory:1536K (1.50 MiB, read-only) at nbd+unix:///b?socket={socket}; Ctrl-C ends"
    );
    assert!(shown.contains(&last), "{shown}");
    kill_process(pid_in(&pid), Signal::TERM).unwrap();
    job.wait().succeeded();
}

#[test]
fn nothing_is_shown_where_no_person_sees_it() {
    let outcome = run(&mut ours(["serve", "memory", "1M", "--run", "true"]));
    assert_eq!((outcome.succeeded(), outcome.stderr.as_str()), ("", ""));
}

#[test]
fn a_wrong_plugin_is_the_only_thing_that_is_reported() {
    // There is no sandbox then, which matters only if something is served.
    let temp = TempDir::new();
    let library = temp.file("nbdkit-text-plugin.so", b"no library");
    let outcome = run(ours(["serve"]).arg(&library).args(["--run", "true"]));
    assert!(outcome.failed().contains("nbdkit-text-plugin.so"), "{outcome:?}");
}
