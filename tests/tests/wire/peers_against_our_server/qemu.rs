//! qemu-img and qemu-io against our server.

use std::fs;
use std::path::Path;

use blackbox::launch::{Serve, Server};
use blackbox::peers::peer;
use blackbox::run::json;
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

use super::{peer_ok, peer_run};

#[test]
fn qemu_img_info_reads_the_size() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let server = Serve::exports(&[("disk", "memory:5M")]).start();
    for export in ["", "disk"] {
        let info = json(&peer_ok(&qemu_img, ["info", "--output=json", &server.uri(export)]));
        assert_eq!(info["virtual-size"], 5 * MIB);
        assert_eq!(info["format"], "raw");
    }
    let outcome = peer_run(&qemu_img, ["info", &server.uri("nowhere")]);
    assert!(!outcome.status.success());
}

/// A raw file of 8 MiB with data and zeroes.
fn source(temp: &TempDir) -> std::path::PathBuf {
    let mut content = pattern(0, index(8 * MIB));
    content[2_000_000..6_000_000].fill(0);
    temp.file("source", &content)
}

fn same(qemu_img: &Path, one: &str, two: &str) {
    peer_ok(qemu_img, ["compare", "-f", "raw", "-F", "raw", one, two]);
}

#[test]
fn qemu_img_converts_and_compares_both_ways() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let source = source(&temp);
    let source = source.to_str().unwrap();
    let server = Serve::memory("8M").start();
    let uri = server.uri("");
    let into = ["convert", "-n", "-f", "raw", "-O", "raw", source, &uri];
    peer_ok(&qemu_img, into);
    same(&qemu_img, source, &uri);
    let back = temp.join("back");
    let back = back.to_str().unwrap();
    peer_ok(&qemu_img, ["convert", "-f", "raw", "-O", "raw", &uri, back]);
    same(&qemu_img, source, back);
    // Into qcow2, whose own format driver then compares.
    let qcow2 = temp.join("q");
    let qcow2 = qcow2.to_str().unwrap();
    peer_ok(&qemu_img, ["convert", "-f", "raw", "-O", "qcow2", &uri, qcow2]);
    peer_ok(&qemu_img, ["compare", "-f", "raw", "-F", "qcow2", &uri, qcow2]);
}

#[test]
fn qemu_img_converts_over_stale_bytes() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let source = source(&temp);
    let source = source.to_str().unwrap();
    let path = temp.file("stale", &vec![0xd1; index(8 * MIB)]);
    let server = Serve::file(&path).start();
    let uri = server.uri("");
    peer_ok(&qemu_img, ["convert", "-n", "-W", "-m", "16", "-f", "raw", "-O", "raw", source, &uri]);
    drop(server);
    assert!(fs::read(&path).unwrap() == fs::read(source).unwrap(), "the copy differs");
}

#[test]
fn qemu_img_keeps_a_qcow2_image_in_our_memory() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let source = source(&temp);
    let source = source.to_str().unwrap();
    let server = Serve::memory("64M").start();
    let uri = server.uri("");
    peer_ok(&qemu_img, ["create", "-f", "qcow2", &uri, "32M"]);
    peer_ok(&qemu_img, ["convert", "-n", "-f", "raw", "-O", "qcow2", source, &uri]);
    peer_ok(&qemu_img, ["check", "-f", "qcow2", &uri]);
    // The image is larger than the source: compare reports that, and that nothing else differs.
    peer_ok(&qemu_img, ["compare", "-f", "raw", "-F", "qcow2", source, &uri]);
}

/// Runs qemu-io commands on an export; each line of failure stops it.
fn qemu_io(qemu_io: &Path, uri: &str, commands: &[&str]) -> String {
    let mut args = vec!["-f", "raw"];
    for command in commands {
        args.extend(["-c", command]);
    }
    args.push(uri);
    let outcome = peer_run(qemu_io, &args);
    // qemu-io reports a pattern that differs on stdout and, in old versions, exits with 0.
    let text = format!("{}{}", outcome.succeeded(), outcome.stderr);
    assert!(!text.contains("failed") && !text.contains("error"), "{text}");
    text
}

fn patterns(server: &Server) {
    let Some(path) = peer("qemu-io") else { return };
    let uri = server.uri("");
    qemu_io(
        &path,
        &uri,
        &[
            "write -P 0x11 0 1M",
            "write -P 0x22 -f 512k 64k",
            "write -P 0x33 1000 5000",
            "read -P 0x11 0 1000",
            "read -P 0x33 1000 5000",
            "read -P 0x11 6000 506k",
            "read -P 0x22 512k 64k",
            "write -z 64k 64k",
            "read -P 0 64k 64k",
            "write -z -u 128k 64k",
            "read -P 0 128k 64k",
            "read -P 0x11 192k 4k",
            "write -z 256k 4k",
            "discard 320k 64k",
            "read -P 0x11 384k 64k",
            "flush",
            "aio_write -P 0x44 2M 1M",
            "aio_write -P 0x55 3M 1M",
            "aio_flush",
            "aio_read -P 0x44 2M 1M",
            "aio_read -P 0x55 3M 1M",
            "aio_flush",
            "read -P 0 7M 1M",
        ],
    );
}

#[test]
fn qemu_io_patterns_on_memory() {
    patterns(&Serve::memory("8M").start());
}

#[test]
fn qemu_io_patterns_on_a_file() {
    let temp = TempDir::new();
    let path = temp.sparse_file("disk", 8 * MIB);
    patterns(&Serve::file(&path).start());
}

#[test]
fn qemu_io_cannot_write_a_read_only_export() {
    let Some(path) = peer("qemu-io") else { return };
    let server = Serve::memory("1M").option("-r").start();
    let uri = server.uri("");
    let write = ["-f", "raw", "-c", "write 0 512", &uri];
    let outcome = peer_run(&path, write);
    let refused = !outcome.status.success() || outcome.stderr.contains("ermission");
    let refused = refused || outcome.stderr.contains("read-only");
    // Old versions refuse to open it, new ones to write.
    assert!(refused, "{outcome:#?}");
    let reads = ["-r", "-f", "raw", "-c", "read -P 0 0 1M", &uri];
    peer_ok(&path, reads);
}

#[test]
fn qemu_img_bench_finds_no_error() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let server = Serve::memory("64M").start();
    let uri = server.uri("");
    for options in [&["-w", "--flush-interval=50"][..], &[]] {
        let mut args = vec!["bench", "-f", "raw", "-c", "2000", "-d", "32", "-s", "12k"];
        args.extend(options);
        args.push(&uri);
        peer_ok(&qemu_img, &args);
    }
}
