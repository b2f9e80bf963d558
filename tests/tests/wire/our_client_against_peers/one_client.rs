//! Servers that promise nothing of several connections: those that serve them all the same are read
//! over several where that helps, and those that have one client at a time lose nothing by being
//! asked.

use std::fs;
use std::path::Path;

use blackbox::launch::Server;
use blackbox::peers::peer;
use blackbox::temp::TempDir;

use super::{copy_with, disk};

/// Two requests at a time: slow enough that another connection is asked for.
const SLOWLY: [&str; 4] = ["--requests=2", "--request-size=16K", "--sparse=0", "--no-extents"];

#[track_caller]
fn reads_all(server: &Server, content: &[u8]) {
    let temp = TempDir::new();
    let target = temp.join("copy");
    copy_with(&SLOWLY, server.uri(""), &target).succeeded();
    assert!(fs::read(&target).unwrap() == content, "another disk");
}

/// nbdkit on a file, each read of which takes 10 ms.
fn slow_nbdkit(nbdkit: &Path, file: &Path, words: &[&str]) -> Server {
    let filters = ["--filter=log", "--filter=multi-conn", "--filter=delay"];
    let file = format!("file={}", file.display());
    let settings = ["file", &file, "multi-conn-mode=disable", "rdelay=10ms"];
    let filters: Vec<_> =
        words.iter().filter(|word| word.starts_with("--")).chain(&filters).collect();
    let words = words.iter().filter(|word| !word.starts_with("--"));
    Server::nbdkit(
        nbdkit,
        &filters.into_iter().chain(&settings).chain(words).copied().collect::<Vec<_>>(),
    )
}

#[test]
fn an_nbdkit_that_promises_nothing_is_read_over_several_connections() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    let temp = TempDir::new();
    let content = disk();
    let (file, log) = (temp.file("disk", &content), temp.join("log"));
    let logfile = format!("logfile={}", log.display());
    let server = slow_nbdkit(&nbdkit, &file, &[&logfile]);
    reads_all(&server, &content);
    let text = fs::read_to_string(&log).unwrap();
    let of = |number: usize| {
        let prefix = format!("connection={number} Read ");
        text.lines().filter(|line| line.contains(&prefix)).count()
    };
    assert!(of(1) > 100 && of(2) > 100, "{} {}", of(1), of(2));
}

#[test]
fn an_nbdkit_with_one_client_at_a_time_is_read_over_one() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    let temp = TempDir::new();
    let content = disk();
    let file = temp.file("disk", &content);
    let log = format!("logfile={}", temp.join("log").display());
    // The second one is not answered, or refused.
    for words in [
        ["--filter=noparallel", "serialize=connections", &log],
        ["--filter=limit", "limit=1", &log],
    ] {
        reads_all(&slow_nbdkit(&nbdkit, &file, &words), &content);
    }
}

#[test]
fn a_qemu_nbd_with_one_client_at_a_time_is_read_over_one() {
    let Some(qemu_nbd) = peer("qemu-nbd") else { return };
    let temp = TempDir::new();
    let content = disk();
    let file = temp.file("disk", &content);
    let server = Server::peer(&qemu_nbd, |socket| {
        let image = format!(
            "driver=throttle,throttle-group=slow,file.driver=file,file.filename={}",
            file.display()
        );
        let words = ["-t", "-e", "1", "--object", "throttle-group,id=slow,x-bps-read=4194304"];
        let words = words.into_iter().chain(["--image-opts", &image, "-k"]).map(Into::into);
        words.chain([socket.into()]).collect()
    })
    .greeting();
    // Once more: what was asked for in vain is in no way.
    reads_all(&server, &content);
    reads_all(&server, &content);
}
