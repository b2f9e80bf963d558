//! A disk whose clusters lie scattered over two files and move: bytes that a client was sent as pages,
//! and has not received, never become those of another offset.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod client;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use client::{answered, ask, choose, connect, serve, write_request};
use device::{
    Abilities, BlockSizes, Blocking, Extent, ExtentKind, Guard, Home, Info, Place, Result, Simple,
    Stored, ZeroFlags,
};
use runtime::WorkPool;
use server::{Options, Server};

const CLUSTER: u64 = 64 << 10;
const CLUSTERS: usize = 64;
/// Clusters that a late reader asks for: not more than a socket takes.
const READ: usize = 2;
const OLD: u8 = 0xaa;
const OTHER: u8 = 0xee;
const GUARD: Duration = Duration::from_secs(60);

/// Which file, and which cluster of it.
type Slot = (usize, u64);

struct Scattered {
    info: Info,
    files: [Arc<OwnedFd>; 2],
    state: Mutex<State>,
}

struct State {
    table: Vec<Option<Slot>>,
    free: Vec<Slot>,
    /// What was freed, with all leases that were given before.
    quarantine: Vec<(Slot, Vec<Weak<()>>)>,
    /// Of all places that are given from now on until something is freed.
    lease: Arc<()>,
    /// Those of before.
    leases: Vec<Weak<()>>,
    /// Clusters that the files have.
    slots: u64,
    reused: usize,
    /// Reads that did not go to the places.
    reads: usize,
}

impl State {
    /// A cluster for something new: one that was freed, as soon as there is no lease of it.
    fn allocate(&mut self) -> Slot {
        let is_held = |leases: &[Weak<()>]| leases.iter().any(|lease| lease.strong_count() > 0);
        let (held, free): (Vec<_>, Vec<_>) =
            self.quarantine.drain(..).partition(|(_, leases)| is_held(leases));
        self.quarantine = held;
        self.free.extend(free.into_iter().map(|(slot, _)| slot));
        if let Some(slot) = self.free.pop() {
            self.reused += 1;
            return slot;
        }
        self.slots += 1;
        (usize::try_from(self.slots % 2).unwrap(), self.slots / 2)
    }

    fn free(&mut self, slot: Slot) {
        let lease = std::mem::take(&mut self.lease);
        self.leases.retain(|lease| lease.strong_count() > 0);
        self.leases.push(Arc::downgrade(&lease));
        self.quarantine.push((slot, self.leases.clone()));
    }
}

impl Scattered {
    fn new() -> Arc<Self> {
        let file = || {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            Arc::new(rustix::fs::memfd_create("scattered", flags).unwrap())
        };
        let info = Info {
            blocks: BlockSizes { minimum: 65536, preferred: 65536, maximum: 65536 },
            abilities: Abilities { write: true, zero: true, extents: true, ..Abilities::READ },
            ..Info::new("scattered", CLUSTER * CLUSTERS as u64)
        };
        let state = State {
            table: vec![None; CLUSTERS],
            free: Vec::new(),
            quarantine: Vec::new(),
            lease: Arc::default(),
            leases: Vec::new(),
            slots: 0,
            reused: 0,
            reads: 0,
        };
        Arc::new(Self { info, files: [file(), file()], state: Mutex::new(state) })
    }

    fn reused(&self) -> usize {
        self.state.lock().unwrap().reused
    }

    fn cluster(offset: u64) -> usize {
        usize::try_from(offset / CLUSTER).unwrap()
    }
}

impl Blocking for Scattered {
    fn info(&self) -> &Info {
        &self.info
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        buf.fill(0);
        let mut state = self.state.lock().unwrap();
        state.reads += 1;
        if let Some((file, slot)) = state.table[Self::cluster(offset)] {
            rustix::io::pread(&self.files[file], buf, slot * CLUSTER).unwrap();
        }
        Ok(())
    }
    fn write_at(&self, data: &[u8], offset: u64, _fua: bool) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        let cluster = Self::cluster(offset);
        let (file, slot) = match state.table[cluster] {
            Some(slot) => slot,
            None => state.allocate(),
        };
        state.table[cluster] = Some((file, slot));
        rustix::io::pwrite(&self.files[file], data, slot * CLUSTER).unwrap();
        Ok(())
    }
    fn zero(&self, offset: u64, len: u64, _flags: ZeroFlags) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        for cluster in Self::cluster(offset)..Self::cluster(offset + len) {
            if let Some(slot) = state.table[cluster].take() {
                state.free(slot);
            }
        }
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        let state = self.state.lock().unwrap();
        let guard: Guard = state.lease.clone();
        let all = (0..).zip(&state.table).map(|(n, slot): (u64, _)| {
            let start = n * CLUSTER;
            let Some((file, slot)) = *slot else {
                return Extent::new(start, CLUSTER, ExtentKind::Hole);
            };
            let place = Place::new(self.files[file].clone(), slot * CLUSTER).in_memory();
            let home = Some(Home { file: 0, offset: slot * CLUSTER, stored: Stored::Plain });
            let extent = Extent { home, ..Extent::new(start, CLUSTER, ExtentKind::Data) };
            extent.at(Some(place.guarded(guard.clone())))
        });
        out.extend(all.filter_map(|extent| extent.part(offset, offset + len)).take(max));
        Ok(())
    }
}

/// A server of such a disk of which the first clusters are old, and a client that changes it.
struct Disk {
    disk: Arc<Scattered>,
    server: Server,
    changes: std::os::unix::net::UnixStream,
    path: std::path::PathBuf,
}

impl Disk {
    fn start() -> Self {
        let disk = Scattered::new();
        let edge = Simple::edge(disk.clone(), &WorkPool::new(1));
        let (server, path) = serve(edge, Options { reactors: 2, ..Options::default() });
        let mut me = Self { disk, server, changes: connect(&path), path };
        me.write(0, OLD);
        me
    }

    /// Writes as many clusters as are read.
    fn write(&mut self, at: u64, byte: u8) {
        for n in 0..READ as u64 {
            let data = vec![byte; usize::try_from(CLUSTER).unwrap()];
            self.changes.write_all(&write_request((at + n) * CLUSTER, &data)).unwrap();
            assert!(answered(&mut self.changes).is_some());
        }
    }

    /// Frees the clusters that are read.
    fn zero(&mut self) {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend([0, 0, 0, 6]);
        request.extend([0; 16]);
        request.extend(u32::try_from(READ as u64 * CLUSTER).unwrap().to_be_bytes());
        self.changes.write_all(&request).unwrap();
        assert!(answered(&mut self.changes).is_some());
    }

    /// Has the clusters reused that were freed, if they may be.
    fn reuse(&mut self) {
        (1..8).for_each(|n| self.write(n * READ as u64, OTHER));
    }

    /// Frees and writes until what is freed is reused: nobody holds a lease any more.
    fn wait_for_reuse(&mut self) {
        let begun = Instant::now();
        let before = self.disk.reused();
        while self.disk.reused() == before {
            assert!(begun.elapsed() < GUARD, "a lease lives on");
            std::thread::sleep(Duration::from_millis(20));
            self.write(0, OTHER);
            self.zero();
        }
    }
}

/// Waits until nothing more comes into a socket.
fn settle(socket: &impl AsFd) {
    let mut before = 0;
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let now = rustix::io::ioctl_fionread(socket).unwrap();
        if now > 0 && now == before {
            return;
        }
        before = now;
    }
}

/// Reads what was asked for: each byte is what it was, or zero.
fn receive(socket: &mut impl Read) {
    assert_eq!(answered(socket), Some(0));
    let mut data = vec![1; READ * usize::try_from(CLUSTER).unwrap()];
    socket.read_exact(&mut data).unwrap();
    let wrong = data.iter().filter(|byte| ![OLD, 0].contains(byte)).count();
    assert_eq!(wrong, 0, "bytes of another offset");
}

fn ask_for_old(socket: &mut impl Write) {
    ask(socket, 0, u32::try_from(READ as u64 * CLUSTER).unwrap());
}

#[test]
fn what_lies_scattered_over_files_is_sent_from_there_piece_by_piece_and_holes_are_zeroes() {
    let mut disk = Disk::start();
    (1..4).for_each(|n| disk.write(n * READ as u64, u8::try_from(n).unwrap()));
    disk.zero();
    let len = 5 * READ as u64 * CLUSTER;
    let mut socket = connect(&disk.path);
    // Neither end is that of a cluster.
    ask(&mut socket, 100, u32::try_from(len - 200).unwrap());
    assert_eq!(answered(&mut socket), Some(100));
    let mut data = vec![9; usize::try_from(len - 200).unwrap()];
    socket.read_exact(&mut data).unwrap();
    for (byte, at) in data.iter().zip(100u64..) {
        let n = at / (READ as u64 * CLUSTER);
        assert_eq!(u64::from(*byte), if n < 4 { n } else { 0 }, "at {at}");
    }
    assert_eq!(disk.disk.state.lock().unwrap().reads, 0, "read, and not sent from where they lie");
    drop((socket, disk.changes));
    assert!(disk.server.stop());
}

#[test]
fn what_lies_in_a_unix_socket_is_not_reused_before_it_is_received_and_then_it_is() {
    let mut disk = Disk::start();
    let mut late = connect(&disk.path);
    ask_for_old(&mut late);
    settle(&late);
    disk.zero();
    disk.reuse();
    assert_eq!(disk.disk.reused(), 0);
    receive(&mut late);
    // The connection lives on, and is asked for nothing.
    disk.wait_for_reuse();
    ask_for_old(&mut late);
    settle(&late);
    drop(late);
    drop(disk.changes);
    assert!(disk.server.stop());
}

#[test]
fn what_lies_in_a_tcp_socket_is_not_reused_before_the_connection_has_ended_for_long() {
    let mut disk = Disk::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut late: Vec<_> = (0..2)
        .map(|_| {
            let mut late = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            late.set_read_timeout(Some(GUARD)).unwrap();
            disk.server.adopt(listener.accept().unwrap().0.into()).unwrap();
            choose(&mut late);
            ask_for_old(&mut late);
            settle(&late);
            late
        })
        .collect();
    // It sends no more, and reads later.
    late[1].shutdown(std::net::Shutdown::Write).unwrap();
    disk.zero();
    disk.reuse();
    late.iter_mut().for_each(receive);
    assert_eq!(disk.disk.reused(), 0);
    drop(late);
    disk.wait_for_reuse();
    drop(disk.changes);
    assert!(disk.server.stop());
}

#[test]
fn what_a_client_has_in_its_socket_outlives_a_connection_that_the_server_has_closed() {
    let mut disk = Disk::start();
    let mut late = connect(&disk.path);
    ask_for_old(&mut late);
    settle(&late);
    // No request: the server does not wait for who breaks the protocol.
    late.write_all(&[1; 28]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    disk.zero();
    disk.reuse();
    assert_eq!(disk.disk.reused(), 0);
    receive(&mut late);
    assert_eq!(late.read(&mut [0]).unwrap(), 0, "it is closed");
    disk.wait_for_reuse();
    drop(disk.changes);
    assert!(disk.server.stop());
}
