//! Replies that were to leave from their place, and must be read after all: the server sleeps while
//! they are read, and what they take in memory is counted before.

use crate::client;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use client::{ask, connect, serve};
use device::{
    Abilities, Blocking, Extent, ExtentKind, Info, Now, Operation, OperationKind, Place as Lies,
    Result, Simple,
};
use runtime::WorkPool;
use rustix::fs::{Mode, OFlags};
use server::Options;
use trial::{Fate, TestDevice};

const SIZE: u64 = 64 << 20;
const LONG: u32 = 32 << 20;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What is not in the page cache is read when the disk is warm from its first byte to beyond that
/// read.
struct Cold {
    device: TestDevice,
    file: Arc<OwnedFd>,
    /// Reads before this offset wait no longer.
    warm: Arc<(Mutex<u64>, Condvar)>,
}

impl Cold {
    fn new() -> Self {
        // Not in memory, or it would never be cold.
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open("/tmp", flags, Mode::RUSR | Mode::WUSR).unwrap();
        for at in (0..SIZE).step_by(1 << 20) {
            rustix::io::pwrite(&file, &vec![0; 1 << 20], at).unwrap();
        }
        let file = Arc::new(file);
        let info = Info { flat: Some(Lies::new(file.clone(), 0)), ..Info::new("cold", SIZE) };
        let warm = Arc::<(Mutex<u64>, Condvar)>::default();
        let waits = warm.clone();
        let device = TestDevice::blank(info).waiting().hooked(move |operation| {
            if let Operation::Read { offset, .. } = operation {
                let (warm, moved) = &*waits;
                drop(moved.wait_while(warm.lock().unwrap(), |warm| *warm <= offset).unwrap());
            }
            Fate::Pass(operation)
        });
        Self { device, file, warm }
    }

    /// Waits until so many reads have come.
    fn wait_for(&self, reads: usize) {
        self.device.wait_for(OperationKind::Read, reads);
    }

    /// Offset and length of the reads that came.
    fn reads(&self) -> Vec<(u64, u64)> {
        self.device.seen_of(OperationKind::Read).iter().map(|r| (r.offset, r.len)).collect()
    }

    /// Nothing of it is in memory any more, but what lies in sockets.
    fn cool(&self) {
        rustix::fs::fdatasync(&self.file).unwrap();
        rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }

    fn warm_up(&self, before: u64) {
        *self.warm.0.lock().unwrap() = before;
        self.warm.1.notify_all();
    }
}

/// Reads what there is, until nothing more comes.
fn drain(socket: &mut UnixStream) {
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut bytes = vec![0; 1 << 20];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => panic!("closed"),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Processor time of this program, in hundredths of a second.
fn processor_time() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
}

/// Set in the process of the test below.
const ALONE: &str = "FETCHING_ALONE";

#[test]
fn while_a_reply_is_read_the_server_sleeps_and_the_memory_for_it_is_counted() {
    let name = "fetching::while_a_reply_is_read_the_server_sleeps_and_the_memory_for_it_is_counted";
    if std::env::var_os(ALONE).is_none() {
        // Processor time is that of a process, in which other tests may run, too.
        let mut own = std::process::Command::new(std::env::current_exe().unwrap());
        let told = own.args(["--exact", name]).env(ALONE, "").output().unwrap();
        let text = String::from_utf8_lossy(&told.stdout);
        return assert!(told.status.success() && text.contains("1 passed"), "{text}");
    }
    sleeps();
    is_counted();
}

fn sleeps() {
    let disk = Cold::new();
    let edge = Simple::edge(disk.device.clone(), &WorkPool::new(8));
    let (server, path) = serve(edge, Options { reactors: 1, ..Options::default() });
    let mut socket = connect(&path);
    // One that fills the socket, one that takes its time, and no more.
    ask(&mut socket, 32 * MIB, LONG);
    ask(&mut socket, 512, 512);
    let mut goodbye = 0x2560_9513_u32.to_be_bytes().to_vec();
    goodbye.extend([0, 0, 0, 2]);
    goodbye.extend([0; 20]);
    socket.write_all(&goodbye).unwrap();
    disk.wait_for(1);
    disk.cool();
    drain(&mut socket);
    disk.wait_for(2);
    // The short one ends while the long one is read.
    disk.warm_up(1024);
    std::thread::sleep(Duration::from_millis(100));
    let before = processor_time();
    std::thread::sleep(Duration::from_secs(1));
    let spent = processor_time() - before;
    disk.warm_up(SIZE);
    drop(socket);
    assert!(server.stop());
    assert!(spent < 20, "{spent} hundredths of a second awake");
}

fn is_counted() {
    const CLIENTS: usize = 20;
    let disk = Cold::new();
    let edge = Simple::edge(disk.device.clone(), &WorkPool::new(64));
    let options = Options { reactors: 1, memory: 8 * MIB, ..Options::default() };
    let (server, path) = serve(edge, options);
    let mut sockets: Vec<_> = (0..CLIENTS).map(|_| connect(&path)).collect();
    for socket in &mut sockets {
        ask(socket, 0, LONG);
    }
    for socket in &mut sockets {
        socket.read_exact(&mut [0; 1024]).unwrap();
    }
    disk.cool();
    sockets.iter_mut().for_each(drain);
    disk.wait_for(CLIENTS);
    let taken: u64 = disk.reads().iter().map(|(_, len)| len).sum();
    disk.warm_up(SIZE);
    drop(sockets);
    assert!(server.stop());
    // Half of the limit is one user's.
    assert!(taken <= 4 * MIB + CLIENTS as u64 * 64 * KIB, "{taken} bytes");
}

/// A disk whose map is known at once: its first MiB lies in a file, and the rest nowhere. No
/// [`TestDevice`] alone: of those that wait, only this one answers `now`.
struct Half(TestDevice, Arc<OwnedFd>, Info);

impl Blocking for Half {
    fn info(&self) -> &Info {
        &self.2
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, _data: &[u8], _offset: u64, _fua: bool) -> Result<()> {
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn waits(&self) -> bool {
        true
    }
    fn now(&self, now: Now<'_>) -> Result<bool> {
        let Now::Resolve { offset, len, out, .. } = now else { return Ok(false) };
        assert_eq!((offset, len), (0, 2 * MIB));
        let place = Lies::new(self.1.clone(), 0);
        out.push(Extent::new(0, MIB, ExtentKind::Data).at(Some(place)));
        out.push(Extent::new(MIB, MIB, ExtentKind::Data));
        Ok(true)
    }
}

/// Otherwise the sending thread waits for the disk, and with it the reactor for the connection's
/// queue.
#[test]
fn bytes_in_memory_are_looked_for_again_after_the_rest_of_a_reply_was_read() {
    let disk = Cold::new();
    let abilities = Abilities { extents: true, ..Abilities::READ };
    let info = Info { abilities, ..Info::new("half", SIZE) };
    let half = Half(disk.device.clone(), disk.file.clone(), info);
    let edge = Simple::edge(half, &WorkPool::new(2));
    let (server, path) = serve(edge, Options { reactors: 1, ..Options::default() });
    let mut socket = connect(&path);
    ask(&mut socket, 0, 2 << 20);
    disk.wait_for(1);
    disk.cool();
    disk.warm_up(SIZE);
    socket.read_exact(&mut vec![0; 16 + (2 << 20)]).unwrap();
    let reads = disk.reads();
    drop(socket);
    assert!(server.stop());
    assert_eq!(reads, [(MIB, MIB), (0, MIB)], "sent from a place that was not in memory any more");
}
