//! No client stops another, or fills the server: not with many requests, not with few that cost
//! much, not by sending or reading next to nothing.
//!
//! Whether others are served is counted (replies of the greedy client that came first), not timed.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use blackbox::haggle::option_bytes;
use blackbox::launch::{Serve, Server};
use blackbox::nbd::{BASE_ALLOCATION, cmd, opt};
use blackbox::peers::{diskferry, strace};
use blackbox::run::{Job, pid_in};
use blackbox::session::{Mode, Request, Session};
use blackbox::socket::Socket;
use blackbox::temp::TempDir;
use blackbox::wait_for;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Sends `count` times the same request.
fn flood(session: &mut Session, request: &Request, count: usize) {
    let mut bytes = Vec::new();
    for _ in 0..count {
        let cookie = session.register(request);
        bytes.extend(session.bytes(request, cookie));
    }
    session.socket.send(&bytes);
}

/// Reads `count` replies in a thread; counts them.
fn count_replies(mut session: Session, count: u64) -> (Arc<AtomicU64>, thread::JoinHandle<()>) {
    let seen = Arc::new(AtomicU64::new(0));
    let counter = seen.clone();
    let reader = thread::spawn(move || {
        let mut answered = 0;
        while answered < count {
            let cookie = session.frame();
            if session.take(cookie).is_some() {
                answered += 1;
                counter.store(answered, Ordering::SeqCst);
            }
        }
    });
    (seen, reader)
}

#[test]
fn block_status_of_many_extents_does_not_keep_other_clients_waiting() {
    const COUNT: u64 = 1000;
    let server = Serve::memory("64M").start();
    let mut writer = server.session(Mode::Simple, "");
    for block in 0..8192 {
        writer.send(&Request::write(block * 8 * KIB, &[1; 4096]));
        if block % 256 == 255 {
            while writer.outstanding() > 0 {
                let cookie = writer.frame();
                writer.take(cookie);
            }
        }
    }
    // On either reactor.
    let mut others: Vec<_> = (0..4).map(|_| server.session(Mode::Simple, "")).collect();
    let mut greedy = server.session(Mode::Structured, "");
    let request = Request::new(cmd::BLOCK_STATUS, 0, 64 * MIB);
    flood(&mut greedy, &request, usize::try_from(COUNT).unwrap());
    let (seen, reader) = count_replies(greedy, COUNT);
    // How many of the greedy client's requests were answered while one of another's was.
    let mut worst = 0;
    while seen.load(Ordering::SeqCst) < COUNT / 2 {
        for other in &mut others {
            let before = seen.load(Ordering::SeqCst);
            other.assert_alive();
            worst = worst.max(seen.load(Ordering::SeqCst) - before);
        }
    }
    reader.join().unwrap();
    assert!(worst < COUNT / 8, "{worst} of {COUNT} before one of another client");
}

#[test]
fn flushes_of_one_export_leave_threads_for_another() {
    const COUNT: u64 = 800;
    let Some(strace) = strace() else { return };
    let temp = TempDir::new();
    // On a disk: what lies in memory needs no thread.
    let folder = TempDir::below(&std::env::current_dir().unwrap());
    let (a, b) = (folder.sparse_file("a", MIB), folder.sparse_file("b", MIB));
    let (socket, pid) = (temp.join("s"), temp.join("pid"));
    let mut command = Command::new(strace);
    command.args(["-f", "-q", "-o", "/dev/null", "-e", "trace=fdatasync,fsync"]);
    command.args(["-e", "inject=fdatasync,fsync:delay_enter=20000"]);
    command.arg(diskferry()).arg("serve").arg("-P").arg(&pid).arg("-U").arg(&socket);
    command.args(["--export", &format!("a={}", a.display())]);
    command.args(["--export", &format!("b={}", b.display())]);
    let job = Job::start(command.stdin(Stdio::null()));
    wait_for("the socket", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    let open = |name: &str| {
        let mut haggler = blackbox::haggle::Haggler::new(Socket::unix(&socket).unwrap());
        haggler.structured();
        let contexts = haggler.set_contexts(name, &[BASE_ALLOCATION]);
        let mut session = haggler.go(name);
        session.contexts = contexts;
        session
    };
    let (mut greedy, mut other) = (open("a"), open("b"));
    flood(&mut greedy, &Request::new(cmd::FLUSH, 0, 0), usize::try_from(COUNT).unwrap());
    other.ask(&Request::new(cmd::BLOCK_STATUS, 0, 4096));
    // Replies are some twenty bytes each; those that wait in our socket were answered before.
    let answered = greedy.socket.waiting() / 16;
    assert!(answered < COUNT / 2, "{answered} flushes before a block status of another export");
    drop((greedy, other));
    rustix::process::kill_process(pid_in(&pid), rustix::process::Signal::TERM).unwrap();
    job.wait();
}

/// Connections that announce `length` bytes to be written, send `sent` of them and go on with a
/// byte now and then, until the answer is dropped.
struct Tricklers(Arc<AtomicBool>, Option<thread::JoinHandle<()>>);

impl Tricklers {
    fn new(server: &Server, count: usize, length: u64, sent: usize) -> Self {
        let mut sockets: Vec<Socket> = (0..count)
            .map(|_| {
                let mut session = server.session(Mode::Simple, "");
                session.socket.set_timeout(Duration::from_millis(300));
                let head = session.bytes(&Request::new(cmd::WRITE, 0, length), 1);
                session.socket.offer(&head);
                // A server that is short of memory takes less.
                let _ = session.socket.write_all(&vec![7; sent]);
                session.socket
            })
            .collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                for socket in &mut sockets {
                    let _ = socket.write_all(&[7]);
                }
                thread::sleep(Duration::from_millis(500));
            }
        });
        Self(stop, Some(thread))
    }
}

impl Drop for Tricklers {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
        self.1.take().map(thread::JoinHandle::join);
    }
}

#[test]
fn a_payload_that_was_only_announced_takes_no_memory_from_others() {
    let server = Serve::memory("1G").option("--memory-limit").option("64M").start();
    let _evil = Tricklers::new(&server, 8, 32 * MIB, 10);
    server.session(Mode::Simple, "").write(0, &vec![1; 2 << 20]);
}

#[test]
fn a_client_that_holds_memory_and_trickles_is_closed_before_those_that_wait() {
    let server = Serve::memory("1G").option("--memory-limit").option("64M").start();
    let _evil = Tricklers::new(&server, 8, 32 * MIB, 30 << 20);
    server.session(Mode::Simple, "").write(0, &vec![1; 2 << 20]);
}

/// A client that has sent `sent` bytes of a payload of `length`, and stops there.
fn begun(server: &Server, length: u64, sent: u64) -> Session {
    let mut session = server.session(Mode::Simple, "");
    let head = session.bytes(&Request::new(cmd::WRITE, 0, length), 1);
    session.socket.send(&head);
    send(&mut session, sent);
    session
}

/// Some more of a payload; the server has taken it when this returns.
fn send(session: &mut Session, bytes: u64) {
    session.socket.send(&vec![7; usize::try_from(bytes).unwrap()]);
    thread::sleep(Duration::from_millis(300));
}

#[test]
fn a_client_that_goes_on_beyond_the_limit_and_stops_is_closed_and_small_requests_are_served_meanwhile()
 {
    // Half of it is for one user.
    let server = Serve::memory("1G").option("--memory-limit").option("16M").start();
    let mut stalls = begun(&server, 3 * MIB, 100);
    let mut honest = begun(&server, 4 * MIB, 4 * MIB - 10 * KIB);
    let mut other = begun(&server, 4 * MIB, 4 * MIB - 10 * KIB);
    // It is the first for which there is no room: now all wait for it.
    send(&mut stalls, 40 * KIB);
    let mut small = server.session(Mode::Simple, "");
    for length in [4 * KIB, 20 * KIB, 64 * KIB] {
        small.write(0, &vec![1; usize::try_from(length).unwrap()]);
    }
    send(&mut honest, 10 * KIB);
    send(&mut other, 10 * KIB);
    for session in [&mut honest, &mut other] {
        let reply = session.socket.receive(16, "the reply");
        assert_eq!(reply[4..8], [0; 4]);
    }
}

#[test]
fn half_options_of_many_clients_stay_within_the_limit() {
    let server = Serve::memory("1M").option("--memory-limit").option("16M").start();
    let before = server.peak_memory();
    let mut option = option_bytes(opt::SET_META_CONTEXT, &vec![b'x'; 1 << 20]);
    option.pop();
    let mut clients = Vec::new();
    for _ in 0..200 {
        let mut socket = server.haggle().socket;
        socket.set_timeout(Duration::from_millis(50));
        let _ = socket.write_all(&option);
        clients.push(socket);
    }
    let grown = server.peak_memory() - before;
    assert!(grown < 64 * MIB, "{grown} bytes for {} half options", clients.len());
    server.session(Mode::Simple, "").assert_alive();
}
