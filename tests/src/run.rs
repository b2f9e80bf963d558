//! Running a command under guard: killed after a minute, output collected, peak memory known where
//! that is asked for.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::peers::diskferry;
use crate::temp::TempDir;
use crate::{GUARD, eventually};

/// What a command did.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
    /// Its peak resident memory, in bytes, if it was run by [`measured`].
    pub peak_memory: Option<u64>,
    /// The command line, for messages.
    pub command: String,
}

impl Outcome {
    /// Panics unless it exited with 0. Returns its standard output.
    #[track_caller]
    pub fn succeeded(&self) -> &str {
        assert!(self.status.success(), "should have succeeded: {self:#?}");
        self.no_panic();
        &self.stdout
    }

    /// Panics unless it failed as our binary must: an exit code of its own choosing (not a
    /// signal, not a panic's 101) and exactly one line on stderr, beginning "diskferry: ".
    /// Returns that line.
    #[track_caller]
    pub fn failed(&self) -> &str {
        self.no_panic();
        let code = self.status.code();
        assert!(code.is_some_and(|c| c != 0), "should have failed by itself: {self:#?}");
        self.one_line()
    }

    /// As `failed`, with the exit code of a command line that makes no sense: 2.
    #[track_caller]
    pub fn refused(&self) -> &str {
        assert_eq!(self.status.code(), Some(2), "should be a usage error: {self:#?}");
        self.no_panic();
        assert!(self.stderr.starts_with("diskferry: "), "should name the program: {self:#?}");
        &self.stderr
    }

    #[track_caller]
    fn one_line(&self) -> &str {
        let mut lines = self.stderr.lines().filter(|line| !line.trim().is_empty());
        let line = lines.next().unwrap_or_else(|| panic!("failed without a word: {self:#?}"));
        assert!(line.starts_with("diskferry: "), "should begin with the program: {self:#?}");
        assert_eq!(lines.next(), None, "should be one line: {self:#?}");
        line
    }

    #[track_caller]
    fn no_panic(&self) {
        assert!(!self.stderr.contains("panicked"), "panicked: {self:#?}");
        assert_ne!(self.status.code(), Some(101), "panicked: {self:#?}");
    }

    /// Panics if it needed more than `limit` bytes of memory, or was not run by [`measured`].
    #[track_caller]
    pub fn fits_in(&self, limit: u64) -> &Self {
        let peak = self.peak_memory.expect("only `measured` knows how much memory a command takes");
        assert!(peak <= limit, "{peak} bytes of memory used: {self:#?}");
        self
    }
}

/// A running command.
#[derive(Debug)]
pub struct Job {
    child: Option<Child>,
    pid: Pid,
    output: [Option<Collected>; 2],
    command: String,
}

impl Job {
    /// Starts a command in a process group of its own, so that the guard kills its children too.
    pub fn start(command: &mut Command) -> Self {
        let text = format!("{command:?}");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("starting {text}: {e}"));
        let pid = Pid::from_child(&child);
        let stdout = Collected::of(child.stdout.take().unwrap());
        let output = [stdout, Collected::of(child.stderr.take().unwrap())].map(Some);
        Self { child: Some(child), pid, output, command: text }
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    /// What it has written on its standard error so far.
    pub fn said(&self) -> String {
        self.output[1].as_ref().unwrap().so_far()
    }

    /// The first line on its standard output, as soon as it is there.
    #[track_caller]
    pub fn first_line(&self) -> String {
        self.line_with("")
    }

    /// The first line on its standard output that has these words, as soon as it is there.
    #[track_caller]
    pub fn line_with(&self, words: &str) -> String {
        eventually("a line on its standard output", || {
            let text = self.output[0].as_ref().unwrap().so_far();
            let mut whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            whole.find(|line| line.contains(words)).map(str::to_owned)
        })
    }

    /// Sends it a signal, again and again until it ends: those that come together are one.
    pub fn signal_until_it_ends(self, signal: Signal) -> Outcome {
        crate::wait_for("it ends", || {
            self.signal(signal);
            !runs(self.pid)
        });
        self.wait()
    }

    /// Asks it to stop, and waits until it did.
    #[track_caller]
    pub fn stop(self) -> Outcome {
        self.signal(Signal::TERM);
        let outcome = self.wait();
        outcome.succeeded();
        outcome
    }

    /// Waits until it ends; kills it, and panics, when that takes longer than a minute.
    pub fn wait(self) -> Outcome {
        self.wait_within(GUARD)
    }

    /// As `wait`, with another guard.
    pub fn wait_within(mut self, limit: Duration) -> Outcome {
        let watch = Watch::start(self.pid, limit);
        let status = self.child.take().unwrap().wait().unwrap();
        // Children that it left behind may hold the pipes open: they are part of the group.
        let [stdout, stderr] = [0, 1].map(|i| self.output[i].take().unwrap().all());
        let killed = watch.stop();
        let outcome = Outcome {
            status,
            stdout,
            stderr,
            peak_memory: None,
            command: std::mem::take(&mut self.command),
        };
        assert!(!killed, "killed after {limit:?}, it hung: {outcome:#?}");
        outcome
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = kill_process_group(self.pid, Signal::KILL);
            let _ = child.wait();
        }
    }
}

/// Kills a process group unless the process is reported as ended in time.
struct Watch {
    done: Sender<()>,
    thread: JoinHandle<bool>,
}

impl Watch {
    fn start(group: Pid, limit: Duration) -> Self {
        let (done, ended) = channel();
        let thread = thread::spawn(move || {
            let late = ended.recv_timeout(limit).is_err();
            if late {
                eprintln!("{}", threads_of(group));
                let _ = kill_process_group(group, Signal::KILL);
            }
            late
        });
        Self { done, thread }
    }

    fn stop(self) -> bool {
        let _ = self.done.send(());
        self.thread.join().unwrap()
    }
}

/// What each thread of a process that hangs is waiting for.
fn threads_of(process: Pid) -> String {
    let mut text = format!("threads of {}:", process.as_raw_nonzero());
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    for task in tasks.into_iter().flatten().flatten() {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        text += &format!(" [{} {}]", read("comm").trim(), read("wchan"));
    }
    text
}

/// The peak resident memory of a process that runs, in bytes.
pub fn peak_memory_of(process: Pid) -> u64 {
    memory_of(process, "VmHWM:")
}

/// A field of `/proc/PID/status` that counts memory, in bytes.
pub(crate) fn memory_of(process: Pid, field: &str) -> u64 {
    let path = format!("/proc/{}/status", process.as_raw_nonzero());
    let status = std::fs::read_to_string(path).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a known field");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// The calls in a trace of strace's, each in one line: where another thread interrupts a call,
/// strace writes its end on a line of its own.
pub fn whole_calls(trace: &str) -> String {
    let (mut begun, mut whole) = (HashMap::new(), String::new());
    for line in trace.lines() {
        let thread = line.split(' ').next();
        if let Some((head, _)) = line.split_once("<unfinished ...>") {
            begun.insert(thread, head);
            continue;
        }
        let end = line.split_once(" resumed>").map(|(_, end)| end);
        let head = end.and_then(|_| begun.remove(&thread)).unwrap_or_default();
        whole += &format!("{head}{}\n", end.unwrap_or(line));
    }
    whole
}

/// Whether a process runs: one that has ended, and was not waited for, does not.
pub fn runs(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    let state = stat.map(|stat| stat.rsplit_once(") ").unwrap().1.chars().next());
    state.is_ok_and(|state| !matches!(state, Some('Z' | 'X')))
}

/// The process whose number is in a file, as soon as it is: a client may be quicker than a server
/// that writes it down once it listens.
#[track_caller]
pub fn pid_in(file: &Path) -> Pid {
    eventually("the pid file", || {
        let text = std::fs::read_to_string(file).ok()?;
        Pid::from_raw(text.strip_suffix('\n')?.trim().parse().ok()?)
    })
}

/// What comes out of a pipe, read to its end in a thread of its own.
#[derive(Debug)]
pub struct Collected {
    seen: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Collected {
    /// Begins to read.
    pub fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let thread = thread::spawn(move || {
            let mut buffer = [0; 16384];
            while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                kept.lock().unwrap().extend(&buffer[..n]);
            }
        });
        Self { seen, thread }
    }

    /// What has come so far.
    pub fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// All of it, once the other end is closed.
    pub fn all(self) -> String {
        self.thread.join().unwrap();
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }
}

/// Runs a command to its end, under guard, with nothing on its standard input.
pub fn run(command: &mut Command) -> Outcome {
    Job::start(command.stdin(Stdio::null())).wait()
}

/// As `run`, and knows its peak memory afterwards. The command is started by a process beside the
/// tests (`src/bin/measured.rs`): it is not a child of this one, and has no process group of its
/// own.
pub fn measured(command: &Command) -> Outcome {
    let folder = TempDir::new();
    let told = folder.join("peak");
    let mut starter = Command::new(beside("measured"));
    starter.arg(&told).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => starter.env(name, value),
            None => starter.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        starter.current_dir(folder);
    }
    let mut outcome = run(&mut starter);
    outcome.command = format!("{command:?}");
    let peak = std::fs::read_to_string(&told);
    let peak = peak.unwrap_or_else(|e| panic!("its peak memory was not told: {e}: {outcome:#?}"));
    outcome.peak_memory = Some(peak.parse().unwrap());
    outcome
}

/// A program of this crate.
pub fn beside(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().and_then(Path::parent).unwrap().join(name);
    assert!(path.exists(), "{} is not built: cargo test -p blackbox builds it", path.display());
    path
}

/// A command that runs our binary.
pub fn ours<I, S>(args: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(diskferry());
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs our binary with these words.
pub fn ferry<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Outcome {
    run(&mut ours(words))
}

/// What a program printed, as JSON.
#[track_caller]
pub fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// A map that was printed as JSON: offset, length and type of each extent.
#[track_caller]
pub fn extents(text: &str) -> Vec<(u64, u64, u64)> {
    let map = json(text);
    let list = map.as_array().unwrap_or_else(|| panic!("not a list: {map}"));
    let all = list.iter().map(|extent| {
        let number = |key| extent[key].as_u64().unwrap_or_else(|| panic!("no {key} in {extent}"));
        (number("offset"), number("length"), number("type"))
    });
    all.collect()
}

/// A path as text, which those of tests are.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A command that runs a peer.
pub fn program<I, S>(path: &PathBuf, args: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(path);
    command.args(args).stdin(Stdio::null());
    command
}
