//! The limit that `bench/tls` compares all programs with: it only encrypts, sends, receives and
//! decrypts.
//!
//!     limit-tls BYTES REQUEST PAIRS
//!
//! PAIRS pairs of threads move BYTES in all over socket pairs: one encrypts REQUEST bytes in
//! records of 16 KiB at most and sends them in one call, and the other receives and decrypts them.
//! No protocol, no disk, and no error handling beyond giving up. It is s2n-tls as it comes, TLS 1.3
//! with a key.
//!
//! Uses `unsafe` for the library's two callbacks.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "it gives up where it fails")]
#![expect(unsafe_code, reason = "see above")]

use std::ffi::c_void;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::task::Poll;

use s2n_tls::config::Builder;
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Mode, PskHmac};
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;

const RECORD: usize = 16 << 10;
/// What a Unix socket holds on its way.
const SOCKET: usize = 4 << 20;

/// Takes from the socket what came.
unsafe extern "C" fn take(socket: *mut c_void, into: *mut u8, len: u32) -> i32 {
    // SAFETY: `secured` names a socket that outlives the connection, and the library `len` bytes to
    // fill.
    let (mut socket, into) = unsafe {
        (&*socket.cast::<UnixStream>(), std::slice::from_raw_parts_mut(into, len as usize))
    };
    socket.read(into).map_or(-1, |n| i32::try_from(n).unwrap())
}

/// Gives the socket all of it.
unsafe extern "C" fn give(socket: *mut c_void, from: *const u8, len: u32) -> i32 {
    // SAFETY: as above; the bytes are there for the time of the call.
    let (mut socket, from) =
        unsafe { (&*socket.cast::<UnixStream>(), std::slice::from_raw_parts(from, len as usize)) };
    socket.write_all(from).map_or(-1, |()| i32::try_from(len).unwrap())
}

/// A connection on which the handshake is done.
fn secured(socket: &UnixStream, mode: Mode, request: usize) -> Connection {
    let mut config = Builder::new();
    config.with_system_certs(false).unwrap();
    config.set_security_policy(&Policy::from_version("20251014").unwrap()).unwrap();
    // All records of a request leave in one call.
    config
        .set_send_buffer_size(u32::try_from(request + request / 64 + RECORD + 1024).unwrap())
        .unwrap();
    let mut psk = Psk::builder().unwrap();
    psk.set_identity(b"limit").unwrap().set_secret(&[7; 32]).unwrap();
    psk.set_hmac(PskHmac::SHA256).unwrap();
    let mut connection = Connection::new(mode);
    connection.set_config(config.build().unwrap()).unwrap();
    connection.prefer_throughput().unwrap().set_receive_buffering(true).unwrap();
    connection.append_psk(&psk.build().unwrap()).unwrap();
    connection.set_receive_callback(Some(take)).unwrap();
    connection.set_send_callback(Some(give)).unwrap();
    let context = std::ptr::from_ref(socket).cast_mut().cast();
    // SAFETY: the socket belongs to the caller, which drops the connection first.
    unsafe {
        connection.set_receive_context(context).unwrap().set_send_context(context).unwrap();
    }
    while !matches!(connection.poll_negotiate().map(|r| r.is_ok()), Poll::Ready(true)) {}
    connection
}

fn send(socket: &UnixStream, requests: usize, data: &[u8]) {
    let mut connection = secured(socket, Mode::Server, data.len());
    for _ in 0..requests {
        let mut rest = data;
        while !rest.is_empty() {
            let Poll::Ready(Ok(sent)) = connection.poll_send(rest) else { continue };
            rest = &rest[sent..];
        }
    }
}

fn receive(socket: &UnixStream, requests: usize, data: usize) {
    let mut connection = secured(socket, Mode::Client, data);
    let mut into = vec![0; data];
    for _ in 0..requests {
        let mut rest = &mut into[..];
        while !rest.is_empty() {
            let Poll::Ready(Ok(came)) = connection.poll_recv(rest) else { continue };
            assert!(came > 0, "the end came too early");
            rest = &mut rest[came..];
        }
    }
}

fn main() {
    let words: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let [bytes, request, pairs] = words[..] else {
        println!("limit-tls BYTES REQUEST PAIRS");
        std::process::exit(2)
    };
    let data = vec![1; request];
    let requests = bytes / request / pairs;
    std::thread::scope(|scope| {
        for _ in 0..pairs {
            let (ours, theirs) = UnixStream::pair().unwrap();
            rustix::net::sockopt::set_socket_send_buffer_size(&ours, SOCKET).unwrap();
            let data = &data;
            scope.spawn(move || send(&ours, requests, data));
            scope.spawn(move || receive(&theirs, requests, request));
        }
    });
}
