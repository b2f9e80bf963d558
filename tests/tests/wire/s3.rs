//! The device `s3` and a real store (versitygw over a folder), through the program.
//!
//! The store checks each signature and each sum with code of its own. Where it is not installed
//! these tests are skipped; what fails in a store is scripted beside the device
//! (`crates/devices/src/http/s3/uploads.rs`).

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use blackbox::eventually;
use blackbox::peers::{find, peer, skip_environment};
use blackbox::run::{Job, measured, ours, program, run};
use blackbox::temp::{TempDir, pattern};
use rustix::process::Signal;

use crate::http::nginx::Nginx;

pub(crate) const ID: &str = "AKIDOFATEST";
pub(crate) const SECRET: &str = "0b5ec7e75ec2e75ec2e75ec2e75ec2ea";

/// A store with one bucket, `disks`, which is a folder.
pub(crate) struct Gateway {
    child: Child,
    temp: TempDir,
    port: u16,
}

impl Gateway {
    pub(crate) fn start() -> Option<Self> {
        // It is in no distribution: `go install github.com/versity/versitygw/cmd/versitygw@latest`.
        let Some(gateway) = find("versitygw") else {
            skip_environment("needs versitygw");
            return None;
        };
        let temp = TempDir::new();
        fs::create_dir_all(temp.join("data/disks")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(gateway)
            .env("ROOT_ACCESS_KEY", ID)
            .env("ROOT_SECRET_KEY", SECRET)
            .args(["--port", &format!("127.0.0.1:{port}"), "posix"])
            .arg(temp.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("the store listens", || TcpStream::connect(("127.0.0.1", port)).ok());
        Some(Self { child, temp, port })
    }

    pub(crate) fn object(&self, key: &str) -> PathBuf {
        self.temp.join("data/disks").join(key)
    }

    /// The program, with keys in its environment.
    pub(crate) fn ours<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = ours(words);
        command
            .env("AWS_ACCESS_KEY_ID", ID)
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .env("AWS_ENDPOINT_URL_S3", format!("http://127.0.0.1:{}", self.port))
            .env_remove("AWS_PROFILE");
        command
    }

    pub(crate) fn temp(&self) -> &TempDir {
        &self.temp
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The uploads that are not complete.
    pub(crate) fn uploads(&self) -> Vec<String> {
        let within = |folder: &PathBuf| {
            let found = fs::read_dir(folder).into_iter().flatten().flatten();
            found.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let objects = within(&self.object(".sgwtmp/multipart"));
        let all = objects.iter().flat_map(within).filter(|path| path.is_dir());
        all.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    /// Removes all objects and uploads.
    pub(crate) fn clear(&self) {
        for entry in fs::read_dir(self.object("")).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_disk_goes_up_and_comes_down_and_is_not_replaced_unless_that_is_said() {
    let Some(store) = Gateway::start() else { return };
    let content = pattern(0, 30_000_001);
    let source = store.temp.file("disk", &content);
    let (source, copy) = (source.to_str().unwrap(), store.temp.join("copy"));
    let name = "s3://disks/a folder/é+1.raw";
    run(&mut store.ours(["copy", source, name])).succeeded();
    assert!(fs::read(store.object("a folder/é+1.raw")).unwrap() == content);
    run(&mut store.ours(["copy", name, copy.to_str().unwrap()])).succeeded();
    assert!(fs::read(&copy).unwrap() == content);
    run(&mut store.ours(["compare", "-f", "raw", "-F", "raw", source, name])).succeeded();
    let said = run(&mut store.ours(["copy", "memory:512", name]));
    assert!(said.failed().contains("overwrite=true"), "{said:?}");
    assert!(fs::read(store.object("a folder/é+1.raw")).unwrap() == content);
    run(&mut store.ours(["copy", "memory:512", &format!("{name}?overwrite=true")])).succeeded();
    assert_eq!(fs::read(store.object("a folder/é+1.raw")).unwrap(), [0; 512]);
}

#[test]
fn images_go_up_in_one_pass_where_their_form_allows_it() {
    let Some(store) = Gateway::start() else { return };
    let content = pattern(0, 20 << 20);
    let source = store.temp.file("disk", &content);
    let source = source.to_str().unwrap();
    // There is no room for a temporary file.
    let mut up =
        store.ours(["convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=streamOptimized"]);
    run(up.args([source, "s3://disks/vm.vmdk"]).env("TMPDIR", "/nonexistent")).succeeded();
    let mut up = store.ours(["convert", "-f", "raw", "-O", "qcow2"]);
    run(up.args([source, "s3://disks/vm.qcow2"]).env("TMPDIR", "/nonexistent")).succeeded();
    let said = run(store
        .ours(["convert", "-c", "-f", "raw", "-O", "qcow2"])
        .args([source, "s3://disks/c"]));
    assert!(said.failed().contains("not made in one go"), "{said:?}");
    assert!(!store.object("c").exists());
    let Some(qemu_img) = peer("qemu-img") else { return };
    for (format, key) in [("vmdk", "vm.vmdk"), ("qcow2", "vm.qcow2")] {
        let words = ["compare", "-f", "raw", "-F", format, source];
        run(program(&qemu_img, words).arg(store.object(key))).succeeded();
    }
}

/// The bytes of the image do not fit into the memory that is allowed, and in a sandbox no file
/// can be written.
#[test]
fn an_image_goes_from_https_into_another_form_in_the_store_in_one_pass() {
    const MOST: u64 = 200 << 20;
    let Some(store) = Gateway::start() else { return };
    let tls = "ssl_certificate %TEMP%/cert.pem; ssl_certificate_key %TEMP%/key.pem;";
    let Some(web) = Nginx::start_with("ssl", tls, "") else { return };
    let (raw, image) = (store.temp.join("disk"), web.file("vm.qcow2", b""));
    let (raw, image) = (raw.to_str().unwrap(), image.to_str().unwrap());
    let disk = "sparse-random:400M?seed=7&percent=75&random-content=true";
    run(&mut ours(["copy", "-q", disk, raw])).succeeded();
    run(&mut ours(["convert", "-f", "raw", "-O", "qcow2", raw, image])).succeeded();
    assert!(fs::metadata(image).unwrap().len() > MOST);
    let ca = web.temp().join("cert.pem");
    let url = format!("https://127.0.0.1:{}/vm.qcow2", web.port());
    let source = format!("http:?cainfo={}&url={url}", ca.display());
    let words = ["convert", "--sandbox=require", "-f", "qcow2", "-O", "vmdk"];
    let mut up = store.ours(words);
    up.args(["-o", "subformat=streamOptimized", &source, "s3://disks/vm.vmdk"]);
    measured(up.env("TMPDIR", "/nonexistent")).fits_in(MOST).succeeded();
    assert!(store.uploads().is_empty());
    let compared = ["compare", "-f", "raw", "-F", "vmdk", raw, "s3://disks/vm.vmdk"];
    run(&mut store.ours(compared)).succeeded();
    let Some(qemu_img) = peer("qemu-img") else { return };
    let words = ["compare", "-f", "raw", "-F", "vmdk", raw];
    run(program(&qemu_img, words).arg(store.object("vm.vmdk"))).succeeded();
}

#[test]
fn an_interrupted_copy_leaves_neither_an_object_nor_parts_and_no_secret_is_told() {
    let Some(store) = Gateway::start() else { return };
    // No end of it: it goes on until it is stopped.
    let words = ["copy", "-v", "sparse-random:1T?seed=1&percent=100", "s3://disks/big"];
    let job = Job::start(&mut store.ours(words));
    eventually("an upload has begun", || (!store.uploads().is_empty()).then_some(()));
    let line = fs::read(format!("/proc/{}/cmdline", job.pid().as_raw_nonzero())).unwrap();
    assert!(!String::from_utf8_lossy(&line).contains(SECRET));
    job.signal(Signal::INT);
    let said = job.wait();
    assert_eq!(said.status.code(), Some(130), "{said:?}");
    assert!(!said.stderr.contains(SECRET) && !said.stdout.contains(SECRET));
    assert!(!store.object("big").exists() && store.uploads().is_empty());
    for words in [
        &["copy", "s3://disks/none", "null:"][..],
        &["copy", "memory:1M", "s3://none/x"],
        &["info", "s3://disks/none?secret-key=0b5ec7e75ec2e75ec2e75ec2e75ec2ea&access-key=x"],
    ] {
        let said = run(&mut store.ours(words.iter().copied()));
        assert!(!said.failed().contains(SECRET), "{}", said.stderr);
    }
}
