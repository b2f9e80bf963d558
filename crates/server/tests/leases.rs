//! An image whose clusters are given up and used again: bytes that a client was sent as pages, and
//! has not received, never become those of another offset.

use crate::{client, images};

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use client::{answered, ask, choose, connect, serve, write_request};
use device::Edge;
use images::Directory;
use runtime::Context;
use server::{Options, Server};

const CLUSTER: u64 = 64 << 10;
const CLUSTERS: u64 = 64;
/// Clusters that a late reader asks for: not more than a socket takes.
const READ: usize = 2;
const OLD: u8 = 0xaa;
const OTHER: u8 = 0xee;
const GUARD: Duration = Duration::from_secs(60);

/// A server of such an image of which the first clusters are old, and a client that changes it.
struct Disk {
    edge: Edge,
    context: Context,
    /// Where the old clusters lie.
    old: Vec<u64>,
    server: Server,
    changes: std::os::unix::net::UnixStream,
    path: std::path::PathBuf,
    directory: Directory,
}

impl Disk {
    fn start() -> Self {
        let directory = Directory::new();
        let image = directory.0.join("image");
        images::create(&image, (CLUSTER * CLUSTERS, &[], false), |_| {});
        let (edge, context) = images::open(&image, true);
        let (server, path) = serve(edge.clone(), Options { reactors: 2, ..Options::default() });
        let changes = connect(&path);
        let mut me = Self { edge, context, old: Vec::new(), server, changes, path, directory };
        me.write(0, OLD);
        me.edge.flush().unwrap();
        me.old = me.homes(0);
        assert!(!me.old.is_empty());
        me
    }

    /// Where the clusters from that one on lie, as many as are read.
    fn homes(&self, at: u64) -> Vec<u64> {
        let clusters = (at..at + READ as u64).flat_map(|n| {
            let homes = images::map(&self.edge, n * CLUSTER, CLUSTER);
            homes.into_iter().filter_map(|extent| extent.home).map(|home| home.offset)
        });
        clusters.collect()
    }

    /// Writes as many clusters as are read.
    fn write(&mut self, at: u64, byte: u8) {
        for n in 0..READ as u64 {
            let data = vec![byte; usize::try_from(CLUSTER).unwrap()];
            self.changes.write_all(&write_request((at + n) * CLUSTER, &data)).unwrap();
            assert!(answered(&mut self.changes).is_some());
        }
    }

    /// Gives up the clusters that are read, from that one on: what is given up is durable.
    fn zero(&mut self, at: u64) {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend([0, 0, 0, 6]);
        request.extend([0; 8]);
        request.extend((at * CLUSTER).to_be_bytes());
        request.extend(u32::try_from(READ as u64 * CLUSTER).unwrap().to_be_bytes());
        self.changes.write_all(&request).unwrap();
        assert!(answered(&mut self.changes).is_some());
        self.edge.flush().unwrap();
    }

    /// Whether what is written now is where the old clusters were.
    fn is_reused(&mut self, at: u64) -> bool {
        self.write(at, OTHER);
        self.homes(at).iter().any(|home| self.old.contains(home))
    }

    /// Has the clusters reused that were freed, if they may be: whether they were.
    fn reuse(&mut self) -> bool {
        (1..8).any(|n| self.is_reused(n * READ as u64))
    }

    /// Waits until no lease of what was freed is held any more; then it is reused.
    fn wait_for_reuse(&mut self) {
        let (begun, at) = (Instant::now(), CLUSTERS - READ as u64);
        while !self.is_reused(at) {
            assert!(begun.elapsed() < GUARD, "a lease lives on");
            self.zero(at);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The client leaves, the server stops, and the image is closed.
    fn end(self) {
        drop(self.changes);
        assert!(self.server.stop());
        self.context.control.end();
        drop(self.directory);
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
fn what_lies_scattered_is_sent_piece_by_piece_and_holes_are_zeroes() {
    let mut disk = Disk::start();
    (1..4).for_each(|n| disk.write(n * READ as u64, u8::try_from(n).unwrap()));
    disk.zero(0);
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
    drop(socket);
    disk.end();
}

#[test]
fn what_lies_in_a_unix_socket_is_not_reused_before_it_is_received_and_then_it_is() {
    let mut disk = Disk::start();
    let mut late = connect(&disk.path);
    ask_for_old(&mut late);
    settle(&late);
    disk.zero(0);
    assert!(!disk.reuse());
    receive(&mut late);
    // The connection lives on, and is asked for nothing.
    disk.wait_for_reuse();
    ask_for_old(&mut late);
    settle(&late);
    drop(late);
    disk.end();
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
    disk.zero(0);
    assert!(!disk.reuse());
    late.iter_mut().for_each(receive);
    drop(late);
    disk.wait_for_reuse();
    disk.end();
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
    disk.zero(0);
    assert!(!disk.reuse());
    receive(&mut late);
    assert_eq!(late.read(&mut [0]).unwrap(), 0, "it is closed");
    disk.wait_for_reuse();
    disk.end();
}
