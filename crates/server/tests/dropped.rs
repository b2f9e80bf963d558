//! A device that asks for its client to be dropped: the connection ends without an answer to
//! that request, and the next client is served.

use runtime::WorkPool;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use device::{Abilities, ErrorKind, Info, Simple};
use server::{ListenAddress, Listener, Options, Server};
use serving::{Allowed, Export, Exports};
use trial::{Fate, TestDevice};

const SIZE: u64 = 1 << 20;

/// It drops requests for anything but its first 4 KiB, after a while.
fn dropping(after: Duration) -> TestDevice {
    let abilities = Abilities { write: true, flush: true, extents: true, ..Abilities::READ };
    let info = Info { abilities, ..Info::new("dropping", SIZE) };
    TestDevice::blank(info).hooked(move |operation| {
        std::thread::sleep(after);
        match operation.range() {
            Some((4096.., _)) => Fate::fail(ErrorKind::Dropped),
            _ => Fate::Pass(operation),
        }
    })
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const OK: u32 = 0;

/// The simplest handshake, EXPORT_NAME, and simple replies.
fn connect(server: &ListenAddress) -> UnixStream {
    let ListenAddress::Unix(path) = server else { panic!("not a Unix socket") };
    let mut socket = UnixStream::connect(path).unwrap();
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting).unwrap();
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT");
    hello.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    socket.write_all(&hello).unwrap();
    let mut export = [0; 10];
    socket.read_exact(&mut export).unwrap();
    assert_eq!(export[..8], SIZE.to_be_bytes());
    socket
}

fn ask(socket: &mut UnixStream, command: u16, offset: u64, len: u32) {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend([0, 0]);
    request.extend(command.to_be_bytes());
    request.extend(7u64.to_be_bytes());
    request.extend(offset.to_be_bytes());
    request.extend(len.to_be_bytes());
    if command == WRITE {
        request.resize(request.len() + len as usize, 1);
    }
    socket.write_all(&request).unwrap();
}

/// The error of the next reply, or the end of the connection.
fn reply(socket: &mut UnixStream) -> Option<u32> {
    let mut head = [0; 16];
    match socket.read_exact(&mut head) {
        Ok(()) => Some(u32::from_be_bytes(head[4..8].try_into().unwrap())),
        Err(_) => None,
    }
}

#[test]
fn a_client_that_is_to_be_dropped_gets_no_answer_and_others_are_served() {
    let pool = WorkPool::new(2);
    let edges = [
        Simple::edge(dropping(Duration::ZERO), &pool),
        Simple::edge(dropping(Duration::ZERO).waiting(), &pool),
        dropping(Duration::from_millis(5)).late(2).shared().edge(&pool),
    ];
    for (way, edge) in edges.into_iter().enumerate() {
        let (name, description) = Default::default();
        let exports = Exports::new();
        assert!(exports.add(Export {
            name,
            description,
            edge,
            read_only: false,
            allow: Allowed::default()
        }));
        let listener = Listener::private().unwrap();
        let place = listener.place().clone();
        let server = Server::start(exports, vec![listener], &Options::default()).unwrap();
        // Short ones are run at once or gathered, long ones elsewhere.
        for (command, len) in [(READ, 16), (READ, 500_000), (WRITE, 16), (WRITE, 500_000)] {
            let mut socket = connect(&place);
            ask(&mut socket, WRITE, 0, 512);
            assert_eq!(reply(&mut socket), Some(OK), "{way}");
            ask(&mut socket, command, 8192, len);
            assert_eq!(reply(&mut socket), None, "{way} {command} {len}");
        }
        assert!(server.stop());
    }
}
