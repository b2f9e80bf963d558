//! Our locks and QEMU's: each keeps the other out where it must. Without qemu-nbd and qemu-io
//! installed there is nothing to test against, and the tests say so and pass.

use crate::scratch;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{Device, ErrorKind, Name, Result};
use devices::OpenOptions;
use scratch::Scratch;

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

fn open(path: &Path, write: bool) -> Result<Arc<dyn Device>> {
    let options = OpenOptions { write, ..OpenOptions::default() };
    devices::Named::of(&Name::Path(path.display().to_string()))
        .and_then(|disk| disk.open(&options, &runtime::Context::default()))
}

fn kind_of(result: Result<Arc<dyn Device>>) -> ErrorKind {
    result.map(|d| d.info().clone()).unwrap_err().kind()
}

/// A server that holds the image until it is dropped.
struct QemuNbd(Child);

impl QemuNbd {
    fn start(scratch: &Scratch, disk: &Path, more: &[&str]) -> Self {
        let socket = scratch.path("socket");
        let mut command = Command::new("qemu-nbd");
        command.args(["-t", "-f", "raw", "-k"]).arg(&socket).args(more).arg(disk);
        let mut server = Self(command.spawn().unwrap());
        let start = Instant::now();
        // It binds, listens, opens the image, and only then greets.
        while !is_greeted(&socket) {
            assert!(server.0.try_wait().unwrap().is_none(), "qemu-nbd ended");
            assert!(start.elapsed() < Duration::from_secs(60), "qemu-nbd does not greet");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }
}

fn is_greeted(socket: &Path) -> bool {
    let mut greeting = [0; 8];
    let read = UnixStream::connect(socket).and_then(|mut s| s.read_exact(&mut greeting));
    read.is_ok() && &greeting == b"NBDMAGIC"
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn qemu_io(disk: &Path, more: &[&str], command: &str) -> Output {
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw"]).args(more).args(["-c", command]).arg(disk).stdin(Stdio::null());
    qemu.output().unwrap()
}

#[test]
fn an_image_that_qemu_writes_is_refused_and_one_that_it_reads_may_be_read() {
    let _alone = scratch::alone();
    if !has("qemu-nbd") {
        return;
    }
    let scratch = Scratch::new("/tmp");
    let disk = scratch.path("disk");
    std::fs::write(&disk, [1; 1 << 20]).unwrap();
    {
        let _writer = QemuNbd::start(&scratch, &disk, &[]);
        let error = open(&disk, false).map(|d| d.info().clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked);
        assert!(error.to_string().contains("qemu-nbd"), "{error}");
        assert_eq!(kind_of(open(&disk, true)), ErrorKind::Locked);
        let off = devices::Named::parse(&format!("file:{}?lock=off", disk.display())).unwrap();
        off.open(&OpenOptions::read_write(), &runtime::Context::default()).map(|_| ()).unwrap();
    }
    std::fs::remove_file(scratch.path("socket")).unwrap_or_default();
    let _reader = QemuNbd::start(&scratch, &disk, &["-r"]);
    open(&disk, false).map(|_| ()).unwrap();
    assert_eq!(kind_of(open(&disk, true)), ErrorKind::Locked);
}

#[test]
fn qemu_is_refused_an_image_that_we_write_or_that_it_would_write_while_we_read() {
    let _alone = scratch::alone();
    if !has("qemu-io") {
        return;
    }
    let scratch = Scratch::new("/tmp");
    let disk = scratch.path("disk");
    std::fs::write(&disk, [1; 1 << 20]).unwrap();
    for write in [true, false] {
        let _held = open(&disk, write).unwrap();
        let output = qemu_io(&disk, &[], "write 0 512");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains("lock"), "{write}: {text}");
        assert_eq!(std::fs::read(&disk).unwrap()[0], 1);
        if !write {
            assert!(qemu_io(&disk, &["-r"], "read 0 512").status.success());
        }
    }
    assert!(qemu_io(&disk, &[], "write 0 512").status.success());
}
