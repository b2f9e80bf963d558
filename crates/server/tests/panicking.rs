//! A device that panics: that request fails, everybody else is served, and it is counted.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use device::{Abilities, BlockSizes, Device, Edge, Info, Result, Wait, WorkPool};
use server::{Export, Exports, Listener, Options, Place, Server};

/// It panics when it is read beyond its first 4 KiB.
struct Panicking(Info);

impl Panicking {
    fn new(wait: Wait) -> Self {
        Self(Info {
            name: "panicking".into(),
            description: String::new(),
            size: 1 << 20,
            blocks: BlockSizes::ANY,
            abilities: Abilities::READ,
            wait,
            advertised: None,
        })
    }
}

impl Device for Panicking {
    fn info(&self) -> &Info {
        &self.0
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        assert!(offset < 4096, "on purpose");
        buf.fill(7);
        Ok(())
    }
    fn write_at(&self, _data: &[u8], _offset: u64, _fua: bool) -> Result<()> {
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

/// Chooses the default export, old style: flags, EXPORT_NAME.
fn connect(path: &std::path::Path) -> UnixStream {
    let mut socket = UnixStream::connect(path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting).unwrap();
    let mut hello = vec![0, 0, 0, 3];
    hello.extend(0x4948_4156_454f_5054_u64.to_be_bytes());
    hello.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    socket.write_all(&hello).unwrap();
    let mut export = [0; 10];
    socket.read_exact(&mut export).unwrap();
    socket
}

fn ask(socket: &mut UnixStream, offset: u64) {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend([0; 4]);
    request.extend(offset.to_be_bytes());
    request.extend(offset.to_be_bytes());
    request.extend(512_u32.to_be_bytes());
    socket.write_all(&request).unwrap();
}

/// The error of a simple reply, after its 512 bytes if there is none; `None` at the end.
fn reply(socket: &mut UnixStream) -> Option<u32> {
    let mut header = [0; 16];
    socket.read_exact(&mut header).ok()?;
    let error = u32::from_be_bytes(header[4..8].try_into().unwrap());
    if error == 0 {
        socket.read_exact(&mut [0; 512]).unwrap();
    }
    Some(error)
}

#[test]
fn a_panic_of_a_device_ends_its_request_or_connection_and_nothing_else() {
    for wait in [Wait::Disk, Wait::Never, Wait::Outside] {
        let before = device::panics();
        let edge = Edge::new(Arc::new(Panicking::new(wait)), WorkPool::new(2));
        let mut exports = Exports::new();
        let (name, description) = Default::default();
        assert!(exports.add(Export { name, description, edge, read_only: true }));
        let listener = Listener::private().unwrap();
        let Place::Unix(path) = listener.place().clone() else { panic!("not a Unix socket") };
        let options = Options { reactors: 1, ..Options::default() };
        let server = Server::start(exports, vec![listener], &options).unwrap();
        let mut other = connect(&path);
        for _ in 0..5 {
            let mut socket = connect(&path);
            ask(&mut socket, 8192);
            assert!([None, Some(5)].contains(&reply(&mut socket)), "{wait:?}");
        }
        ask(&mut other, 512);
        assert_eq!(reply(&mut other), Some(0), "{wait:?}");
        assert!(device::panics() >= before + 5, "{wait:?}");
        drop(other);
        assert!(server.stop());
    }
}
