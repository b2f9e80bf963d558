//! An image in two files on a disk is served from where its clusters lie: by sendfile, extent by
//! extent, with strace as the witness. Only what is packed is read.
//!
//! Without strace it is skipped; with `REQUIRE_PEERS=1` that fails.

use crate::client;

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use client::{answered, ask, connect, disk, serve};
use server::Options;
use trial::toy::{Toy, ToySettings};

const CLUSTER: usize = 64 << 10;
const CLUSTERS: usize = 24;
/// Says to the traced process where the files are.
const FILES: &str = "SCATTERED_FILES";
const TEST: &str =
    "scattered::each_extent_leaves_its_place_by_sendfile_and_only_what_is_packed_is_read";

/// What a cluster holds: nothing, runs, or anything. Only those with odd numbers are packed.
fn cluster(n: usize) -> Vec<u8> {
    let any = |i: usize| u8::try_from((i * i + i / 251 + n) % 255 + 1).unwrap();
    match n % 6 {
        2 => vec![0; CLUSTER],
        3 => vec![7; CLUSTER],
        _ => (0..CLUSTER).map(any).collect(),
    }
}

/// Serves the image to a client in this process, which reads all of it in one request.
fn serve_and_read(directory: &Path) {
    let files = ["a", "b"].map(|name| {
        let path = directory.join(name);
        std::fs::File::create(&path).and_then(|file| file.set_len(8 << 20)).unwrap();
        disk(path.to_str().unwrap())
    });
    let settings =
        ToySettings { cluster: u32::try_from(CLUSTER).unwrap(), ..ToySettings::default() };
    let toy = Toy::create(files, None, (CLUSTER * CLUSTERS) as u64, settings);
    let (edge, mut whole) = (toy.edge(), Vec::new());
    for n in 0..CLUSTERS {
        let bytes = cluster(n);
        if bytes[0] > 0 {
            edge.write(&bytes, (n * CLUSTER) as u64, false).unwrap();
        }
        whole.extend(bytes);
    }
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
    // On a disk, unless the build directory is in memory.
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let directory = directory.join(format!("scattered-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let trace = directory.join("trace");
    let status = Command::new("strace")
        .args(["-f", "-y", "-e", "trace=sendfile,read,readv,pread64,preadv,preadv2", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", TEST])
        .env(FILES, &directory)
        .status();
    let Ok(status) = status else {
        std::fs::remove_dir_all(&directory).unwrap();
        println!("SKIPPED: {TEST}: needs strace");
        assert!(std::env::var_os("REQUIRE_PEERS").is_none_or(|value| value != "1"));
        return;
    };
    assert!(status.success());
    let trace = std::fs::read_to_string(&trace).unwrap();
    let files = ["a", "b"].map(|name| format!("<{}>", directory.join(name).display()));
    std::fs::remove_dir_all(&directory).unwrap();
    let (mut sent, mut read, mut seen) = (0, 0, BTreeSet::new());
    for call in calls(&trace) {
        let Some(file) = files.iter().position(|file| call.contains(file)) else { continue };
        let bytes = call.rsplit("= ").next().unwrap().split(' ').next().unwrap();
        let bytes = bytes.parse::<usize>().unwrap_or(0);
        if call.starts_with("sendfile") {
            sent += bytes;
            seen.insert(file);
        } else if bytes > 1 {
            // Of what is sent, a byte at either end is read to see whether it is in memory.
            read += bytes;
        }
    }
    let plain = (0..CLUSTERS).filter(|n| ![2, 3].contains(&(n % 6))).count();
    assert_eq!(sent, plain * CLUSTER, "{trace}");
    assert_eq!(seen.len(), 2, "of one file only: {trace}");
    // A cluster of equal bytes is packed to two runs of three bytes.
    assert_eq!(read, CLUSTERS / 6 * 6, "{trace}");
}
