//! nbdinfo prints of our server in front of another what it prints of that one, but for what ours
//! adds.

use blackbox::launch::{Serve, Server};
use blackbox::peers::peer;
use blackbox::run::{extents, program, run};
use serde_json::{Value, json};

use super::{describe, in_front_of};

/// nbdkit in many shapes. A plain `memory` can everything.
const SHAPES: &[&[&str]] = &[
    &["memory", "1M"],
    &["-r", "memory", "1M"],
    &["pattern", "1M"],
    &["null", "1M"],
    &["--filter=nozero", "memory", "1M"],
    &["--filter=nozero", "memory", "1M", "zeromode=emulate"],
    &["--filter=nozero", "memory", "1M", "zeromode=notrim", "fastzeromode=none"],
    &["--filter=nozero", "memory", "1M", "zeromode=plugin", "fastzeromode=slow"],
    &["--filter=fua", "memory", "1M"],
    &["--filter=fua", "memory", "1M", "fuamode=emulate"],
    &["--filter=fua", "memory", "1M", "fuamode=native"],
    &["--filter=nocache", "memory", "1M"],
    &["--filter=nocache", "memory", "1M", "cachemode=emulate"],
    &["--filter=multi-conn", "memory", "1M", "multi-conn-mode=disable"],
    &["--filter=noextents", "memory", "1M"],
    &["--filter=noparallel", "memory", "1M"],
    &["--filter=cow", "memory", "1M"],
    &[
        "--filter=blocksize-policy",
        "memory",
        "1M",
        "blocksize-minimum=512",
        "blocksize-preferred=64K",
        "blocksize-maximum=1M",
    ],
    &["eval", "get_size=echo 1048576", "is_rotational=exit 0", "pread=head -c $3 /dev/zero"],
    // Writes, and nothing else: no flush, no trim, no zero.
    &["eval", "get_size=echo 1048576", "pread=head -c $3 /dev/zero", "pwrite=cat >/dev/null"],
    &[
        "eval",
        "get_size=echo 1048576",
        "pread=head -c $3 /dev/zero",
        "pwrite=cat >/dev/null",
        "flush=exit 0",
        "trim=exit 0",
        "can_multi_conn=exit 0",
    ],
];

fn is(value: &Value) -> bool {
    value.as_bool().unwrap_or_else(|| panic!("{value} is not yes or no"))
}

/// What nbdinfo must print of ours where it prints `theirs` of the other.
fn expected(theirs: &Value, shared: bool) -> Value {
    let yes = |key: &str| is(&theirs[key]);
    let writable = !yes("is_read_only");
    let mut ours = json!({
        // Zeroes that the other end cannot do are written; FUA that it has not is made from flush.
        "can_zero": writable,
        "can_fua": writable && (yes("can_fua") || yes("can_flush")),
        "can_df": true,
        // Where nothing can be written, there is nothing to be flushed.
        "can_flush": !writable || yes("can_flush"),
        // Shared, all clients are on one connection, or the server advertises it.
        "can_multi_conn": shared || yes("can_multi_conn"),
        // Any range is served over blocks of any size, and split.
        "block_size_minimum": 1,
        "block_size_maximum": 32 << 20,
    });
    for same in
        ["export-size", "is_read_only", "is_rotational", "can_cache", "can_trim", "can_fast_zero"]
    {
        ours[same] = theirs[same].clone();
    }
    // nbdkit advertises no sizes unless they matter.
    ours["block_size_preferred"] =
        theirs.get("block_size_preferred").cloned().unwrap_or_else(|| json!(4096));
    ours
}

#[test]
fn abilities_pass_through_and_only_what_is_ours_is_added() {
    let (Some(nbdkit), Some(nbdinfo)) = (peer("nbdkit"), peer("nbdinfo")) else { return };
    for shape in SHAPES {
        let upstream = Server::nbdkit(&nbdkit, shape);
        let theirs = describe(&nbdinfo, &upstream.uri(""));
        for (words, shared) in [(&[][..], true), (&["shared=false"], false)] {
            let server = in_front_of(&upstream.uri(""), words);
            let ours = describe(&nbdinfo, &server.uri(""));
            for (key, value) in expected(&theirs, shared).as_object().unwrap() {
                assert_eq!(ours[key], *value, "{key} of {shape:?} {words:?}: {theirs:#} {ours:#}");
            }
        }
    }
}

#[test]
fn our_readonly_filter_hides_requests_that_write() {
    let Some(nbdinfo) = peer("nbdinfo") else { return };
    let upstream = Serve::memory("1M").start();
    let server = Serve::device(["nbd", &format!("uri={}", upstream.uri(""))]).option("-r").start();
    let ours = describe(&nbdinfo, &server.uri(""));
    assert_eq!(ours["is_read_only"], true);
    for key in ["can_trim", "can_zero", "can_fast_zero", "can_fua"] {
        assert_eq!(ours[key], false, "{key}: {ours:#}");
    }
}

#[test]
fn descriptions_pass_through() {
    let (Some(nbdkit), Some(nbdinfo)) = (peer("nbdkit"), peer("nbdinfo")) else { return };
    let words = [
        "eval",
        "get_size=echo 512",
        "pread=head -c $3 /dev/zero",
        "export_description=echo 'What it is'",
    ];
    let upstream = Server::nbdkit(&nbdkit, &words);
    let server = in_front_of(&upstream.uri(""), &[]);
    assert_eq!(describe(&nbdinfo, &server.uri(""))["description"], "What it is");
}

/// The map, as nbdinfo prints it: (offset, length, type), neighbours joined.
#[track_caller]
fn map(nbdinfo: &std::path::PathBuf, uri: &str) -> Vec<(u64, u64, u64)> {
    let outcome = run(&mut program(nbdinfo, ["--map", "--json", uri]));
    let mut joined: Vec<(u64, u64, u64)> = Vec::new();
    for (offset, length, kind) in extents(outcome.succeeded()) {
        match joined.last_mut() {
            Some(last) if last.2 == kind => last.1 += length,
            _ => joined.push((offset, length, kind)),
        }
    }
    joined
}

#[test]
fn the_map_passes_through_also_beyond_4_gib() {
    let (Some(nbdkit), Some(nbdinfo)) = (peer("nbdkit"), peer("nbdinfo")) else { return };
    let data = "data=1 @1000000 2*70000 @5368709120 3 @9663676416 4*100000 @68719476736 5";
    for shape in [
        &["sparse-random", "1G", "seed=7", "percent=5"][..],
        &["data", data, "size=70G"],
        &["--filter=noextents", "data", data, "size=70G"],
        &["memory", "1T"],
    ] {
        let upstream = Server::nbdkit(&nbdkit, shape);
        let server = in_front_of(&upstream.uri(""), &[]);
        let (theirs, ours) = (map(&nbdinfo, &upstream.uri("")), map(&nbdinfo, &server.uri("")));
        assert_eq!(theirs, ours, "{shape:?}");
    }
}
