//! A device that never waits, and does what it is asked before `submit` returns: that is not always
//! what it should do on the thread of a reactor.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod client;

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::{ask, connect, reply, serve, write_request};
use device::{
    Abilities, Blocking, Buffer, Device, Done, Edge, Info, Operation, Outcome, Place as Lies,
    Result, Simple,
};
use runtime::{WorkPool, has_time};
use rustix::fs::{Mode, OFlags};
use server::Options;

const MIB: u64 = 1 << 20;
const LONG: u32 = 32 << 20;

/// All of it lies in a file, which leaves the page cache. It says how deep in the stack it is asked.
struct Deep {
    info: Info,
    /// For each thread: the highest and the lowest address that were seen.
    seen: Mutex<Vec<(std::thread::ThreadId, usize, usize)>>,
    reads: AtomicUsize,
}

impl Blocking for Deep {
    fn info(&self) -> &Info {
        &self.info
    }
    fn read_at(&self, buf: &mut [u8], _offset: u64) -> Result<()> {
        let here = std::ptr::from_ref(&buf).addr();
        let me = std::thread::current().id();
        let mut seen = self.seen.lock().unwrap();
        match seen.iter_mut().find(|(who, ..)| *who == me) {
            Some((_, high, low)) => (*high, *low) = ((*high).max(here), (*low).min(here)),
            None => seen.push((me, here, here)),
        }
        drop(seen);
        self.reads.fetch_add(1, Ordering::SeqCst);
        // The client reads what was sent before.
        std::thread::sleep(Duration::from_millis(2));
        buf.fill(0);
        Ok(())
    }
    fn write_at(&self, _data: &[u8], _offset: u64, _fua: bool) -> Result<()> {
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn what_is_read_after_all_is_read_piece_after_piece_and_never_deeper() {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file: OwnedFd = rustix::fs::open("/tmp", flags, Mode::RUSR | Mode::WUSR).unwrap();
    for at in 0..32 {
        rustix::io::pwrite(&file, &vec![0; 1 << 20], at << 20).unwrap();
    }
    let file = Arc::new(file);
    let info = Info { flat: Some(Lies::new(file.clone(), 0)), ..Info::new("deep", 32 * MIB) };
    let deep = Arc::new(Deep { info, seen: Mutex::default(), reads: AtomicUsize::new(0) });
    let edge = Simple::edge(deep.clone(), &WorkPool::new(2));
    let options = Options { reactors: 1, memory: 8 * MIB, ..Options::default() };
    let (server, path) = serve(edge, options);
    let mut holders: Vec<_> = (0..8).map(|_| connect(&path)).collect();
    let mut socket = connect(&path);
    for socket in holders.iter_mut().chain([&mut socket]) {
        ask(socket, 0, LONG);
        socket.read_exact(&mut [0; 16]).unwrap();
    }
    rustix::fs::fdatasync(&file).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    // Memory is short, so that it is read in pieces which the socket takes whole.
    holders.iter_mut().for_each(|socket| socket.read_exact(&mut vec![0; 12 << 20]).unwrap());
    socket.read_exact(&mut vec![0; LONG as usize]).unwrap();
    drop((socket, holders));
    assert!(server.stop());
    let reads = deep.reads.load(Ordering::SeqCst);
    assert!(reads > 100, "{reads} reads");
    for (_, high, low) in &*deep.seen.lock().unwrap() {
        assert!(high - low < 16 << 10, "{} bytes of stack", high - low);
    }
}

/// Filters are such devices.
struct Here {
    info: Info,
    /// Requests that were begun by a thread with other things to do, and others.
    begun: [AtomicUsize; 2],
}

impl Here {
    fn new() -> Arc<Self> {
        let abilities = Abilities { write: true, zero: true, ..Abilities::READ };
        let info = Info { abilities, ..Info::new("here", 1 << 30) };
        Arc::new(Self { info, begun: Default::default() })
    }
}

impl Device for Here {
    fn info(&self) -> &Info {
        &self.info
    }
    fn submit(&self, operation: Operation, done: Done) {
        self.begun[usize::from(has_time())].fetch_add(1, Ordering::SeqCst);
        done(Ok(match operation {
            Operation::Read { buffer, offset: 512 } => {
                Outcome::Read(Buffer::zeroed(buffer.len() / 2))
            }
            Operation::Read { buffer, .. } => Outcome::Read(buffer),
            _ => Outcome::Done,
        }));
    }
}

#[test]
fn what_is_long_is_not_begun_by_a_reactor() {
    let here = Here::new();
    let pool = WorkPool::new(1);
    let (server, path) = serve(Edge::new(here.clone(), pool), Options::default());
    let mut socket = connect(&path);
    for (len, count) in [(64_u32 << 10, [1, 0]), (1 << 30, [1, 1])] {
        let mut request = write_request(0, &[]);
        request[7] = 6;
        request[24..28].copy_from_slice(&len.to_be_bytes());
        socket.write_all(&request).unwrap();
        assert_eq!(client::answered(&mut socket), Some(0));
        assert_eq!([0, 1].map(|i: usize| here.begun[i].load(Ordering::SeqCst)), count, "{len}");
    }
    drop(socket);
    assert!(server.stop());
}

/// A defect of a device must not put the replies of a server out of step.
#[test]
fn a_read_that_ends_with_another_length_is_an_error() {
    let (server, path) = serve(Edge::new(Here::new(), WorkPool::new(1)), Options::default());
    let mut socket = connect(&path);
    for (offset, error) in [(0, 0), (512, 5), (1024, 0)] {
        ask(&mut socket, offset, 512);
        assert_eq!(reply(&mut socket), Some(error), "{offset}");
    }
    drop(socket);
    assert!(server.stop());
}
