//! An overlay and its backing image are served from where their clusters lie: by sendfile, extent
//! by extent, with strace as the witness. Only what is packed is read.
//!
//! Without strace it is skipped; with `REQUIRE_PEERS=1` that fails.

use crate::{client, images};

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use client::{answered, ask, connect, serve};
use images::Directory;
use runtime::spread_bits;
use server::Options;

const CLUSTER: usize = 64 << 10;
const CLUSTERS: usize = 24;
/// Says to the traced process where the files are.
const FILES: &str = "SCATTERED_FILES";
const TEST: &str =
    "scattered::each_extent_leaves_its_place_by_sendfile_and_only_what_is_packed_is_read";

/// What a cluster holds: nothing, runs, which are packed below, or anything, which cannot be.
fn cluster(n: usize) -> Vec<u8> {
    let any = |i: usize| spread_bits((n * CLUSTER + i) as u64).to_le_bytes()[0];
    match n % 6 {
        2 => vec![0; CLUSTER],
        3 => vec![7; CLUSTER],
        _ => (0..CLUSTER).map(any).collect(),
    }
}

/// Whether the overlay holds a cluster.
fn is_over(n: usize) -> bool {
    n.is_multiple_of(2) && n % 6 != 2
}

/// Makes the overlay `a` over `b`, and says where in each lie the clusters that are not packed.
fn make(directory: &Path) -> [Vec<Range<u64>>; 2] {
    let size = (CLUSTER * CLUSTERS) as u64;
    let [a, b] = ["a", "b"].map(|name| directory.join(name));
    let write = |edge: &device::Edge, n: usize, bytes: &[u8]| {
        edge.write(bytes, (n * CLUSTER) as u64, false).unwrap();
    };
    images::create(&b, (size, &[], true), |edge| {
        for n in (0..CLUSTERS).filter(|n| n % 6 != 2) {
            let bytes = if is_over(n) { vec![9; CLUSTER] } else { cluster(n) };
            write(edge, n, &bytes);
        }
    });
    let backing = format!("backing_file={}", b.display());
    images::create(&a, (size, &[&backing, "backing_fmt=qcow2"], false), |edge| {
        (0..CLUSTERS).filter(|n| is_over(*n)).for_each(|n| write(edge, n, &cluster(n)));
    });
    let (edge, _context) = images::open(&a, false);
    let mut places = [Vec::new(), Vec::new()];
    for extent in images::map(&edge, 0, size) {
        if let (Some(home), true) = (extent.home, extent.place.is_some()) {
            places[usize::from(extent.depth)].push(home.offset..home.offset + extent.len);
        }
    }
    places
}

/// Serves the image to a client in this process, which reads all of it in one request.
fn serve_and_read(directory: &Path) {
    let whole: Vec<u8> = (0..CLUSTERS).flat_map(cluster).collect();
    let (edge, _context) = images::open(&directory.join("a"), false);
    let (server, path) = serve(edge, Options { reactors: 1, ..Options::default() });
    let mut socket = connect(&path);
    ask(&mut socket, 0, u32::try_from(whole.len()).unwrap());
    assert_eq!(answered(&mut socket), Some(0));
    let mut read = vec![0; whole.len()];
    socket.read_exact(&mut read).unwrap();
    assert!(read == whole);
    drop(socket);
    assert!(server.stop());
}

/// The calls of a trace, each in one piece: one that another thread interrupted is written in two.
fn calls(trace: &str) -> Vec<String> {
    let (mut begun, mut calls) = (HashMap::new(), Vec::new());
    for line in trace.lines() {
        let (thread, call) = line.split_once(' ').unwrap();
        if let Some((first, _)) = call.split_once("<unfinished") {
            begun.insert(thread, first);
        } else if let Some((_, rest)) = call.split_once("resumed>") {
            calls.push(format!("{}{rest}", begun.remove(thread).unwrap_or_default()));
        } else {
            calls.push(call.trim().to_owned());
        }
    }
    calls
}

#[test]
fn each_extent_leaves_its_place_by_sendfile_and_only_what_is_packed_is_read() {
    if let Some(directory) = std::env::var_os(FILES) {
        return serve_and_read(Path::new(&directory));
    }
    let directory = Directory::new();
    let places = make(&directory.0);
    let trace = directory.0.join("trace");
    let status = Command::new("strace")
        .args(["-f", "-y", "-e", "trace=sendfile,read,readv,pread64,preadv,preadv2", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", TEST])
        .env(FILES, &directory.0)
        .status();
    let Ok(status) = status else {
        println!("SKIPPED: {TEST}: needs strace");
        assert!(std::env::var_os("REQUIRE_PEERS").is_none_or(|value| value != "1"));
        return;
    };
    assert!(status.success());
    let trace = std::fs::read_to_string(&trace).unwrap();
    let files = ["a", "b"].map(|name| format!("<{}>", directory.0.join(name).display()));
    let (mut sent, mut seen) = (0, BTreeSet::new());
    for call in calls(&trace) {
        let Some(file) = files.iter().position(|file| call.contains(file)) else { continue };
        let bytes = call.rsplit("= ").next().unwrap().split(' ').next().unwrap();
        let bytes = bytes.parse::<usize>().unwrap_or(0);
        if call.starts_with("sendfile") {
            sent += bytes;
            seen.insert(file);
        } else if bytes > 1 {
            // Of what is sent, a byte at either end is read to see whether it is in memory.
            let at = offset(&call);
            let is_inside = |place: &&Range<u64>| at < place.end && place.start < at + bytes as u64;
            assert_eq!(places[file].iter().find(is_inside), None, "{call}");
        }
    }
    let plain = (0..CLUSTERS).filter(|n| ![2, 3].contains(&(n % 6))).count();
    assert_eq!(sent, plain * CLUSTER, "{trace}");
    assert_eq!(seen.len(), 2, "of one file only: {trace}");
}

/// From where a call reads.
fn offset(call: &str) -> u64 {
    let (arguments, _) = call.rsplit_once(')').unwrap();
    // Flags may come after it.
    let mut numbers = arguments.rsplit(", ").map(|word| word.parse());
    numbers.find_map(std::result::Result::ok).unwrap()
}
