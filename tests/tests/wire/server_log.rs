//! What a server logs for its operator: refusals and failures by default, clients that come and go
//! with -v, each with the client and the export, and no more than a person can read.

use std::fs;
use std::path::{Path, PathBuf};

use blackbox::launch::{Serve, Server};
use blackbox::line_with;
use blackbox::nbd::{cmd, err, go_data, opt};
use blackbox::session::{Mode, Request};
use blackbox::temp::TempDir;

/// A server, and where its log is.
fn logged(temp: &TempDir, serve: Serve) -> (Server, PathBuf) {
    let log = temp.join("log");
    (serve.option(format!("--log={}", log.display())).start(), log)
}

/// Waits for a line with these words: its level, and what follows the client's address.
fn line(log: &Path, words: &str) -> (String, String) {
    let line = line_with(log, words);
    // Date, time, level, client, the rest.
    let fields: Vec<&str> = line.splitn(5, ' ').collect();
    assert!(fields[0].len() == 10 && fields[1].len() == 15, "{line}");
    assert!(fields[3].starts_with("pid=") && fields[3].contains(",uid="), "{line}");
    (fields[2].to_owned(), fields[4].to_owned())
}

#[test]
fn a_request_that_fails_is_logged_with_its_export_and_not_too_often() {
    let temp = TempDir::new();
    let serve = Serve::exports(&[("a disk", "memory:1M")])
        .option("--filter=error?error=ENOSPC&error-pwrite-rate=100%");
    let (server, log) = logged(&temp, serve);
    let mut client = server.session(Mode::Simple, "a disk");
    for _ in 0..50 {
        assert_eq!(client.error_of(&Request::write(4096, &[1; 512])), err::ENOSPC);
    }
    client.send(&Request::new(cmd::DISC, 0, 0));
    drop(client);
    let (level, text) = line(&log, "50 requests have failed in all");
    assert_eq!(
        (level.as_str(), text.as_str()),
        ("error", "\"a disk\": 50 requests have failed in all")
    );
    let (level, text) = line(&log, "Write 512 bytes at 4096");
    assert_eq!(level, "error");
    assert!(text.starts_with("\"a disk\": ") && text.contains("ENOSPC"), "{text}");
    let lines = fs::read_to_string(&log).unwrap().lines().count();
    // A few at a time, and then as time goes by.
    assert!(lines < 50, "{lines}");
}

#[test]
fn a_refused_client_is_logged() {
    let temp = TempDir::new();
    let serve = Serve::memory("1M").option("--filter=limit?limit=1").option("--max-connections=3");
    let (server, log) = logged(&temp, serve);
    let _first = server.session(Mode::Simple, "");
    let mut second = server.haggle();
    assert!(second.outcome(opt::GO, &go_data(b"nobody", &[])) > 1);
    assert_eq!(line(&log, "there is no export").1, "-: there is no export \"nobody\"");
    assert!(second.outcome(opt::GO, &go_data(b"", &[])) > 1);
    assert_eq!(line(&log, "refused:").0, "warning");
    // One more than there may be, or two: the one that saw that the server listens may be open
    // still.
    let _more = [server.connect(), server.connect()];
    assert!(line(&log, "refused: 3").1.contains("3 connections are open"));
}

#[test]
fn a_handshake_without_end_is_logged() {
    let temp = TempDir::new();
    let (server, log) = logged(&temp, Serve::memory("1M").option("--handshake-timeout=1"));
    server.connect().drain();
    assert!(line(&log, "takes too long").1.contains("the handshake"));
}

#[test]
fn connects_and_disconnects_are_logged_only_when_asked_for() {
    for verbose in [false, true] {
        let temp = TempDir::new();
        let mut serve = Serve::exports(&[("disk", "memory:1M")]);
        if verbose {
            serve = serve.option("-v");
        }
        let (server, log) = logged(&temp, serve);
        server.session(Mode::Simple, "disk").disconnect();
        if verbose {
            assert_eq!(line(&log, "disconnected").1, "\"disk\": ended: the client disconnected");
            let mut client = server.session(Mode::Structured, "disk");
            client.write(0, &[7; 4096]);
            assert_eq!(client.error_of(&Request::new(cmd::READ, 0, 8192)), 0);
            assert_ne!(client.error_of(&Request::new(cmd::READ, 2 << 20, 512)), 0);
            client.disconnect();
            let last = line(&log, "3 requests in ").1;
            assert!(last.ends_with(" s, 8 KiB read, 4 KiB written, 1 errors"), "{last}");
            assert_eq!(line(&log, "opened"), ("info".into(), "\"disk\": opened".into()));
            assert_eq!(line(&log, "connected").1, "-: connected");
        }
        assert!(server.stop().success());
        assert_eq!(fs::read_to_string(&log).unwrap().is_empty(), !verbose);
    }
}
