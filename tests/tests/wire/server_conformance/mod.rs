//! What any client may send to our server, and what the server must do: the numbered server
//! checks of the protocol's conformance list.
//!
//! What bytes alone can show is in `blackbox::conformance`, and run here over sockets. Here is what
//! needs a clock, a disk, memory or several peers: tests `server_check_NN_what`. Of those on TLS
//! (39 to 45) what needs TLS itself is in `wire/tls`. Where the protocol leaves the server a
//! choice, the check either accepts every choice or names the one that we documented as ours.

mod durability;
mod files;
mod proxied;
mod robustness;

use blackbox::conformance::{Host, Running, Target, options, requests, run};
use blackbox::launch::{Serve, Server};
use blackbox::listed::{OF_BYTES, missing};
use blackbox::socket::Socket;
use blackbox::temp::TempDir;

#[test]
fn every_check_has_a_test() {
    let folders = ["tests/tests/wire/server_conformance", "tests/tests/wire/tls"];
    let folders = [&OF_BYTES[..], &folders].concat();
    let missing = missing("server", 1..=91, &folders);
    assert!(missing.is_empty(), "{missing:?}");
}

/// The program with a disk in memory, on a Unix socket.
struct Program;

/// The program with a sparse file.
struct OfFile;

struct Served(Server);

impl Target for Program {
    fn serve(&self, host: Host) -> Box<dyn Running> {
        let (size, beta) = (host.size.to_string(), format!("memory:{}", host.size * 2));
        let alpha = format!("memory:{size}");
        let serve = match host.named {
            true => Serve::exports(&[("alpha", &alpha), ("beta", &beta)]),
            false => Serve::memory(&size),
        };
        let serve = if host.read_only { serve.option("-r") } else { serve };
        Box::new(Served(serve.start()))
    }
}

impl Target for OfFile {
    fn serve(&self, host: Host) -> Box<dyn Running> {
        let temp = TempDir::new();
        let server = Serve::file(&temp.sparse_file("disk", host.size)).start();
        // The file is open: its name can go.
        Box::new(Served(server))
    }
}

impl Running for Served {
    fn connect(&self) -> Socket {
        self.0.connect()
    }

    fn peak_memory(&self) -> u64 {
        self.0.peak_memory()
    }
}

#[test]
fn options_are_answered_by_the_list() {
    run(&options::checks(), &Program);
}

#[test]
fn contexts_are_chosen_by_the_list() {
    run(&options::contexts(), &Program);
}

#[test]
fn requests_are_answered_by_the_list() {
    run(&requests::checks(), &Program);
}

#[test]
fn zeroes_trims_and_caches_are_done_by_the_list() {
    run(&requests::zeroing(), &Program);
}

#[test]
fn files_are_zeroed_and_trimmed_by_the_list() {
    let mut checks = requests::zeroing();
    checks.extend(requests::extents_of_disks());
    checks.retain(|check| ["68", "72", "83"].iter().any(|n| check.name.contains(n)));
    assert_eq!(checks.len(), 3);
    run(&checks, &OfFile);
}

#[test]
fn extents_are_told_by_the_list() {
    run(&requests::extents_of_disks(), &Program);
}

#[test]
fn extended_headers_are_kept_by_the_list() {
    run(&requests::extended(), &Program);
}
