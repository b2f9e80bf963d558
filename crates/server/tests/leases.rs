//! A disk whose clusters lie scattered over two files and move: bytes that a client was sent as
//! pages, and has not received, never become those of another offset.

use crate::client;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use client::{answered, ask, choose, connect, disk, serve, write_request};
use server::{Options, Server};
use trial::toy::{Toy, ToySettings};

const CLUSTER: u64 = 64 << 10;
const CLUSTERS: u64 = 64;
/// Clusters that a late reader asks for: not more than a socket takes.
const READ: usize = 2;
const OLD: u8 = 0xaa;
const OTHER: u8 = 0xee;
const GUARD: Duration = Duration::from_secs(60);

/// A server of such a disk of which the first clusters are old, and a client that changes it.
struct Disk {
    toy: Toy,
    server: Server,
    changes: std::os::unix::net::UnixStream,
    path: std::path::PathBuf,
}

impl Disk {
    fn start() -> Self {
        let cluster = u32::try_from(CLUSTER).unwrap();
        let settings = ToySettings { cluster, packs: false, ..ToySettings::default() };
        let files = [disk("memory:8M"), disk("memory:8M")];
        let toy = Toy::create(files, None, CLUSTER * CLUSTERS, settings);
        let (server, path) = serve(toy.edge(), Options { reactors: 2, ..Options::default() });
        let mut me = Self { toy, server, changes: connect(&path), path };
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

    /// Waits until no lease of what was freed is held any more; then it is reused.
    fn wait_for_reuse(&mut self) {
        let begun = Instant::now();
        while self.toy.counts().held > 0 {
            assert!(begun.elapsed() < GUARD, "a lease lives on");
            std::thread::sleep(Duration::from_millis(20));
        }
        let before = self.toy.counts().reused;
        self.write(0, OTHER);
        assert!(self.toy.counts().reused > before);
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
    assert_eq!(disk.toy.counts().reads, 0, "read, and not sent from where they lie");
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
    assert_eq!(disk.toy.counts().reused, 0);
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
    assert_eq!(disk.toy.counts().reused, 0);
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
    // No request: the server does not wait for a client that breaks the protocol.
    late.write_all(&[1; 28]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    disk.zero();
    disk.reuse();
    assert_eq!(disk.toy.counts().reused, 0);
    receive(&mut late);
    assert_eq!(late.read(&mut [0]).unwrap(), 0, "it is closed");
    disk.wait_for_reuse();
    drop(disk.changes);
    assert!(disk.server.stop());
}
