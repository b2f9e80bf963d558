//! The clock on the wall may jump, back and by years: no timeout follows it.
//!
//! A small library, put before the system's, makes it jump at each look; all else that the system
//! reports is true.

use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use blackbox::launch::Serve;
use blackbox::on_time;
use blackbox::peers::peer;
use blackbox::run::{ours, run};
use blackbox::session::Mode;
use blackbox::temp::{TempDir, pattern};

const JUMPS: &str = r#"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static unsigned looks;
static long jump(void) { return (__atomic_fetch_add(&looks, 1, __ATOMIC_RELAXED) % 2 ? 400 : -400) * 86400L; }
int clock_gettime(clockid_t id, struct timespec *now) {
  long failed = syscall(SYS_clock_gettime, id, now);
  if (failed == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += jump();
  return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
  long failed = syscall(SYS_gettimeofday, now, zone);
  if (failed == 0) now->tv_sec += jump();
  return failed;
}
time_t time(time_t *to) {
  struct timespec now;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  now.tv_sec += jump();
  if (to) *to = now.tv_sec;
  return now.tv_sec;
}
"#;

/// The library, built.
fn jumps(temp: &TempDir) -> Option<PathBuf> {
    let (source, library) = (temp.file("jumps.c", JUMPS.as_bytes()), temp.join("jumps.so"));
    let mut compile = Command::new(peer("cc")?);
    compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source);
    run(&mut compile).succeeded();
    Some(library)
}

#[test]
fn a_server_closes_no_client_early_and_keeps_none_because_the_clock_jumps() {
    let temp = TempDir::new();
    let Some(library) = jumps(&temp) else { return };
    on_time(Duration::from_secs(1), || {
        let log = temp.join("log");
        let server = Serve::memory("1M")
            .environment("LD_PRELOAD", &library)
            .option("-v")
            .option(format!("--log={}", log.display()))
            .option("--filter=delay?delay-read=100ms")
            .option("--idle-timeout=3")
            .option("--handshake-timeout=3")
            .start();
        let begun = Instant::now();
        let mut silent = server.connect();
        silent.receive(18, "the greeting");
        let mut busy = server.session(Mode::Structured, "");
        let mut idle = server.session(Mode::Structured, "");
        // A client that asks stays, longer than any limit.
        while begun.elapsed() < Duration::from_secs(7) {
            busy.assert_alive();
            sleep(Duration::from_millis(100));
            if begun.elapsed() < Duration::from_millis(1500) {
                idle.assert_alive();
            }
        }
        // The clients that should be closed are closed: otherwise the guard of a minute would fail.
        silent.drain();
        idle.socket.drain();
        assert!(server.stop().success());
        // The library did its work: lines of the log are years apart.
        let log = std::fs::read_to_string(&log).unwrap();
        let years: std::collections::BTreeSet<_> =
            log.lines().filter_map(|line| line.get(..4)).collect();
        assert!(years.len() > 1, "{log}");
    });
}

#[test]
fn a_client_waits_for_a_slow_server_as_long_as_the_user_allows_whatever_the_clock_says() {
    let temp = TempDir::new();
    let Some(library) = jumps(&temp) else { return };
    let disk = temp.file("disk", &pattern(0, 1 << 20));
    let slow = Serve::file(&disk).option("--filter=delay?delay-read=300ms").start();
    let copy = temp.join("copy");
    let source = format!("nbd:?socket={}&timeout=10", slow.socket().display());
    let mut command = ours(["copy", "--reconnect-delay=5", &source]);
    run(command.arg(&copy).env("LD_PRELOAD", &library)).succeeded();
    assert!(std::fs::read(&copy).unwrap() == pattern(0, 1 << 20));
    // And gives up when it should.
    let other = temp.file("other", &pattern(0, 1 << 20));
    let silent = Serve::file(&other).option("--filter=delay?delay-read=3600").start();
    let source = format!("nbd:?socket={}&timeout=1", silent.socket().display());
    let mut command = ours(["copy", &source]);
    let outcome = run(command.arg(temp.join("never")).env("LD_PRELOAD", &library));
    assert!(outcome.failed().contains("it was silent for 1 second"), "{outcome:#?}");
}
