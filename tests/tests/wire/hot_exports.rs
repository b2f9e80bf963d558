//! Exports that come and go at the control socket: nobody is disconnected who was not to be, no
//! byte is wrong, and a disk that went is closed with all that was written to it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use blackbox::launch::{Serve, Server};
use blackbox::nbd::cmd;
use blackbox::peers::{diskferry, peer};
use blackbox::run::{Outcome, ferry, json, program, run, text};
use blackbox::session::{Mode, Request};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index, wait_for};
use serde_json::Value;

/// Changes of the long form.
const ROUNDS: &str = "HOT_ROUNDS";

fn start(temp: &TempDir, serve: Serve) -> (Server, PathBuf) {
    let place = temp.join("control");
    (serve.option("--control").option(&place).start(), place)
}

fn try_ctl(place: &Path, words: &[&str]) -> Outcome {
    ferry([&["ctl", "--json", text(place)], words].concat())
}

fn ctl(place: &Path, words: &[&str]) -> Value {
    json(try_ctl(place, words).succeeded())
}

fn refused(place: &Path, words: &[&str]) -> String {
    try_ctl(place, words).failed().to_owned()
}

/// The exports by name, with their disks.
fn listed(place: &Path) -> Vec<(String, String)> {
    let list = ctl(place, &["list"]);
    let word = |export: &Value, key: &str| export[key].as_str().unwrap().to_owned();
    let exports = list["exports"].as_array().unwrap().iter();
    exports.map(|export| (word(export, "name"), word(export, "disk"))).collect()
}

#[test]
fn clients_read_and_write_what_they_have_while_exports_come_and_go() {
    let rounds = std::env::var(ROUNDS).ok().and_then(|n| n.parse().ok()).unwrap_or(20u64);
    let temp = TempDir::new();
    let (server, place) = start(&temp, Serve::exports(&[("stays", "memory:1M")]));
    let (is_over, requests) = (AtomicBool::new(false), AtomicU64::new(0));
    // Each has a block of its own, whose bytes say when they were written.
    let verify = |export: &str, block: u64| {
        server.session(Mode::Structured, export).verify(block, &is_over, &requests);
    };
    let disks = [temp.sparse_file("a", MIB), temp.sparse_file("b", MIB)];
    std::thread::scope(|scope| {
        for block in 0..2 {
            scope.spawn(move || verify("stays", block));
        }
        ctl(&place, &["add", "first", text(&disks[0])]);
        // It keeps a disk that is gone for all others.
        scope.spawn(|| verify("first", 5));
        wait_for("it is served", || {
            ctl(&place, &["clients"])["clients"].as_array().unwrap().len() == 3
        });
        assert_eq!(ctl(&place, &["remove", "first"])["clients"], 1);
        for round in 0..rounds {
            let before = requests.load(SeqCst);
            let name = format!("hot {round}");
            ctl(&place, &["add", &name, text(&disks[1])]);
            let mut session = server.session(Mode::Structured, &name);
            session.write(0, &pattern(round * 512, 512));
            // Another disk under this name, for those that come now.
            ctl(&place, &["replace", &name, "memory:2M"]);
            assert_eq!(server.session(Mode::Structured, &name).export.size, 2 * MIB);
            assert_eq!(session.read(0, 512).unwrap(), pattern(round * 512, 512));
            assert_eq!(ctl(&place, &["remove", &name, "--now"])["export"], name.as_str());
            // It goes as a client goes, and its disk is free for the next round.
            session.flush();
            drop(session);
            wait_for("the disk is closed", || {
                try_ctl(&place, &["add", &name, text(&disks[1])]).status.success()
            });
            ctl(&place, &["remove", &name]);
            assert_eq!(std::fs::read(&disks[1]).unwrap()[..512], pattern(round * 512, 512));
            wait_for("the others go on", || requests.load(SeqCst) > before + 10);
        }
        is_over.store(true, SeqCst);
    });
    assert_eq!(listed(&place), [("stays".to_owned(), "memory:1M".to_owned())]);
    assert!(server.stop().success());
}

#[test]
fn a_disk_that_is_removed_is_closed_with_what_its_filters_held() {
    let temp = TempDir::new();
    // The sandbox knows of no file for a cache that was not there at the start.
    let (server, place) = start(&temp, Serve::memory("1M").option("--sandbox=off"));
    let disk = temp.sparse_file("disk", 8 * MIB);
    let bytes = pattern(7, index(MIB));
    for words in [["remove", "held"], ["replace", "held"]] {
        ctl(&place, &["add", "held", text(&disk), "--filter=cache"]);
        let mut session = server.session(Mode::Structured, "held");
        session.write(3 * MIB, &bytes);
        // It is in the cache only.
        assert!(std::fs::read(&disk).unwrap().iter().all(|byte| *byte == 0));
        let other = (words[0] == "replace").then_some("memory:1M");
        let words: Vec<_> = words.into_iter().chain(other).chain(["--now"]).collect();
        assert_eq!(ctl(&place, &words)["clients"], 1);
        // The client was sent away; it finds the end, or another disk.
        wait_for("the bytes are there", || {
            std::fs::read(&disk).unwrap()[index(3 * MIB)..][..bytes.len()] == bytes[..]
        });
        drop(session);
        if other.is_some() {
            ctl(&place, &["remove", "held"]);
        }
        std::fs::write(&disk, vec![0; index(8 * MIB)]).unwrap();
    }
    assert!(server.stop().success());
}

#[test]
fn a_client_that_is_sent_away_gets_its_replies_and_the_others_stay() {
    let temp = TempDir::new();
    let (server, place) = start(&temp, Serve::memory("1M"));
    let mut sessions = [0, 1].map(|_| server.session(Mode::Structured, ""));
    for (n, session) in (1..).zip(&mut sessions) {
        session.write(0, &pattern(n, 4096));
    }
    let clients = ctl(&place, &["clients"]);
    let clients = clients["clients"].as_array().unwrap();
    assert_eq!(clients.len(), 2);
    assert!(
        clients.iter().all(|client| client["requests"] == 1 && client["bytes-written"] == 4096)
    );
    let first = clients[0]["client"].as_u64().unwrap().to_string();
    // What it has sent before is answered.
    let [one, other] = &mut sessions;
    let cookies: Vec<_> =
        (0..20).map(|n| one.send(&Request::new(cmd::READ, n * 4096, 4096))).collect();
    for cookie in cookies {
        assert_eq!(one.wait(cookie).error, 0);
    }
    ctl(&place, &["kick", &first]);
    let gone = || ctl(&place, &["clients"])["clients"].as_array().unwrap().len() == 1;
    one.socket.assert_closed();
    wait_for("it has gone", gone);
    other.write(0, &[1; 512]);
    assert_eq!(other.read(0, 512).unwrap(), [1; 512]);
    assert!(refused(&place, &["kick", &first]).contains("no client has the number"));
    assert!(server.stop().success());
}

#[test]
fn a_look_shows_what_was_done_since_the_last_one_also_on_a_terminal() {
    let temp = TempDir::new();
    let (server, place) = start(&temp, Serve::exports(&[("a", "memory:1M"), ("b", "memory:1M")]));
    let mut session = server.session(Mode::Structured, "b");
    // Before the first look.
    session.write(0, &[1; 512]);
    std::thread::scope(|scope| {
        let words = ["top", "--json", "-n", "1", "-d", "1", text(&place)];
        let looks = scope.spawn(move || ferry(words));
        let looked = || ctl(&place, &["clients"])["clients"].as_array().unwrap().len() == 1;
        wait_for("the server answers", looked);
        // In the second that is shown, or before it.
        for n in 0..2000 {
            session.write(n % 256 * 4096, &pattern(n, 4096));
        }
        let done = json(looks.join().unwrap().succeeded());
        let exports = done["exports"].as_array().unwrap();
        assert_eq!((exports.len(), &exports[0]["name"]), (1, &"b".into()), "{done}");
        let written = exports[0]["bytes-written"].as_u64().unwrap();
        assert!(written <= 2000 * 4096 && written.is_multiple_of(512), "{done}");
    });
    // A reader that has had enough ends it.
    let look = format!("{} top -d 0.1 {} | head -1", diskferry().display(), text(&place));
    run(&mut program(&"/bin/sh".into(), ["-c", &look])).succeeded();
    let Some(script) = peer("script") else { return };
    let look =
        format!("stty cols 80 rows 10; {} top -d 0.1 -n 2 {}", diskferry().display(), text(&place));
    let shown = run(&mut program(&script, ["-qec", &look, "/dev/null"]));
    let drawn: Vec<_> = shown.succeeded().split("\u{1b}[H").collect();
    // Cleared once, and drawn twice.
    assert_eq!(drawn.len(), 4, "{drawn:?}");
    for picture in &drawn[2..] {
        assert!(picture.contains("EXPORT") && picture.contains("\nb "), "{picture:?}");
        assert!(picture.lines().all(|line| line.replace("\u{1b}[K", "").chars().count() <= 81));
    }
    assert!(server.stop().success());
}

#[test]
fn what_cannot_be_added_changes_nothing() {
    let temp = TempDir::new();
    let (server, place) = start(&temp, Serve::exports(&[("a", "memory:1M")]));
    let before = listed(&place);
    let raw = temp.file("raw", &pattern(0, 65_536));
    let raw = text(&raw);
    for (words, why) in [
        (&["add", "a", "memory:1M"][..], "there is an export of that name"),
        (&["replace", "b", raw], "no export is named `b`"),
        (&["remove", "b"], "no export is named `b`"),
        (&["add", "b", "/nonexistent"], "No such file"),
        (&["add", "b", "/"], "directory"),
        (&["add", "b", raw, "--format=qcow2"], "qcow2"),
        (&["add", "b", raw, "--format=nonsense"], "nonsense"),
        (&["add", "b", raw, "--filter=nonsense"], "nonsense"),
        (&["add", "b", raw, "--allow=nonsense"], "nonsense"),
        // No name that the sandbox did not know at the start, by whatever way.
        (&["add", "b", "nbd+unix:///?socket=/nonexistent"], "nonexistent"),
        (&["kick", "x"], "clients have numbers"),
        (&["list", "--now"], "--now belongs to"),
        (&["list", "--format=raw"], "belong to `add`"),
    ] {
        let said = refused(&place, words);
        assert!(said.contains(why) && said.trim_end().lines().count() == 1, "{words:?}: {said}");
        assert_eq!(listed(&place), before, "{words:?}");
    }
    // A file of which the server has the name in its request alone is not opened.
    use std::io::{BufRead, Write};
    let mut socket = std::os::unix::net::UnixStream::connect(&place).unwrap();
    writeln!(socket, r#"{{"command":"add","name":"b","disk":"{raw}"}}"#).unwrap();
    let mut reply = String::new();
    std::io::BufReader::new(socket).read_line(&mut reply).unwrap();
    assert!(reply.contains("error") && reply.contains("denied"), "{reply}");
    assert_eq!(listed(&place), before);
    assert!(server.stop().success());
}
