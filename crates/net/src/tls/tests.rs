//! Two ends of a socket pair under TLS, with a shared key.
#![cfg(feature = "tls")]

mod trust;

use std::io::IoSliceMut;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use device::{ErrorKind, Place};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;

use super::{Acceptor, Calling, Connector, FailedHandshake, Handshake, HandshakeProgress, Serving};
use crate::stream::{Received, Sent, Stream};

/// A file of keys, removed in the end.
struct Keys(PathBuf);

impl Keys {
    fn of(name: &str, lines: &[(&str, u8)]) -> Self {
        let name = format!("diskferry-tls-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let line =
            |(user, byte): &(&str, u8)| format!("{user}:{}\n", format!("{byte:02x}").repeat(32));
        std::fs::write(&path, lines.iter().map(line).collect::<String>()).unwrap();
        Self(path)
    }

    fn acceptor(&self) -> Acceptor {
        Acceptor::new(&Serving::Keys(self.0.clone())).unwrap()
    }

    fn connector(&self, user: &str) -> Connector {
        let user = Some(user.to_owned());
        Connector::new(&Calling::Keys { file: self.0.clone(), user }).unwrap()
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn sockets() -> (Stream, Stream) {
    let (a, b) = UnixStream::pair().unwrap();
    (Stream::new(a.into()).unwrap(), Stream::new(b.into()).unwrap())
}

/// Drives both ends until one fails or both are done.
fn shake_hands(
    (client, tls): (&Stream, &mut Handshake),
    (server, other): (&Stream, &mut Handshake),
) -> Result<(), FailedHandshake> {
    let (mut one, mut two) =
        (HandshakeProgress::Waits { room: false }, HandshakeProgress::Waits { room: false });
    for _ in 0..100 {
        if one != HandshakeProgress::Done {
            one = tls.advance(client)?;
        }
        if two != HandshakeProgress::Done {
            two = other.advance(server)?;
        }
        if (one, two) == (HandshakeProgress::Done, HandshakeProgress::Done) {
            return Ok(());
        }
    }
    panic!("a handshake without end: {one:?} {two:?}");
}

/// A client and a server that encrypt.
fn pair(name: &str) -> (Stream, Stream) {
    let keys = Keys::of(name, &[("eve", 1), ("alice", 2)]);
    let (client, server) = sockets();
    let mut tls = keys.connector("alice").connect().unwrap();
    let mut other = keys.acceptor().accept().unwrap();
    shake_hands((&client, &mut tls), (&server, &mut other)).map_err(|e| e.why).unwrap();
    assert!(client.is_secure() && server.is_secure());
    (client, server)
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(i * 7 % 251).unwrap()).collect()
}

/// Sends as much as the socket takes of what begins at `at`.
fn send_some(stream: &Stream, bytes: &[u8], at: usize) -> usize {
    // Pieces of all sizes: empty, short, and longer than a record.
    let sizes = [20, 0, 40_000, 1, 300, 16_384, 5, 70_000];
    let mut pieces = Vec::new();
    let mut rest = &bytes[at..];
    for size in sizes.iter().cycle().take(64) {
        let (piece, after) = rest.split_at((*size).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    stream.send_gathered(pieces.iter().copied(), 0, pieces.len()).unwrap()
}

#[test]
fn a_shared_key_gives_the_intended_suite_and_the_user() {
    let (client, server) = pair("suite");
    let told = format!("{client:?}");
    assert!(told.contains("TLS13") && told.contains("TLS_AES_128_GCM_SHA256"), "{told}");
    assert_eq!(server.identity().unwrap().user.as_deref(), Some("alice"));
    assert_eq!(server.identity().unwrap().subject, None);
}

#[test]
fn what_is_sent_arrives_in_order_however_little_the_socket_takes() {
    let (client, server) = pair("order");
    for buffer in [4096, 1 << 20] {
        set_socket_send_buffer_size(&client, buffer).unwrap();
        let bytes = content(1_500_000);
        let (mut sent, mut got, mut full) = (0, Vec::new(), 0);
        let (mut one, mut two) = (vec![0; 28], vec![0; 100_000]);
        while got.len() < bytes.len() {
            if sent < bytes.len() {
                match send_some(&client, &bytes, sent) {
                    0 => {
                        full += 1;
                        assert!(client.unsent() > 0 && client.unsent() < 300_000);
                    }
                    n => sent += n,
                }
            }
            let mut both = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
            if let Received::Bytes(n) = server.receive_scattered(&mut both).unwrap() {
                got.extend_from_slice(&one[..n.min(28)]);
                got.extend_from_slice(&two[..n.saturating_sub(28)]);
            }
        }
        assert!(got == bytes);
        assert!(buffer > 4096 || full > 0, "the small socket was full at times");
        // The last ciphertext has been received: only the report that it was sent is missing.
        while sent < bytes.len() {
            sent += send_some(&client, &bytes, sent);
        }
        assert_eq!(client.unsent(), 0);
    }
}

#[test]
fn what_counts_as_sent_is_what_the_peer_can_know_of() {
    let (client, server) = pair("whole");
    set_socket_send_buffer_size(&client, 4096).unwrap();
    let bytes = content(1_000_000);
    let (mut sent, mut known, mut between, mut room) = (0, 0, 0, vec![0; 50_000]);
    while known < bytes.len() {
        loop {
            let before = client.carried();
            match send_some(&client, &bytes, sent) {
                0 if client.carried() == before => break,
                n => sent += n,
            }
        }
        between += usize::from(sent > 0 && client.unsent() > 100_000);
        while let Received::Bytes(n) = server.receive(&mut room).unwrap() {
            known += n;
        }
        assert_eq!(sent, known, "no more, and no less");
    }
    assert!(
        between > 0,
        "some records of those that were encrypted together had left before others"
    );
    assert_eq!((client.unsent(), client.carried()), (0, server.carried()));
}

#[test]
fn bytes_that_the_socket_takes_are_counted_before_their_record_is_whole() {
    let (client, server) = pair("carried");
    set_socket_send_buffer_size(&client, 4096).unwrap();
    assert_eq!((client.carried(), server.carried()), (0, 0));
    assert_eq!(client.send(&[7; 16_384]), Ok(0));
    let first = client.carried();
    assert!(first > 0 && server.carried() == 0, "{first}");
    let mut room = [0; 20_000];
    assert_eq!(server.receive(&mut room), Ok(Received::Nothing));
    assert_eq!(server.carried(), first);
    assert_eq!(client.send(&[7; 16_384]), Ok(0));
    assert!(client.carried() > first);
}

#[test]
fn fewer_bytes_than_were_encrypted_before_and_have_left_are_an_error() {
    let (client, server) = pair("fewer");
    set_socket_send_buffer_size(&client, 4096).unwrap();
    assert_eq!(client.send(&[7; 16_384]), Ok(0));
    let (mut room, mut got) = (vec![0; 20_000], 0);
    let error = loop {
        if let Received::Bytes(n) = server.receive(&mut room).unwrap() {
            got += n;
        }
        match client.send_gathered([&[8; 100][..], &[8; 100]], 0, 2) {
            Ok(n) => assert_eq!(n, 0, "the record has not left"),
            Err(e) => break e,
        }
    };
    assert_eq!((error, client.send(&[7; 16_384])), (Errno::PROTO, Err(Errno::PROTO)));
    assert_eq!(client.why().as_deref(), Some("TLS: bytes were not offered again"));
    while let Received::Bytes(n) = server.receive(&mut room).unwrap() {
        assert!(room[..n].iter().all(|byte| *byte == 7), "none of the others");
        got += n;
    }
    assert_eq!(got, 16_384);
}

#[test]
fn both_ends_send_and_receive_at_the_same_time() {
    let (client, server) = pair("both");
    let bytes = content(3_000_000);
    std::thread::scope(|scope| {
        for stream in [&client, &server] {
            let sent = &bytes;
            scope.spawn(move || {
                let mut at = 0;
                while at < sent.len() {
                    at += send_some(stream, sent, at);
                    std::thread::yield_now();
                }
            });
            let expected = &bytes;
            scope.spawn(move || {
                let (mut got, mut room) = (Vec::new(), vec![0; 50_000]);
                while got.len() < expected.len() {
                    match stream.receive(&mut room).unwrap() {
                        Received::Bytes(n) => got.extend_from_slice(&room[..n]),
                        _ => std::thread::yield_now(),
                    }
                }
                assert!(got == *expected);
            });
        }
    });
}

#[test]
fn decrypted_bytes_that_polling_does_not_show_are_reported() {
    let (client, server) = pair("holds");
    assert!(!server.holds());
    let mut room = [0; 10];
    assert_eq!(server.receive(&mut room), Ok(Received::Nothing));
    while send_some(&client, &content(20_000), 0) == 0 {}
    assert_eq!(server.receive(&mut room), Ok(Received::Bytes(10)));
    assert!(server.holds() && server.unread() >= 10_000, "{}", server.unread());
    let mut all = vec![0; 40_000];
    assert!(matches!(server.receive(&mut all), Ok(Received::Bytes(_))));
    assert!(!server.holds() && server.unread() == 0);
}

#[test]
fn an_announced_end_is_told_apart_from_one_that_was_not_announced() {
    let (client, server) = pair("end");
    let mut room = [0; 10];
    client.end();
    assert_eq!(server.receive(&mut room), Ok(Received::End));
    assert_eq!(server.send(b"still"), Ok(5));
    let (client, server) = pair("cut");
    client.close();
    assert_eq!(server.receive(&mut room), Err(Errno::CONNRESET));
    assert_eq!(server.receive(&mut room), Err(Errno::CONNRESET), "and again");
}

#[test]
fn an_end_behind_bytes_is_reported_though_polling_shows_nothing_more() {
    let mut room = vec![0; 1000];
    let (client, server) = pair("behind");
    assert_eq!(client.send(b"bytes"), Ok(5));
    client.end();
    assert_eq!(server.receive(&mut room), Ok(Received::Bytes(5)));
    assert!(server.holds() && server.unread() == 0, "there is something to be heard");
    assert_eq!(server.receive(&mut room), Ok(Received::End));
    assert!(!server.holds());
    // What breaks it, too.
    let (client, server) = pair("broken behind");
    assert_eq!(client.send(b"bytes"), Ok(5));
    rustix::net::send(&client, b"no record at all", rustix::net::SendFlags::empty()).unwrap();
    let (mut one, mut two) = ([0; 5], [0; 5]);
    let mut both = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
    assert_eq!(server.receive_scattered(&mut both), Ok(Received::Bytes(5)));
    assert!(server.holds());
    assert_eq!(server.receive(&mut room), Err(Errno::PROTO));
    assert!(!server.holds());
}

#[test]
fn bytes_that_are_not_the_peers_end_the_connection_with_a_reason() {
    let (client, server) = pair("injected");
    assert_eq!(client.send(b"good"), Ok(4));
    rustix::io::write(client.as_fd(), &[0x17, 3, 3, 0, 40, 1, 2, 3]).unwrap();
    rustix::io::write(client.as_fd(), &[7; 100]).unwrap();
    let mut room = [0; 10];
    assert_eq!(server.receive(&mut room), Ok(Received::Bytes(4)), "what came before is true");
    assert_eq!(server.receive(&mut room), Err(Errno::PROTO));
    assert!(server.failure("receive", Errno::PROTO).to_string().contains("TLS"));
}

#[test]
fn nothing_leaves_from_its_place() {
    let (client, _server) = pair("place");
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&file, b"0123456789").unwrap();
    assert_eq!(client.send_from(&Place::new(Arc::new(file), 0), 0, 10), Ok(Sent::Unable));
}

#[test]
fn another_key_and_an_unknown_user_are_refused_after_a_delay_that_is_ours_to_wait_for() {
    let keys = Keys::of("known", &[("alice", 2)]);
    for (name, theirs, user) in [("key", ("alice", 3), "alice"), ("user", ("eve", 2), "eve")] {
        let theirs = Keys::of(name, &[theirs]);
        let (client, server) = sockets();
        let mut tls = theirs.connector(user).connect().unwrap();
        let mut other = keys.acceptor().accept().unwrap();
        let begun = std::time::Instant::now();
        let failed = shake_hands((&client, &mut tls), (&server, &mut other)).unwrap_err();
        assert_eq!(failed.why.kind(), ErrorKind::PermissionDenied, "{name}");
        assert!(begun.elapsed().as_secs() < 9, "no thread slept");
        assert!(!client.is_secure() && !server.is_secure());
    }
}

#[test]
fn garbage_and_more_than_a_handshake_takes_are_refused() {
    let keys = Keys::of("garbage", &[("alice", 2)]);
    let endless = [&[0x16, 3, 1, 0x40, 0][..], &[0; 0x4000]].concat().repeat(8);
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0; 100], vec![0xff; 3000], endless] {
        let (client, server) = sockets();
        let mut other = keys.acceptor().accept().unwrap();
        let mut at = 0;
        // Bytes that may begin a message are waited for, no longer than the limit.
        while let Ok(progress) = other.advance(&server) {
            assert_eq!(progress, HandshakeProgress::Waits { room: false });
            match garbage.get(at..).filter(|rest| !rest.is_empty()) {
                Some(rest) => at += client.send(rest).unwrap_or(rest.len()),
                None => client.close(),
            }
        }
        assert!(!server.is_secure());
    }
}

#[test]
fn a_handshake_that_is_cut_anywhere_is_an_error_and_never_done() {
    let keys = Keys::of("cut-hello", &[("alice", 2)]);
    // A client's first message.
    let (client, server) = sockets();
    keys.connector("alice").connect().unwrap().advance(&client).unwrap();
    let mut hello = vec![0; 8192];
    let Ok(Received::Bytes(len)) = server.receive(&mut hello) else { panic!("no hello") };
    for cut in (0..len).step_by(7) {
        let (client, server) = sockets();
        client.send(&hello[..cut]).unwrap();
        let mut other = keys.acceptor().accept().unwrap();
        assert_eq!(
            other.advance(&server).unwrap(),
            HandshakeProgress::Waits { room: false },
            "{cut}"
        );
        client.close();
        assert_eq!(other.advance(&server).unwrap_err().why.kind(), ErrorKind::Disconnected);
    }
}
