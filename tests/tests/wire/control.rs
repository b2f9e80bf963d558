//! The control socket: bitmaps are started and stopped while a disk is served, and whoever abuses
//! the socket holds up nobody.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use blackbox::launch::{Serve, Server};
use blackbox::nbd::cmd;
use blackbox::peers::{diskferry, peer};
use blackbox::run::{ferry, json, program, run, text};
use blackbox::session::{Mode, Request};
use blackbox::temp::TempDir;
use blackbox::{GUARD, MIB, eventually, index};
use serde_json::Value;

const CONTEXT: &str = "qemu:dirty-bitmap:b";

fn start(temp: &TempDir, serve: Serve) -> (Server, PathBuf) {
    let place = temp.join("control");
    (serve.option("--control").option(&place).start(), place)
}

/// A command that succeeds.
fn ctl(place: &Path, words: &[&str]) -> Value {
    let done = ferry([&["ctl", "--json", text(place)], words].concat());
    json(done.succeeded())
}

/// What a bitmap says to a client that comes now, as `(len, value)`.
fn dirty(uri: &str, context: &str) -> Vec<(u64, u64)> {
    let map = json(ferry(["map", "--json", "--context", context, uri]).succeeded());
    let runs = map.as_array().unwrap().iter();
    runs.map(|run| (run["length"].as_u64().unwrap(), run["type"].as_u64().unwrap())).collect()
}

#[test]
fn a_bitmap_follows_the_writes_of_all_clients_from_when_it_was_added_until_it_is_removed() {
    let temp = TempDir::new();
    let serve = Serve::exports(&[("a", "memory:1M"), ("b", "memory:1M")]);
    let (server, place) = start(&temp, serve);
    assert_eq!(place.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let (uri, other) = (server.uri("a"), server.uri("b"));
    let mut session = server.session(Mode::Structured, "a");
    session.write(0, &[1; 4096]);
    ctl(&place, &["bitmap", "add", "b", "--granularity", "512"]);
    // The client was there before; it keeps what it negotiated, and its writes are recorded.
    assert_eq!(dirty(&uri, CONTEXT), [(MIB, 0)]);
    session.write(8192 + 100, &[1; 512]);
    assert_eq!(session.error_of(&Request::new(cmd::WRITE_ZEROES, 65_536, 512)), 0);
    assert_eq!(session.error_of(&Request::new(cmd::TRIM, MIB - 512, 512)), 0);
    let runs = [(8192, 0), (1024, 1), (56_320, 0), (512, 1), (MIB - 512 - 66_048, 0), (512, 1)];
    assert_eq!(dirty(&uri, CONTEXT), runs);
    assert!(ferry(["map", "--context", CONTEXT, &other]).failed().contains(CONTEXT));

    let list = ctl(&place, &["list"]);
    let export = &list["exports"][0];
    assert_eq!((&export["name"], &export["clients"]), (&"a".into(), &1.into()), "{list}");
    let bitmap = &export["bitmaps"][0];
    assert_eq!((&bitmap["dirty-bytes"], &bitmap["recording"]), (&2048.into(), &true.into()));
    let shown = ferry(["ctl", text(&place), "list"]);
    let line = "  bitmap \"b\": granularity 512, recording, 2048 bytes dirty\n";
    assert!(shown.succeeded().contains(line), "{}", shown.stdout);

    ctl(&place, &["bitmap", "disable", "b", "a"]);
    session.write(MIB / 2, &[1; 512]);
    assert_eq!(dirty(&uri, CONTEXT), runs);
    ctl(&place, &["bitmap", "clear", "b"]);
    session.write(0, &[1; 512]);
    assert_eq!(dirty(&uri, CONTEXT), [(MIB, 0)]);
    ctl(&place, &["bitmap", "enable", "b"]);
    session.write(0, &[1; 512]);
    assert_eq!(dirty(&uri, CONTEXT), [(512, 1), (MIB - 512, 0)]);
    ctl(&place, &["bitmap", "remove", "b"]);
    assert!(ferry(["map", "--context", CONTEXT, &uri]).failed().contains(CONTEXT));
    let again = ferry(["ctl", text(&place), "bitmap", "remove", "b"]);
    assert!(again.failed().contains("there is none of that name"), "{}", again.stderr);
    assert!(server.stop().success());
    assert!(!place.exists(), "the socket's name stays");
}

#[test]
fn bitmaps_and_the_bytes_of_every_kind_of_write_agree() {
    let temp = TempDir::new();
    // On a disk, and behind filters that write back later; long writes and short ones.
    let file = temp.sparse_file("disk", 8 << 20);
    for filter in [None, Some("--filter=cow"), Some("--filter=cache")] {
        let serve = filter.into_iter().fold(Serve::file(&file), Serve::option);
        let (server, place) = start(&temp, serve);
        ctl(&place, &["bitmap", "add", "b"]);
        let mut session = server.session(Mode::Extended, "");
        let mut expected = [0; 128];
        for (at, len) in [(5, 10), (1 << 20, 3 << 20), (7 << 20, 65_536), (6_500_000, 32 << 10)] {
            session.write(at, &vec![9; len]);
            let last = (at + len as u64 - 1) >> 16;
            (at >> 16..=last).for_each(|granule| expected[index(granule)] = 1);
        }
        let mut found = Vec::new();
        for (len, value) in dirty(&server.uri(""), CONTEXT) {
            found.extend(std::iter::repeat_n(value, index(len >> 16)));
        }
        assert_eq!(found, expected, "{filter:?}");
        session.flush();
        assert!(server.stop().success());
    }
}

#[test]
fn a_backup_that_follows_a_running_disk_is_the_disk() {
    let temp = TempDir::new();
    let (server, place) = start(&temp, Serve::memory("4M"));
    let (uri, backup) = (server.uri(""), temp.join("backup"));
    let mut session = server.session(Mode::Structured, "");
    session.write(0, &[1; 100_000]);
    ctl(&place, &["bitmap", "add", "b"]);
    ferry(["copy", &uri, text(&backup)]).succeeded();
    session.write(1 << 20, &[2; 70_000]);
    session.write(50, &[3; 5]);
    // What the bitmap says is copied into the full copy.
    let mut bytes = std::fs::read(&backup).unwrap();
    let mut at = 0;
    for (len, value) in dirty(&uri, CONTEXT) {
        if value == 1 {
            let new = session.read(at, len).unwrap();
            bytes[index(at)..][..new.len()].copy_from_slice(&new);
        }
        at += len;
    }
    std::fs::write(&backup, &bytes).unwrap();
    ferry(["compare", "-f", "raw", "-F", "raw", text(&backup), &uri]).succeeded();
}

/// Sends bytes; the reply, as far as one comes.
fn send(place: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(place).unwrap();
    stream.set_read_timeout(Some(GUARD)).unwrap();
    stream.set_write_timeout(Some(GUARD)).unwrap();
    // The server may have left before it has all.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8(reply).unwrap()
}

#[test]
fn garbage_and_endless_lines_are_answered_with_errors_and_nothing_changes() {
    let temp = TempDir::new();
    let (server, place) = start(&temp, Serve::memory("1M"));
    let wrong: [&[u8]; 11] = [
        b"\n",
        b"list\n",
        b"[]\n",
        b"{}\n",
        b"{\"command\":7}\n",
        b"\xff\xfe{\n",
        b"{\"command\":\"bitmap\",\"action\":\"add\"}\n",
        b"{\"command\":\"bitmap\",\"action\":\"add\",\"name\":\"\"}\n",
        b"{\"command\":\"bitmap\",\"action\":\"add\",\"name\":\"x\",\"granularity\":-1}\n",
        b"{\"command\":\"bitmap\",\"action\":\"add\",\"name\":\"x\",\"export\":\"no\"}\n",
        b"{\"command\":\"bitmap\",\"action\":\"add\",\"name\":\"x\",\"persistent\":true}\n",
    ];
    for bytes in wrong {
        let reply = json(&send(&place, bytes));
        assert!(reply["error"].is_string(), "{:?}: {reply}", String::from_utf8_lossy(bytes));
    }
    let deep = [&b"["[..]].concat().repeat(60_000);
    assert!(send(&place, &[&deep[..], b"\n"].concat()).contains("error"));
    // Without an end, and without a line.
    assert!(send(&place, &vec![b'x'; 10 << 20]).contains("more than 65536 bytes"));
    assert_eq!(send(&place, b"{\"command\":\"list\"}"), "");
    // Several in one piece are answered in their order.
    let two = send(&place, b"{\"command\":\"list\"}\nno\n");
    let lines: Vec<Value> = two.lines().map(json).collect();
    assert!(lines[0]["exports"][0]["bitmaps"].as_array().unwrap().is_empty(), "{two}");
    assert!(lines[1]["error"].is_string(), "{two}");
    server.session(Mode::Structured, "").write(0, &[1; 512]);
    assert!(server.stop().success());
}

#[test]
fn only_the_user_of_the_server_and_root_are_answered_and_a_server_that_is_not_there_may_come() {
    let temp = TempDir::new();
    let absent = ferry(["ctl", text(&temp.join("none")), "list"]);
    assert_eq!(absent.status.code(), Some(75), "{}", absent.stderr);
    if !rustix::process::geteuid().is_root() {
        return;
    }
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let serve = Serve::memory("1M").option("-u").option("nobody").option("-r");
    let (server, place) = start(&temp, serve);
    assert_eq!(ctl(&place, &["list"])["exports"][0]["read-only"], true);
    let added = ferry(["ctl", text(&place), "bitmap", "add", "b"]);
    assert!(added.failed().contains("the default export is read-only"), "{}", added.stderr);
    // Another user who may open the socket all the same is not answered.
    let Some(setpriv) = peer("setpriv") else { return };
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o777)).unwrap();
    let copy = temp.join("diskferry");
    std::fs::copy(diskferry(), &copy).unwrap();
    let mut other = program(&setpriv, ["--reuid=1", "--regid=1", "--clear-groups"]);
    let told = run(other.arg(&copy).args(["ctl", text(&place), "list"]));
    // Where users cannot be changed, setpriv says so.
    let is_refused = told.stderr.contains("only the user") || told.stderr.contains("setpriv:");
    assert!(is_refused, "{told:?}");
    assert!(server.stop().success());
}

#[test]
fn clients_that_never_read_or_send_hold_up_no_disk_and_leave_room_after_a_while() {
    let temp = TempDir::new();
    let (server, place) = start(&temp, Serve::memory("1M"));
    ctl(&place, &["bitmap", "add", "b"]);
    let mut held = Vec::new();
    for n in 0..40 {
        let mut stream = UnixStream::connect(&place).unwrap();
        stream.set_nonblocking(true).unwrap();
        // Every second one asks without end, and reads nothing.
        let asked = b"{\"command\":\"list\"}\n".repeat(1000);
        while n % 2 == 1 && stream.write(&asked).is_ok() {}
        held.push(stream);
    }
    let mut session = server.session(Mode::Structured, "");
    for n in 0..200 {
        session.write(n * 512, &[7; 512]);
    }
    assert_eq!(dirty(&server.uri(""), CONTEXT), [(2 << 16, 1), (MIB - (2 << 16), 0)]);
    // Those beyond the limit were told why, and left.
    let last = held.pop().unwrap();
    last.set_nonblocking(false).unwrap();
    last.set_read_timeout(Some(GUARD)).unwrap();
    let mut line = String::new();
    let _ = BufReader::new(last).read_line(&mut line);
    assert!(line.is_empty() || line.contains("connected already"), "{line}");
    eventually("there is room again", || {
        ferry(["ctl", text(&place), "list"]).status.success().then_some(())
    });
    drop(held);
    assert!(server.stop().success());
}

/// How many requests of an export have begun, after a moment in which more could have.
fn begun(place: &Path, export: &str) -> u64 {
    // Each takes longer than a connection that is held up waits to look again.
    (0..3).for_each(|_| _ = ctl(place, &["list"]));
    let told = ctl(place, &["clients"]);
    let clients = told["clients"].as_array().unwrap().iter();
    let of_it = clients.filter(|client| client["export"] == export);
    of_it.map(|client| client["requests"].as_u64().unwrap()).sum()
}

#[test]
fn a_paused_export_begins_nothing_until_it_goes_on_and_other_exports_go_on() {
    let temp = TempDir::new();
    let (server, place) = start(&temp, Serve::exports(&[("a", "memory:4M"), ("b", "memory:4M")]));
    let mut a = server.session(Mode::Extended, "a");
    let (mut long, mut b) =
        (server.session(Mode::Structured, "a"), server.session(Mode::Simple, "b"));
    a.write(0, &[1; 4096]);
    ctl(&place, &["bitmap", "add", "b", "a", "--granularity", "512"]);
    let paused = ctl(&place, &["pause", "a"]);
    assert_eq!((&paused["paused"], &paused["in-flight"]), (&true.into(), &0.into()), "{paused}");
    let short = a.send(&Request::write(4096, &[2; 512]));
    let read = a.send(&Request::new(cmd::READ, 0, 8192));
    // Its payload is longer than what a socket holds: the server takes no more of it.
    let writing = std::thread::spawn(move || {
        let write = long.send(&Request::write(0, &[3; 1 << 20]));
        (long.wait(write).error, long)
    });
    for n in 0..100 {
        b.write(n * 512, &[7; 512]);
    }
    assert_eq!((begun(&place, "a"), begun(&place, "b")), (1, 100));
    let list = ctl(&place, &["list"]);
    let export = &list["exports"][0];
    assert_eq!(export["paused"], true, "{list}");
    assert_eq!(export["bitmaps"][0]["dirty-bytes"], 0, "nothing was written: {list}");
    let shown = ferry(["ctl", text(&place), "list"]);
    assert!(shown.succeeded().contains("memory:4M, 4194304 bytes, paused, clients: 2"));
    ctl(&place, &["resume", "a"]);
    let (error, mut long) = writing.join().unwrap();
    assert_eq!((a.wait(short).error, error, a.wait(read).error), (0, 0, 0));
    assert_eq!(begun(&place, "a"), 4);
    assert_eq!(a.read(0, 8192).unwrap(), long.read(0, 8192).unwrap());
    assert_eq!(long.read((1 << 20) - 4096, 4096), Ok(vec![3; 4096]));

    // A stop waits for no pause.
    ctl(&place, &["pause", "a"]);
    a.send(&Request::write(4096, &[4; 512]));
    assert_eq!(begun(&place, "a"), 7);
    let unknown = ferry(["ctl", text(&place), "pause", "c"]);
    assert!(unknown.failed().contains("no export is named `c`"), "{unknown:?}");
    assert!(server.stop().success());
}

#[test]
fn an_export_with_a_rate_pays_for_what_it_did_before_it_goes_on() {
    let temp = TempDir::new();
    let (server, place) = start(&temp, Serve::memory("4M"));
    let mut session = server.session(Mode::Structured, "");
    let rate = ctl(&place, &["rate", "", "4K/s"]);
    assert_eq!(rate["rate"], 4096, "{rate}");
    // As much as there is begins at once, and is paid for later: four minutes.
    assert_eq!(session.read(0, MIB).unwrap().len(), index(MIB));
    let read = session.send(&Request::new(cmd::READ, 0, 512));
    assert_eq!(begun(&place, ""), 1);
    let list = ferry(["ctl", text(&place), "list"]);
    assert!(list.succeeded().contains(", at most 4 KiB/s, clients: 1"), "{}", list.stdout);
    ctl(&place, &["rate", "", "off"]);
    assert_eq!(session.wait(read).error, 0);
    for wrong in ["0", "fast", "-1", "18446744073709551616"] {
        let refused = ferry(["ctl", text(&place), "rate", "", wrong]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
    assert!(
        send(&place, b"{\"command\":\"rate\",\"name\":\"\",\"bytes\":0}\n").contains("from 1 on")
    );
    assert!(server.stop().success());
}
