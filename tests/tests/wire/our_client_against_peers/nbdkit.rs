//! nbdkit with its plugins, its filters, and the options that make it an old server.

use std::path::Path;
use std::process::Command;

use blackbox::launch::Server;
use blackbox::peers::{peer, skip_environment};
use blackbox::run::{Job, ours, run, runs};
use blackbox::session::Mode;
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, eventually, index, wait_for, wait_for_lines};
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
fn a_copy_goes_there_and_back_whatever_nbdkit_can_and_how_old_it_is() {
    let policy = "--filter=blocksize-policy blocksize-error-policy=error";
    let strict = [("512", 4096, "65536"), ("4096", 4096, "1M"), ("65536", 65_536, "65536")].map(
        |(minimum, preferred, maximum)| {
            format!(
                "{policy} blocksize-minimum={minimum} blocksize-preferred={preferred} \
                 blocksize-maximum={maximum}"
            )
        },
    );
    let others = [
        "",
        "--mask-handshake=0",
        "--mask-handshake=1",
        "--mask-handshake=2",
        "--mask-handshake=3",
        "--no-sr",
        "--no-mc",
        "-o",
        "-o --no-sr",
        "--no-sr --mask-handshake=0",
        "--filter=noextents",
        "--filter=nozero",
        "--filter=nozero --filter=noextents --filter=fua",
        "--filter=fua",
        "--filter=multi-conn multi-conn-mode=disable",
        "--filter=noparallel",
        "--filter=nocache",
        "--filter=delay rdelay=5ms wdelay=5ms",
    ];
    for words in others.into_iter().chain(strict.iter().map(String::as_str)) {
        let (options, parameters): (Vec<&str>, Vec<&str>) =
            words.split_whitespace().partition(|word| word.starts_with('-'));
        let all = [&options[..], &["memory", "6M"], &parameters].concat();
        let Some(server) = nbdkit(&all) else { continue };
        assert_eq!(size(&server.uri("")), 6 * MIB, "{words}");
        // An oldstyle nbdkit offers WRITE_ZEROES and FLUSH, and refuses both.
        let copying = if options.contains(&"-o") { &["--no-flush"][..] } else { &[] };
        there_and_back_with(copying, &server.uri(""), &disk());
    }
    for bytes in ["1", "511", "513", "1000001", "0"] {
        let Some(server) = nbdkit(&["memory", bytes]) else { return };
        there_and_back(&server.uri(""), &pattern(0, bytes.parse().unwrap()));
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
    let words = ["--filter=delay", "--filter=log", "pattern", "64M", "rdelay=200ms", &logfile];
    let Some(mut server) = nbdkit(&words) else { return };
    let target = temp.join("copy");
    let mut command = ours(["copy", &server.uri(""), target.to_str().unwrap()]);
    let job = Job::start(command.args(["-R", "1", "-C", "1"]));
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
    // A port that was just free may be taken by the time that nbdkit wants it.
    let (job, port) = eventually("nbdkit starts", || {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(&path);
        command.args(["-f", "-i", "127.0.0.1", "-p", &port.to_string(), "pattern", "4M"]);
        let job = Job::start(&mut command);
        wait_for("it listens or has ended", || {
            !runs(job.pid()) || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        runs(job.pid()).then_some((job, port))
    });
    for host in ["127.0.0.1", "localhost"] {
        assert!(fetch(&format!("nbd://{host}:{port}")) == fetch("pattern:4M"));
        assert_eq!(size(&format!("NBD://{host}:{port}/")), 4 * MIB);
    }
    drop(job);
}
