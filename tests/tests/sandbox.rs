//! `--sandbox`: the verbs that read strangers' images work in one, and have one before they open anything.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;

use blackbox::MIB;
use blackbox::launch::Serve;
use blackbox::peers::{diskferry, peer, strace};
use blackbox::run::{Job, ours, program, run};
use blackbox::temp::{TempDir, pattern};

/// A system call as strace names it, and the files that were opened afterwards.
fn traced(trace: &Path, call: &str) -> Option<(usize, Vec<String>)> {
    let text = std::fs::read_to_string(trace).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let at = lines.iter().position(|line| line.contains(call))?;
    let opened = lines.iter().enumerate().filter(|(_, line)| line.contains("openat"));
    let before: Vec<_> =
        opened.filter(|(i, _)| *i < at).map(|(_, line)| (*line).to_owned()).collect();
    Some((at, before))
}

#[test]
fn images_are_converted_looked_at_and_compared_in_a_sandbox() {
    let dir = TempDir::new();
    let raw = dir.join("disk.raw");
    std::fs::write(&raw, pattern(0, 4 << 20)).unwrap();
    for format in ["raw", "qcow2", "vmdk", "vdi", "vpc", "vhdx"] {
        let image = dir.join(&format!("disk.{format}"));
        if format != "raw" {
            run(ours(["convert", "--sandbox=require", "-f", "raw", "-O", format])
                .arg(&raw)
                .arg(&image))
            .succeeded();
        }
        for verb in [&["info"][..], &["map", "--output=json"], &["measure", "-O", "qcow2"]] {
            run(ours(verb.iter().copied()).args(["--sandbox=require", "-f", format]).arg(&image))
                .succeeded();
        }
        let compare = ["compare", "--sandbox=require", "-f", "raw", "-F", format];
        run(ours(compare).arg(&raw).arg(&image)).succeeded();
    }
    let back = dir.join("back.raw");
    run(ours(["copy", "--sandbox=require", "-f", "vmdk"]).arg(dir.join("disk.vmdk")).arg(&back))
        .succeeded();
    assert!(std::fs::read(&back).unwrap() == pattern(0, 4 << 20));
}

#[test]
fn the_sandbox_is_there_before_the_image_is_opened() {
    let dir = TempDir::new();
    let (image, trace) = (dir.join("stranger.qcow2"), dir.join("trace"));
    run(ours(["create", "-q", "-f", "qcow2"]).arg(&image).arg("1M")).succeeded();
    let Some(strace) = strace() else { return };
    let mut strace =
        program(&strace, ["-f", "-e", "trace=openat,landlock_restrict_self,seccomp", "-o"]);
    strace.arg(&trace).arg(diskferry());
    run(strace.args(["info", "-f", "qcow2"]).arg(&image)).succeeded();
    let Some((_, before)) = traced(&trace, "landlock_restrict_self(") else {
        panic!("no landlock: {}", std::fs::read_to_string(&trace).unwrap());
    };
    let (_, before_calls) = traced(&trace, "seccomp(").unwrap();
    for opened in before.iter().chain(&before_calls).filter(|line| line.contains("stranger.qcow2"))
    {
        assert!(opened.contains("O_PATH"), "{opened}");
    }
}

#[test]
fn a_server_is_reached_from_a_sandbox() {
    let server = Serve::memory("4M").start();
    let dir = TempDir::new();
    let target = dir.join("target.qcow2");
    let uri = server.uri("");
    run(ours(["copy", "--sandbox=require", "-O", "qcow2", &uri]).arg(&target)).succeeded();
    run(&mut ours(["info", "--sandbox=require", &uri])).succeeded();
    assert!(std::fs::metadata(&target).unwrap().len() < MIB);
}

#[test]
fn a_program_that_would_be_confined_is_refused_and_otherwise_started_in_the_open() {
    let copy = |wish: &str| {
        let wish = format!("--sandbox={wish}");
        run(&mut ours(["copy", &wish, "--source-filter=log?logscript=true", "memory:1M", "null:"]))
    };
    let refused = copy("require");
    assert!(refused.failed().contains("a program is to be started"), "{refused:?}");
    copy("auto").succeeded();
}

#[test]
fn what_an_image_names_is_not_opened_outside_of_what_is_allowed_with_and_without_a_sandbox() {
    let dir = TempDir::new();
    let (image, trace) = (dir.join("over.qcow2"), dir.join("trace"));
    let (Some(qemu), Some(strace)) = (peer("qemu-img"), strace()) else { return };
    let words = ["create", "-q", "-f", "qcow2", "-u", "-b", "/etc/passwd", "-F", "raw"];
    run(program(&qemu, words).arg(&image).arg("1M")).succeeded();
    for wish in ["--sandbox=off", "--sandbox=require"] {
        let mut traced = program(&strace, ["-f", "-e", "trace=openat,openat2,open", "-o"]);
        traced.arg(&trace).arg(diskferry()).args(["convert", wish, "-f", "qcow2"]);
        let done = run(traced.arg(&image).arg(dir.join("out.raw")));
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        let calls = std::fs::read_to_string(&trace).unwrap();
        assert!(!calls.contains("/etc/passwd"), "{calls}");
    }
}

#[test]
fn a_server_in_a_sandbox_serves_writes_and_tidies_up() {
    let dir = TempDir::new();
    let (disk, socket, pid) = (dir.join("disk.raw"), dir.join("socket"), dir.join("pid"));
    std::fs::write(&disk, pattern(0, 1 << 20)).unwrap();
    let mut words = ours(["serve", "--sandbox=require", "-v", "--filter=cow", "-U"]);
    words.arg(&socket).arg("-P").arg(&pid).arg(&disk);
    let server = Job::start(&mut words);
    while !pid.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    run(&mut ours(["copy", "null:1M", &uri])).succeeded();
    run(&mut ours(["compare", "null:1M", &uri])).succeeded();
    server.signal(rustix::process::Signal::TERM);
    let done = server.wait();
    assert!(done.stderr.contains("sandbox: files confined, calls confined"), "{done:?}");
    done.succeeded();
    assert!(!socket.exists() && !pid.exists());
    assert!(std::fs::read(&disk).unwrap() == pattern(0, 1 << 20), "the overlay took the writes");
}

#[test]
fn what_a_disk_of_data_reads_and_what_has_no_path_is_no_trouble() {
    let (dir, target) = (TempDir::new(), TempDir::new());
    let file = dir.file("content", b"abc");
    let name = format!("data:<{}", file.display());
    let copy = ["copy", "--sandbox=require", &name];
    run(ours(copy).arg(target.join("target"))).succeeded();
    assert_eq!(std::fs::read(target.join("target")).unwrap(), b"abc");
    // Standard error is a pipe here.
    let filter = "--source-filter=log?logfile=/dev/stderr";
    let logged = run(&mut ours(["copy", "--sandbox=require", filter, "memory:1M", "null:"]));
    logged.succeeded();
    assert!(!logged.stderr.is_empty());
}
