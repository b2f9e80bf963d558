//! Something that does not answer — a frozen file system, a stopped server behind us — stops only
//! the clients that ask for it: other exports are served, new clients are accepted, and the program
//! can be ended.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use blackbox::launch::{Serve, Server};
use blackbox::nbd::{cflag, cmd};
use blackbox::peers::{find, skip, skip_environment};
use blackbox::run::{ferry, runs, text};
use blackbox::session::{Mode, Request, Session};
use blackbox::storage::Mounted;
use blackbox::wait_for;
use rustix::process::{Signal, kill_process};

const MIB: u64 = 1 << 20;

/// Clients enough to have some on each reactor.
fn others() -> usize {
    2 * thread::available_parallelism().map_or(1, usize::from) + 1
}

/// A file system with a disk on it, frozen while this lives.
struct Frozen<'a>(&'a Path);

impl<'a> Frozen<'a> {
    fn new(path: &'a Path) -> Option<Self> {
        let Some(fsfreeze) = find("fsfreeze") else {
            skip("needs fsfreeze");
            return None;
        };
        if !Command::new(fsfreeze).arg("-f").arg(path).status().unwrap().success() {
            skip_environment("freezing a file system needs root");
            return None;
        }
        Some(Self(path))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = Command::new(find("fsfreeze").unwrap()).arg("-u").arg(self.0).status();
    }
}

/// Requests of every kind, none of which is waited for.
fn ask_for_everything(session: &mut Session) -> Vec<u64> {
    let mut cookies = Vec::new();
    for (i, len) in [1, 512, 4096, 30_000, 65_536, 1_000_000].into_iter().enumerate() {
        let at = MIB * u64::try_from(i).unwrap();
        let len_wide = u64::try_from(len).unwrap();
        cookies.push(session.send(&Request::write(at + 100, &vec![7; len])));
        for command in [cmd::READ, cmd::WRITE_ZEROES, cmd::TRIM, cmd::CACHE] {
            cookies.push(session.send(&Request::new(command, at + 4096, len_wide)));
        }
        cookies.push(session.send(&Request::write(at, &vec![8; len]).flags(cflag::FUA)));
        cookies.push(session.send(&Request::new(cmd::FLUSH, 0, 0)));
        if session.mode != Mode::Simple {
            cookies.push(session.send(&Request::new(cmd::BLOCK_STATUS, at, len_wide)));
        }
    }
    cookies
}

/// Panics unless clients that were there, and new ones, are served on the other export.
fn are_served(sessions: &mut [Session], server: &Server) {
    for turn in 0..20_u64 {
        for session in sessions.iter_mut() {
            session.write(turn * 4096, &[9; 4096]);
            assert_eq!(session.read(turn * 4096, 100_000).map(|bytes| bytes[0]), Ok(9));
        }
    }
    for _ in 0..others() {
        let mut session = server.session(Mode::Structured, "mem");
        session.write(0, &[1; 512]);
        session.disconnect();
    }
}

#[test]
fn a_frozen_disk_stops_no_other_client_through_any_stack() {
    let Some(mounted) = Mounted::new("ext4", 128 * MIB) else { return };
    for (filters, is_proxy) in [
        (&[][..], false),
        (&["cow"], false),
        (&["cache"], false),
        (&["blocksize?minblock=4096&maxdata=8192"], false),
        (&["noparallel"], false),
        (&[], true),
        (&["cache"], true),
    ] {
        through(&mounted, filters, is_proxy);
    }
}

fn through(mounted: &Mounted, filters: &[&str], is_proxy: bool) {
    let disk = mounted.join("disk");
    std::fs::write(&disk, vec![5; usize::try_from(8 * MIB).unwrap()]).unwrap();
    std::fs::File::open(&disk).unwrap().sync_all().unwrap();
    let upstream = is_proxy.then(|| Serve::file(&disk).start());
    let slow = match &upstream {
        Some(server) => format!("nbd:?socket={}", server.socket().display()),
        None => format!("file:{}", disk.display()),
    };
    let serve = Serve::exports(&[("slow", &slow), ("mem", "memory:1M")]);
    let serve =
        filters.iter().fold(serve, |serve, filter| serve.option(format!("--filter={filter}")));
    // What cow and cache keep must not be on the frozen file system, or they freeze for all.
    let server = serve.start();
    let mut sessions: Vec<_> =
        (0..others()).map(|_| server.session(Mode::Structured, "mem")).collect();
    let mut frozen: Vec<_> = [Mode::Structured, Mode::Simple, Mode::Extended]
        .into_iter()
        .map(|mode| server.session(mode, "slow"))
        .collect();
    let Some(freeze) = Frozen::new(mounted.path()) else { return };
    let cookies: Vec<_> = frozen.iter_mut().map(ask_for_everything).collect();
    // Nothing depends on it, but some of it should be in flight.
    thread::sleep(Duration::from_millis(50));
    are_served(&mut sessions, &server);
    drop(freeze);
    for (session, cookies) in frozen.iter_mut().zip(cookies) {
        for cookie in cookies {
            assert_eq!(session.wait(cookie).error, 0, "after the thaw");
        }
    }
    sessions.into_iter().chain(frozen).for_each(Session::disconnect);
    assert!(server.stop().success());
}

#[test]
fn a_frozen_overlay_stops_only_those_who_write() {
    let Some(mounted) = Mounted::new("ext4", 128 * MIB) else { return };
    let serve = Serve::exports(&[("slow", "memory:8M"), ("mem", "memory:1M")]);
    let server = serve.option("--filter=cow").environment("TMPDIR", mounted.path()).start();
    let mut readers: Vec<_> =
        (0..others()).map(|_| server.session(Mode::Structured, "mem")).collect();
    let mut writer = server.session(Mode::Structured, "slow");
    // The overlay has the block already.
    writer.write(0, &[1; 64 << 10]);
    let Some(freeze) = Frozen::new(mounted.path()) else { return };
    let writes: Vec<_> =
        (0..8).map(|at| writer.send(&Request::write(at * 4096, &[2; 4096]))).collect();
    thread::sleep(Duration::from_millis(50));
    for reader in &mut readers {
        assert_eq!(reader.read(0, 100_000).map(|bytes| bytes.len()), Ok(100_000));
    }
    server.session(Mode::Structured, "mem").disconnect();
    drop(freeze);
    for cookie in writes {
        assert_eq!(writer.wait(cookie).error, 0, "after the thaw");
    }
    assert_eq!(writer.read(0, 64 << 10).map(|bytes| bytes[..32 << 10] == [2; 32 << 10]), Ok(true));
    readers.into_iter().chain([writer]).for_each(Session::disconnect);
    assert!(server.stop().success());
}

#[test]
fn a_stop_ends_the_program_while_a_disk_is_frozen() {
    let Some(mounted) = Mounted::new("ext4", 128 * MIB) else { return };
    let disk = mounted.join("disk");
    std::fs::write(&disk, vec![5; usize::try_from(8 * MIB).unwrap()]).unwrap();
    let server =
        Serve::exports(&[("slow", &format!("file:{}", disk.display())), ("mem", "memory:1M")])
            .start();
    let mut client = server.session(Mode::Structured, "slow");
    let Some(freeze) = Frozen::new(mounted.path()) else { return };
    ask_for_everything(&mut client);
    thread::sleep(Duration::from_millis(50));
    let mut server = server;
    end_at_once(&mut server);
    // A thread that waits in the kernel for the thaw keeps the process from being gone, but it
    // has ended: its first thread is a zombie.
    wait_for("the end after the second SIGTERM", || !runs(server.pid()));
    drop(freeze);
    server.wait();
}

/// Asks for the end twice: the second time it is not to be graceful.
fn end_at_once(server: &mut Server) {
    server.signal(Signal::TERM);
    // Signals that come together count as one.
    thread::sleep(Duration::from_millis(1500));
    server.signal(Signal::TERM);
}

#[test]
fn a_stopped_server_behind_us_stops_no_other_client_and_no_stop() {
    for filters in [&[][..], &["cache"], &["retry"]] {
        let upstream = Serve::memory("8M").start();
        let slow = format!("nbd:?socket={}", upstream.socket().display());
        let serve = Serve::exports(&[("slow", &slow), ("mem", "memory:1M")]);
        let serve =
            filters.iter().fold(serve, |serve, filter| serve.option(format!("--filter={filter}")));
        let mut server = serve.start();
        let mut sessions: Vec<_> =
            (0..others()).map(|_| server.session(Mode::Structured, "mem")).collect();
        let mut client = server.session(Mode::Structured, "slow");
        kill_process(upstream.pid(), Signal::STOP).unwrap();
        ask_for_everything(&mut client);
        are_served(&mut sessions, &server);
        sessions.into_iter().for_each(Session::disconnect);
        end_at_once(&mut server);
        server.wait();
        kill_process(upstream.pid(), Signal::CONT).unwrap();
    }
}

/// The first part stalls, and another thread goes on with the reactor, for which nothing comes: the
/// client waits for the reply, and the end of the first part is none.
#[test]
fn a_write_of_two_parts_that_stalls_ends_without_another_request() {
    let Some(mounted) = Mounted::new("ext4", 128 * MIB) else { return };
    let image = mounted.join("image");
    for _ in 0..3 {
        let _ = std::fs::remove_file(&image);
        ferry(["create", "-q", "-f", "qcow2", text(&image), "1M"]).succeeded();
        let server = Serve::file(&image).option("--format").option("qcow2").start();
        let mut session = server.session(Mode::Structured, "");
        // The second cluster first, so that they are no neighbours in the file.
        session.write(64 << 10, &[1; 64 << 10]);
        session.write(0, &[1; 64 << 10]);
        let Some(freeze) = Frozen::new(mounted.path()) else { return };
        let cookie = session.send(&Request::write(32 << 10, &[2; 64 << 10]));
        thread::sleep(Duration::from_millis(50));
        drop(freeze);
        assert_eq!(session.wait(cookie).error, 0, "after the thaw");
        session.disconnect();
        assert!(server.stop().success());
    }
}
