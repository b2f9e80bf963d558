//! Connections over a device that answers when it is told to, in the order in which it is told.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod client;

use runtime::WorkPool;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use client::{answered, ask, connect, serve, write_request};
use device::{Abilities, Device, Done, Edge, Info, Operation, Outcome};
use server::{Options, Server};

const SIZE: u64 = 64 << 20;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GUARD: Duration = Duration::from_secs(60);

/// Keeps what it is asked until the test has it answered.
struct Script {
    info: Info,
    asked: Mutex<Vec<(Operation, Done)>>,
    came: Condvar,
}

impl Device for Script {
    fn info(&self) -> &Info {
        &self.info
    }
    fn submit(&self, operation: Operation, done: Done) {
        self.asked.lock().unwrap().push((operation, done));
        self.came.notify_all();
    }
}

impl Script {
    fn serve(memory: u64) -> (Arc<Self>, Server, UnixStream) {
        let abilities = Abilities { write: true, flush: true, ..Abilities::READ };
        let info = Info { abilities, ..Info::new("script", SIZE) };
        let script = Arc::new(Self { info, asked: Mutex::default(), came: Condvar::new() });
        let options = Options { reactors: 1, memory, ..Options::default() };
        let (server, path) = serve(Edge::new(script.clone(), WorkPool::new(1)), options);
        let socket = connect(&path);
        (script, server, socket)
    }

    /// Waits until so many are under way.
    fn wait_for(&self, count: usize) {
        let asked = self.asked.lock().unwrap();
        let wait = self.came.wait_timeout_while(asked, GUARD, |asked| asked.len() < count);
        assert!(!wait.unwrap().1.timed_out(), "less than {count} came");
    }

    /// Answers one of those under way, from a thread that the server does not know.
    fn answer(&self, which: usize) {
        let (operation, done) = self.asked.lock().unwrap().remove(which);
        let outcome = match operation {
            Operation::Read { offset, mut buffer } => {
                buffer.fill(mark(offset));
                Outcome::Read(buffer)
            }
            _ => Outcome::Done,
        };
        done(Ok(outcome));
    }

    fn under_way(&self) -> u64 {
        let len = |operation: &Operation| match operation {
            Operation::Read { buffer, .. } => buffer.len() as u64,
            Operation::Write { data, .. } => data.len() as u64,
            _ => 0,
        };
        self.asked.lock().unwrap().iter().map(|(operation, _)| len(operation)).sum()
    }
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
fn what_ends_out_of_order_is_answered_in_that_order_with_its_own_bytes() {
    for len in [512, 100_000] {
        let (script, server, mut socket) = Script::serve(512 * MIB);
        for n in 0..64 {
            ask(&mut socket, n * 128 * KIB, u32::try_from(len).unwrap());
        }
        script.wait_for(64);
        let teller =
            std::thread::spawn(move || (0..64).for_each(|n| script.answer(n * 7 % (64 - n))));
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
    let (script, server, mut socket) = Script::serve(memory);
    for n in 0..60 {
        ask(&mut socket, n * LEN, u32::try_from(LEN).unwrap());
    }
    script.wait_for(4);
    for _ in 0..60 {
        script.wait_for(1);
        // Half of the memory is one user's.
        assert!(script.under_way() <= memory / 2, "{} bytes", script.under_way());
        script.answer(0);
        read_reply(&mut socket, LEN).unwrap();
    }
    // It is in step.
    ask(&mut socket, 0, 512);
    script.wait_for(1);
    script.answer(0);
    assert_eq!(read_reply(&mut socket, 512), Some(0));
    drop(socket);
    assert!(server.stop());
}

#[test]
fn what_was_received_of_a_request_does_not_take_the_room_that_it_waits_for() {
    // Half of the memory is one user's, and a request larger than that is let in where little is in use.
    let (script, server, mut socket) = Script::serve(MIB);
    ask(&mut socket, 0, 200_000);
    script.wait_for(1);
    let mut large = connect(socket.peer_addr().unwrap().as_pathname().unwrap());
    let data = vec![7; 8 << 20];
    let request = write_request(4096, &data);
    // As much as the server receives in one piece.
    large.write_all(&request[..200_000]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    script.answer(0);
    read_reply(&mut socket, 200_000).unwrap();
    let mut rest = large.try_clone().unwrap();
    let sender = std::thread::spawn(move || rest.write_all(&request[200_000..]));
    script.wait_for(1);
    sender.join().unwrap().unwrap();
    script.answer(0);
    assert_eq!(answered(&mut large), Some(4096));
    drop((socket, large));
    assert!(server.stop());
}

#[test]
fn a_payload_in_pieces_arrives_whole_and_what_follows_it_too() {
    for (len, step) in [(20, 1), (3000, 7), (70_000, 999), (600_000, 65_537)] {
        let (script, server, mut socket) = Script::serve(512 * MIB);
        let data: Vec<u8> = (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect();
        // Two writes and, in one piece with the end of the second, a read.
        let mut bytes = write_request(4096, &data);
        bytes.extend(write_request(8192, &data));
        for piece in bytes.chunks(step) {
            socket.write_all(piece).unwrap();
            std::thread::yield_now();
        }
        ask(&mut socket, 512, 512);
        script.wait_for(3);
        for (operation, _) in &script.asked.lock().unwrap()[..2] {
            let Operation::Write { data: came, .. } = operation else { panic!("{operation:?}") };
            assert!(came[..] == data[..], "{len} in pieces of {step}");
        }
        (0..3).for_each(|_| script.answer(0));
        assert_eq!(answered(&mut socket), Some(4096));
        assert_eq!(answered(&mut socket), Some(8192));
        assert_eq!(read_reply(&mut socket, 512), Some(512));
        drop(socket);
        assert!(server.stop());
    }
}

#[test]
fn a_client_that_sends_no_more_gets_all_that_it_is_owed_and_then_the_end() {
    let (script, server, mut socket) = Script::serve(512 * MIB);
    for n in 0..8 {
        ask(&mut socket, n * MIB, 100_000);
    }
    // Half a request more, which is nothing.
    socket.write_all(&[0x25, 0x60]).unwrap();
    script.wait_for(8);
    socket.shutdown(Shutdown::Write).unwrap();
    for n in (0..8).rev() {
        script.answer(usize::try_from(n).unwrap());
        assert_eq!(read_reply(&mut socket, 100_000), Some(n * MIB));
    }
    assert_eq!(answered(&mut socket), None);
    assert!(server.stop());
}

#[test]
fn a_request_that_ends_after_its_client_has_gone_harms_no_other() {
    let (script, server, mut socket) = Script::serve(512 * MIB);
    for n in 0..8 {
        ask(&mut socket, n * MIB, 100_000);
    }
    script.wait_for(8);
    drop(socket);
    (0..8).for_each(|_| script.answer(0));
    assert!(server.stop());
}
