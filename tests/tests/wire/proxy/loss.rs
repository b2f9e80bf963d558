//! The other server goes away: errors instead of silence, and no other client is harmed.

use std::ffi::OsString;
use std::fs;

use blackbox::launch::{Serve, Server};
use blackbox::nbd::{cmd, err};
use blackbox::peers::peer;
use blackbox::session::{Mode, Request};
use blackbox::temp::TempDir;

use super::in_front_of;

const LOST: [u32; 2] = [err::EIO, err::ESHUTDOWN];

#[test]
fn a_killed_server_is_an_error_for_what_waits_and_what_comes_and_other_exports_go_on() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    let upstream = Server::nbdkit(&nbdkit, &["--filter=delay", "memory", "1M", "delay-read=600"]);
    let uri = upstream.uri("");
    let server = Serve::exports(&[("far", &uri), ("near", "memory:1M")]).start();
    let mut far = server.session(Mode::Structured, "far");
    let mut near = server.session(Mode::Structured, "near");
    near.write(0, b"near");
    let waiting: Vec<u64> =
        (0..8).map(|n| far.send(&Request::new(cmd::READ, n * 4096, 4096))).collect();
    // They are on their way when a request behind them has been answered.
    far.write(0, &[1; 512]);
    upstream.kill();
    for cookie in waiting {
        let error = far.wait(cookie).error;
        assert!(LOST.contains(&error), "error {error}");
    }
    for request in [
        Request::new(cmd::READ, 0, 512),
        Request::write(0, &[1; 512]),
        Request::new(cmd::FLUSH, 0, 0),
        Request::new(cmd::WRITE_ZEROES, 0, 512),
        Request::new(cmd::TRIM, 0, 512),
        Request::new(cmd::CACHE, 0, 512),
        Request::new(cmd::BLOCK_STATUS, 0, 512),
    ] {
        let error = far.error_of(&request);
        assert!(LOST.contains(&error), "error {error} for {request:?}");
    }
    assert_eq!(near.read(0, 4).unwrap(), b"near");
    server.session(Mode::Structured, "near").assert_alive();
}

#[test]
fn apart_a_client_that_comes_after_a_restart_is_served_and_one_from_before_is_not() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    let temp = TempDir::new();
    let socket = temp.join("upstream");
    let disk = temp.file("disk", &[5; 65536]);
    let words = ["file", disk.to_str().unwrap()];
    let upstream = Server::nbdkit_at(&nbdkit, &socket, &words);
    let server = in_front_of(&upstream.uri(""), &["shared=false"]);
    let mut before = server.session(Mode::Structured, "");
    before.write(0, &[6; 512]);
    upstream.kill();
    assert!(LOST.contains(&before.read(0, 512).unwrap_err()));
    // While it is away, a client is refused, with a reason, and may ask again.
    let mut haggler = server.haggle();
    assert!(haggler.structured());
    assert!(haggler.export(blackbox::nbd::opt::GO, "", &[]).is_err());
    let _again = Server::nbdkit_at(&nbdkit, &socket, &words);
    assert!(haggler.export(blackbox::nbd::opt::INFO, "", &[]).is_ok());
    let mut after = server.session(Mode::Structured, "");
    assert_eq!(after.read(0, 1024).unwrap(), [[6; 512], [5; 512]].concat());
    // What the first one may have lost is not known.
    assert!(LOST.contains(&before.read(0, 512).unwrap_err()));
}

#[test]
fn a_silent_server_holds_up_its_own_clients_only_and_no_stop() {
    let Some(qemu_nbd) = peer("qemu-nbd") else { return };
    let temp = TempDir::new();
    let image = temp.sparse_file("image", 65536);
    // It admits one client, and keeps the next one waiting silently.
    let upstream = Server::peer(&qemu_nbd, |socket| {
        let mut all: Vec<OsString> = ["-t", "-e", "1", "-f", "raw", "-k"].map(Into::into).into();
        all.extend([socket.into(), image.into()]);
        all
    });
    // Dialling would go on beyond the guard of a minute; a stop does not wait for that.
    let far = format!("nbd:{}&shared=false&open-timeout=600", upstream.uri(""));
    let server = Serve::exports(&[("far", &far), ("near", "memory:1M")]).start();
    let mut waiting = server.haggle();
    assert!(waiting.structured());
    waiting.send(blackbox::nbd::opt::GO, &blackbox::nbd::go_data(b"far", &[]));
    let mut near: Vec<_> = (0..8).map(|_| server.session(Mode::Structured, "near")).collect();
    near.iter_mut().for_each(blackbox::session::Session::assert_alive);
    assert!(server.stop().success());
}

#[test]
fn many_clients_apart_need_no_thread_each() {
    const CLIENTS: usize = 150;
    let upstream = Serve::memory("1M").start();
    let server = in_front_of(&upstream.uri(""), &["shared=false"]);
    let mut sessions: Vec<_> = (0..CLIENTS).map(|_| server.session(Mode::Structured, "")).collect();
    sessions.iter_mut().for_each(blackbox::session::Session::assert_alive);
    let tasks = format!("/proc/{}/task", server.pid().as_raw_nonzero());
    let threads = fs::read_dir(tasks).unwrap().count();
    assert!(threads < 64, "{threads} threads for {CLIENTS} clients");
    assert!(server.open_descriptors() > 2 * CLIENTS, "each has a connection here and there");
}
