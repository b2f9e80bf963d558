//! Commands reach the other server as the client gave them: flags, lengths beyond 4 GiB, refusals.

use std::fs;
use std::path::PathBuf;

use blackbox::fake::{ALL_FLAGS, Script, Step};
use blackbox::launch::{Serve, Server};
use blackbox::nbd::{alloc, cflag, cmd, err, tflag};
use blackbox::peers::peer;
use blackbox::session::{Mode, Request};
use blackbox::temp::TempDir;
use blackbox::{MIB, index};

use super::in_front_of;

/// nbdkit that logs what it is asked.
struct Logged {
    server: Server,
    log: PathBuf,
    _temp: TempDir,
}

impl Logged {
    fn start(words: &[&str]) -> Option<Self> {
        let nbdkit = peer("nbdkit")?;
        let temp = TempDir::new();
        let log = temp.join("log");
        let logfile = format!("logfile={}", log.display());
        let all: Vec<&str> = ["--filter=log"].iter().chain(words).copied().collect();
        let server = Server::nbdkit(&nbdkit, &[&all[..], &[&logfile]].concat());
        Some(Self { server, log, _temp: temp })
    }

    /// The requests of one kind so far: what stands between its id and the dots.
    fn asked(&self, kind: &str) -> Vec<String> {
        let log = fs::read_to_string(&self.log).unwrap();
        let of_kind = |line: &str| {
            let rest = line.split_once(&format!(" {kind} id="))?.1;
            let (_, what) = rest.split_once(' ')?;
            what.strip_suffix(" ...").map(str::to_owned)
        };
        log.lines().filter_map(of_kind).collect()
    }
}

#[test]
fn flags_reach_the_other_server_and_none_is_added() {
    let Some(upstream) = Logged::start(&["memory", "1M"]) else { return };
    let server = in_front_of(&upstream.server.uri(""), &[]);
    let mut session = server.session(Mode::Structured, "");
    for (flags, offset) in [(0, 0), (cflag::FUA, 4096)] {
        assert_eq!(session.error_of(&Request::write(offset, &[1; 512]).flags(flags)), 0);
        assert_eq!(session.error_of(&Request::new(cmd::TRIM, offset, 512).flags(flags)), 0);
    }
    for flags in 0..8 {
        let chosen = [(1, cflag::FUA), (2, cflag::NO_HOLE), (4, cflag::FAST_ZERO)];
        let flags = chosen.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, f)| f).sum();
        assert_eq!(session.error_of(&Request::new(cmd::WRITE_ZEROES, 0, 512).flags(flags)), 0);
    }
    assert_eq!(session.error_of(&Request::new(cmd::CACHE, 512, 1024)), 0);
    session.flush();
    assert_eq!(
        upstream.asked("Write"),
        ["offset=0x0 count=0x200 fua=0", "offset=0x1000 count=0x200 fua=1"]
    );
    assert_eq!(
        upstream.asked("Trim"),
        ["offset=0x0 count=0x200 fua=0", "offset=0x1000 count=0x200 fua=1"]
    );
    let zeroes: Vec<String> = (0..8)
        .map(|n| {
            let (fua, trim, fast) = (n & 1, 1 - (n >> 1 & 1), n >> 2);
            format!("offset=0x0 count=0x200 trim={trim} fua={fua} fast={fast}")
        })
        .collect();
    assert_eq!(upstream.asked("Zero"), zeroes);
    assert_eq!(upstream.asked("Cache"), ["offset=0x200 count=0x400"]);
    let log = fs::read_to_string(&upstream.log).unwrap();
    assert_eq!(log.lines().filter(|l| l.contains(" Flush id=") && l.ends_with("...")).count(), 1);
}

#[test]
fn zeroes_written_for_a_server_that_has_fua_and_no_flush_have_fua_each() {
    let flags = tflag::HAS_FLAGS | tflag::SEND_FUA;
    for block_sizes in [None, Some((512, 512, 65536))] {
        let fake = Script { flags, block_sizes, ..Script::new(MIB) }.start();
        let server = in_front_of(&fake.uri(""), &[]);
        let mut session = server.session(Mode::Structured, "");
        for (offset, length) in [(0, 512 << 10), (100, 300 << 10), (700, 10)] {
            let zero = Request::new(cmd::WRITE_ZEROES, offset, length).flags(cflag::FUA);
            assert_eq!(session.error_of(&zero), 0, "{offset}+{length}");
        }
        assert!(fake.disk()[..512 << 10].iter().all(|byte| *byte == 0));
        let record = fake.finish();
        let writes = record.requests.iter().filter(|r| r.command == cmd::WRITE);
        assert!(writes.clone().count() >= 3 && writes.clone().all(|r| r.flags & cflag::FUA != 0));
    }
}

#[test]
fn zeroes_beyond_4_gib_are_split_for_a_server_without_extended_headers() {
    let Some(upstream) = Logged::start(&["memory", "16G"]) else { return };
    let server = in_front_of(&upstream.server.uri(""), &[]);
    let mut session = server.session(Mode::Extended, "");
    session.write(0, &[7; 512]);
    session.write((10 << 30) - 512, &[7; 1024]);
    let zero = Request::new(cmd::WRITE_ZEROES, 512, (10 << 30) - 512);
    assert_eq!(session.error_of(&zero.flags(cflag::FAST_ZERO)), 0);
    // What is zeroed, all of it, and not one byte beside.
    assert_eq!(session.read(0, 1024).unwrap(), [[7; 512], [0; 512]].concat());
    let around = session.read((10 << 30) - 512, 1024).unwrap();
    assert_eq!(around, [[0; 512], [7; 512]].concat());
    let mut at = 512;
    let zeroes = upstream.asked("Zero");
    for line in &zeroes {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |field: &str| u64::from_str_radix(field.split_once("=0x").unwrap().1, 16);
        assert_eq!(number(fields[0]).unwrap(), at, "{zeroes:?}");
        assert_eq!(&fields[2..], ["trim=1", "fua=0", "fast=1"], "{zeroes:?}");
        at += number(fields[1]).unwrap();
    }
    assert_eq!((at, zeroes.len()), (10 << 30, 3));
}

#[test]
fn extents_and_zeroes_beyond_4_gib_are_one_request_where_both_know_extended_headers() {
    let inner = Serve::memory("64T").start();
    let middle = in_front_of(&inner.uri(""), &[]);
    let outer = in_front_of(&middle.uri(""), &[]);
    let mut session = outer.session(Mode::Extended, "");
    let base = session.context("base:allocation");
    let hole = alloc::HOLE | alloc::ZERO;
    let whole = session.status(0, 64 << 40, 0).unwrap();
    assert_eq!(whole[&base], [(64 << 40, hole)]);
    session.write(40 << 40, &[1; 4096]);
    assert_eq!(session.map(), [(40 << 40, hole), (4096, 0), ((24 << 40) - 4096, hole)]);
    let zero = Request::new(cmd::WRITE_ZEROES, 0, 64 << 40).flags(cflag::FAST_ZERO);
    assert_eq!(session.error_of(&zero), 0);
    assert_eq!(session.map(), [(64 << 40, hole)]);
    session.write(63 << 40, &[1; 4096]);
    assert_eq!(session.error_of(&Request::new(cmd::TRIM, 1 << 40, 63 << 40)), 0);
    assert_eq!(session.map(), [(64 << 40, hole)]);
}

#[test]
fn a_fast_zero_that_is_refused_has_no_effect_and_names_the_right_error() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    for (words, offered) in [
        (&["zeromode=emulate"][..], true),
        (&["zeromode=plugin", "fastzeromode=slow"], true),
        (&["zeromode=plugin", "fastzeromode=none"], false),
        (&["zeromode=none"], false),
    ] {
        let shape = [&["--filter=nozero", "data", "0x55*1048576"][..], words].concat();
        let upstream = Server::nbdkit(&nbdkit, &shape);
        let server = in_front_of(&upstream.uri(""), &[]);
        let mut session = server.session(Mode::Structured, "");
        assert_eq!(session.has(tflag::SEND_FAST_ZERO), offered, "{words:?}");
        for (offset, length) in [(0, MIB), (0, 512), (1000, 5000)] {
            let zero = Request::new(cmd::WRITE_ZEROES, offset, length);
            let error = session.error_of(&zero.flags(cflag::FAST_ZERO));
            // A flag that was not offered is a mistake of the client.
            assert_eq!(error, if offered { err::ENOTSUP } else { err::EINVAL }, "{words:?}");
        }
        assert!(session.read(0, MIB).unwrap() == vec![0x55; index(MIB)], "{words:?}");
        assert_eq!(session.error_of(&Request::new(cmd::WRITE_ZEROES, 1000, 5000)), 0);
        let mut expected = vec![0x55; index(MIB)];
        expected[1000..6000].fill(0);
        assert!(session.read(0, MIB).unwrap() == expected, "{words:?}");
    }
}

#[test]
fn errors_of_the_other_server_are_passed_on_unchanged() {
    for error in [err::EPERM, err::EIO, err::ENOMEM, err::ENOSPC, err::EINVAL, err::ESHUTDOWN] {
        let script = Script { flags: ALL_FLAGS, ..Script::new(MIB) };
        let upstream = script
            .on_request(move |peer, request, _| {
                if request.offset < 4096 {
                    return Step::Honest;
                }
                peer.answer(request, error);
                Step::Done
            })
            .start();
        let server = in_front_of(&upstream.uri(""), &[]);
        let mut session = server.session(Mode::Structured, "");
        session.assert_alive();
        let refused = session.error_of(&Request::write(8192, &[1; 512]));
        assert_eq!(refused, error);
    }
}
