//! Zeroing, and knowing whether it is fast: our copies into servers that zero in every way there
//! is, with the operations counted below the filters and the bytes compared.
//!
//! Time decides whether a target is as fast as it advertises. A busy machine can make a
//! fast one look slow once, so what depends on it is tried a few times.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use blackbox::launch::{Serve, Server};
use blackbox::peers::{peer, succeeds};
use blackbox::run::{ours, run};
use blackbox::session::Mode;
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

/// Attempts at what depends on time.
const TRIES: usize = 4;

/// nbdkit, if it is there with all these filters.
fn nbdkit(filters: &[&str]) -> Option<PathBuf> {
    let path = peer("nbdkit")?;
    let knows = |f: &&str| succeeds(&path, &[&format!("--filter={f}"), "null", "--dump-plugin"]);
    if let Some(unknown) = filters.iter().find(|f| !knows(f)) {
        blackbox::peers::skip(&format!("needs nbdkit with the filter {unknown}"));
        return None;
    }
    Some(path)
}

/// What reached the plugin, and what the client asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Seen {
    writes: usize,
    zeroes: usize,
    /// Zero requests with the flag FAST_ZERO and without, as far as the log filter sees them.
    fast: usize,
    plain: usize,
}

impl Seen {
    fn read(log: &Path, stats: &Path) -> Self {
        let stats = fs::read_to_string(stats).unwrap();
        let count = |operation: &str| {
            let line = stats.lines().find_map(|l| l.trim().strip_prefix(operation));
            line.map_or(0, |l| l.split_whitespace().next().unwrap().parse().unwrap())
        };
        let log = fs::read_to_string(log).unwrap();
        let with =
            |flag: &str| log.lines().filter(|l| l.contains(" Zero ") && l.contains(flag)).count();
        let (writes, zeroes) = (count("write: "), count("zero: "));
        Self { writes, zeroes, fast: with("fast=1"), plain: with("fast=0") }
    }
}

/// A disk of which every other MiB is a hole.
fn striped(temp: &TempDir, mib: u64) -> PathBuf {
    let path = temp.sparse_file("striped", mib * MIB);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for at in (0..mib).step_by(2) {
        file.write_all_at(&pattern(at * MIB, index(MIB)), at * MIB).unwrap();
    }
    path
}

/// The same as a disk in memory, which no server can have: so a target may be zeroed in advance.
fn apart(mib: u64) -> String {
    format!("data:(0x55*{MIB} @+{MIB})*{}", mib / 2)
}

/// Copies `source` into a server full of stale bytes whose zeroing is as `parameters` say, and
/// compares.
fn through(nbdkit: &Path, source: &str, parameters: &[&str]) -> Seen {
    let temp = TempDir::new();
    let (log, stats) = (temp.join("log"), temp.join("stats"));
    let expected = temp.join("expected");
    run(ours(["copy", source]).arg(&expected)).succeeded();
    let expected = fs::read(expected).unwrap();
    let size = expected.len();
    let mut words: Vec<OsString> = ["log", "nozero", "blocksize", "delay", "stats", "noextents"]
        .map(|f| format!("--filter={f}").into())
        .into();
    words.extend(["data".into(), format!("(0xd1)*{size}").into()]);
    words.push(format!("logfile={}", log.display()).into());
    words.push(format!("statsfile={}", stats.display()).into());
    words.extend(["delay-write=20ms", "delay-zero=5ms", "maxdata=256k"].map(Into::into));
    words.extend(parameters.iter().map(Into::into));
    let server = Server::peer(nbdkit, |socket| {
        [vec!["-f".into(), "-U".into(), socket.into()], words].concat()
    });
    run(ours(["copy"]).arg(source).arg(server.uri(""))).succeeded();
    let fetched = temp.join("fetched");
    run(ours(["copy"]).arg(server.uri("")).arg(&fetched)).succeeded();
    assert!(expected == fs::read(&fetched).unwrap(), "{parameters:?}: differs");
    server.stop();
    Seen::read(&log, &stats)
}

#[test]
fn in_every_mode_it_does_no_more_than_the_best_client_would() {
    let filters = ["log", "nozero", "blocksize", "delay", "stats", "noextents"];
    let Some(nbdkit) = nbdkit(&filters) else { return };
    let temp = TempDir::new();
    // 16 MiB of data, 64 writes below the filter; 16 holes.
    let source = apart(32);
    for (parameters, writes, zeroes) in [
        // Not even advertised: all is written.
        ("", 128, 0),
        // Truly fast: two probes and one request for all.
        ("zeromode=plugin", 64, 3),
        ("zeromode=plugin fastzeromode=ignore", 64, 3),
        // Said to be fast, and slow: found out in time.
        ("zeromode=emulate fastzeromode=ignore", 128, 0),
        // Not advertised as fast: a request for each hole, whatever its result.
        ("zeromode=plugin fastzeromode=none", 64, 16),
        ("zeromode=emulate fastzeromode=none", 128, 0),
        // Said to be slow when asked.
        ("zeromode=emulate", 128, 0),
        ("zeromode=plugin fastzeromode=slow", 64, 16),
        ("zeromode=notrim", 64, 3),
    ] {
        let words: Vec<&str> = parameters.split_whitespace().collect();
        let good = (0..TRIES).any(|_| {
            let seen = through(&nbdkit, &source, &words);
            println!("{parameters}: {seen:?}");
            let most = seen.writes <= writes && seen.zeroes <= zeroes;
            // Refused once, it does not ask again.
            most && (!parameters.contains("slow") || seen.fast == 1)
        });
        assert!(good, "{parameters}");
    }
    // A file may be what the server has: each hole by itself, and the data once.
    let source = striped(&temp, 32);
    let seen = through(&nbdkit, source.to_str().unwrap(), &["zeromode=plugin"]);
    assert_eq!((seen.writes, seen.zeroes, seen.fast), (64, 16, 0));
}

/// Where stale bytes lie in a disk of this size: around every border that a request may have,
/// and every 16 MiB.
fn stale_places(size: u64) -> Vec<u64> {
    let gib = 1 << 30;
    let borders = [32 * MIB, 64 * MIB, gib, 2 * gib, 4 * gib - 65536, 4 * gib];
    let mut places: Vec<u64> = borders.iter().flat_map(|b| [b - 4096, *b]).collect();
    places.extend((0..size / MIB).step_by(16).map(|m| m * MIB + 8192));
    places.extend([0, size - 4096]);
    places.retain(|at| *at < size);
    places
}

/// A sparse file with stale bytes in those places.
fn stale_file(temp: &TempDir, name: &str, size: u64) -> PathBuf {
    let path = temp.sparse_file(name, size);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for at in stale_places(size) {
        file.write_all_at(&[0xd1; 4096], at).unwrap();
    }
    path
}

/// Panics unless every stale byte of a file is gone.
#[track_caller]
fn assert_clean_file(path: &Path, size: u64, what: &str) {
    let file = File::open(path).unwrap();
    let mut bytes = vec![0; 4096];
    for at in stale_places(size) {
        file.read_exact_at(&mut bytes, at).unwrap();
        assert!(bytes.iter().all(|b| *b == 0), "{what}: stale bytes at {at}");
    }
}

#[track_caller]
fn assert_clean(server: &Server, size: u64, what: &str) {
    let mut session = server.session(Mode::Simple, "");
    for at in stale_places(size) {
        let bytes = session.read(at, 4096).unwrap();
        assert!(bytes.iter().all(|b| *b == 0), "{what}: stale bytes at {at}");
    }
}

/// Makes nbdkit keep written zeroes in little memory.
const SMALL: [&str; 1] = ["allocator=zstd"];

fn has_zstd(nbdkit: &Path) -> bool {
    succeeds(nbdkit, &["-U", "-", "memory", "1M", SMALL[0], "--run", "true"])
}

/// nbdkit with a disk of this size and stale bytes.
fn stale_server(nbdkit: &Path, size: u64, words: &[&str]) -> Server {
    let mut data = String::new();
    for at in stale_places(size) {
        data += &format!("@{at} (0xd1)*4096 ");
    }
    Server::peer(nbdkit, |socket| {
        let mut all: Vec<OsString> = vec!["-f".into(), "-U".into(), socket.into()];
        let (filters, parameters): (Vec<&&str>, Vec<&&str>) =
            words.iter().partition(|w| w.starts_with('-'));
        all.extend(filters.iter().map(Into::into));
        all.extend(["data".into(), data.into(), format!("size={size}").into()]);
        all.extend(SMALL.iter().filter(|_| has_zstd(nbdkit)).map(Into::into));
        all.extend(parameters.iter().map(Into::into));
        all
    })
}

/// Just over what nbdkit zeroes at once by writing; a multiple of no power of two above 64 KiB.
const OVER_64_MIB: u64 = 145 * MIB + 65536;
/// More than a compact request can hold.
const OVER_4_GIB: u64 = (4 << 30) + OVER_64_MIB;

const ZERO_WORDS: [&[&str]; 8] = [
    &["zeromode=emulate"],
    &["zeromode=emulate", "fastzeromode=none"],
    &["zeromode=emulate", "fastzeromode=ignore"],
    &["zeromode=notrim"],
    &["zeromode=notrim", "fastzeromode=slow"],
    &["zeromode=plugin"],
    &["zeromode=plugin", "fastzeromode=none"],
    &["zeromode=none"],
];

#[test]
fn a_long_zero_leaves_no_stale_byte_on_any_path_through_nbdkit() {
    let Some(nbdkit) = nbdkit(&["nozero", "blocksize", "noextents"]) else { return };
    let temp = TempDir::new();
    let empty = temp.sparse_file("empty", OVER_64_MIB);
    for map in [true, false] {
        for zero in ZERO_WORDS {
            for limit in [None, Some("maxlen=16M"), Some("maxdata=1M")] {
                let mut words = vec!["--filter=nozero", "--filter=blocksize"];
                words.extend((!map).then_some("--filter=noextents"));
                words.extend(zero);
                words.extend(limit);
                let server = stale_server(&nbdkit, OVER_64_MIB, &words);
                run(ours(["copy"]).arg(&empty).arg(server.uri(""))).succeeded();
                assert_clean(&server, OVER_64_MIB, &format!("{words:?}"));
            }
        }
    }
}

#[test]
fn a_zero_of_more_than_4_gib_leaves_no_stale_byte() {
    let Some(nbdkit) = nbdkit(&["nozero", "blocksize", "noextents"]) else { return };
    let temp = TempDir::new();
    let empty = temp.sparse_file("empty", OVER_4_GIB);
    // Holes enough for a sweep, which takes two requests.
    let holes = temp.sparse_file("holes", OVER_4_GIB);
    let file = OpenOptions::new().write(true).open(&holes).unwrap();
    let spots = || (0..8).map(|n| n * 512 * MIB + MIB);
    for at in spots() {
        file.write_all_at(&pattern(at, 65536), at).unwrap();
    }
    let long = ["--filter=nozero", "--filter=blocksize", "--filter=noextents"];
    for zero in [
        &["zeromode=plugin"][..],
        &["zeromode=plugin", "maxlen=1G"],
        &["zeromode=notrim", "fastzeromode=slow"],
        &["zeromode=emulate"],
        &["zeromode=none"],
    ] {
        let words = [&long[..], zero].concat();
        for source in [&empty, &holes] {
            if !has_zstd(&nbdkit)
                && zero.iter().any(|w| w.ends_with("emulate") || w.ends_with("none"))
            {
                blackbox::peers::skip_environment("nbdkit would need 4 GiB of memory");
                continue;
            }
            let server = stale_server(&nbdkit, OVER_4_GIB, &words);
            run(ours(["copy"]).arg(source).arg(server.uri(""))).succeeded();
            assert_clean(&server, OVER_4_GIB, &format!("{words:?}"));
            let mut session = server.session(Mode::Simple, "");
            for at in spots().filter(|_| source == &holes) {
                assert!(session.read(at, 65536).unwrap() == pattern(at, 65536), "{words:?}, {at}");
            }
        }
    }
}

#[test]
fn a_long_zero_leaves_no_stale_byte_in_qemu_nbd_and_in_ours() {
    for size in [OVER_64_MIB, OVER_4_GIB] {
        let temp = TempDir::new();
        let empty = temp.sparse_file("empty", size);
        let path = stale_file(&temp, "ours", size);
        let mut cases = vec![("ours".to_owned(), path.clone(), Serve::file(&path).start())];
        for discard in ["unmap", "ignore"] {
            let Some(qemu_nbd) = peer("qemu-nbd") else { break };
            let path = stale_file(&temp, discard, size);
            let server = Server::peer(&qemu_nbd, |socket| {
                let discard = format!("--discard={discard}");
                let mut all: Vec<OsString> =
                    vec!["-t".into(), "-f".into(), "raw".into(), discard.into(), "-k".into()];
                all.extend([socket.into(), path.clone().into()]);
                all
            });
            cases.push((format!("qemu-nbd, {discard}"), path, server));
        }
        for (what, path, server) in cases {
            run(ours(["copy"]).arg(&empty).arg(server.uri(""))).succeeded();
            assert_clean_file(&path, size, &what);
        }
    }
}

#[test]
fn our_proxy_passes_the_question_on_to_the_far_end() {
    let Some(nbdkit) = nbdkit(&["log", "nozero", "noextents"]) else { return };
    let temp = TempDir::new();
    let source = apart(16);
    let log = temp.join("log");
    let logfile = format!("logfile={}", log.display());
    let words = ["--filter=log", "--filter=nozero", "--filter=noextents"];
    let words = [&words[..], &["memory", "16M", &logfile, "zeromode=plugin"]].concat();
    let memory = Server::nbdkit(&nbdkit, &words);
    // Our proxy between: the question is asked, and answered, at the far end.
    let proxy = Serve::proxy(&memory.uri("")).start();
    run(ours(["copy"]).arg(&source).arg(proxy.uri(""))).succeeded();
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("fast=1"), "{text}");
}
