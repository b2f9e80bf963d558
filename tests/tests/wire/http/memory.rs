//! What is held in memory has a bound, however much is read and however many read it.

use std::fs;
use std::thread;
use std::time::Duration;

use blackbox::MIB;
use blackbox::launch::Serve;
use blackbox::nbd::cmd;
use blackbox::run::{Job, Outcome, ours};
use blackbox::session::{Mode, Request};
use blackbox::temp::pattern;

use super::nginx::Nginx;

/// What a copy or a server takes at most, all in all.
const MOST: u64 = 96 * MIB;
/// Runs a program to its end, and gives the most anonymous memory that it was seen with.
fn watched(words: &[&str]) -> (Outcome, u64) {
    let job = Job::start(&mut ours(words));
    let status = format!("/proc/{}/status", job.pid().as_raw_nonzero());
    let watch = thread::spawn(move || {
        let mut most = 0;
        loop {
            let text = fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
            let Some(line) = line else { return most };
            let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
            most = most.max(kib * 1024);
            thread::sleep(Duration::from_millis(2));
        }
    });
    let outcome = job.wait();
    (outcome, watch.join().unwrap())
}

#[test]
fn a_copy_holds_a_window_and_little_more() {
    let Some(nginx) = Nginx::start("") else { return };
    nginx.file("disk", &pattern(0, 400_000_000));
    let target = nginx.temp().join("copy");
    let (outcome, most) = watched(&["copy", &nginx.url("/disk"), target.to_str().unwrap()]);
    outcome.succeeded();
    println!("RssAnon: {} KiB", most / 1024);
    assert!(most > MIB && most < MOST, "{most}");
}

#[test]
fn a_server_holds_a_window_for_all_its_clients_together() {
    let Some(nginx) = Nginx::start("") else { return };
    nginx.file("disk", &pattern(0, 300_000_000));
    let server = Serve::device(["http", &format!("url={}", nginx.url("/disk"))]).start();
    let mut most = 0;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..6u64)
            .map(|client| {
                let server = &server;
                scope.spawn(move || {
                    let mut session = server.session(Mode::Structured, "");
                    // Each in order, in a part of its own, with four long reads in flight.
                    let mut waiting = std::collections::VecDeque::new();
                    for i in 0..45 {
                        let offset = client * 48_000_000 + i * MIB;
                        waiting.push_back(session.send(&Request::new(cmd::READ, offset, MIB)));
                        if waiting.len() == 4 {
                            session.wait(waiting.pop_front().unwrap());
                        }
                    }
                    for cookie in waiting {
                        session.wait(cookie);
                    }
                    session.disconnect();
                })
            })
            .collect();
        while clients.iter().any(|client| !client.is_finished()) {
            most = most.max(server.anonymous_memory());
            thread::sleep(Duration::from_millis(2));
        }
    });
    println!("RssAnon: {} KiB", most / 1024);
    assert!(most > MIB && most < MOST, "{most}");
}
