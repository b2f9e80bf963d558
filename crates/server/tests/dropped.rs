//! A device that asks for its client to be dropped: the connection ends without an answer to
//! that request, and the next client is served.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use runtime::WorkPool;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use device::{
    Abilities, Blocking, Device, Done, Edge, Error, ErrorKind, Extent, Fault, Info, Operation,
    Result, Simple, run_blocking,
};
use server::{Allowed, Export, Exports, ListenAddress, Listener, Options, Server};

/// It drops requests for anything but its first 4 KiB.
struct Dropping(Info);

const SIZE: u64 = 1 << 20;

impl Dropping {
    fn new() -> Self {
        let abilities = Abilities { write: true, flush: true, extents: true, ..Abilities::READ };
        Self(Info { abilities, ..Info::new("dropping", SIZE) })
    }
}

fn judge(offset: u64) -> Result<()> {
    if offset < 4096 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Dropped, Fault::User, "enough"))
}

impl Blocking for Dropping {
    fn info(&self) -> &Info {
        &self.0
    }
    fn read_at(&self, _buf: &mut [u8], offset: u64) -> Result<()> {
        judge(offset)
    }
    fn write_at(&self, _data: &[u8], offset: u64, _fua: bool) -> Result<()> {
        judge(offset)
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn resolve(&self, offset: u64, len: u64, _max: usize, out: &mut Vec<Extent>) -> Result<()> {
        out.push(Extent::new(offset, len, device::ExtentKind::Data));
        judge(offset)
    }
}

/// The same, in a pool.
struct Slow(Dropping);

impl Blocking for Slow {
    fn info(&self) -> &Info {
        self.0.info()
    }
    fn waits(&self) -> bool {
        true
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        self.0.write_at(data, offset, fua)
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        self.0.resolve(offset, len, max, out)
    }
}

/// The same, outside.
struct Outside(Dropping);

impl Device for Outside {
    fn info(&self) -> &Info {
        self.0.info()
    }
    fn submit(&self, operation: Operation, done: Done) {
        let outcome = run_blocking(&self.0, operation);
        let later = move || {
            std::thread::sleep(Duration::from_millis(5));
            done(outcome);
        };
        std::thread::spawn(later);
    }
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
        Simple::edge(Dropping::new(), &pool),
        Simple::edge(Slow(Dropping::new()), &pool),
        Edge::new(Arc::new(Outside(Dropping::new())), pool.clone()),
    ];
    for (way, edge) in edges.into_iter().enumerate() {
        let (name, description) = Default::default();
        let mut exports = Exports::new();
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
