//! Servers that mean no good: what one of them sends is no harm to others, nor to a target.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::thread;

use blackbox::peers::peer;
use blackbox::run::{Job, ours, program, run};
use blackbox::session::Mode;
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index, launch::Serve};
use rustix::process::Signal;

/// A server whose answers are whatever `answer` makes of their number; each ends its connection.
/// Gives its URL, with one failure that it may have in a row.
fn answering(answer: impl Fn(usize) -> Vec<u8> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // The thread ends with the process.
    thread::spawn(move || {
        for (number, client) in listener.incoming().flatten().enumerate() {
            let mut asked =
                BufReader::new(client.try_clone().unwrap()).lines().map_while(Result::ok);
            if asked.by_ref().any(|line| line.is_empty()) {
                let mut client = client;
                let _ = client.write_all(&answer(number));
                let _ = client.shutdown(Shutdown::Write);
                // It is closed once the peer has gone, so that nothing of it is lost.
                asked.for_each(drop);
            }
        }
    });
    format!("http:?retry=1&noproxy=*&url=http://127.0.0.1:{port}/disk")
}

/// One that has no ranges and announces more than there is on earth.
fn boaster(length: u64) -> String {
    answering(move |_| format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nxxx").into())
}

#[test]
fn a_backend_that_announces_more_than_it_has_stops_no_other_export() {
    for bits in [45, 62] {
        let bad = boaster(1 << bits);
        let server = Serve::exports(&[("bad", &bad), ("good", "memory:1M")]).start();
        let mut waiting = server.session(Mode::Structured, "bad");
        assert!(waiting.read(0, 4096).is_err());
        let mut good = server.session(Mode::Structured, "good");
        assert_eq!(good.read(0, 4096).unwrap(), [0; 4096]);
        assert!(waiting.read(1 << 40, 4096).is_err());
        waiting.disconnect();
        good.disconnect();
        assert!(server.stop().success());
    }
}

#[test]
fn a_copy_of_what_never_comes_ends_and_leaves_nothing() {
    let temp = TempDir::new();
    let target = temp.join("copy");
    // A file system may not take the longer one.
    for (bits, target) in [(40, target.as_os_str()), (62, "null:".as_ref())] {
        let outcome = run(ours(["copy", &boaster(1 << bits)]).arg(target));
        assert_eq!(outcome.status.code(), Some(75), "{outcome:?}");
    }
    assert!(!target.exists());
}

#[test]
fn a_copy_that_waits_for_a_server_ends_with_a_signal() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/disk", listener.local_addr().unwrap());
    let temp = TempDir::new();
    let job = Job::start(
        ours(["copy", "-q", &format!("http:?noproxy=*&url={url}")]).arg(temp.join("copy")),
    );
    // The first MiB of many, and then silence.
    let (mut client, _) = listener.accept().unwrap();
    let mut asked = BufReader::new(client.try_clone().unwrap()).lines().map_while(Result::ok);
    assert!(asked.any(|line| line.is_empty()));
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1u64 << 33);
    client.write_all(head.as_bytes()).unwrap();
    client.write_all(&pattern(0, index(MIB))).unwrap();
    job.signal(Signal::TERM);
    let outcome = job.wait();
    let term = Signal::TERM.as_raw();
    let by_signal = outcome.status.signal() == Some(term);
    assert!(by_signal || outcome.status.code() == Some(128 + term), "{outcome:?}");
}

#[test]
fn messages_of_tls_without_data_are_not_listened_to_for_ever() {
    let Some(openssl) = peer("openssl") else { return };
    let temp = TempDir::new();
    temp.file("disk", &pattern(0, 300_000));
    let request = "req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 2 -keyout k -out c";
    run(program(&openssl, request.split(' ')).current_dir(temp.path())).succeeded();
    for (tickets, suffices) in [("2", true), ("5000", false)] {
        let mut server = program(&openssl, ["s_server", "-WWW", "-cert", "c", "-key", "k"]);
        server.args(["-accept", "127.0.0.1:0", "-num_tickets", tickets]);
        let server = Job::start(server.current_dir(temp.path()));
        let line = server.line_with("ACCEPT ");
        let place = line.strip_prefix("ACCEPT ").unwrap();
        let url = format!("http:?retry=0&noproxy=*&sslverify=false&url=https://{place}/disk");
        let outcome = run(&mut ours(["copy", &url, "null:"]));
        if suffices {
            outcome.succeeded();
        } else {
            assert!(outcome.failed().contains("TLS messages and no data"), "{outcome:?}");
        }
    }
}
