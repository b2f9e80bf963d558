//! The NBD client against the common servers: nbdkit and qemu-nbd.
//!
//! A server that is not installed is skipped with a message.

use crate::script;

use runtime::WorkPool;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use trial::BlockingCalls;

use device::{Buffer, Device, Edge, ErrorKind, ExtentKind, Operation, Outcome, ZeroFlags};
use devices::OpenOptions;

/// A running server, with a directory of its own; both go when it is dropped.
struct Peer {
    child: Child,
    directory: PathBuf,
    uri: String,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Peer {
    /// Starts `program`; `arguments` get the socket and the directory.
    fn start(program: &str, arguments: impl FnOnce(&str, &Path) -> Vec<String>) -> Option<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("diskferry-peer-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let socket = directory.join("s").to_str().unwrap().to_owned();
        let mut command = Command::new(program);
        command.args(arguments(&socket, &directory));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = match command.spawn() {
            Ok(child) => child,
            Err(e) => {
                let _ = std::fs::remove_dir_all(&directory);
                println!("skipped: {program}: {e}");
                return None;
            }
        };
        let uri = format!("nbd+unix:///?socket={socket}");
        let peer = Self { child, directory, uri };
        let patience = Instant::now() + Duration::from_secs(60);
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < patience, "{program} does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(peer)
    }

    fn nbdkit(arguments: &[&str]) -> Option<Self> {
        Self::start("nbdkit", |socket, _| {
            let mut all: Vec<String> = ["-f", "-U", socket].map(str::to_owned).into();
            all.extend(arguments.iter().map(|a| (*a).to_owned()));
            all
        })
    }

    fn qemu(size: u64, arguments: &[&str]) -> Option<Self> {
        Self::start("qemu-nbd", |socket, directory| {
            let image = directory.join("disk");
            std::fs::File::create(&image).unwrap().set_len(size).unwrap();
            let image = image.to_str().unwrap();
            let fixed = ["-t", "-f", "raw", "-e", "8", "--discard=unmap", "-k", socket];
            let all = fixed.iter().chain(arguments).chain([&image]);
            all.map(|a| (*a).to_owned()).collect()
        })
    }

    fn open(&self, connections: usize) -> Arc<dyn Device> {
        let options = OpenOptions { connections, ..OpenOptions::read_write() };
        open(&self.uri, &options).unwrap()
    }
}

fn open(uri: &str, options: &OpenOptions) -> device::Result<Arc<dyn Device>> {
    devices::Named::parse(uri)?.open(options, &runtime::Context::default())
}

/// Writes, zeroes, reads and maps through lanes, and checks the result through the edge.
fn exercise(peer: &Peer, connections: usize) {
    const MIB: u64 = 1 << 20;
    let device = peer.open(connections);
    let info = device.info().clone();
    assert!(info.abilities.write, "{}", info.name);
    let mut lanes: Vec<_> = (0..device.info().lanes.map_or(0, std::num::NonZeroUsize::get))
        .map(|_| device.lane().unwrap().unwrap())
        .collect();
    let fill = |at: u64| u8::try_from(at / MIB % 250).unwrap() + 1;
    let pieces: Vec<u64> = (0..16).map(|i| i * MIB).collect();
    for (lane, at) in pieces.iter().enumerate() {
        let mut buffer = Buffer::zeroed(1 << 20);
        buffer.fill(fill(*at));
        let count = lanes.len();
        let operation = Operation::Write { offset: *at, data: buffer.into(), fua: false };
        lanes[lane % count].start(*at, operation);
    }
    for lane in &mut lanes {
        assert!(script::finish(&mut **lane).iter().all(|(_, outcome)| outcome.is_ok()));
    }
    device.flush().unwrap();
    let edge = Edge::new(device.clone(), WorkPool::new(2));
    let flags = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
    edge.zero(4 * MIB, 4 * MIB, flags).unwrap();
    edge.trim(12 * MIB, MIB, false).unwrap();
    edge.prefetch(0, MIB).unwrap();
    edge.write(&[0xaa; 1000], 4 * MIB + 513, info.abilities.fua).unwrap();
    for at in pieces.iter().rev().filter(|at| **at != 12 * MIB) {
        let operation = Operation::Read { offset: *at, buffer: Buffer::zeroed(1 << 20) };
        let count = lanes.len();
        lanes[usize::try_from(at / MIB).unwrap() % count].start(*at, operation);
    }
    for lane in &mut lanes {
        for (at, outcome) in script::finish(&mut **lane) {
            let Ok(Outcome::Read(buffer)) = outcome else { panic!("{outcome:?}") };
            let zero = (4 * MIB..8 * MIB).contains(&at);
            let mut right = vec![if zero { 0 } else { fill(at) }; 1 << 20];
            if at == 4 * MIB {
                right[513..1513].fill(0xaa);
            }
            assert!(*buffer == right, "{}: {at}", info.name);
        }
    }
    check_map(&edge, info.size);
    let mut past = vec![0; 2];
    let error = edge.read(&mut past, info.size - 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfBounds);
}

/// What the map calls zero reads as zeroes, and the map has no end before the disk has.
fn check_map(edge: &Edge, size: u64) {
    let mut at = 0;
    while at < size {
        let mut extents = Vec::new();
        edge.resolve(at, size - at, 100, &mut extents).unwrap();
        for extent in extents {
            if extent.kind != ExtentKind::Data {
                let len = usize::try_from(extent.len.min(8 << 20)).unwrap();
                let mut bytes = vec![1; len];
                edge.read(&mut bytes, extent.start).unwrap();
                assert!(bytes.iter().all(|b| *b == 0), "at {}", extent.start);
            }
            at = extent.end();
        }
    }
}

#[test]
fn nbdkit_with_several_connections() {
    if let Some(peer) = Peer::nbdkit(&["memory", "100M"]) {
        exercise(&peer, 4);
    }
}

#[test]
fn nbdkit_without_structured_replies() {
    if let Some(peer) = Peer::nbdkit(&["--no-sr", "memory", "100M"]) {
        exercise(&peer, 2);
    }
}

#[test]
fn nbdkit_that_speaks_plain_newstyle() {
    if let Some(peer) = Peer::nbdkit(&["--mask-handshake=0", "memory", "100M"]) {
        exercise(&peer, 1);
    }
}

#[test]
fn nbdkit_that_speaks_oldstyle() {
    // Some versions refuse every write in the oldstyle protocol, so this one only reads.
    if let Some(peer) = Peer::nbdkit(&["-o", "pattern", "100M"]) {
        let options = OpenOptions::read_only();
        let device = open(&peer.uri, &options).unwrap();
        let mut bytes = vec![0; 1 << 20];
        device.read_at(&mut bytes, 8 << 20).unwrap();
        for (i, word) in bytes.chunks(8).enumerate() {
            assert_eq!(word, ((8 << 20) + 8 * i as u64).to_be_bytes());
        }
    }
}

#[test]
fn nbdkit_without_zero_and_with_blocks_of_4096() {
    let arguments = ["--filter=blocksize-policy", "--filter=nozero", "memory", "100M"];
    let policy = ["blocksize-minimum=4096", "blocksize-preferred=4096", "blocksize-maximum=1M"];
    let arguments: Vec<_> = arguments.into_iter().chain(policy).collect();
    if let Some(peer) = Peer::nbdkit(&arguments) {
        assert_eq!(peer.open(1).info().blocks.minimum, 4096);
        assert!(!peer.open(1).info().abilities.zero);
        exercise(&peer, 2);
    }
}

#[test]
fn nbdkit_that_fails_says_why() {
    let failing = ["--filter=error", "memory", "1M", "error-pread=ENOSPC", "error-pread-rate=1"];
    if let Some(peer) = Peer::nbdkit(&failing) {
        let device = peer.open(1);
        let error = device.read_at(&mut [0; 512], 4096).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::NoSpace, Some(4096)));
        device.write_at(&[0; 512], 4096, false).unwrap();
    }
}

#[test]
fn qemu_nbd_with_one_connection() {
    if let Some(peer) = Peer::qemu(100 << 20, &["--shared=1"]) {
        // The probe for readiness has used up nothing: qemu-nbd counts clients at a time.
        assert_eq!(peer.open(4).info().lanes.map_or(0, std::num::NonZeroUsize::get), 1);
        exercise(&peer, 4);
    }
}

#[test]
fn qemu_nbd_with_several_connections() {
    if let Some(peer) = Peer::qemu(100 << 20, &[]) {
        exercise(&peer, 3);
    }
}

#[test]
fn qemu_nbd_of_an_odd_size() {
    if let Some(peer) = Peer::qemu((100 << 20) + 512, &[]) {
        exercise(&peer, 1);
    }
}

#[test]
fn an_export_that_does_not_exist_is_not_found() {
    let Some(peer) = Peer::qemu(1 << 20, &["-x", "here"]) else { return };
    let mut uri: wire::Uri = peer.uri.parse().unwrap();
    uri.export = "there".into();
    let error = open(&uri.to_string(), &OpenOptions::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(!error.to_string().contains('\n'), "{error}");
    let listed = client::list(&uri.clone().into()).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].name, "here");
    let target = client::ExportSpec::new(client::ServerSpec::Address(uri), "here".into());
    let session = client::inspect(&target).unwrap();
    assert_eq!(session.size, 1 << 20);
    assert_eq!(session.available_contexts, Some(vec!["base:allocation".into()]));
}
