//! What clients may have of a server, beyond memory: how many there may be of one address, how long
//! one may be silent, how often it may ask. And the help and documentation about it.

use std::thread;
use std::time::{Duration, Instant};

use blackbox::launch::Serve;
use blackbox::nbd::cmd;
use blackbox::run::{ours, run};
use blackbox::session::{Mode, Request};
use blackbox::temp::TempDir;
use blackbox::{on_time, wait_for};

#[test]
fn one_address_has_no_more_connections_than_it_may() {
    let server = Serve::memory("1M").option("--max-connections-per-address=2").start();
    let let_in = || server.session_with_room(Mode::Structured, "");
    let (mut one, two) = (let_in(), let_in());
    assert!(server.admits(Mode::Structured, "").is_none(), "the third is refused");
    one.assert_alive();
    two.disconnect();
    let_in().assert_alive();
}

#[test]
fn an_idle_client_is_closed_and_a_busy_one_is_not() {
    on_time(Duration::from_secs(1), || {
        let temp = TempDir::new();
        let log = temp.join("log");
        let server = Serve::memory("1M")
            .option("--idle-timeout=3")
            .option(format!("--log={}", log.display()))
            .start();
        let mut busy = server.session(Mode::Structured, "");
        let mut idle = server.session(Mode::Structured, "");
        idle.assert_alive();
        let begun = Instant::now();
        wait_for("the idle one is closed", || {
            busy.assert_alive();
            thread::sleep(Duration::from_millis(200));
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            said.contains("it was idle for too long")
        });
        assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
        busy.assert_alive();
    });
}

#[test]
fn a_client_that_waits_for_a_reply_is_not_idle() {
    let server = Serve::device(["--filter=delay", "memory", "1M", "rdelay=5"])
        .option("--idle-timeout=1")
        .start();
    let mut session = server.session(Mode::Structured, "");
    assert!(session.read(0, 4096).is_ok());
}

#[test]
fn a_client_that_asks_too_often_waits_and_loses_nothing_also_where_it_is_refused() {
    for command in [cmd::READ, 200] {
        let server = Serve::memory("1M").option("--max-requests=100").start();
        let (mut often, mut seldom) =
            (server.session(Mode::Structured, ""), server.session(Mode::Structured, ""));
        let begun = Instant::now();
        let cookies: Vec<u64> =
            (0..210).map(|i| often.send(&Request::new(command, i * 512, 512))).collect();
        seldom.assert_alive();
        for cookie in cookies {
            assert_eq!(often.wait(cookie).error != 0, command == 200);
        }
        // Ten at once, and the others at a hundred a second.
        assert!(begun.elapsed() >= Duration::from_millis(1900), "{:?}", begun.elapsed());
    }
}

#[test]
fn help_has_all_limits_of_the_documentation() {
    let help = run(&mut ours(["serve", "--help"]));
    let words: String = help.succeeded().split_whitespace().collect::<Vec<_>>().join(" ");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/limits.md");
    let page = std::fs::read_to_string(path).unwrap();
    let table = page.lines().skip_while(|line| !line.starts_with("| what | limit")).skip(2);
    let mut rows = 0;
    for row in table.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let option = cells[2].trim_matches('`');
        let what = if option.starts_with("--") { option } else { cells[1] };
        assert!(words.contains(what), "{row}");
        assert!(words.contains(cells[0]), "{row}");
        rows += 1;
    }
    assert!(rows > 15, "{rows}");
}
