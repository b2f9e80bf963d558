//! Checks 36, 37, 54, 56, 75, 76 and 91: peers that stop, flood, vanish or do not read.

use std::io::Read;
use std::thread;

use blackbox::haggle::{Haggler, option_bytes};
use blackbox::launch::{Serve, start_on_tcp};
use blackbox::nbd::{cmd, context_data, err, go_data, info, opt};
use blackbox::session::{Mode, Request, Session};
use blackbox::socket::Socket;
use blackbox::temp::pattern;
use blackbox::{GUARD, MIB, index, wait_for};
use rustix::process::Signal;

#[test]
fn server_check_36_an_idle_handshake_is_closed_in_time() {
    let server = Serve::memory("1M").option("--handshake-timeout").option("1").start();
    // Stopped at the greeting, in the flags, in an option and between options.
    let greeting_only = server.connect();
    let mut half_flags = server.connect();
    half_flags.receive(18, "the greeting");
    half_flags.send(&[0, 0]);
    let mut half_option = server.haggle();
    half_option.socket.send(&option_bytes(opt::GO, &go_data(b"", &[]))[..19]);
    let mut between = server.haggle();
    between.assert_alive();
    server.session(Mode::Simple, "").assert_alive();
    for mut socket in [greeting_only, half_flags, half_option.socket, between.socket] {
        // `drain` panics when it is not closed within a minute.
        socket.drain();
    }
    // Once in transmission there is no such limit.
    let mut session = server.session(Mode::Simple, "");
    thread::sleep(std::time::Duration::from_millis(1500));
    session.assert_alive();
}

#[test]
fn server_check_36_options_without_end_do_not_extend_the_time() {
    // nbdkit's name for it.
    let server = Serve::memory("1M").option("--timeout=1").start();
    let mut haggler = server.haggle();
    // One byte of an option at a time: never idle, never done.
    let bytes = option_bytes(99, &[0; 4000]);
    let begun = std::time::Instant::now();
    let mut sent = bytes.iter();
    while haggler.socket.offer(&[*sent.next().expect("closed long before the option ends")]) {
        thread::sleep(std::time::Duration::from_millis(20));
        assert!(begun.elapsed() < GUARD, "a trickle keeps the handshake open");
    }
}

#[test]
fn server_check_37_ten_thousand_options_are_bounded() {
    let server = Serve::memory("1M").start();
    let floods = [
        ("unknown options", option_bytes(99, &[0; 1000])),
        ("lists", option_bytes(opt::LIST, &[])),
        ("information", option_bytes(opt::INFO, &go_data(b"", &[info::BLOCK_SIZE]))),
        ("contexts", option_bytes(opt::LIST_META_CONTEXT, &context_data("", &["base:"]))),
    ];
    for (what, option) in floods {
        let before = server.peak_memory();
        let mut haggler = server.haggle();
        let mut reader = haggler.socket.duplicate();
        let drained = thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        let mut sent = 0;
        while sent < 10_000 && haggler.socket.offer(&option) {
            sent += 1;
        }
        haggler.socket.finish_sending();
        let _ = drained.join().unwrap();
        assert!(sent < 10_000, "{what}: the server listened to ten thousand options");
        let grown = server.peak_memory() - before;
        assert!(grown < 16 * MIB, "{what}: {grown} bytes");
    }
    server.haggle().assert_alive();
}

#[test]
fn server_check_37_options_whose_replies_are_not_read_are_bounded() {
    let server = Serve::memory("1M").start();
    let before = server.peak_memory();
    let mut haggler = server.haggle();
    haggler.socket.set_timeout(std::time::Duration::from_millis(500));
    let option = option_bytes(opt::LIST, &[]);
    // Until the server stops reading or closes.
    for _ in 0..100_000 {
        if std::io::Write::write_all(&mut haggler.socket, &option).is_err() {
            break;
        }
    }
    let grown = server.peak_memory() - before;
    assert!(grown < 16 * MIB, "{grown} bytes");
    server.haggle().assert_alive();
}

#[test]
fn server_check_54_a_write_just_above_the_maximum_is_refused_in_step() {
    let server = Serve::memory("128M").start();
    let mut session = server.session(Mode::Simple, "");
    let size = (32 << 20) + 512;
    let request = Request::write(0, &vec![1; size]);
    let cookie = session.register(&request);
    let bytes = session.bytes(&request, cookie);
    // Beyond 32 MiB it may hang up, with or without an error before: then no client needs to be in
    // step any more.
    if session.socket.offer(&bytes) {
        let mut magic = [0; 4];
        if session.socket.read_exact(&mut magic).is_ok() {
            session.frame_after(u32::from_be_bytes(magic));
            assert_eq!(session.take(cookie).unwrap().error, err::EINVAL);
        }
    }
    let mut session = server.session(Mode::Simple, "");
    assert_eq!(session.read(0, 4096).unwrap(), [0; 4096], "nothing was written");
    // A READ above the maximum: EINVAL or EOVERFLOW, or served; always in step.
    for mode in [Mode::Simple, Mode::Structured, Mode::Extended] {
        let mut session = server.session(mode, "");
        let error = session.error_of(&Request::new(cmd::READ, 0, (32 << 20) + 4096));
        assert!([0, err::EINVAL, err::EOVERFLOW].contains(&error), "error {error}");
        session.assert_alive();
    }
}

#[test]
fn server_check_56_half_a_payload_touches_nothing_beyond_its_range() {
    let server = Serve::memory("4M").start();
    let disk = pattern(0, index(4 * MIB));
    server.session(Mode::Simple, "").write(0, &disk);
    for cut in [1, 4096, 65536, MIB / 2, MIB - 1] {
        let mut session = server.session(Mode::Simple, "");
        let request = Request::write(MIB, &vec![0xee; index(MIB)]);
        let bytes = session.bytes(&request, 1);
        session.socket.send(&bytes[..28 + index(cut)]);
        if cut % 2 == 0 {
            session.socket.reset();
        } else {
            drop(session);
        }
        let seen = server.session(Mode::Simple, "").read(0, 4 * MIB).unwrap();
        assert!(seen[..index(MIB)] == disk[..index(MIB)], "the bytes before");
        assert!(seen[index(2 * MIB)..] == disk[index(2 * MIB)..], "the bytes after");
        // Inside, each byte is the old one or the new one.
        let range = index(MIB)..index(2 * MIB);
        let known = seen[range.clone()].iter().zip(&disk[range]).all(|(s, d)| s == d || *s == 0xee);
        assert!(known, "bytes that were never written");
    }
}

/// Ends connections rudely with requests pending, and expects the descriptors back.
fn vanish(connect: impl Fn() -> Session, descriptors: impl Fn() -> usize) {
    // Data everywhere, or the replies would be small.
    connect().write(0, &pattern(0, 1 << 20));
    let before = descriptors();
    for n in 0..20 {
        let mut session = connect();
        for _ in 0..16 {
            session.send(&Request::new(cmd::READ, 0, MIB));
        }
        if n % 2 == 0 {
            // Some of the replies are in flight.
            session.socket.receive(1000, "the first reply");
        }
        session.socket.reset();
    }
    wait_for("no more descriptors than before", || descriptors() <= before);
    connect().assert_alive();
}

#[test]
fn server_check_75_a_vanished_client_leaves_nothing_behind() {
    let server = Serve::memory("1M").start();
    vanish(|| server.session(Mode::Structured, ""), || server.open_descriptors());
}

#[test]
fn server_check_75_a_reset_over_tcp_leaves_nothing_behind() {
    let (job, address) = start_on_tcp(&[]);
    let connect = || Haggler::new(Socket::tcp(address).unwrap()).go("");
    let pid = job.pid().as_raw_nonzero();
    let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    vanish(connect, descriptors);
    job.stop();
}

#[test]
fn server_check_76_replies_that_are_not_read_are_bounded() {
    // A pattern has no place to send from: each reply must be made in memory.
    let server = Serve::device(["pattern", "1G"]).option("-r").start();
    let before = server.peak_memory();
    let mut session = server.session(Mode::Structured, "");
    let mut cookies = Vec::new();
    let mut bytes = Vec::new();
    for n in 0..64 {
        let request = Request::new(cmd::READ, n * 16 * MIB, 16 * MIB);
        let cookie = session.register(&request);
        bytes.extend(session.bytes(&request, cookie));
        cookies.push((cookie, n * 16 * MIB));
    }
    session.socket.send(&bytes);
    // Others are served meanwhile.
    for _ in 0..5 {
        server.session(Mode::Simple, "").assert_alive();
        thread::sleep(std::time::Duration::from_millis(100));
    }
    let grown = server.peak_memory() - before;
    assert!(grown < 256 * MIB, "{grown} bytes for 1 GiB of replies that are not read");
    for (cookie, offset) in cookies {
        let answer = session.wait(cookie);
        assert_eq!(answer.error, 0);
        assert_eq!(answer.data[..8], offset.to_be_bytes());
        let last = offset + 16 * MIB - 8;
        assert_eq!(answer.data[index(16 * MIB) - 8..], last.to_be_bytes());
    }
    session.assert_alive();
}

#[test]
fn server_check_91_a_stop_under_load_cuts_no_reply() {
    for (mode, signal) in [
        (Mode::Simple, Signal::TERM),
        (Mode::Structured, Signal::INT),
        (Mode::Extended, Signal::TERM),
    ] {
        let mut server = Serve::memory("64M").start();
        let mut session = server.session(mode, "");
        for n in 0..64 {
            session.send(&Request::new(cmd::READ, n * MIB / 2, MIB));
        }
        server.signal(signal);
        // Every frame that begins must be whole: `frame` panics when one is cut.
        let mut magic = [0; 4];
        loop {
            match session.socket.read(&mut magic[..1]) {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(e) => panic!("{e}"),
            }
            session.socket.read_exact(&mut magic[1..]).expect("a whole reply header");
            let cookie = session.frame_after(u32::from_be_bytes(magic));
            if let Some(answer) = session.take(cookie) {
                assert!([0, err::ESHUTDOWN].contains(&answer.error), "error {}", answer.error);
            }
        }
        drop(session);
        let status = server.wait();
        assert!(status.success(), "{status}");
    }
}

#[test]
fn server_check_91_a_stop_ends_idle_clients_and_handshakes() {
    let server = Serve::memory("1M").start();
    let idle = server.session(Mode::Simple, "");
    let handshake = server.haggle();
    let greeted = server.connect();
    let status = server.stop();
    assert!(status.success(), "{status}");
    for mut socket in [idle.socket, handshake.socket, greeted] {
        socket.drain();
    }
}
