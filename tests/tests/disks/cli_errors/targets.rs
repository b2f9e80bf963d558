//! Copies that cannot be done, or stop in the middle.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use blackbox::launch::Server;
use blackbox::peers::{peer, skip_environment};
use blackbox::run::{Job, Outcome, ours, run};
use blackbox::temp::TempDir;
use blackbox::{MIB, index, wait_for, wait_for_lines};
use rustix::process::Signal;

use super::{ferry, is_root};

#[test]
fn what_is_neither_file_nor_disk_is_refused() {
    let temp = TempDir::new();
    let fifo = temp.join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    // Opening a FIFO must not wait for a writer.
    let outcome = run(ours(["info"]).arg(&fifo));
    outcome.failed();
}

/// Runs our binary as the user nobody, for whom permissions count. `None`, after saying so, when
/// that cannot be done.
fn as_unprivileged_user(words: &[&str]) -> Option<Outcome> {
    if !is_root() {
        return Some(ferry(words));
    }
    let setpriv = peer("setpriv")?;
    let temp = TempDir::new();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The user nobody may not be able to reach the binary.
    let copy = temp.join("diskferry");
    fs::copy(blackbox::peers::diskferry(), &copy).unwrap();
    let mut command = Command::new(setpriv);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).args(words);
    let outcome = run(&mut command);
    if outcome.stderr.contains("setpriv:") {
        skip_environment("setpriv may not change the user here");
        return None;
    }
    Some(outcome)
}

/// Its data file may be read and not written, its own file may.
#[test]
fn an_image_whose_data_file_may_not_be_written_is_read_only_and_never_half_written() {
    if peer("qemu-img").is_none() || peer("nbdinfo").is_none() {
        return;
    }
    let temp = TempDir::new();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (image, data) = (temp.join("image"), temp.join("data"));
    let [image, data] = [&image, &data].map(|path| path.to_str().unwrap());
    let options = format!("data_file={data}");
    ferry(["create", "-q", "-f", "qcow2", "-o", &options, image, "1M"]).succeeded();
    let raw = temp.file("raw", &blackbox::temp::pattern(1, 1 << 20));
    let raw = raw.to_str().unwrap();
    let within = ["--allow-external", temp.path().to_str().unwrap()];
    let fill = [&["convert", "-n", "-f", "raw", "-O", "qcow2", raw, image], &within[..]].concat();
    ferry(&fill).succeeded();
    for (path, mode) in [(image, 0o666), (data, 0o444)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let before = [image, data].map(|path| fs::read(path).unwrap());
    let Some(refused) = as_unprivileged_user(&fill) else { return };
    let line = refused.failed();
    assert!(line.contains("its data file cannot") && line.contains("ermission denied"), "{line}");
    let run = "nbdinfo --is read-only \"$uri\"";
    let serve = [&["serve", "--format", "qcow2", "--run", run, image], &within[..]].concat();
    let served = as_unprivileged_user(&serve).unwrap();
    served.succeeded();
    assert!(served.stderr.contains("its data file cannot"), "{}", served.stderr);
    assert!([image, data].map(|path| fs::read(path).unwrap()) == before);
}

#[test]
fn permission_denied_is_reported() {
    let temp = TempDir::new();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let secret = temp.file("secret", &[1; 4096]);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    let path = secret.to_str().unwrap();
    for words in [&["info", path][..], &["copy", "pattern:4K", path]] {
        let Some(outcome) = as_unprivileged_user(words) else { return };
        let line = outcome.failed();
        assert!(line.contains(path) && line.contains("ermission denied"), "{line}");
    }
    assert_eq!(fs::read(&secret).unwrap(), [1; 4096], "the target was touched");
    let new = temp.join("new");
    let Some(outcome) = as_unprivileged_user(&["copy", "pattern:4K", new.to_str().unwrap()]) else {
        return;
    };
    outcome.failed();
    assert!(!new.exists());
}

/// A slow nbdkit, which can be killed in the middle of a copy.
fn slow(words: &[&str]) -> Option<Server> {
    let nbdkit = peer("nbdkit")?;
    let mut all = vec!["--filter=delay"];
    all.extend(words);
    Some(Server::nbdkit(&nbdkit, &all))
}

/// nbdkit's log lines about each read.
const READ: &str = " Read ";

/// A pattern of this size, each read of which takes so many milliseconds and is then logged.
fn slow_to_read(size: &str, delay: u32, log: &Path) -> Option<Server> {
    let (delay, logfile) = (format!("rdelay={delay}ms"), format!("logfile={}", log.display()));
    slow(&["--filter=log", "pattern", size, &delay, &logfile])
}

#[test]
fn an_interrupted_copy_says_what_is_left() {
    for signal in [Signal::INT, Signal::TERM] {
        let temp = TempDir::new();
        let log = temp.join("log");
        let Some(server) = slow_to_read("64M", 200, &log) else { return };
        let target = temp.join("copy");
        let mut command = ours(["copy", "-R", "2", "-C", "1", &server.uri("")]);
        let job = Job::start(command.arg(&target));
        wait_for_lines(&log, READ, 4);
        job.signal(signal);
        let outcome = job.wait();
        assert!(!outcome.status.success(), "{outcome:?}");
        assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
        if signal == Signal::INT {
            assert!(outcome.status.code().is_some(), "it ended by itself: {outcome:?}");
            assert!(outcome.stderr.starts_with("diskferry: "), "{outcome:?}");
        }
        let left = !target.exists() || outcome.stderr.contains("incomplete");
        assert!(left || outcome.status.code().is_none(), "{outcome:?}");
    }
}

#[test]
fn sigusr1_prints_a_line_and_the_copy_goes_on() {
    let temp = TempDir::new();
    let log = temp.join("log");
    let Some(server) = slow_to_read("24M", 20, &log) else { return };
    let target = temp.join("copy");
    let mut command =
        ours(["copy", "-R", "1", "-C", "1", "--request-size", "256K", &server.uri("")]);
    let job = Job::start(command.arg(&target));
    wait_for_lines(&log, READ, 4);
    job.signal(Signal::USR1);
    wait_for("a word of progress", || job.said().ends_with('\n'));
    job.wait().succeeded();
    assert!(fs::read(&target).unwrap().len() == index(24 * MIB));
}

#[test]
fn sigusr1_as_qemu_img_prints_its_line_and_never_ends_it() {
    let temp = TempDir::new();
    let log = temp.join("log");
    let Some(server) = slow_to_read("24M", 20, &log) else { return };
    let target = temp.join("disk");
    let mut command = ours(["as", "qemu-img", "convert", "-O", "raw", &server.uri("")]);
    let job = Job::start(command.arg(&target));
    // While it guesses the format there is nothing to tell.
    wait_for_lines(&log, READ, 1);
    wait_for("qemu-img's line", || {
        job.signal(Signal::USR1);
        let said = job.said();
        said.starts_with("    (") && said.ends_with("/100%)\n")
    });
    let said = job.wait().succeeded().to_owned();
    assert!(said.is_empty(), "{said}");
    assert!(fs::read(&target).unwrap().len() == index(24 * MIB));
}

#[test]
fn closed_output_is_no_crash() {
    // As `diskferry map ... | head -1` with thousands of lines.
    let binary = blackbox::peers::diskferry();
    let script = "\"$0\" map 'sparse-random:1G?percent=50&runlength=4096' | head -1";
    let outcome = run(Command::new("sh").args(["-c", script]).arg(binary));
    outcome.succeeded();
    assert!(!outcome.stderr.contains("panicked") && !outcome.stderr.contains("roken"));
}

#[test]
fn a_verdict_is_no_success_where_nobody_reads_it() {
    let binary = blackbox::peers::diskferry();
    let script = "\"$0\" compare zero:1M ones:1M >&3; echo $?";
    let mut shell = Command::new("bash");
    // The reader has ended before the first byte is written.
    let script = format!("exec 3> >(:); wait $!; {script}");
    let outcome = run(shell.args(["-c", &script]).arg(binary));
    assert_eq!(outcome.succeeded(), "1\n");
}

#[test]
fn what_progress_counts_is_what_the_verdict_says() {
    let Some(server) = slow(&["pattern", "64M", "rdelay=100ms"]) else { return };
    let words = ["copy", "-R", "2", "-C", "1", "--progress=json", &server.uri(""), "null:"];
    let job = Job::start(&mut ours(words));
    let number = |of: &serde_json::Value, key: &str| of["data"][key].as_u64().unwrap();
    // It has come somewhere, and says so once a second.
    wait_for("progress", || {
        let said = job.said();
        let last = said.trim_end().lines().last().map(serde_json::from_str::<serde_json::Value>);
        last.is_some_and(|last| last.is_ok_and(|last| number(&last, "rate") > 0))
    });
    job.signal(Signal::INT);
    let outcome = job.wait();
    assert_eq!(outcome.status.code(), Some(130), "{outcome:?}");
    let lines = outcome.stderr.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<serde_json::Value> = lines.collect();
    let [.., progress, error] = lines.as_slice() else { panic!("{outcome:?}") };
    for line in [progress, error] {
        let parts = ["copied", "zeroed", "skipped"].map(|key| number(line, key));
        assert_eq!(number(line, "done"), parts.into_iter().sum::<u64>(), "{line}");
    }
    assert!(number(progress, "done") > 0 && number(progress, "rate") > 0, "{progress}");
    assert!(number(error, "done") >= number(progress, "done"), "{progress} {error}");
}
