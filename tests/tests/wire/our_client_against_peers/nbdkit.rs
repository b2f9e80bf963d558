//! nbdkit with its plugins, its filters, and the options that make it an old server.

use std::path::Path;
use std::process::Command;

use blackbox::launch::Server;
use blackbox::peers::{peer, skip_environment};
use blackbox::run::{ours, run};
use blackbox::session::Mode;
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index, wait_for_lines};
use rustix::process::Signal;

use super::{copy, copy_with, disk, fetch, info, map, size, there_and_back, there_and_back_with};

/// nbdkit with these words; `None`, after saying so, when it is missing or too old for one.
fn nbdkit(words: &[&str]) -> Option<Server> {
    let path = peer("nbdkit")?;
    for word in words.iter().filter(|w| w.starts_with("--filter=") || w.starts_with("--no-")) {
        if !knows(&path, word) {
            skip_environment(&format!("this nbdkit has no {word}"));
            return None;
        }
    }
    Some(Server::nbdkit(&path, words))
}

fn knows(nbdkit: &Path, word: &str) -> bool {
    let output = |args: &[&str]| {
        let output = Command::new(nbdkit).args(args).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    match word.strip_prefix("--filter=") {
        Some(filter) => output(&[&format!("--filter={filter}"), "null", "--dump-plugin"]).0,
        None => output(&["--help"]).1.contains(word),
    }
}

#[test]
fn info_and_size_of_memory() {
    let Some(server) = nbdkit(&["memory", "3M"]) else { return };
    assert_eq!(size(&server.uri("")), 3 * MIB);
    let text = info(&server.uri("")).to_string();
    assert!(text.contains("base:allocation"), "{text}");
    assert!(text.contains("\"is_read_only\":false"), "{text}");
    // A person's table names the size too.
    let outcome = run(&mut ours(["info", &server.uri("")]));
    let table = outcome.succeeded();
    assert!(table.contains("3145728") || table.contains('3'), "{table}");
}

#[test]
fn memory_there_and_back() {
    let Some(server) = nbdkit(&["memory", "6M"]) else { return };
    there_and_back(&server.uri(""), &disk());
}

#[test]
fn every_kind_of_old_handshake() {
    let masks = ["--mask-handshake=0", "--mask-handshake=1", "--mask-handshake=2"];
    let mut variants = masks.map(|mask| vec![mask]).to_vec();
    variants.extend([
        vec!["--mask-handshake=3"],
        vec!["--no-sr"],
        vec!["--no-mc"],
        vec!["-o"],
        vec!["-o", "--no-sr"],
        vec!["--no-sr", "--mask-handshake=0"],
    ]);
    for options in variants {
        let words: Vec<&str> = options.iter().copied().chain(["memory", "6M"]).collect();
        let Some(server) = nbdkit(&words) else { continue };
        assert_eq!(size(&server.uri("")), 6 * MIB, "{options:?}");
        // An oldstyle nbdkit offers WRITE_ZEROES and FLUSH, and refuses both.
        let oldstyle = options.contains(&"-o");
        let copying = if oldstyle { &["--no-flush"][..] } else { &[] };
        there_and_back_with(copying, &server.uri(""), &disk());
    }
}

#[test]
fn a_file_with_holes_keeps_its_map() {
    let temp = TempDir::new();
    let path = temp.sparse_file("disk", 4 * MIB);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let data = pattern(0, index(MIB));
    std::os::unix::fs::FileExt::write_all_at(&file, &data, MIB).unwrap();
    let Some(server) = nbdkit(&["-r", "file", path.to_str().unwrap()]) else { return };
    let expected = [(0, MIB, 3), (MIB, MIB, 0), (2 * MIB, 2 * MIB, 3)];
    assert_eq!(map(&server.uri("")), expected);
    // Our own view of the same file agrees.
    assert_eq!(map(path.to_str().unwrap()), expected);
    let target = temp.join("copy");
    copy(server.uri(""), &target);
    super::assert_same(&path, &target);
    let allocated = blackbox::launch::allocated(&target);
    assert!(allocated < 2 * MIB, "{allocated} bytes on disk: the holes were filled");
}

#[test]
fn pattern_is_the_same_in_both() {
    let Some(server) = nbdkit(&["pattern", "8M"]) else { return };
    let theirs = fetch(&server.uri(""));
    assert!(theirs == fetch("pattern:8M"), "our pattern is another one");
    assert_eq!(theirs[8..16], 8_u64.to_be_bytes());
}

#[test]
fn sparse_random_is_copied_onto_itself() {
    let Some(server) =
        nbdkit(&["sparse-random", "256M", "seed=5", "percent=20", "runlength=1048576"])
    else {
        return;
    };
    // It accepts only writes that match what it holds.
    copy(server.uri(""), server.uri(""));
    let Some(other) =
        nbdkit(&["sparse-random", "256M", "seed=6", "percent=20", "runlength=1048576"])
    else {
        return;
    };
    copy_with(&[], other.uri(""), server.uri("")).failed();
}

#[test]
fn random_is_copied_onto_itself() {
    let Some(server) = nbdkit(&["random", "8M", "seed=5"]) else { return };
    copy(server.uri(""), server.uri(""));
}

#[test]
fn data_with_text_and_holes() {
    let Some(server) = nbdkit(&["data", "data=1 2 3 @0x100000 \"hello\" @0x1fffff 9"]) else {
        return;
    };
    let seen = fetch(&server.uri(""));
    assert_eq!(seen.len(), 0x20_0000);
    assert_eq!(seen[..4], [1, 2, 3, 0]);
    assert_eq!(seen[0x10_0000..0x10_0006], *b"hello\0");
    assert_eq!(seen[0x1f_fffe..], [0, 9]);
}

#[test]
fn sizes_that_are_no_multiple_of_anything() {
    for bytes in ["1", "511", "513", "1000001", "0"] {
        let Some(server) = nbdkit(&["memory", bytes]) else { return };
        let wanted: usize = bytes.parse().unwrap();
        let content = pattern(0, wanted);
        there_and_back(&server.uri(""), &content);
    }
}

#[test]
fn filters_that_take_abilities_away() {
    let sets: [&[&str]; 7] = [
        &["--filter=noextents"],
        &["--filter=nozero"],
        &["--filter=nozero", "--filter=noextents", "--filter=fua"],
        &["--filter=fua"],
        &["--filter=multi-conn"],
        &["--filter=noparallel"],
        &["--filter=nocache"],
    ];
    for filters in sets {
        let mut words = filters.to_vec();
        words.extend(["memory", "6M"]);
        if filters.contains(&"--filter=multi-conn") {
            words.push("multi-conn-mode=disable");
        }
        let Some(server) = nbdkit(&words) else { continue };
        there_and_back(&server.uri(""), &disk());
    }
}

#[test]
fn strict_block_sizes_are_kept() {
    for (minimum, maximum) in [("512", "65536"), ("4096", "1M"), ("65536", "65536")] {
        let (min, max) =
            (format!("blocksize-minimum={minimum}"), format!("blocksize-maximum={maximum}"));
        let preferred =
            format!("blocksize-preferred={}", minimum.parse::<u32>().unwrap().max(4096));
        let policy = "blocksize-error-policy=error";
        let filter = "--filter=blocksize-policy";
        let words = [filter, "memory", "6M", &min, &preferred, &max, policy];
        let Some(server) = nbdkit(&words) else { return };
        there_and_back(&server.uri(""), &disk());
    }
}

#[test]
fn an_error_of_the_source_fails_the_copy() {
    let words = ["--filter=error", "pattern", "8M", "error-pread=EIO", "error-pread-rate=100%"];
    let Some(server) = nbdkit(&words) else { return };
    let temp = TempDir::new();
    let target = temp.join("copy");
    let outcome = copy_with(&[], server.uri(""), &target);
    outcome.failed();
    copy_with(&[], server.uri(""), "null:").failed();
}

#[test]
fn an_error_now_and_then_is_still_an_error() {
    // One read in five fails: some of these 64 always do.
    let words = ["--filter=error", "pattern", "16M", "error=EIO", "error-pread-rate=20%"];
    let Some(server) = nbdkit(&words) else { return };
    copy_with(&[], server.uri(""), "null:").failed();
}

#[test]
fn an_error_of_the_target_fails_the_copy() {
    for which in ["error-pwrite", "error-zero"] {
        let (kind, rate) = (format!("{which}=EIO"), format!("{which}-rate=100%"));
        let Some(server) = nbdkit(&["--filter=error", "memory", "6M", &kind, &rate]) else {
            return;
        };
        let temp = TempDir::new();
        let source = temp.file("source", &disk());
        let outcome = copy_with(&[], &source, server.uri(""));
        if outcome.status.success() {
            // A zero that failed may be made good by a write.
            assert_eq!(which, "error-zero");
            assert!(fetch(&server.uri("")) == disk(), "a wrong copy was called a success");
        } else {
            outcome.failed();
        }
    }
}

#[test]
fn an_error_of_the_map_loses_no_data() {
    let words = ["--filter=error", "pattern", "8M", "error-extents=EIO", "error-extents-rate=100%"];
    let Some(server) = nbdkit(&words) else { return };
    let temp = TempDir::new();
    let target = temp.join("copy");
    let outcome = copy_with(&[], server.uri(""), &target);
    if outcome.status.success() {
        assert!(std::fs::read(&target).unwrap() == fetch("pattern:8M"));
    } else {
        outcome.failed();
    }
    // Without asking for it, nothing is wrong.
    copy_with(&["--no-extents"], server.uri(""), "null:").succeeded();
}

#[test]
fn a_slow_server_is_waited_for() {
    let words = ["--filter=delay", "memory", "6M", "rdelay=5ms", "wdelay=5ms"];
    let Some(server) = nbdkit(&words) else { return };
    there_and_back(&server.uri(""), &disk());
}

#[test]
fn list_names_what_a_directory_offers() {
    let temp = TempDir::new();
    for name in ["one", "two"] {
        temp.sparse_file(name, MIB);
    }
    let directory = format!("dir={}", temp.path().display());
    let Some(server) = nbdkit(&["file", &directory]) else { return };
    let uri = server.uri("");
    let outcome = run(&mut ours(["list", &uri]));
    let text = outcome.succeeded();
    assert!(text.contains("one") && text.contains("two"), "{text}");
    let json = run(&mut ours(["list", "--json", &uri]));
    let json: serde_json::Value = serde_json::from_str(json.succeeded()).unwrap();
    let text = json.to_string();
    assert!(text.contains("\"one\"") && text.contains("\"two\""), "{text}");
    assert_eq!(size(&server.uri("two")), MIB);
}

#[test]
fn many_connections_and_requests() {
    let Some(server) = nbdkit(&["memory", "64M"]) else { return };
    let temp = TempDir::new();
    let content = pattern(0, index(64 * MIB));
    let source = temp.file("source", &content);
    let uri = server.uri("");
    for options in [
        &["-C", "8", "-R", "128", "-T", "4"][..],
        &["-C", "1", "-R", "1", "-T", "1", "--request-size", "4K"],
        &["--request-size", "32M"],
        &["--sparse", "0", "--flush"],
        &["--allocated"],
    ] {
        copy_with(options, &source, &uri).succeeded();
        assert!(fetch(&uri) == content, "{options:?}");
    }
}

#[test]
fn a_killed_server_fails_the_copy() {
    let temp = TempDir::new();
    let log = temp.join("log");
    let logfile = format!("logfile={}", log.display());
    let words = ["--filter=delay", "--filter=log", "pattern", "64M", "rdelay=20ms", &logfile];
    let Some(mut server) = nbdkit(&words) else { return };
    let target = temp.join("copy");
    let mut command = ours(["copy", &server.uri(""), target.to_str().unwrap()]);
    let job = blackbox::run::Job::start(command.args(["-R", "1", "-C", "1"]));
    wait_for_lines(&log, " Read ", 4);
    server.signal(Signal::KILL);
    job.wait().failed();
}

#[test]
fn the_raw_driver_and_our_client_see_the_same() {
    let Some(server) = nbdkit(&["pattern", "4M"]) else { return };
    let raw = server.session(Mode::Structured, "").read(0, 4 * MIB).unwrap();
    assert!(fetch(&server.uri("")) == raw);
}

#[test]
fn tcp_by_host_and_port() {
    let Some(path) = peer("nbdkit") else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let text = port.to_string();
    let mut command = Command::new(path);
    command.args(["-f", "-i", "127.0.0.1", "-p", &text, "pattern", "4M"]);
    let job = blackbox::run::Job::start(&mut command);
    let begun = std::time::Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < blackbox::GUARD);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    for host in ["127.0.0.1", "localhost"] {
        assert!(fetch(&format!("nbd://{host}:{port}")) == fetch("pattern:4M"));
        assert_eq!(size(&format!("NBD://{host}:{port}/")), 4 * MIB);
    }
    drop(job);
}
