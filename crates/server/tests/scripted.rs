//! Connections over a device that answers when it is told to, in the order in which it is told.

use crate::client;

use runtime::WorkPool;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use client::{answered, ask, connect, serve, write_request};
use device::{Abilities, Info, Operation, Outcome};
use server::{Options, Server};
use trial::{Fate, TestDevice};

const SIZE: u64 = 64 << 20;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Serves a device that holds what it is asked until the test has it answered.
fn start(memory: u64) -> (Arc<TestDevice>, Server, UnixStream) {
    let abilities = Abilities { write: true, flush: true, ..Abilities::READ };
    let info = Info { abilities, ..Info::new("script", SIZE) };
    let script = TestDevice::blank(info).hooked(|mut operation| {
        if let Operation::Read { offset, buffer } = &mut operation {
            buffer.fill(mark(*offset));
        }
        Fate::done(operation)
    });
    let script = script.shared();
    script.hold();
    let options = Options { reactors: 1, memory, ..Options::default() };
    let (server, path) = serve(script.edge(&WorkPool::new(1)), options);
    let socket = connect(&path);
    (script, server, socket)
}

/// What the bytes of a read at `offset` are.
fn mark(offset: u64) -> u8 {
    u8::try_from(offset / 4096 % 251).unwrap() + 1
}

/// The next reply to a read of `len` bytes: its cookie, which is the offset.
fn read_reply(socket: &mut UnixStream, len: u64) -> Option<u64> {
    let cookie = answered(socket)?;
    let mut data = vec![0; usize::try_from(len).unwrap()];
    socket.read_exact(&mut data).unwrap();
    assert!(data.iter().all(|byte| *byte == mark(cookie)), "the bytes of another request");
    Some(cookie)
}

#[test]
fn requests_that_end_out_of_order_are_replied_to_in_that_order_with_their_own_bytes() {
    for len in [512, 100_000] {
        let (script, server, mut socket) = start(512 * MIB);
        for n in 0..64 {
            ask(&mut socket, n * 128 * KIB, u32::try_from(len).unwrap());
        }
        script.wait_for_held(64);
        let teller =
            std::thread::spawn(move || (0..64).for_each(|n| script.release_one(n * 7 % (64 - n))));
        let mut left: Vec<u64> = (0..64).map(|n| n * 128 * KIB).collect();
        for n in 0..64 {
            let wanted = left.remove(n * 7 % (64 - n));
            assert_eq!(read_reply(&mut socket, len), Some(wanted));
        }
        teller.join().unwrap();
        drop(socket);
        assert!(server.stop());
    }
}

#[test]
fn what_has_no_room_is_held_back_and_goes_on_when_something_ends() {
    const LEN: u64 = 256 * KIB;
    let memory = 4 * MIB;
    let (script, server, mut socket) = start(memory);
    for n in 0..60 {
        ask(&mut socket, n * LEN, u32::try_from(LEN).unwrap());
    }
    script.wait_for_held(4);
    for _ in 0..60 {
        script.wait_for_held(1);
        // Half of the memory is one user's.
        let in_flight: u64 = script.held().iter().map(|held| held.len).sum();
        assert!(in_flight <= memory / 2, "{in_flight} bytes");
        script.release_one(0);
        read_reply(&mut socket, LEN).unwrap();
    }
    // It is in step.
    ask(&mut socket, 0, 512);
    script.wait_for_held(1);
    script.release_one(0);
    assert_eq!(read_reply(&mut socket, 512), Some(0));
    drop(socket);
    assert!(server.stop());
}

#[test]
fn what_was_received_of_a_request_does_not_take_the_room_that_it_waits_for() {
    // Half of the memory is one user's, and a request larger than that is let in where little is in
    // use.
    let (script, server, mut socket) = start(MIB);
    ask(&mut socket, 0, 200_000);
    script.wait_for_held(1);
    let mut large = connect(socket.peer_addr().unwrap().as_pathname().unwrap());
    let data = vec![7; 8 << 20];
    let request = write_request(4096, &data);
    // As much as the server receives in one piece.
    large.write_all(&request[..200_000]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    script.release_one(0);
    read_reply(&mut socket, 200_000).unwrap();
    let mut rest = large.try_clone().unwrap();
    let sender = std::thread::spawn(move || rest.write_all(&request[200_000..]));
    script.wait_for_held(1);
    sender.join().unwrap().unwrap();
    script.release_one(0);
    assert_eq!(answered(&mut large), Some(4096));
    drop((socket, large));
    assert!(server.stop());
}

#[test]
fn a_payload_in_pieces_arrives_whole_and_what_follows_it_too() {
    for (len, step) in [(20, 1), (3000, 7), (70_000, 999), (600_000, 65_537)] {
        let (script, server, mut socket) = start(512 * MIB);
        let data: Vec<u8> = (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect();
        // Two writes and, in one piece with the end of the second, a read.
        let mut bytes = write_request(4096, &data);
        bytes.extend(write_request(8192, &data));
        for piece in bytes.chunks(step) {
            socket.write_all(piece).unwrap();
            std::thread::yield_now();
        }
        ask(&mut socket, 512, 512);
        script.wait_for_held(3);
        for _ in 0..2 {
            let (operation, done) = script.take_held(0);
            let Operation::Write { data: came, .. } = operation else { panic!("{operation:?}") };
            assert!(came[..] == data[..], "{len} in pieces of {step}");
            done(Ok(Outcome::Done));
        }
        script.release_one(0);
        assert_eq!(answered(&mut socket), Some(4096));
        assert_eq!(answered(&mut socket), Some(8192));
        assert_eq!(read_reply(&mut socket, 512), Some(512));
        drop(socket);
        assert!(server.stop());
    }
}

#[test]
fn a_client_that_sends_no_more_gets_all_its_replies_and_then_the_end() {
    let (script, server, mut socket) = start(512 * MIB);
    for n in 0..8 {
        ask(&mut socket, n * MIB, 100_000);
    }
    // Half a request more, which is nothing.
    socket.write_all(&[0x25, 0x60]).unwrap();
    script.wait_for_held(8);
    socket.shutdown(Shutdown::Write).unwrap();
    for n in (0..8).rev() {
        script.release_one(usize::try_from(n).unwrap());
        assert_eq!(read_reply(&mut socket, 100_000), Some(n * MIB));
    }
    assert_eq!(answered(&mut socket), None);
    assert!(server.stop());
}

#[test]
fn a_request_that_ends_after_its_client_has_gone_harms_no_other() {
    let (script, server, mut socket) = start(512 * MIB);
    for n in 0..8 {
        ask(&mut socket, n * MIB, 100_000);
    }
    script.wait_for_held(8);
    drop(socket);
    (0..8).for_each(|_| script.release_one(0));
    assert!(server.stop());
}
