//! Two writers of one file: the second is refused with a clear message, whoever it is. The
//! locks are those of QEMU, on single bytes of the file.

use std::fs;
use std::path::Path;

use blackbox::launch::{Serve, Server};
use blackbox::peers::peer;
use blackbox::run::{ours, program, run};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

fn disk(temp: &TempDir) -> std::path::PathBuf {
    temp.file("disk", &pattern(0, index(MIB)))
}

/// Everything of ours that would write to the file must refuse, and not touch it.
#[track_caller]
fn our_writers_refuse(path: &Path) {
    let serve = run(ours(["serve", "--run", "true", "file"]).arg(path));
    let line = serve.failed();
    assert!(line.contains(path.to_str().unwrap()), "{line}");
    assert!(line.contains("lock") || line.contains("in use"), "the cause: {line}");
    let copy = run(ours(["copy", "pattern:1M"]).arg(path));
    let line = copy.failed();
    assert!(line.contains("lock") || line.contains("in use"), "the cause: {line}");
}

#[test]
fn two_of_our_servers_do_not_write_one_file() {
    let temp = TempDir::new();
    let path = disk(&temp);
    let server = Serve::file(&path).start();
    our_writers_refuse(&path);
    assert!(fs::read(&path).unwrap() == pattern(0, index(MIB)), "the file was touched");
    drop(server);
    // The lock went with its holder.
    run(ours(["serve", "--run", "true", "file"]).arg(&path)).succeeded();
}

#[test]
fn several_readers_share_a_file() {
    let temp = TempDir::new();
    let path = disk(&temp);
    let _one = Serve::file(&path).option("-r").start();
    let _two = Serve::file(&path).option("-r").start();
    run(ours(["copy"]).arg(&path).arg("null:")).succeeded();
}

#[test]
fn a_file_that_qemu_nbd_writes_is_refused() {
    let Some(qemu_nbd) = peer("qemu-nbd") else { return };
    let temp = TempDir::new();
    let path = disk(&temp);
    let _holder = Server::qemu_nbd(&qemu_nbd, "raw", &path);
    our_writers_refuse(&path);
    assert!(fs::read(&path).unwrap() == pattern(0, index(MIB)), "the file was touched");
}

#[test]
fn a_file_that_we_write_is_refused_by_qemu() {
    let Some(qemu_io) = peer("qemu-io") else { return };
    let temp = TempDir::new();
    let path = disk(&temp);
    let _server = Serve::file(&path).start();
    let write = ["-f", "raw", "-c", "write -P 9 0 512", path.to_str().unwrap()];
    let outcome = run(&mut program(&qemu_io, write));
    let said = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(said.contains("lock"), "qemu should see our lock: {outcome:#?}");
    assert!(fs::read(&path).unwrap() == pattern(0, index(MIB)), "the file was touched");
}

#[test]
fn a_file_that_a_vm_only_reads_may_be_read() {
    let Some(qemu_nbd) = peer("qemu-nbd") else { return };
    let temp = TempDir::new();
    let path = disk(&temp);
    let _holder = Server::peer(&qemu_nbd, |socket| {
        let words = ["-t", "-r", "-f", "raw", "-k"].map(std::ffi::OsString::from);
        words.into_iter().chain([socket.into(), (&path).into()]).collect()
    });
    run(ours(["copy"]).arg(&path).arg("null:")).succeeded();
    run(ours(["serve", "-r", "--run", "true", "file"]).arg(&path)).succeeded();
}
