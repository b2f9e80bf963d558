//! The limit that `bench/tls` compares everybody with: what only encrypts, sends, receives and decrypts.
//!
//!     limit-tls BYTES REQUEST PAIRS
//!
//! PAIRS pairs of threads move BYTES in all over socket pairs: one encrypts REQUEST bytes in records of
//! 16 KiB at most (AES-128-GCM, the library's own) and sends them in one call, and the other receives and
//! decrypts them. No protocol, no disk, no handshake, and no error handling beyond giving up.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "it gives up where it fails")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

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

fn main() {
    let words: Vec<usize> = std::env::args().skip(1).map(|word| word.parse().unwrap()).collect();
    let [bytes, request, pairs] = words[..] else {
        println!("limit-tls BYTES REQUEST PAIRS");
        std::process::exit(2);
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
