//! qemu-nbd and qemu-storage-daemon.

use std::ffi::OsString;
use std::path::Path;

use blackbox::MIB;
use blackbox::launch::Server;
use blackbox::peers::{peer, skip_environment, version};
use blackbox::run::{program, run};
use blackbox::temp::TempDir;

use super::{copy, disk, fetch, info, map, size, there_and_back};

fn qcow2(temp: &TempDir, size: &str) -> Option<std::path::PathBuf> {
    let qemu_img = peer("qemu-img")?;
    let image = temp.join("disk.qcow2");
    let path = image.to_str().unwrap();
    run(&mut program(&qemu_img, ["create", "-q", "-f", "qcow2", path, size])).succeeded();
    Some(image)
}

#[test]
fn qemu_nbd_serves_qcow2() {
    let Some(qemu_nbd) = peer("qemu-nbd") else { return };
    let temp = TempDir::new();
    let Some(image) = qcow2(&temp, "6M") else { return };
    let server = Server::qemu_nbd(&qemu_nbd, "qcow2", &image);
    there_and_back(&server.uri(""), &disk());
    // A second copy onto the same: nothing may be left of the first.
    let mut other = disk();
    other.rotate_left(1_000_001);
    there_and_back(&server.uri(""), &other);
    let status = server.stop();
    assert!(status.success(), "{status}");
    let Some(qemu_img) = peer("qemu-img") else { return };
    let raw = temp.file("raw", &other);
    let (raw, image) = (raw.to_str().unwrap(), image.to_str().unwrap());
    run(&mut program(&qemu_img, ["check", "-q", image])).succeeded();
    run(&mut program(&qemu_img, ["compare", "-f", "raw", "-F", "qcow2", raw, image])).succeeded();
}

#[test]
fn qemu_nbd_reports_the_holes_of_qcow2() {
    let Some(qemu_nbd) = peer("qemu-nbd") else { return };
    let temp = TempDir::new();
    let Some(image) = qcow2(&temp, "1G") else { return };
    let server = Server::qemu_nbd(&qemu_nbd, "qcow2", &image);
    let uri = server.uri("");
    assert_eq!(map(&uri), [(0, 1 << 30, 3)]);
    let qemu_io = peer("qemu-io");
    if let Some(qemu_io) = qemu_io {
        let write = ["-f", "raw", "-c", "write -P 7 512M 1M", &uri];
        run(&mut program(&qemu_io, write)).succeeded();
        let expected = [(0, 512 * MIB, 3), (512 * MIB, MIB, 0), (513 * MIB, 511 * MIB, 3)];
        assert_eq!(map(&uri), expected);
    }
}

#[test]
fn qemu_nbd_is_left_politely_by_every_verb() {
    // Without -t it serves one client and ends: a verb that probed with a connection too many,
    // or did not send DISC, would be seen. With -e 1 it takes no second connection at once.
    let Some(qemu_nbd) = peer("qemu-nbd") else { return };
    let temp = TempDir::new();
    let image = temp.file("disk", &disk());
    let server = Server::peer(&qemu_nbd, |socket| {
        let words = ["-t", "-e", "1", "-r", "-f", "raw", "-k"].map(OsString::from);
        words.into_iter().chain([socket.into(), (&image).into()]).collect()
    });
    for _ in 0..3 {
        assert_eq!(size(&server.uri("")), 6 * MIB);
        assert!(fetch(&server.uri("")) == disk());
    }
}

/// A qemu-storage-daemon that exports a node by name.
fn storage_daemon(path: &Path, nodes: &[String], node: &str) -> Server {
    Server::peer(path, |socket| {
        let mut words: Vec<OsString> = Vec::new();
        for blockdev in nodes {
            words.extend(["--blockdev".into(), blockdev.into()]);
        }
        let address = format!("addr.type=unix,addr.path={}", socket.display());
        words.extend(["--nbd-server".into(), address.into()]);
        let export = format!("type=nbd,id=e,node-name={node},name=disk,writable=on");
        words.extend(["--export".into(), export.into()]);
        words
    })
}

fn file_node(path: &Path) -> String {
    format!("driver=file,node-name=f,discard=unmap,filename={}", path.display())
}

#[test]
fn qemu_storage_daemon_serves_a_named_export() {
    let Some(daemon) = peer("qemu-storage-daemon") else { return };
    let temp = TempDir::new();
    let image = temp.sparse_file("disk", 6 * MIB);
    let server = storage_daemon(&daemon, &[file_node(&image)], "f");
    there_and_back(&server.uri("disk"), &disk());
    let outcome = run(&mut blackbox::run::ours(["info", &server.uri("elsewhere")]));
    assert!(outcome.failed().contains("elsewhere"));
}

#[test]
fn qemu_storage_daemon_and_extended_headers() {
    let Some(daemon) = peer("qemu-storage-daemon") else { return };
    if version(&daemon) < (8, 2) {
        skip_environment("this qemu has no extended headers");
        return;
    }
    let temp = TempDir::new();
    let image = temp.sparse_file("disk", 1 << 40);
    let server = storage_daemon(&daemon, &[file_node(&image)], "f");
    let uri = server.uri("disk");
    assert_eq!(map(&uri), [(0, 1 << 40, 3)]);
    let told = info(&uri).to_string();
    assert!(told.contains("base:allocation"), "{told}");
    copy(&uri, "null:");
}
