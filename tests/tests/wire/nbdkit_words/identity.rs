//! Becoming another user and group.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::launch::Serve;
use blackbox::peers::{diskferry, find, skip, skip_environment};
use blackbox::run::{ours, run};
use blackbox::session::Mode;
use blackbox::temp::TempDir;
use rustix::process::Pid;

/// A line of /proc/PID/status of every thread, each once.
pub(super) fn status(pid: Pid, key: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
    let read = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        text.lines().find_map(|l| l.strip_prefix(key).map(|v| v.trim().to_owned()))
    };
    let mut values: Vec<String> = tasks.flatten().filter_map(read).collect();
    values.sort();
    values.dedup();
    values
}

#[test]
fn every_thread_becomes_the_user_and_group_that_were_named() {
    if !rustix::process::geteuid().is_root() {
        return skip_environment("only root can switch to another user");
    }
    let server = Serve::memory("1M").option("-u").option("12345").option("-g").option("23456");
    let server = server.start();
    server.session(Mode::Simple, "").assert_alive();
    assert_eq!(status(server.pid(), "Uid:"), ["12345\t12345\t12345\t12345"]);
    assert_eq!(status(server.pid(), "Gid:"), ["23456\t23456\t23456\t23456"]);
    assert_eq!(status(server.pid(), "Groups:"), ["23456"]);
    assert_eq!(status(server.pid(), "CapEff:"), ["0000000000000000"]);
}

#[test]
fn a_user_alone_has_its_own_group_and_no_other() {
    if !rustix::process::geteuid().is_root() {
        return skip_environment("only root can switch to another user");
    }
    let server = Serve::memory("1M").option("--user=nobody").start();
    server.session(Mode::Simple, "").assert_alive();
    let own = run(Command::new("id").args(["-g", "nobody"])).succeeded().trim().to_owned();
    assert_eq!(status(server.pid(), "Gid:"), [[own.as_str(); 4].join("\t")]);
    assert_eq!(status(server.pid(), "Groups:"), [own]);
    assert_eq!(status(server.pid(), "NoNewPrivs:"), ["1"]);
}

#[test]
fn the_private_socket_belongs_to_the_user_that_the_server_switched_to_and_goes_with_it() {
    if !rustix::process::geteuid().is_root() {
        return skip_environment("only root can switch to another user");
    }
    let words = ["serve", "-u", "65534", "-g", "65534", "memory", "1M", "--run"];
    let outcome = run(ours(words).arg("id -u; stat -c %u $unixsocket; echo $unixsocket"));
    let lines: Vec<&str> = outcome.succeeded().lines().collect();
    assert_eq!(lines[..2], ["65534", "65534"]);
    assert!(!Path::new(lines[2]).parent().unwrap().exists(), "the directory was left behind");
}

#[test]
fn a_user_without_the_right_to_switch_users_gets_an_error() {
    if !rustix::process::geteuid().is_root() {
        return skip_environment("only root can start as another user");
    }
    // The copy is where that user may run it.
    let temp = TempDir::new();
    fs::set_permissions(temp.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let copy: PathBuf = temp.join("diskferry");
    fs::copy(diskferry(), &copy).unwrap();
    let Some(setpriv) = find("setpriv") else { return skip("needs setpriv") };
    let mut command = Command::new(setpriv);
    command.args(["--reuid", "65534", "--clear-groups", "--regid", "65534"]).arg(&copy);
    let outcome = run(command.args(["serve", "-u", "root", "memory", "1M", "--run", "true"]));
    let said = outcome.failed();
    assert!(said.contains("--user root") && said.contains("takes root"), "{said}");
}
