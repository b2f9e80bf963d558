//! `diskferry copy` as a program: its files, messages, progress, and leftovers.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use super::{Room, complaint, ours, stderr};

fn copy(args: &[&str]) -> Output {
    ours(&[&["copy"], args].concat())
}

fn start(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_diskferry"));
    command.arg("copy").args(args).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_missing_file_is_made_sparse_and_right() {
    let room = Room::new("made");
    let disk = room.path("disk.raw");
    let made = copy(&["sparse-random:200M?seed=7", &disk]);
    assert!(made.status.success() && stderr(&made).is_empty(), "{}", stderr(&made));
    let meta = std::fs::metadata(&disk).unwrap();
    assert_eq!(meta.len(), 200 << 20);
    assert!(meta.blocks() * 512 < 100 << 20);
    // The oracle accepts only what it would say itself.
    let back = copy(&[&disk, "sparse-random:200M?seed=7"]);
    assert!(back.status.success(), "{}", stderr(&back));
    let wrong = copy(&[&disk, "sparse-random:200M?seed=8"]);
    assert!(complaint(&wrong, 1).contains("is incomplete"), "{}", stderr(&wrong));
}

#[test]
fn a_file_is_never_copied_onto_itself() {
    let room = Room::new("itself");
    let (disk, link) = (room.path("disk.raw"), room.path("link"));
    std::fs::write(&disk, b"precious").unwrap();
    std::os::unix::fs::symlink(&disk, &link).unwrap();
    for target in [&disk, &link, &format!("file:{disk}?lock=off")] {
        let refused = copy(&[&format!("file:{disk}?lock=off"), target]);
        assert!(complaint(&refused, 1).contains("is the source itself"), "{}", stderr(&refused));
        assert_eq!(std::fs::read(&disk).unwrap(), b"precious");
    }
}

#[test]
fn a_copy_that_fails_removes_the_file_it_made_and_no_other() {
    let room = Room::new("removed");
    let source = room.path("source.raw");
    let (new, old) = (room.path("new"), room.path("old"));
    std::fs::write(&source, vec![1; 8 << 20]).unwrap();
    std::fs::write(&old, b"old").unwrap();
    for target in [&new, &old] {
        let binary = env!("CARGO_BIN_EXE_diskferry");
        // 2 or 4 MiB, depending on the shell's units; both are too little.
        let script = format!("trap '' XFSZ; ulimit -f 4096; exec {binary} copy {source} {target}");
        let failed = Command::new("sh").args(["-c", &script]).output().unwrap();
        complaint(&failed, 1);
    }
    assert!(!Path::new(&new).exists());
    assert!(Path::new(&old).exists());
}

#[test]
fn a_target_that_is_too_small_or_a_missing_source_leaves_nothing_behind() {
    let room = Room::new("refused");
    let new = room.path("new");
    let missing = copy(&[&room.path("none"), &new]);
    assert!(complaint(&missing, 1).contains("none: "), "{}", stderr(&missing));
    assert!(!Path::new(&new).exists());
    let small = copy(&["memory:2M", "memory:1M"]);
    let text = complaint(&small, 1);
    assert!(text.contains("2097152") && text.contains("1048576"), "{text}");
    assert!(text.contains("was not written"), "{text}");
}

#[test]
fn json_progress_is_json_lines_and_ends_with_a_summary_or_an_error() {
    let done = copy(&["random:20M?seed=1", "null:", "--progress=json"]);
    let lines: Vec<serde_json::Value> =
        stderr(&done).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let last = lines.last().unwrap();
    assert_eq!(last["type"], "summary");
    assert_eq!(last["data"]["done"], 20 << 20);
    assert!(lines.iter().any(|l| l["type"] == "progress" && l["data"]["total"] == 20 << 20));
    let failed = copy(&["random:20M?seed=1", "random:20M?seed=2", "--progress=json"]);
    let last: serde_json::Value =
        serde_json::from_str(stderr(&failed).lines().last().unwrap()).unwrap();
    assert_eq!(last["type"], "error");
    assert!(last["data"]["message"].as_str().unwrap().contains("incomplete"));
    assert_eq!(last["data"]["left"][0][0], 0);
}

fn signal(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}

/// Reads the child's output until its target has begun to grow, so that its signals are set up.
fn wait_for(path: &str) {
    for _ in 0..60_000 {
        if std::fs::metadata(path).is_ok_and(|m| m.blocks() > 0) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("{path} does not grow");
}

/// Waits until the child writes a file that has no name in the directory; its name is `path` if it
/// got one.
fn wait_for_nameless(child: &Child, path: &str) {
    let directory = Path::new(path).parent().unwrap();
    let open = format!("/proc/{}/fd", child.id());
    for _ in 0..60_000 {
        assert!(!Path::new(path).exists(), "it has its name before it is complete");
        let files = std::fs::read_dir(&open).into_iter().flatten().flatten();
        let nameless = |file: &std::fs::DirEntry| {
            let leads_to = std::fs::read_link(file.path()).unwrap_or_default();
            leads_to.starts_with(directory) && leads_to.to_string_lossy().ends_with(" (deleted)")
        };
        let grows = |file: std::fs::DirEntry| {
            std::fs::metadata(file.path()).is_ok_and(|found| found.blocks() > 0)
        };
        if files.filter(nameless).any(grows) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("{path} is not written");
}

#[test]
fn a_killed_copy_leaves_no_file() {
    let room = Room::new("killed");
    let (disk, kept) = (room.path("disk.raw"), room.path("kept.raw"));
    let mut child = start(&["--quiet", "random:8G?seed=1", &disk]);
    wait_for_nameless(&child, &disk);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(std::fs::read_dir(&room.0).unwrap().next().is_none(), "something is left");
    // What is to be kept has its name at once.
    let mut child = start(&["--quiet", "--keep-partial", "random:8G?seed=1", &kept]);
    wait_for(&kept);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(Path::new(&kept).exists());
}

#[test]
fn ctrl_c_stops_it_and_removes_the_half_file() {
    let room = Room::new("ctrlc");
    let disk = room.path("disk.raw");
    let child = start(&["random:8G?seed=1", &disk]);
    wait_for_nameless(&child, &disk);
    signal(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    let text = complaint(&output, 130);
    assert!(text.contains("was removed") && text.contains("of 8 GiB copied"), "{text}");
    assert!(!Path::new(&disk).exists());
}

#[test]
fn sigusr1_shows_one_line_even_when_quiet() {
    let room = Room::new("usr1");
    let disk = room.path("disk.raw");
    let child = start(&["-q", "--keep-partial", "random:8G?seed=1", &disk]);
    wait_for(&disk);
    signal(&child, "-USR1");
    std::thread::sleep(std::time::Duration::from_millis(200));
    signal(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    let text = stderr(&output);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.lines().next().unwrap().contains("of 8 GiB"), "{text}");
    assert!(text.contains("is incomplete"), "{text}");
    assert!(Path::new(&disk).exists());
}

#[test]
fn allocated_leaves_no_hole() {
    let room = Room::new("allocated");
    let disk = room.path("disk.raw");
    assert!(copy(&["memory:8M", &disk, "--allocated"]).status.success());
    let meta = std::fs::metadata(&disk).unwrap();
    assert!(meta.blocks() * 512 >= 8 << 20, "{} blocks", meta.blocks());
    assert!(copy(&["memory:8M", &disk]).status.success());
    assert_eq!(std::fs::metadata(&disk).unwrap().blocks(), 0);
}
