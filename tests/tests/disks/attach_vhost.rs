//! Disks attached for virtual machines (vhost-user-blk): the program and its socket. What a guest
//! can do is tested in the crate, and by machines in `tests/lab/boot`.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::dice::{Case, seeds};
use blackbox::launch::Serve;
use blackbox::peers::{find, skip_environment};
use blackbox::run::{Job, ferry, ours, run, text};
use blackbox::session::Mode;
use blackbox::temp::TempDir;
use blackbox::{MIB, wait_for};

/// A front end that has connected to a disk.
struct FrontEnd(UnixStream);

impl FrontEnd {
    fn new(socket: &Path) -> Self {
        wait_for("the socket is there", || UnixStream::connect(socket).is_ok());
        Self(UnixStream::connect(socket).unwrap())
    }

    /// Sends a message, and reads the payload of the answer.
    fn ask(&mut self, request: u32, payload: &[u8]) -> Vec<u8> {
        let len = u32::try_from(payload.len()).unwrap();
        let header = [request, 1, len].map(u32::to_ne_bytes);
        self.0.write_all(&[header.as_flattened(), payload].concat()).unwrap();
        let mut header = [0; 12];
        self.0.read_exact(&mut header).unwrap();
        assert_eq!(header[..4], request.to_ne_bytes());
        let mut answer = vec![0; usize::from(header[8])];
        self.0.read_exact(&mut answer).unwrap();
        answer
    }

    fn number(&mut self, request: u32) -> u64 {
        u64::from_ne_bytes(self.ask(request, &[]).try_into().unwrap())
    }

    /// The bytes of the disk, as its configuration says.
    fn size(&mut self) -> u64 {
        let mut ask = [0_u32, 60, 0].map(u32::to_ne_bytes).as_flattened().to_vec();
        ask.extend([0; 60]);
        let config = self.ask(24, &ask);
        u64::from_le_bytes(config[12..20].try_into().unwrap()) * 512
    }
}

#[test]
fn a_sandboxed_process_serves_its_socket_to_its_user_and_removes_it() {
    let temp = TempDir::new();
    let image = temp.join("image.qcow2");
    ferry(["create", "-q", "-f", "qcow2", text(&image), "3M"]).succeeded();
    let socket = temp.join("vm.sock");
    let point = format!("vhost-user:{}", text(&socket));
    let words = ["attach", "--format", "qcow2", text(&image), &point];
    let job = Job::start(&mut ours(words));
    let mut machine = FrontEnd::new(&socket);
    let found = fs::metadata(&socket).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.mode() & 0o777, 0o600);
    assert_eq!(machine.size(), 3 * MIB);
    assert_eq!(machine.number(17), 16, "queues");
    // A region for requests in flight, which the sandbox allows.
    let mut ask = [0_u64, 0].map(u64::to_ne_bytes).as_flattened().to_vec();
    ask.extend([1_u16, 128].map(u16::to_ne_bytes).as_flattened());
    assert_eq!(machine.ask(31, &ask)[16..20], ask[16..20]);
    // Another process does not take the socket away.
    let taken = ferry(["attach", "memory:1M", &point]);
    assert!(taken.failed().contains("listens"), "{taken:?}");
    assert_eq!(machine.number(17), 16);
    drop(machine);
    assert_eq!(FrontEnd::new(&socket).size(), 3 * MIB, "the next one is served");
    job.signal(rustix::process::Signal::TERM);
    job.wait().succeeded();
    assert!(!socket.exists());
    ferry(["check", text(&image)]).succeeded();
}

#[test]
fn the_socket_of_a_process_that_was_killed_is_taken_over() {
    let temp = TempDir::new();
    let socket = temp.join("vm.sock");
    let point = format!("vhost-user:{}", text(&socket));
    let job = Job::start(&mut ours(["attach", "memory:1M", &point]));
    let mut machine = FrontEnd::new(&socket);
    job.signal(rustix::process::Signal::KILL);
    job.wait();
    assert_eq!(machine.0.read(&mut [0; 1]).unwrap_or(0), 0, "the machine hears of it");
    let job = Job::start(&mut ours(["attach", "memory:2M", &point]));
    wait_for("it is the new one", || {
        UnixStream::connect(&socket).is_ok_and(|stream| FrontEnd(stream).size() == 2 * MIB)
    });
    job.signal(rustix::process::Signal::TERM);
    job.wait().succeeded();
}

#[test]
fn a_served_disk_is_one_of_a_machine_as_well_and_read_only_if_it_is_that() {
    let temp = TempDir::new();
    for is_read_only in [false, true] {
        let socket = temp.join("vm.sock");
        let serve = Serve::memory("1M").option("--attach");
        let serve = serve.option(format!("vhost-user:{}?unsealed=true", text(&socket)));
        let serve = if is_read_only { serve.option("-r") } else { serve };
        let server = serve.start();
        let mut machine = FrontEnd::new(&socket);
        assert_eq!(machine.number(1) & 1 << 5 != 0, is_read_only);
        let mut session = server.session(Mode::Structured, "");
        assert_eq!(session.read(0, 1), Ok(vec![0]));
        assert!(server.stop().success());
    }
}

/// fio with the engine libblkio, a front end: the one that is named, or that `bench/peers
/// --libblkio` has put there, or the distribution's, if that has it by now.
fn fio_by_libblkio() -> Option<PathBuf> {
    let named = std::env::var_os("FIO_LIBBLKIO").map(PathBuf::from);
    let built = Some(PathBuf::from("/opt/peers-bin/fio-libblkio")).filter(|path| path.exists());
    let found = named.or(built).or_else(|| find("fio")).filter(|fio| {
        let engines = run(Command::new(fio).arg("--enghelp"));
        engines.stdout.contains("libblkio")
    });
    if found.is_none() {
        skip_environment("fio has no engine libblkio; `bench/peers --libblkio` builds one");
    }
    found
}

/// Writes at random, with trims in between, and verifies each block, by these options.
fn fio_verifies(fio: &Path, temp: &TempDir, socket: &Path, options: &[&str]) {
    let mut command = Command::new(fio);
    command.args(["--name=v", "--thread", "--ioengine=libblkio"]);
    command.args(["--libblkio_driver=virtio-blk-vhost-user", "--bsrange=4k-128k"]);
    command.arg(format!("--libblkio_path={}", text(socket)));
    command.arg(format!("--aux-path={}", text(temp.path())));
    // A trim and the write after it must not be in flight together.
    command.args(["--iodepth=16", "--serialize_overlap=1", "--group_reporting"]);
    command.args(["--verify=crc32c", "--verify_fatal=1", "--output-format=terse"]);
    let outcome = run(command.args(options).current_dir(temp.path()));
    let said = format!("{}{}", outcome.succeeded(), outcome.stderr);
    assert!(!said.contains("verify:"), "{said}");
}

#[test]
fn fio_verifies_what_it_wrote_by_several_queues_with_trims_and_zeroes() {
    let Some(fio) = fio_by_libblkio() else { return };
    let several = &["--rw=randwrite", "--numjobs=4", "--offset_increment=16M", "--size=16M"];
    let trims = &["--rw=randtrimwrite", "--size=48M", "--libblkio_wait_mode=eventfd"];
    let zeroes = &["--rw=randtrimwrite", "--size=48M", "--libblkio_write_zeroes_on_trim=1"];
    let vectored = &["--rw=randwrite", "--size=48M", "--libblkio_vectored=1", "--fsync=32"];
    for seed in seeds() {
        let temp = TempDir::new();
        let (raw, image) = (temp.sparse_file("raw", 64 * MIB), temp.join("qcow2"));
        ferry(["create", "-q", "-f", "qcow2", text(&image), "64M"]).succeeded();
        for (format, disk) in [("raw", &raw), ("qcow2", &image)] {
            let socket = temp.join("vm.sock");
            let point = format!("vhost-user:{}?unsealed=true", text(&socket));
            let job = Job::start(&mut ours(["attach", "--format", format, text(disk), &point]));
            wait_for("the socket is there", || UnixStream::connect(&socket).is_ok());
            for options in [&several[..], trims, zeroes, vectored] {
                let _case = Case::new(&format!("{format}: {options:?}"), seed);
                let seed = format!("--randseed={seed}");
                fio_verifies(&fio, &temp, &socket, &[options, &[&*seed]].concat());
            }
            job.signal(rustix::process::Signal::TERM);
            job.wait().succeeded();
        }
        ferry(["check", text(&image)]).succeeded();
    }
}

#[test]
fn a_disk_of_broken_sectors_and_odd_points_are_refused_with_what_helps() {
    let temp = TempDir::new();
    let odd = temp.file("odd", &[0; 700]);
    let socket = temp.join("vm.sock");
    let file = temp.file("file", b"precious");
    let point = |path: &Path| format!("vhost-user:{}", text(path));
    for (words, expected) in [
        ([text(&odd), &point(&socket)], "truncate round-up=512"),
        (["memory:1M", &point(&file)], "socket"),
        (["memory:1M", &point(&temp.join("no/such"))], "no/such"),
        (["memory:1M", "vhost-user:"], "empty"),
        (["memory:1M", &format!("{}?cache=true", point(&socket))], "cache"),
    ] {
        let line = ferry(["attach", words[0], words[1]]);
        assert!(line.failed().contains(expected), "{words:?}: {line:?}");
        assert!(!socket.exists());
    }
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}
