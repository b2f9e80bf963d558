//! A server of one disk, and a client that speaks just enough.
#![allow(dead_code, reason = "each test uses some of it")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use device::Edge;
use devices::{Named, OpenOptions};
use runtime::{Context, WorkPool};
use server::{ListenAddress, Listener, Options, Server};
use serving::{Allowed, Export, Exports};

/// A disk by name.
pub(crate) fn disk(name: &str) -> Edge {
    let options = OpenOptions { lock: false, ..OpenOptions::read_write() };
    let pool = WorkPool::new(2);
    let disk = Named::parse(name).unwrap().open(&options, &Context::new(pool.clone())).unwrap();
    Edge::new(disk, pool)
}

/// Serves a disk as the default export, on the socket that is answered.
pub(crate) fn serve(edge: Edge, options: Options) -> (Server, PathBuf) {
    let exports = Exports::new();
    let (name, description) = Default::default();
    let read_only = !edge.info().abilities.write;
    assert!(exports.add(Export { name, description, edge, read_only, allow: Allowed::default() }));
    let listener = Listener::private().unwrap();
    let ListenAddress::Unix(path) = listener.place().clone() else { panic!("not a Unix socket") };
    (Server::start(exports, vec![listener], &options).unwrap(), path)
}

/// A connection to the default export.
pub(crate) fn connect(path: &Path) -> UnixStream {
    let mut socket = UnixStream::connect(path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    choose(&mut socket);
    socket
}

/// Chooses the default export, old style: flags, EXPORT_NAME.
pub(crate) fn choose(socket: &mut (impl Read + Write)) {
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting).unwrap();
    let mut hello = vec![0, 0, 0, 3];
    hello.extend(0x4948_4156_454f_5054_u64.to_be_bytes());
    hello.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    socket.write_all(&hello).unwrap();
    let mut export = [0; 10];
    socket.read_exact(&mut export).unwrap();
}

/// Asks for bytes; the offset is the cookie.
pub(crate) fn ask(socket: &mut impl Write, offset: u64, len: u32) {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend([0; 4]);
    request.extend(offset.to_be_bytes());
    request.extend(offset.to_be_bytes());
    request.extend(len.to_be_bytes());
    socket.write_all(&request).unwrap();
}

/// A request to write, as it stands on the wire; the offset is the cookie.
pub(crate) fn write_request(offset: u64, data: &[u8]) -> Vec<u8> {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend([0, 0, 0, 1]);
    request.extend(offset.to_be_bytes());
    request.extend(offset.to_be_bytes());
    request.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    request.extend(data);
    request
}

/// The cookie of a simple reply without an error; `None` at the end.
pub(crate) fn answered(socket: &mut impl Read) -> Option<u64> {
    let mut header = [0; 16];
    socket.read_exact(&mut header).ok()?;
    assert_eq!(header[4..8], [0; 4], "an error");
    Some(u64::from_be_bytes(header[8..].try_into().unwrap()))
}

/// The error of a simple reply, after its 512 bytes if there is none; `None` at the end.
pub(crate) fn reply(socket: &mut UnixStream) -> Option<u32> {
    let mut header = [0; 16];
    socket.read_exact(&mut header).ok()?;
    let error = u32::from_be_bytes(header[4..8].try_into().unwrap());
    if error == 0 {
        socket.read_exact(&mut [0; 512]).unwrap();
    }
    Some(error)
}
