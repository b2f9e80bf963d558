//! The operations that a confined process can still do. Each check is a process of its own with one thread, because it cannot be set
//! free again; so this is a program without the usual harness.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails here has failed")]

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use device::{Reach, Use};
use sandbox::{FileConfinement, confine_calls, confine_files};

type Check = (&'static str, fn());

const CHECKS: &[Check] = &[
    ("only_what_was_named_can_be_read", only_what_was_named_can_be_read),
    (
        "a_link_beneath_a_directory_leads_nowhere_else",
        a_link_beneath_a_directory_leads_nowhere_else,
    ),
    (
        "a_file_is_made_renamed_and_removed_only_in_its_directory",
        a_file_is_made_renamed_and_removed_only_in_its_directory,
    ),
    (
        "a_device_is_written_without_a_right_to_its_neighbours",
        a_device_is_written_without_a_right_to_its_neighbours,
    ),
    ("no_program_is_started_and_no_socket_made", no_program_is_started_and_no_socket_made),
    (
        "where_the_network_is_named_connections_are_made_and_programs_still_not_started",
        where_the_network_is_named_connections_are_made_and_programs_still_not_started,
    ),
    (
        "threads_that_run_already_are_no_reason_to_believe_in_a_sandbox",
        threads_that_run_already_are_no_reason_to_believe_in_a_sandbox,
    ),
    (
        "calls_are_confined_in_threads_that_run_already",
        calls_are_confined_in_threads_that_run_already,
    ),
];

fn main() {
    // cargo-nextest asks for the names, and runs them one by one.
    if std::env::args().any(|word| word == "--list") {
        let ignored = std::env::args().any(|word| word == "--ignored");
        CHECKS.iter().filter(|_| !ignored).for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let word = std::env::args().nth(1);
    if let Some((_, check)) = CHECKS.iter().find(|(name, _)| word.as_deref() == Some(*name)) {
        return check();
    }
    let failed: Vec<_> = CHECKS.iter().filter(|(name, _)| !alone(name)).collect();
    assert!(failed.is_empty(), "{} of {} failed", failed.len(), CHECKS.len());
}

/// Runs a check in a new process; whether it held.
fn alone(name: &str) -> bool {
    let done = Command::new(std::env::current_exe().unwrap()).arg(name).status().unwrap();
    println!("{name} ... {}", if done.success() { "ok" } else { "FAILED" });
    done.success()
}

fn directory(name: &str) -> PathBuf {
    let path =
        std::env::temp_dir().join(format!("diskferry-sandbox-{name}-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

/// False, with a message, where this kernel has no landlock.
fn confined(reach: &Reach) -> bool {
    let held = confine_files(reach).unwrap();
    if held == FileConfinement::Free {
        eprintln!("skipped: this kernel has no landlock");
    }
    held != FileConfinement::Free
}

fn denied<T>(found: std::io::Result<T>) -> bool {
    found.err().is_some_and(|e| e.kind() == ErrorKind::PermissionDenied)
}

fn only_what_was_named_can_be_read() {
    let dir = directory("read");
    let (named, other) = (dir.join("named"), dir.join("other"));
    fs::write(&named, "a").unwrap();
    fs::write(&other, "b").unwrap();
    let mut opened = File::open(&other).unwrap();
    if !confined(&Reach::path(&named, Use::Read)) {
        return;
    }
    assert_eq!(fs::read(&named).unwrap(), b"a");
    assert!(denied(File::open(&other)) && denied(File::open("/etc/passwd")));
    assert!(denied(OpenOptions::new().write(true).open(&named)), "it is only read");
    let mut text = String::new();
    opened.read_to_string(&mut text).unwrap();
    assert_eq!(text, "b", "what is open stays open");
}

fn a_link_beneath_a_directory_leads_nowhere_else() {
    let dir = directory("link");
    std::os::unix::fs::symlink("/etc/passwd", dir.join("link")).unwrap();
    fs::write(dir.join("file"), "a").unwrap();
    if confined(&Reach::path(&dir, Use::Read)) {
        assert_eq!(fs::read(dir.join("file")).unwrap(), b"a");
        assert!(denied(File::open(dir.join("link"))));
        assert!(denied(File::open(dir.join("../../etc/passwd"))));
    }
}

fn a_file_is_made_renamed_and_removed_only_in_its_directory() {
    let (dir, other) = (directory("make"), directory("make-other"));
    if !confined(&Reach::path(dir.join("new"), Use::Make)) {
        return;
    }
    let mut file = File::create(dir.join("half")).unwrap();
    file.write_all(b"a").unwrap();
    fs::rename(dir.join("half"), dir.join("new")).unwrap();
    fs::remove_file(dir.join("new")).unwrap();
    assert!(denied(File::create(other.join("new"))));
    assert!(denied(fs::create_dir(dir.join("directory"))));
    assert!(denied(std::os::unix::fs::symlink("a", dir.join("link"))));
}

fn a_device_is_written_without_a_right_to_its_neighbours() {
    if confined(&Reach::path("/dev/full", Use::Make)) {
        assert!(OpenOptions::new().write(true).open("/dev/full").is_ok());
        assert!(
            denied(OpenOptions::new().write(true).open("/dev/tty0"))
                || !PathBuf::from("/dev/tty0").exists()
        );
        assert!(denied(File::create("/dev/shm/diskferry-sandbox")));
    }
}

fn no_program_is_started_and_no_socket_made() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap();
    confine_calls(false).unwrap();
    assert!(denied(Command::new("/bin/true").status()));
    assert!(denied(TcpStream::connect(place)));
    assert!(denied(std::os::unix::net::UnixStream::connect("/tmp/none")));
    // Threads are.
    assert_eq!(std::thread::spawn(|| 1).join().unwrap(), 1);
}

fn where_the_network_is_named_connections_are_made_and_programs_still_not_started() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap();
    let _ = confine_files(&Reach::network()).unwrap();
    confine_calls(true).unwrap();
    assert!(TcpStream::connect(place).is_ok());
    assert!(denied(Command::new("/bin/true").status()));
}

fn threads_that_run_already_are_no_reason_to_believe_in_a_sandbox() {
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || ended.recv().is_err());
    assert!(confine_files(&Reach::default()).unwrap_err().to_string().contains("threads"));
    drop(end);
    assert!(other.join().unwrap());
}

fn calls_are_confined_in_threads_that_run_already() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || {
        wait.recv().unwrap();
        denied(TcpListener::bind("127.0.0.1:0"))
    });
    confine_calls(false).unwrap();
    go.send(()).unwrap();
    assert!(other.join().unwrap());
}
