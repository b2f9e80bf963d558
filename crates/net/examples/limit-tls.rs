//! The limit that `bench/tls` compares all programs with: it only encrypts, sends, receives and decrypts.
//!
//!     limit-tls cipher|library BYTES REQUEST PAIRS
//!
//! PAIRS pairs of threads move BYTES in all over socket pairs: one encrypts REQUEST bytes in records of
//! 16 KiB at most and sends them in one call, and the other receives and decrypts them. No protocol, no
//! disk, and no error handling beyond giving up.
//!
//! `cipher` calls AES-128-GCM itself: no handshake, and as few copies as can be. `library` is s2n-tls as
//! it comes, TLS 1.3 with a key: what it adds (its own records and buffers) is in every program that uses it.
//!
//! Uses `unsafe` for the library's two callbacks.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "it gives up where it fails")]
#![expect(unsafe_code, reason = "see above")]

use std::ffi::c_void;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::task::Poll;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use s2n_tls::config::Builder;
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Mode, PskHmac};
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;

const RECORD: usize = 16 << 10;
/// A tag, and the head of a record.
const OVERHEAD: usize = 16 + 6;
/// What a Unix socket holds on its way.
const SOCKET: usize = 4 << 20;

fn key() -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[7; 16]).unwrap())
}

fn nonce(count: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&count.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Encrypts and sends; the data are copied into the records, as from a disk.
fn send(mut socket: &UnixStream, requests: usize, data: &[u8]) {
    let (key, mut count) = (key(), 0);
    let records = data.len().div_ceil(RECORD);
    let mut out = vec![0; data.len() + records * OVERHEAD];
    for _ in 0..requests {
        let mut rest = &mut out[..];
        for plain in data.chunks(RECORD) {
            let (record, after) = rest.split_at_mut(plain.len() + OVERHEAD);
            let (body, tag) = record[6..].split_at_mut(plain.len());
            body.copy_from_slice(plain);
            let made = key.seal_in_place_separate_tag(nonce(count), Aad::empty(), body).unwrap();
            tag.copy_from_slice(made.as_ref());
            (rest, count) = (after, count + 1);
        }
        socket.write_all(&out).unwrap();
    }
}

fn receive(mut socket: &UnixStream, requests: usize, data: usize) {
    let (key, mut count) = (key(), 0);
    let mut into = vec![0; data];
    let mut came = vec![0; data + data.div_ceil(RECORD) * OVERHEAD];
    for _ in 0..requests {
        socket.read_exact(&mut came).unwrap();
        let mut rest = &came[..];
        for plain in into.chunks_mut(RECORD) {
            let (record, after) = rest.split_at(plain.len() + OVERHEAD);
            let (cipher, tag) = record[6..].split_at(plain.len());
            // Straight to where it belongs.
            key.open_separate_gather(nonce(count), Aad::empty(), cipher, tag, plain).unwrap();
            (rest, count) = (after, count + 1);
        }
    }
}

/// Takes from the socket what came.
unsafe extern "C" fn take(socket: *mut c_void, into: *mut u8, len: u32) -> i32 {
    // SAFETY: `secured` names a socket that outlives the connection, and the library `len` bytes to fill.
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

fn send_by_library(socket: &UnixStream, requests: usize, data: &[u8]) {
    let mut connection = secured(socket, Mode::Server, data.len());
    for _ in 0..requests {
        let mut rest = data;
        while !rest.is_empty() {
            let Poll::Ready(Ok(sent)) = connection.poll_send(rest) else { continue };
            rest = &rest[sent..];
        }
    }
}

fn receive_by_library(socket: &UnixStream, requests: usize, data: usize) {
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
    let mut words = std::env::args().skip(1);
    let by_library = match words.next().as_deref() {
        Some("cipher") => false,
        Some("library") => true,
        _ => usage(),
    };
    let words: Vec<usize> = words.map(|word| word.parse().unwrap()).collect();
    let [bytes, request, pairs] = words[..] else { usage() };
    let data = vec![1; request];
    let requests = bytes / request / pairs;
    std::thread::scope(|scope| {
        for _ in 0..pairs {
            let (ours, theirs) = UnixStream::pair().unwrap();
            rustix::net::sockopt::set_socket_send_buffer_size(&ours, SOCKET).unwrap();
            let data = &data;
            if by_library {
                scope.spawn(move || send_by_library(&ours, requests, data));
                scope.spawn(move || receive_by_library(&theirs, requests, request));
            } else {
                scope.spawn(move || send(&ours, requests, data));
                scope.spawn(move || receive(&theirs, requests, request));
            }
        }
    });
}

fn usage() -> ! {
    println!("limit-tls cipher|library BYTES REQUEST PAIRS");
    std::process::exit(2)
}
