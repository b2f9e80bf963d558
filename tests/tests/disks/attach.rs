//! Disks that are attached as files: by the model, beside a server, and when something goes wrong.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use blackbox::dice::{Case, Dice, seeds};
use blackbox::launch::{Serve, Server};
use blackbox::peers::{diskferry, peer, skip_environment};
use blackbox::run::{Job, beside, ferry, json, ours, program, run, text};
use blackbox::session::Mode;
use blackbox::temp::TempDir;
use blackbox::{MIB, eventually, index, wait_for};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

/// Whether a disk can be attached here; says so if not.
fn can_attach() -> bool {
    let temp = TempDir::new();
    let tried = ferry(["attach", "memory:1M", text(&temp.join("x")), "--run", "true"]);
    let refused = tried.stderr.contains("fuse") || tried.stderr.contains("mount");
    if refused {
        skip_environment(&format!("cannot attach: {}", tried.stderr.trim()));
    } else {
        tried.succeeded();
    }
    !refused
}

/// A server with its disk attached at a file, once that is there.
fn attached(serve: Serve, temp: &TempDir) -> (Server, PathBuf) {
    attached_as(serve, temp, "")
}

/// The same of the export that `which` begins with, as `NAME=`.
fn attached_as(serve: Serve, temp: &TempDir, which: &str) -> (Server, PathBuf) {
    let point = temp.join("disk");
    let server = serve.option("--attach").option(format!("{which}{}", text(&point))).start();
    wait_for("the disk is attached", || fs::metadata(&point).is_ok_and(|found| found.len() > 0));
    (server, point)
}

fn both(point: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(point).unwrap()
}

/// Does what programs do to files, and compares with the same done to memory.
fn trial(point: &Path, size: usize, dice: &mut Dice) {
    let (file, mut model) = (both(point), vec![0; size]);
    for step in 0..300 {
        let at = dice.below(size);
        let len = dice.between(1, 300 << 10).min(size - at);
        let what = format!("step {step}: {len} bytes at {at}");
        let range = at..at + len;
        match dice.below(6) {
            0 | 1 => {
                let data: Vec<u8> = (0..len).map(|_| dice.below(256).try_into().unwrap()).collect();
                file.write_all_at(&data, at as u64).unwrap();
                model[range].copy_from_slice(&data);
            }
            2 => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&file, flags, at as u64, len as u64).unwrap();
                model[range].fill(0);
            }
            3 => {
                fallocate(&file, FallocateFlags::ZERO_RANGE, at as u64, len as u64).unwrap();
                model[range].fill(0);
            }
            4 => file.sync_all().unwrap(),
            _ => {
                let mut data = vec![1; len];
                file.read_exact_at(&mut data, at as u64).unwrap();
                assert!(data == model[range], "{what}");
            }
        }
    }
    let mut all = Vec::new();
    File::open(point).unwrap().read_to_end(&mut all).unwrap();
    assert!(all == model, "the whole disk");
    assert!(by_its_holes(&file, size) == model, "by the map");
}

/// What the file holds, with zeroes wherever it is said to have a hole.
fn by_its_holes(file: &File, size: usize) -> Vec<u8> {
    let (mut all, mut at) = (vec![0; size], 0);
    while let Ok(data) = seek(file.as_fd(), SeekFrom::Data(at)) {
        let hole = seek(file.as_fd(), SeekFrom::Hole(data)).unwrap();
        assert!(data >= at && hole > data, "{at} {data} {hole}");
        file.read_exact_at(&mut all[index(data)..index(hole)], data).unwrap();
        at = hole;
    }
    all
}

#[test]
fn an_attached_disk_is_what_the_model_is_and_so_is_the_disk_afterwards() {
    if !can_attach() {
        return;
    }
    let (size, temp) = (3 * MIB + 4096, TempDir::new());
    let upstream = Serve::memory(&size.to_string()).start();
    let raw = temp.file("raw", &[]);
    File::options().write(true).open(&raw).unwrap().set_len(size).unwrap();
    let image = temp.join("image.qcow2");
    ferry(["create", "-q", "-f", "qcow2", text(&image), &size.to_string()]).succeeded();
    let on_blocks = ["blocksize-policy", "cow"].map(|name| format!("--filter={name}"));
    let all = [
        Serve::memory(&size.to_string()),
        Serve::file(&raw),
        Serve::file(&image).option("--format").option("qcow2"),
        Serve::proxy(&upstream.uri("")),
        Serve::memory(&size.to_string()).option(&on_blocks[0]).option(&on_blocks[1]),
    ];
    let seed = seeds().next().unwrap();
    for (salt, serve) in all.into_iter().enumerate() {
        let _case = Case::new(&format!("disk {salt}"), seed);
        let (server, point) = attached(serve, &temp);
        trial(&point, index(size), &mut Dice::new(seed).with(salt as u64));
        ferry(["compare", text(&point), &server.uri("")]).succeeded();
        assert!(server.stop().success());
        assert!(!point.exists(), "a file that was made is removed again");
    }
    ferry(["check", text(&image)]).succeeded();
}

/// Disks of all kinds, by the name of each, beside the options of `serve`.
fn disks_to_write(temp: &TempDir, size: u64) -> Vec<(&'static str, Serve)> {
    let (raw, image) = (temp.sparse_file("raw", size), temp.join("image.qcow2"));
    ferry(["create", "-q", "-f", "qcow2", text(&image), &size.to_string()]).succeeded();
    vec![
        ("memory", Serve::memory(&size.to_string())),
        ("raw", Serve::file(&raw)),
        ("qcow2", Serve::file(&image).option("--format").option("qcow2")),
    ]
}

/// By mapped memory, too, and past the page cache; with and without one of the mount.
#[test]
fn fsx_finds_each_byte_of_an_attached_disk_as_it_left_it() {
    if !can_attach() {
        return;
    }
    let steps = if blackbox::dice::long_form() { "20000" } else { "1500" };
    for seed in seeds() {
        for (cache, block, how) in
            [("false", "1", ""), ("false", "512", "direct"), ("true", "1", "")]
        {
            let temp = TempDir::new();
            for (name, serve) in disks_to_write(&temp, 2 * MIB + 512) {
                let _case = Case::new(&format!("{name}, cache={cache}, {block} {how}"), seed);
                let point = temp.join("disk");
                let attach = format!("fuse:{}?cache={cache}", text(&point));
                let server = serve.option("--attach").option(attach).start();
                wait_for("the disk is attached", || {
                    fs::metadata(&point).is_ok_and(|found| found.len() > 0)
                });
                let words = [text(&point), &seed.to_string(), steps, block, how];
                run(Command::new(beside("fsx")).args(words)).succeeded();
                ferry(["compare", text(&point), &server.uri("")]).succeeded();
                assert!(server.stop().success());
            }
            ferry(["check", text(&temp.join("image.qcow2"))]).succeeded();
        }
    }
}

#[test]
fn fio_verifies_what_it_wrote_to_attached_disks_by_each_of_its_engines() {
    let Some(fio) = peer("fio") else { return };
    if !can_attach() {
        return;
    }
    for (engine, direct) in [("psync", "0"), ("mmap", "0"), ("libaio", "1"), ("io_uring", "1")] {
        let temp = TempDir::new();
        for (name, serve) in disks_to_write(&temp, 16 * MIB) {
            let _case = Case::new(&format!("{name} by {engine}"), 1);
            let (server, point) = attached(serve, &temp);
            let mut command = program(&fio, ["--name=v", "--rw=randwrite", "--size=16M"]);
            command.arg(format!("--filename={}", text(&point)));
            command.args([&format!("--ioengine={engine}"), &format!("--direct={direct}")]);
            command.args(["--bsrange=4k-128k", "--iodepth=16", "--fsync=64", "--randseed=1"]);
            command.args(["--verify=crc32c", "--verify_fatal=1", "--overwrite=1"]);
            let outcome = run(command.current_dir(temp.path()));
            let said = outcome.succeeded();
            assert!(!said.contains("verify:"), "{said}");
            assert!(server.stop().success());
        }
        ferry(["check", text(&temp.join("image.qcow2"))]).succeeded();
    }
}

#[test]
fn a_file_that_another_program_makes_longer_is_longer_where_it_is_attached_and_for_its_clients() {
    if !can_attach() {
        return;
    }
    let temp = TempDir::new();
    let raw = temp.sparse_file("raw", MIB);
    let (server, point) = attached(Serve::file(&raw), &temp);
    let (mut session, file) = (server.session(Mode::Structured, ""), both(&point));
    assert!(session.read(MIB, 512).is_err(), "it has not grown");
    File::options().write(true).open(&raw).unwrap().set_len(3 * MIB).unwrap();
    wait_for("it is longer", || fs::metadata(&point).unwrap().len() == 3 * MIB);
    file.write_all_at(b"end", 3 * MIB - 3).unwrap();
    assert_eq!(file.write_at(b"x", 3 * MIB).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(session.read(3 * MIB - 3, 3), Ok(b"end".to_vec()), "the same connection");
    assert!(session.read(3 * MIB - 2, 3).is_err());
    File::options().write(true).open(&raw).unwrap().set_len(MIB / 2).unwrap();
    wait_for("it is shorter", || fs::metadata(&point).unwrap().len() == MIB / 2);
    assert_eq!(file.write_at(b"x", MIB / 2).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    drop(file);
    assert!(server.stop().success());
    assert_eq!(fs::metadata(&raw).unwrap().len(), MIB / 2, "nothing was written behind the end");
}

#[test]
fn a_disk_that_is_served_and_attached_is_one_disk() {
    if !can_attach() {
        return;
    }
    let temp = TempDir::new();
    let (server, point) = attached(Serve::memory("1M"), &temp);
    let (mut session, file) = (server.session(Mode::Structured, ""), both(&point));
    let mut byte = [0];
    for n in 1..50 {
        session.write(u64::from(n), &[n]);
        file.read_exact_at(&mut byte, n.into()).unwrap();
        assert_eq!(byte, [n]);
        file.write_all_at(&[n + 100], n.into()).unwrap();
        assert_eq!(session.read(n.into(), 1), Ok(vec![n + 100]));
    }
    let point = text(&point);
    let alone = json(ferry(["attached", "--json", point]).succeeded());
    let disk = &alone["attached"][0];
    assert_eq!((&disk["point"], &disk["read-only"]), (&point.into(), &false.into()));
    assert_eq!(disk["disk"], "memory:1M");
    let all = json(ferry(["attached", "--json"]).succeeded());
    assert!(all["attached"].as_array().unwrap().contains(disk), "{all}");
    assert!(server.stop().success());
    let none = ferry(["attached", point]);
    assert_eq!((none.status.code(), none.stdout.as_str()), (Some(1), ""));
    assert!(none.stderr.contains("no disk is attached there"), "{}", none.stderr);
}

#[test]
fn only_a_read_only_file_as_it_is_is_read_by_the_kernel_itself() {
    if !can_attach() {
        return;
    }
    let temp = TempDir::new();
    let data: Vec<u8> = (0..MIB).map(|n| (n % 251) as u8).collect();
    let raw = temp.file("raw", &data);
    let filtered = ["--filter=log", "--filter=offset"];
    let served = |words: &[&str]| {
        let serve = words.iter().fold(Serve::file(&raw).option("-r"), |serve, w| serve.option(*w));
        let (server, point) = attached(serve, &temp);
        let all = fs::read(&point).unwrap();
        assert_eq!(fs::metadata(&point).unwrap().mode() & 0o777, 0o400);
        assert!(OpenOptions::new().write(true).open(&point).is_err(), "{words:?}");
        assert!(server.stop().success());
        all
    };
    assert!(served(&[]) == data);
    let log = temp.join("log");
    let option = format!("logfile={}", text(&log));
    let (server, point) =
        attached(Serve::device([text(&raw), &option]).option(filtered[0]).option("-r"), &temp);
    assert!(fs::read(&point).unwrap() == data);
    assert!(server.stop().success());
    assert!(fs::read_to_string(&log).unwrap().contains("Read"), "the filter saw what was read");
    // A part of a file is not the file.
    let (server, point) = attached(
        Serve::device([text(&raw), "offset=65536", "range=4096"]).option(filtered[1]).option("-r"),
        &temp,
    );
    assert!(fs::read(&point).unwrap() == data[65_536..69_632]);
    // The point is free again when this has ended.
    assert!(server.stop().success());
}

#[test]
fn fsync_is_a_flush_and_a_failure_is_an_error_with_its_number() {
    if !can_attach() {
        return;
    }
    let temp = TempDir::new();
    let log = temp.join("log");
    let option = format!("logfile={}", text(&log));
    let serve = Serve::device(["memory", "1M", &option]).option("--filter=log");
    let (server, point) = attached(serve, &temp);
    let file = both(&point);
    file.write_all_at(&[1; 512], 0).unwrap();
    let count = || fs::read_to_string(&log).unwrap().matches("Flush").count();
    let before = count();
    file.sync_data().unwrap();
    wait_for("the flush is logged", || count() > before);
    drop(file);
    ferry(["detach", text(&point)]).succeeded();
    // The point is free again when this has ended.
    assert!(server.stop().success());

    let serve = Serve::device(["memory", "1M", "error=EIO", "error-pread-rate=100%"]);
    let (server, point) = attached(serve.option("--filter=error"), &temp);
    let failed = both(&point).read_exact_at(&mut [0; 512], 4096).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    // The point is free again when this has ended.
    assert!(server.stop().success());

    let (_server, point) = attached(Serve::memory("1M"), &temp);
    let file = both(&point);
    let number = |e: std::io::Error| e.raw_os_error().unwrap();
    assert_eq!(number(file.write_at(&[1; 2], MIB).unwrap_err()), libc::ENOSPC);
    assert_eq!(number(file.set_len(0).unwrap_err()), libc::EPERM);
    file.set_len(MIB).unwrap();
    assert_eq!(number(fs::remove_file(&point).unwrap_err()), libc::EBUSY);
    let whole = fallocate(&file, FallocateFlags::empty(), 0, MIB);
    assert_eq!(whole, Err(rustix::io::Errno::OPNOTSUPP), "room is not promised");
    assert_eq!(file.read_at(&mut [0; 4], MIB).unwrap(), 0);
}

#[test]
fn however_the_process_ends_the_point_is_unmounted_and_an_open_file_gets_enotconn() {
    if !can_attach() {
        return;
    }
    let temp = TempDir::new();
    for is_killed in [true, false] {
        let (server, point) = attached(Serve::memory("1M"), &temp);
        let file = both(&point);
        if is_killed {
            server.kill();
        } else {
            assert!(server.stop().success());
        }
        wait_for("it is unmounted", || !point.exists());
        let number = eventually("reads fail", || {
            file.read_at(&mut [0; 4], 0).err().and_then(|e| e.raw_os_error())
        });
        assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&number), "{number}");
    }
}

#[test]
fn what_is_open_is_not_detached_unless_forced_and_the_program_ends_with_its_last_point() {
    if !can_attach() {
        return;
    }
    let temp = TempDir::new();
    let point = temp.file("point", &[]);
    let job = Job::start(&mut ours(["attach", "memory:1M", text(&point)]));
    wait_for("the disk is attached", || fs::metadata(&point).unwrap().len() == MIB);
    let file = both(&point);
    let busy = ferry(["detach", text(&point)]);
    assert!(busy.failed().contains("--force"), "{busy:?}");
    file.write_all_at(b"still there", 0).unwrap();
    drop(file);
    ferry(["detach", text(&point)]).succeeded();
    job.wait().succeeded();
    assert_eq!(fs::metadata(&point).unwrap().len(), 0, "a file that was there stays");
    assert!(ferry(["detach", text(&point)]).failed().contains("no disk is attached there"));
}

#[test]
fn a_disk_is_not_attached_over_anything_that_holds_something() {
    let temp = TempDir::new();
    let full = temp.file("full", b"x");
    let disk = temp.file("disk", &[0; 512]);
    let (empty, lost) = (temp.file("empty", &[]), temp.join("no/such"));
    let words: [(&[&str], &str); 7] = [
        (&["memory:1M", text(&full)], "not empty"),
        (&["memory:1M", text(temp.path())], "regular file"),
        (&["memory:1M", text(&lost)], "create the file"),
        (&[text(&disk), text(&disk)], "a file that it needs"),
        (&[text(&empty), text(&empty)], "a file that it needs"),
        (&["memory:1M", "ublc:0"], "there is no `ublc:`"),
        (&["memory:1M", "ublk:0"], "name a block device of ublk: /dev/ublkb0"),
    ];
    for (words, expected) in words {
        let line = ferry([&["attach"], words].concat());
        assert!(line.failed().contains(expected), "{words:?}: {line:?}");
    }
    let missing = temp.join("gone");
    let point = temp.join("point");
    ferry(["attach", text(&missing), text(&point)]).failed();
    assert!(!point.exists(), "what was made is removed when the disk is not there");
    assert_eq!(fs::read(&full).unwrap(), b"x");
}

#[test]
fn a_file_system_is_made_filled_and_checked_on_an_attached_image() {
    let Some(mkfs) = peer("mkfs.ext4") else { return };
    if !can_attach() {
        return;
    }
    let temp = TempDir::new();
    let image = temp.join("image.qcow2");
    ferry(["create", "-q", "-f", "qcow2", text(&image), "64M"]).succeeded();
    let source = temp.join("files");
    fs::create_dir(&source).unwrap();
    let content: Vec<u8> = (0..2 * MIB).map(|n| (n * n % 249) as u8).collect();
    fs::write(source.join("file"), &content).unwrap();
    let serve = Serve::file(&image).option("--format").option("qcow2");
    let (server, point) = attached(serve, &temp);
    run(&mut program(&mkfs, ["-q", "-d", text(&source), text(&point)])).succeeded();
    assert!(server.stop().success());
    let (server, point) =
        attached(Serve::file(&image).option("--format").option("qcow2").option("-r"), &temp);
    run(Command::new("e2fsck").args(["-f", "-n"]).arg(&point)).succeeded();
    let dumped = Command::new("debugfs").args(["-R", "cat file"]).arg(&point).output().unwrap();
    assert!(dumped.stdout == content);
    // The point is free again when this has ended.
    assert!(server.stop().success());
}

/// With fusermount3, as users do; this is run as the user nobody.
#[test]
fn another_user_attaches_a_disk_and_writes_into_it() {
    if !can_attach() {
        return;
    }
    let Some(setpriv) = peer("setpriv") else { return };
    let mode = fs::metadata("/dev/fuse").map_or(0, |found| found.mode());
    let is_for_all = mode & 0o6 == 0o6 && Path::new("/usr/bin/fusermount3").exists();
    if !is_for_all || !rustix::process::geteuid().is_root() {
        return skip_environment(
            "no fusermount3, /dev/fuse is not for everybody, or this is not root",
        );
    }
    let temp = TempDir::new();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // That user may not be able to reach the binary where it is.
    let (copy, point) = (temp.join("diskferry"), temp.join("point"));
    fs::copy(diskferry(), &copy).unwrap();
    let script = "printf here | dd of=point bs=1 seek=4096 conv=notrunc status=none && \
                  dd if=point bs=1 skip=4096 count=4 status=none && stat -c ' %u %s' point";
    let mut command = Command::new(setpriv);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(copy);
    command.args(["attach", "memory:1M", "point", "--run", script]).current_dir(temp.path());
    assert_eq!(run(&mut command).succeeded(), "here 65534 1048576\n");
    assert!(!point.exists(), "it is unmounted, and what was made for it is gone");
}

/// What the server says to one request at its control socket.
fn said(control: &Path, request: &str) -> serde_json::Value {
    let mut stream = std::os::unix::net::UnixStream::connect(control).unwrap();
    stream.write_all(format!("{request}\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

#[test]
fn an_attachment_is_a_client_like_others_in_the_list_the_metrics_and_the_log() {
    if !can_attach() {
        return;
    }
    let temp = TempDir::new();
    let (control, log) = (temp.join("control"), temp.join("log"));
    let serve = Serve::exports(&[("a", "memory:1M")]).option("-v");
    let serve = serve.option("--control").option(&control).option("--log").option(&log);
    let (server, point) = attached_as(serve, &temp, "a=");
    let file = both(&point);
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.write_all_at(&[2; 512], 8192).unwrap();
    file.read_exact_at(&mut [0; 1024], 0).unwrap();
    let too_far = file.write_at(&[3; 512], MIB).unwrap_err();
    assert_eq!(too_far.raw_os_error(), Some(libc::ENOSPC));
    file.sync_data().unwrap();

    let clients = said(&control, r#"{"command":"clients"}"#);
    let [client] = &clients["clients"].as_array().unwrap()[..] else { panic!("{clients}") };
    assert_eq!((&client["export"], &client["address"]), (&"a".into(), &text(&point).into()));
    assert_eq!((&client["requests"], &client["errors"]), (&5.into(), &1.into()));
    assert_eq!((&client["bytes-read"], &client["bytes-written"]), (&1024.into(), &5120.into()));
    let metrics = said(&control, r#"{"command":"metrics"}"#);
    let metrics = metrics["metrics"].as_str().unwrap();
    for line in [
        "diskferry_connections 1\n",
        "diskferry_requests_total{export=\"a\",command=\"write\"} 3\n",
        "diskferry_request_bytes_total{export=\"a\",command=\"read\"} 1024\n",
        "diskferry_request_seconds_count{export=\"a\",command=\"flush\"} 1\n",
        "diskferry_errors_total{export=\"a\",error=\"ENOSPC\"} 1\n",
        "diskferry_memory_bytes 0\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
    let number = client["client"].to_string();
    let kicked = ferry(["ctl", text(&control), "kick", &number]);
    assert!(kicked.failed().contains("detach it there"), "{kicked:?}");
    drop(file);
    ferry(["detach", text(&point)]).succeeded();
    wait_for("it has left", || {
        said(&control, r#"{"command":"clients"}"#)["clients"].as_array().unwrap().is_empty()
    });
    assert!(server.stop().success());
    let log = fs::read_to_string(&log).unwrap();
    // Detaching flushes once more.
    let line = format!("info {} \"a\": ended: it is detached; 6 requests in ", text(&point));
    let sums = "1 KiB read, 5 KiB written, 1 errors";
    assert!(log.contains(&line) && log.contains(sums), "{log}");
}

#[test]
fn a_paused_export_holds_up_a_write_to_its_file_until_it_is_resumed() {
    if !can_attach() {
        return;
    }
    let temp = TempDir::new();
    let control = temp.join("control");
    let serve = Serve::exports(&[("a", "memory:1M")]).option("--control").option(&control);
    let (server, point) = attached_as(serve, &temp, "a=");
    let file = both(&point);
    file.write_all_at(&[1; 4096], 0).unwrap();
    ferry(["ctl", text(&control), "pause", "a"]).succeeded();
    let writing = thread::spawn(move || file.write_all_at(&[2; 4096], 0).map(|()| file));
    thread::sleep(Duration::from_millis(100));
    assert!(!writing.is_finished());
    ferry(["ctl", text(&control), "resume", "a"]).succeeded();
    let file = writing.join().unwrap().unwrap();
    let mut now = [0; 4096];
    file.read_exact_at(&mut now, 0).unwrap();
    assert_eq!(now, [2; 4096]);
    drop(file);
    assert!(server.stop().success());
}

#[test]
fn an_export_that_is_not_for_this_user_is_not_attached() {
    let temp = TempDir::new();
    let point = temp.join("disk");
    let option = format!("a={}", text(&point));
    let words =
        ["serve", "--export", "a=memory:1M", "--allow", "a=10.0.0.0/8", "--attach", &option];
    let refused = ferry(words);
    let says_why = refused.failed().contains("see --allow");
    assert!(says_why || !can_attach(), "{refused:?}");
    assert!(!point.exists());
}
