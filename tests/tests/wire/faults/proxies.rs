//! Clients of our proxy, while its server's connections, or the server, are lost.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use blackbox::launch::{Serve, Server};
use blackbox::meddler::Meddler;
use blackbox::nbd::{cflag, cmd};
use blackbox::session::{Mode, Request};
use blackbox::temp::TempDir;
use blackbox::{MIB, wait_for};

use super::serve_at;

const SIZE: u64 = 16 * MIB;

fn proxy(meddler: &Meddler, params: &str) -> Server {
    Serve::exports(&[("", &format!("nbd:{}&{params}", meddler.uri("")))]).start()
}

/// Writes and reads, each client in a part of its own, until it is stopped; none may fail.
fn busy(server: &Server, part: u64, durable: bool, stop: &AtomicBool) -> u64 {
    let mut client = server.session(Mode::Structured, "");
    let begin = part * 2 * MIB;
    let mut rounds = 0u64;
    while !stop.load(SeqCst) {
        let at = begin + rounds % 64 * 16384;
        let fill = u8::try_from(rounds % 251).unwrap();
        let write = Request::write(at, &[fill; 16384]);
        let write = if durable { write.flags(cflag::FUA) } else { write };
        assert_eq!(client.error_of(&write), 0, "a write failed");
        assert_eq!(client.read(at, 16384).expect("a read failed"), [fill; 16384]);
        if !durable && rounds % 16 == 15 {
            assert_eq!(client.error_of(&Request::new(cmd::FLUSH, 0, 0)), 0, "a flush failed");
        }
        rounds += 1;
    }
    rounds
}

/// Ends those that are busy also when the test fails in between: the scope waits for them.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn killing_one_of_four_connections_again_and_again_costs_no_failed_request() {
    let temp = TempDir::new();
    let disk = temp.sparse_file("disk", SIZE);
    let upstream = Serve::file(&disk).start();
    let meddler = Meddler::honest(upstream.socket());
    let server = proxy(&meddler, "connections=4&reconnect-delay=30");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (server, stop) = (&server, &stop);
        let clients: Vec<_> =
            (0..4).map(|part| scope.spawn(move || busy(server, part, false, stop))).collect();
        let stopping = Stopping(stop);
        for round in 0..20 {
            // All four are there again.
            wait_for("it is connected again", || meddler.count() >= 4 + round);
            thread::sleep(Duration::from_millis(20));
            wait_for("there are four", || meddler.cut(round % 4));
        }
        drop(stopping);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
    });
}

#[test]
fn a_server_that_is_gone_for_five_seconds_costs_no_failed_request() {
    let temp = TempDir::new();
    let (disk, socket) = (temp.sparse_file("disk", SIZE), temp.join("s"));
    let first = serve_at(&socket, &disk);
    let params = format!("nbd:{}&connections=2&reconnect-delay=30", first.uri(""));
    let server = Serve::exports(&[("", &params)]).start();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (server, stop) = (&server, &stop);
        let clients: Vec<_> =
            (0..3).map(|part| scope.spawn(move || busy(server, part, true, stop))).collect();
        let stopping = Stopping(stop);
        let mut upstream = first;
        for away in [200, 5000] {
            thread::sleep(Duration::from_millis(300));
            upstream.kill();
            thread::sleep(Duration::from_millis(away));
            upstream = serve_at(&socket, &disk);
        }
        thread::sleep(Duration::from_millis(500));
        drop(stopping);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
        let mut last = server.session(Mode::Structured, "");
        last.assert_alive();
        last.flush();
        drop(last);
    });
}
