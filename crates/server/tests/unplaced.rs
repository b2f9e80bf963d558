//! A device that never waits, and does what it is asked before `submit` returns: that is not always
//! what it should do on the thread of a reactor.

use crate::client;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::{ask, connect, reply, serve, write_request};
use device::{Abilities, Buffer, Info, Operation, OperationKind, Place as Lies, Simple};
use runtime::{Behalf, WorkPool, has_time};
use rustix::fs::{Mode, OFlags};
use server::Options;
use trial::{Fate, TestDevice};

const MIB: u64 = 1 << 20;
const LONG: u32 = 32 << 20;

/// For each thread that read: the highest and the lowest address on its stack.
type Depths = Arc<Mutex<HashMap<std::thread::ThreadId, (usize, usize)>>>;

#[test]
fn what_is_read_after_all_is_read_piece_after_piece_and_never_deeper() {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file: OwnedFd = rustix::fs::open("/tmp", flags, Mode::RUSR | Mode::WUSR).unwrap();
    for at in 0..32 {
        rustix::io::pwrite(&file, &vec![0; 1 << 20], at << 20).unwrap();
    }
    let file = Arc::new(file);
    let info = Info { flat: Some(Lies::new(file.clone(), 0)), ..Info::new("deep", 32 * MIB) };
    let depths = Depths::default();
    let seen = depths.clone();
    let deep = TestDevice::blank(info).hooked(move |operation| {
        let here = std::ptr::from_ref(&operation).addr();
        let mut seen = seen.lock().unwrap();
        let (high, low) = seen.entry(std::thread::current().id()).or_insert((here, here));
        (*high, *low) = ((*high).max(here), (*low).min(here));
        drop(seen);
        // The client reads what was sent before.
        std::thread::sleep(Duration::from_millis(2));
        Fate::Pass(operation)
    });
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
    let reads = deep.count(OperationKind::Read);
    assert!(reads > 100, "{reads} reads");
    for (high, low) in depths.lock().unwrap().values() {
        assert!(high - low < 16 << 10, "{} bytes of stack", high - low);
    }
}

/// A device that answers in `submit`, as filters do, and how many requests were begun by a thread
/// with other things to do, and how many by others. A read at 512 ends with half of its bytes.
fn here() -> (Arc<TestDevice>, Arc<[AtomicUsize; 2]>) {
    let abilities = Abilities { write: true, zero: true, ..Abilities::READ };
    let info = Info { abilities, ..Info::new("here", 1 << 30) };
    let begun = Arc::<[AtomicUsize; 2]>::default();
    let counts = begun.clone();
    let device = TestDevice::blank(info).hooked(move |operation| {
        counts[usize::from(has_time())].fetch_add(1, Ordering::SeqCst);
        Fate::done(match operation {
            Operation::Read { buffer, offset: 512 } => {
                Operation::Read { buffer: Buffer::zeroed(buffer.len() / 2), offset: 512 }
            }
            other => other,
        })
    });
    (device.shared(), begun)
}

#[test]
fn what_is_long_is_not_begun_by_a_reactor() {
    let (here, begun) = here();
    let (server, path) = serve(here.edge(&WorkPool::new(1)), Options::default());
    let mut socket = connect(&path);
    for (len, count) in [(64_u32 << 10, [1, 0]), (1 << 30, [1, 1])] {
        let mut request = write_request(0, &[]);
        request[7] = 6;
        request[24..28].copy_from_slice(&len.to_be_bytes());
        socket.write_all(&request).unwrap();
        assert_eq!(client::answered(&mut socket), Some(0));
        assert_eq!([0, 1].map(|i: usize| begun[i].load(Ordering::SeqCst)), count, "{len}");
    }
    drop(socket);
    assert!(server.stop());
}

/// The map of a device that waits for something outside ends on a thread of its own, and so the
/// read begins there.
#[test]
fn a_request_that_goes_on_elsewhere_is_still_its_clients() {
    let abilities = Abilities { extents: true, ..Abilities::READ };
    let info = Info { abilities, ..Info::new("mapped", MIB) };
    let (tx, rx) = std::sync::mpsc::channel();
    let disk = TestDevice::blank(info).hooked(move |operation| {
        tx.send((operation.kind(), Behalf::current().client())).unwrap();
        Fate::Pass(operation)
    });
    let disk = disk.shared();
    disk.hold();
    let (server, path) = serve(disk.edge(&WorkPool::new(1)), Options::default());
    let mut socket = connect(&path);
    ask(&mut socket, 0, 64 << 10);
    disk.wait_for_held(1);
    disk.release();
    assert_eq!(rx.recv().unwrap(), (OperationKind::Resolve, 0), "released by this thread");
    assert_eq!(rx.recv().unwrap(), (OperationKind::Read, 1));
    drop(socket);
    assert!(server.stop());
}

/// A defect of a device must not put the replies of a server out of step.
#[test]
fn a_read_that_ends_with_another_length_is_an_error() {
    let (server, path) = serve(here().0.edge(&WorkPool::new(1)), Options::default());
    let mut socket = connect(&path);
    for (offset, error) in [(0, 0), (512, 5), (1024, 0)] {
        ask(&mut socket, offset, 512);
        assert_eq!(reply(&mut socket), Some(error), "{offset}");
    }
    drop(socket);
    assert!(server.stop());
}
