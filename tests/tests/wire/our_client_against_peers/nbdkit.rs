//! nbdkit with its plugins, its filters, and the options that make it an old server.

use std::path::Path;
use std::process::Command;

use blackbox::launch::Server;
use blackbox::peers::{peer, skip_environment};
use blackbox::run::{Job, json, ours, run, runs};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, eventually, index, wait_for};

use super::{copy, copy_with, disk, fetch, map, size, there_and_back, there_and_back_with};

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
    let text = json(run(&mut ours(["list", "--json", &uri])).succeeded()).to_string();
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
