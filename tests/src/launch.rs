//! Starting servers: ours and peers.
//!
//! A server listens on a Unix socket in a private directory, is ready when a connection
//! succeeds, and is killed when dropped; its stderr must not speak of a panic, and it must
//! still be running then unless the test ended it.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use crate::eventually;
use crate::haggle::Haggler;
use crate::peers::diskferry;
use crate::run::{Collected, Job, memory_of, ours, peak_memory_of};
use crate::session::{Mode, Session};
use crate::socket::Socket;
use crate::temp::TempDir;

/// What to start.
#[derive(Debug, Clone, Default)]
pub struct Serve {
    device: Vec<OsString>,
    exports: Vec<(String, String)>,
    options: Vec<OsString>,
    /// Where strace logs, and which calls.
    trace: Option<(PathBuf, &'static str)>,
    /// What it gets in its environment, beside ours.
    environment: Vec<(&'static str, OsString)>,
}

impl Serve {
    /// One device in nbdkit's form: `memory 1M`, `file PATH`.
    pub fn device<S: Into<OsString>>(words: impl IntoIterator<Item = S>) -> Self {
        Self { device: words.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// A memory device of this size (`1M`).
    pub fn memory(size: &str) -> Self {
        Self::device(["memory", size])
    }

    /// A file.
    pub fn file(path: &Path) -> Self {
        Self::device([OsString::from("file"), path.into()])
    }

    /// Several exports by name. The first is also the default export.
    pub fn exports(exports: &[(&str, &str)]) -> Self {
        let exports = exports.iter().map(|(n, s)| ((*n).to_owned(), (*s).to_owned())).collect();
        Self { exports, ..Self::default() }
    }

    /// Our `nbd` device in front of another server's socket.
    pub fn proxy(uri: &str) -> Self {
        Self::exports(&[("proxy", uri)])
    }

    /// Adds an option.
    #[must_use]
    pub fn option(mut self, option: impl Into<OsString>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Puts something into its environment.
    #[must_use]
    pub fn environment(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Runs it under strace, which logs writes, syncs and sends to `log`.
    #[must_use]
    pub fn traced(self, log: &Path) -> Self {
        let calls = "pwrite64,pwritev,pwritev2,write,writev,fsync,fdatasync,msync,sync_file_range,\
                     sendto,sendmsg,fallocate,io_uring_enter,copy_file_range,splice,sendfile,openat";
        self.traced_for(log, calls)
    }

    /// Runs it under strace, which logs these calls (names with commas between) to `log`.
    #[must_use]
    pub fn traced_for(mut self, log: &Path, calls: &'static str) -> Self {
        self.trace = Some((log.to_owned(), calls));
        self
    }

    /// Starts it and waits until it accepts connections.
    pub fn start(self) -> Server {
        let temp = TempDir::new();
        let socket = temp.join("s");
        let mut command = self.command(&socket);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        Server::start(command, temp, socket)
    }

    /// The same at a name that is always the same, and may be left of another server.
    pub fn start_at(self, socket: &Path) -> Server {
        let _ = fs::remove_file(socket);
        let temp = TempDir::new();
        Server::start(self.command(socket), temp, socket.to_owned())
    }

    /// The command line, for servers that the test starts by its own means.
    pub fn arguments(&self, socket: &Path) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["serve".into(), "-U".into(), socket.into()];
        words.extend(self.options.iter().cloned());
        words.extend(self.device.iter().cloned());
        for (name, spec) in &self.exports {
            words.extend(["--export".into(), format!("{name}={spec}").into()]);
        }
        words
    }

    fn command(&self, socket: &Path) -> Command {
        let words = self.arguments(socket);
        let Some((log, calls)) = &self.trace else { return ours(words) };
        // -D: strace is the grandchild, so that the child's pid is the server's.
        let mut command = Command::new("strace");
        command.args(["-D", "-f", "-q", "-s", "0", "-e", "signal=none", "-o"]).arg(log);
        command.args(["-e", &format!("trace={calls}")]).arg(diskferry()).args(words);
        command
    }
}

/// Our server of a MiB of memory on a port of the loopback interface that was free, and where.
pub fn start_on_tcp(options: &[&str]) -> (Job, SocketAddr) {
    let mut command = ours(["serve", "--ipaddr=127.0.0.1", "--port=0", "--print-uri"]);
    let job = Job::start(command.args(options).args(["memory", "1M"]));
    let address = tcp_address(&job.first_line());
    (job, address)
}

/// The address in a URI that a server prints.
pub fn tcp_address(uri: &str) -> SocketAddr {
    let address = uri.strip_prefix("nbd://").map(|rest| rest.trim_end_matches('/').parse());
    address.and_then(Result::ok).unwrap_or_else(|| panic!("no address in {uri}"))
}

/// A running server on a Unix socket.
#[derive(Debug)]
pub struct Server {
    child: Child,
    pid: Pid,
    socket: PathBuf,
    stderr: Option<Collected>,
    /// Whether it may have ended, or been killed, before it is dropped.
    may_end: bool,
    temp: TempDir,
}

impl Server {
    /// Starts `command` and waits until `socket` accepts connections.
    pub fn start(mut command: Command, temp: TempDir, socket: PathBuf) -> Self {
        let text = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("starting {text}: {e}"));
        let stderr = Some(Collected::of(child.stderr.take().unwrap()));
        let pid = Pid::from_child(&child);
        let mut server = Self { child, pid, socket, stderr, may_end: false, temp };
        let is_ready = eventually(&format!("the server is ready: {text}"), || {
            if Socket::unix(&server.socket).is_ok() {
                return Some(Ok(()));
            }
            server.child.try_wait().unwrap().map(Err)
        });
        if let Err(status) = is_ready {
            server.may_end = true;
            let said = server.said();
            panic!("the server ended before it was ready: {status}: {said} ({text})");
        }
        server
    }

    /// Starts a peer whose arguments the closure makes from the path of the socket.
    pub fn peer(path: &Path, arguments: impl FnOnce(&Path) -> Vec<OsString>) -> Self {
        let temp = TempDir::new();
        let socket = temp.join("s");
        let mut command = Command::new(path);
        command.args(arguments(&socket));
        let mut server = Self::start(command, temp, socket);
        // How a peer ends does not matter.
        server.may_end = true;
        server
    }

    /// nbdkit with these words after `-f -U SOCKET`.
    pub fn nbdkit(nbdkit: &Path, words: &[&str]) -> Self {
        let temp = TempDir::new();
        let socket = temp.join("s");
        Self::nbdkit_in(temp, nbdkit, &socket, words)
    }

    /// The same at a name that is always the same, and may be left of another server.
    pub fn nbdkit_at(nbdkit: &Path, socket: &Path, words: &[&str]) -> Self {
        let _ = fs::remove_file(socket);
        Self::nbdkit_in(TempDir::new(), nbdkit, socket, words)
    }

    fn nbdkit_in(temp: TempDir, nbdkit: &Path, socket: &Path, words: &[&str]) -> Self {
        let mut command = Command::new(nbdkit);
        command.args(["-f", "-U"]).arg(socket).args(words);
        let mut server = Self::start(command, temp, socket.to_owned());
        server.may_end = true;
        server
    }

    /// qemu-nbd on an image, persistent, for up to eight clients, read-write.
    pub fn qemu_nbd(qemu_nbd: &Path, format: &str, image: &Path) -> Self {
        Self::peer(qemu_nbd, |socket| {
            let mut all: Vec<OsString> =
                ["-t", "-e", "8", "--discard=unmap", "-f", format, "-k"].map(Into::into).into();
            all.extend([socket.into(), image.into()]);
            all
        })
        .greeting()
    }

    /// Waits until it greets: qemu-nbd listens before it has opened, and locked, its image.
    #[must_use]
    pub fn greeting(self) -> Self {
        drop(self.haggle());
        self
    }

    /// The URI of an export.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// The path of its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its private directory.
    pub fn temp(&self) -> &TempDir {
        &self.temp
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Connects, and does nothing more.
    pub fn connect(&self) -> Socket {
        Socket::unix(&self.socket).unwrap_or_else(|e| panic!("connecting to the server: {e}"))
    }

    /// Connects and does the fixed newstyle greeting.
    pub fn haggle(&self) -> Haggler {
        Haggler::new(self.connect())
    }

    /// A session in this form, with base:allocation where it has contexts.
    pub fn session(&self, mode: Mode, export: &str) -> Session {
        self.haggle().session(mode, export)
    }

    /// The same, unless it lets no more clients in.
    pub fn admits(&self, mode: Mode, export: &str) -> Option<Session> {
        let attempt = std::panic::AssertUnwindSafe(|| self.session(mode, export));
        std::panic::catch_unwind(attempt).ok()
    }

    /// The same as soon as there is room: that a client has gone is known a moment later.
    #[track_caller]
    pub fn session_with_room(&self, mode: Mode, export: &str) -> Session {
        eventually("there is room for a client", || self.admits(mode, export))
    }

    /// Its peak resident memory so far, in bytes.
    pub fn peak_memory(&self) -> u64 {
        peak_memory_of(self.pid)
    }

    /// Anonymous memory resident now, in bytes: without the pages of served files and memfds.
    pub fn anonymous_memory(&self) -> u64 {
        memory_of(self.pid, "RssAnon:")
    }

    /// The processor time that it has used, in hundredths of a second.
    pub fn processor_time(&self) -> u64 {
        let path = format!("/proc/{}/stat", self.pid.as_raw_nonzero());
        let stat = fs::read_to_string(path).expect("the server runs");
        let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
        fields.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
    }

    /// How many descriptors it holds.
    pub fn open_descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid.as_raw_nonzero())).unwrap().count()
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// From now on it does not matter how it ends.
    pub fn may_end(&mut self) {
        self.may_end = true;
    }

    /// Sends a signal.
    pub fn signal(&mut self, signal: Signal) {
        self.may_end = true;
        kill_process(self.pid, signal).unwrap();
    }

    /// Kills it at once, as a power cut would.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }

    /// Waits for it to end by itself; kills it and panics after a minute.
    pub fn wait(mut self) -> ExitStatus {
        self.may_end = true;
        eventually("the server ends", || self.child.try_wait().unwrap())
    }

    /// Asks it to stop and waits until it did.
    pub fn stop(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// What it wrote on stderr; only once it ended.
    fn said(&mut self) -> String {
        self.stderr.take().map(Collected::all).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.child.try_wait().ok().flatten();
        let _ = self.child.kill();
        let _ = self.child.wait();
        let said = self.said();
        if thread::panicking() {
            eprintln!("the server ended with {ended:?} and said: {said}");
            return;
        }
        assert!(!said.contains("panicked"), "the server panicked: {said}");
        assert!(self.may_end || ended.is_none(), "the server died: {ended:?}: {said}");
    }
}

/// How many bytes of disk a file occupies.
pub fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}
