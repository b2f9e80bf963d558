//! Two writers of one file: the second is refused with a clear message, whatever program it is. The
//! locks are those of QEMU, on single bytes of the file.

use std::fs;
use std::path::Path;

use blackbox::launch::{Serve, Server};
use blackbox::peers::peer;
use blackbox::run::{ours, program, run};
use blackbox::storage::{Loop, Mounted};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

fn disk(temp: &TempDir) -> std::path::PathBuf {
    temp.file("disk", &pattern(0, index(MIB)))
}

/// Every verb that would write to the file must refuse, and not touch it.
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
    let line = run(ours(["serve", "--run", "true", "file"]).arg(&path)).failed().to_owned();
    let reading = format!("`serve -r file {} lock=off` only reads it", path.display());
    assert!(line.contains(&reading), "{line}");
    let words = ["serve", "-r", "--run", "true", "file"];
    run(ours(words).arg(&path).arg("lock=off")).succeeded();
    drop(server);
    // The lock went with its holder.
    run(ours(["serve", "--run", "true", "file"]).arg(&path)).succeeded();
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
    })
    .greeting();
    run(ours(["copy"]).arg(&path).arg("null:")).succeeded();
    run(ours(["serve", "-r", "--run", "true", "file"]).arg(&path)).succeeded();
}

#[test]
fn a_refusal_names_the_whole_way_round_it_and_that_way_works() {
    let temp = TempDir::new();
    let path = disk(&temp);
    let name = path.to_str().unwrap();
    let _reader = Serve::file(&path).option("-r").start();
    let line = run(ours(["serve", "--run", "true", "file"]).arg(&path)).failed().to_owned();
    assert!(line.contains("`serve -r` (`--readonly`)"), "{line}");
    run(ours(["serve", "-r", "--run", "true"]).arg(&path)).succeeded();
    let off = format!("file:{name}?lock=off");
    assert!(line.contains(&format!("`{off}`")), "{line}");
    run(&mut ours(["serve", "--run", "true", &off])).succeeded();
    assert!(line.contains(&format!("`serve file {name} lock=off`")), "{line}");
    run(&mut ours(["serve", "--run", "true", "file", name, "lock=off"])).succeeded();
}

#[test]
fn an_image_has_one_writer_ours_or_qemus_in_both_orders_and_a_reader_is_told() {
    let peers = (peer("qemu-img"), peer("qemu-io"), peer("qemu-nbd"));
    let (Some(qemu_img), Some(qemu_io), Some(qemu_nbd)) = peers else { return };
    let temp = TempDir::new();
    let path = temp.join("image");
    let image = path.to_str().unwrap();
    let create = ["create", "-q", "-f", "qcow2", image, "1M"];
    run(&mut program(&qemu_img, create)).succeeded();
    let source = temp.file("source", &pattern(0, index(MIB)));
    let (source, copy) = (source.to_str().unwrap(), temp.join("copy"));
    let copy = copy.to_str().unwrap();
    let ours_refuse = |holder: &str| {
        for words in [
            &["serve", "--format", "qcow2", "--run", "true", image][..],
            &["convert", "-n", "-f", "raw", "-O", "qcow2", source, image],
            &["check", "-f", "qcow2", image],
            &["convert", "-f", "qcow2", "-O", "raw", image, copy],
        ] {
            let line = run(&mut ours(words)).failed().to_owned();
            // Which file, what is in the way, and the way round it.
            assert!(line.contains(image), "{holder}, {words:?}: {line}");
            assert!(
                line.contains("lock") || line.contains("in use"),
                "{holder}, {words:?}: {line}"
            );
        }
        run(&mut ours(["check", "-U", "-f", "qcow2", image])).succeeded();
    };
    let qemu = |words: &[&str], is_allowed: bool| {
        let outcome = run(&mut program(&qemu_io, words));
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        assert_eq!(!said.contains("lock"), is_allowed, "{words:?}: {said}");
    };
    let before = fs::read(&path).unwrap();

    let server = Serve::file(&path).option("--format").option("qcow2").start();
    ours_refuse("ours");
    qemu(&["-f", "qcow2", "-c", "write 0 512", image], false);
    qemu(&["-f", "qcow2", "-r", "-c", "read 0 512", image], false);
    qemu(&["-f", "qcow2", "-r", "-U", "-c", "read 0 512", image], true);
    let socket = temp.join("refused");
    let words = ["-f", "qcow2", "-k", socket.to_str().unwrap(), image];
    let refused = run(&mut program(&qemu_nbd, words));
    assert!(!refused.status.success() && refused.stderr.contains("lock"), "{refused:#?}");
    assert!(server.stop().success());
    assert!(fs::read(&path).unwrap() == before, "the image was touched");

    let holder = Server::qemu_nbd(&qemu_nbd, "qcow2", &path);
    ours_refuse("qemu-nbd");
    drop(holder);
    let serve = ["serve", "--format", "qcow2", "--run", "true", image];
    run(&mut ours(serve)).succeeded();
}

#[test]
fn a_mounted_disk_is_not_written_over_nor_served_for_writing() {
    let Some(fs) = Mounted::new("ext4", 16 * MIB) else { return };
    fs::write(fs.join("file"), "hello").unwrap();
    let device = fs.device().to_str().unwrap();
    let copy = run(&mut ours(["copy", "pattern:16M", device]));
    let line = copy.failed();
    assert!(line.contains(device) && line.contains("mounted or in use"), "{line}");
    let serve = run(&mut ours(["serve", "--run", "true", device]));
    assert!(serve.failed().contains("mounted or in use"), "{serve:?}");
    for words in [["zero", device], ["trim", device], ["prealloc", device]] {
        assert!(run(&mut ours(words)).failed().contains("mounted or in use"), "{words:?}");
    }
    // To read it is allowed.
    run(&mut ours(["serve", "-r", "--run", "true", device])).succeeded();
    run(&mut ours(["copy", device, "null:"])).succeeded();
    // And to write, where that is asked for.
    run(&mut ours(["serve", "--run", "true", "file", device, "lock=off"])).succeeded();
    assert_eq!(fs::read(fs.join("file")).unwrap(), b"hello");
}

#[test]
fn a_block_device_that_is_not_in_use_is_written_and_has_durable_writes() {
    let temp = TempDir::new();
    let Some(device) = Loop::over(&disk(&temp), &[]) else { return };
    let server = Serve::file(device.path()).start();
    our_writers_refuse(device.path());
    let mut session = server.session(blackbox::session::Mode::Structured, "");
    let write = blackbox::session::Request::write(5, b"durable");
    assert_eq!(session.error_of(&write.flags(blackbox::nbd::cflag::FUA)), 0);
    session.flush();
    assert_eq!(session.read(5, 7).unwrap(), b"durable");
    drop((session, server));
    run(ours(["copy", "pattern:1M"]).arg(device.path())).succeeded();
}

#[test]
fn a_read_only_block_device_is_served_read_only_and_is_no_target() {
    let temp = TempDir::new();
    let path = disk(&temp);
    let Some(device) = Loop::over(&path, &["-r"]) else { return };
    let server = Serve::file(device.path()).start();
    let mut session = server.session(blackbox::session::Mode::Structured, "");
    assert!(session.has(blackbox::nbd::tflag::READ_ONLY));
    session.assert_alive();
    drop((session, server));
    let copy = run(ours(["copy", "pattern:1M"]).arg(device.path()));
    assert!(copy.failed().contains("is read-only"), "{copy:?}");
    assert!(fs::read(&path).unwrap() == pattern(0, index(MIB)), "it was touched");
}
