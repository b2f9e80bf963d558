//! Many clients that wait at the same time: what waits holds no thread.

use std::time::{Duration, Instant};

use blackbox::launch::Serve;
use blackbox::nbd::cmd;
use blackbox::session::{Mode, Request};
use rustix::process::{Pid, Resource, getrlimit, setrlimit};

const CLIENTS: usize = 1000;

/// The threads of a process.
fn threads(pid: Pid) -> usize {
    std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap().count()
}

#[test]
fn a_thousand_clients_of_a_delayed_disk_are_served_by_few_threads() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let server = Serve::device(["memory", "1M", "delay-read=1s"])
        .option("--filter=delay")
        .option("--max-connections=1100")
        .start();
    let mut sessions: Vec<_> = (0..CLIENTS).map(|_| server.session(Mode::Structured, "")).collect();
    let begun = Instant::now();
    let cookies: Vec<_> =
        sessions.iter_mut().map(|s| s.send(&Request::new(cmd::READ, 4096, 512))).collect();
    let most = threads(server.pid());
    for (session, cookie) in sessions.iter_mut().zip(cookies) {
        assert_eq!(session.wait(cookie).error, 0);
    }
    assert!(begun.elapsed() >= Duration::from_secs(1), "nothing was delayed");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // The main thread, a reactor a core, the timers, the pool.
    assert!(most.max(threads(server.pid())) <= cores + 20, "{most} threads");
}
