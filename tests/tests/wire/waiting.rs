//! A slow client (accepted later at an export, or with a request without end) costs the other
//! clients nothing, and loses nothing itself.

use std::io::Read;
use std::time::{Duration, Instant};

use blackbox::haggle::Haggler;
use blackbox::launch::{Serve, start_on_tcp};
use blackbox::nbd::{Message, REQUEST, cmd, go_data, info, opt, rep};
use blackbox::session::{Mode, Request};
use blackbox::socket::Socket;
use blackbox::{on_time, wait_for};
use rustix::process::Signal;

/// Our server, which lets clients in after `delay`.
fn late(delay: &str) -> Serve {
    Serve::memory("1M").option(format!("--filter=delay?delay-open={delay}"))
}

#[test]
fn time_that_the_server_takes_is_not_counted_against_the_client() {
    on_time(Duration::from_millis(500), || {
        let server = late("2500ms").option("--handshake-timeout=2").start();
        let mut client = server.haggle();
        let known = client.export(opt::INFO, "", &[info::BLOCK_SIZE]).unwrap();
        // The server looks about once a second for those that have taken too long.
        std::thread::sleep(Duration::from_millis(1300));
        let mut session = client.go("");
        assert_eq!(session.read(0, 512).unwrap().len(), 512);
        assert_eq!(known.size, 1 << 20);
    });
}

#[test]
fn a_silent_client_is_still_closed_after_its_export_was_ready() {
    let server = late("300ms").option("--handshake-timeout=1").start();
    let mut client = server.haggle();
    client.export(opt::INFO, "", &[]).unwrap();
    let mut rest = Vec::new();
    client.socket.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
}

#[test]
fn options_and_requests_sent_ahead_are_answered_in_order_once_the_export_is_ready() {
    let server = late("300ms").start();
    let mut client = server.haggle();
    let begun = Instant::now();
    client.send(opt::INFO, &go_data(b"", &[]));
    client.send(opt::INFO, &go_data(b"nobody", &[]));
    client.send(opt::LIST, &[]);
    client.send(opt::GO, &go_data(b"", &[]));
    // A simple request to read, and a disconnect.
    for (command, cookie, length) in [(cmd::READ, 7, 512), (cmd::DISC, 8, 0)] {
        let head = Message::new().u32(REQUEST).u16(0).u16(command);
        client.socket.send(&head.u64(cookie).u64(0).u32(length).0);
    }
    client.socket.finish_sending();
    let last = |client: &mut Haggler, option| client.replies(option).pop().unwrap().kind;
    assert_eq!(last(&mut client, opt::INFO), rep::ACK);
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!(last(&mut client, opt::INFO), rep::UNKNOWN);
    assert_eq!(last(&mut client, opt::LIST), rep::ACK);
    assert_eq!(last(&mut client, opt::GO), rep::ACK);
    let reply = client.socket.receive(16 + 512, "the answer to the read");
    assert_eq!((reply[4..8].to_vec(), reply[15]), (vec![0; 4], 7));
    let mut rest = Vec::new();
    client.socket.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "{rest:?}");
}

/// Two clients wait for ever and hang up; then there is room for others, of whom there are two.
fn makes_room(connect: impl Fn() -> Socket) {
    for _ in 0..2 {
        let mut client = Haggler::new(connect());
        client.send(opt::GO, &go_data(b"", &[]));
        // It has been understood when it hangs up.
        client.socket.assert_silent(Duration::from_millis(200));
    }
    wait_for("room for another", || connect().read_exact(&mut [0; 18]).is_ok());
}

#[test]
fn clients_that_hang_up_while_they_wait_make_room_for_others() {
    let server = late("3600").option("--max-connections=2").start();
    makes_room(|| server.connect());
}

#[test]
fn clients_that_hang_up_over_tcp_while_they_wait_make_room_for_others() {
    let options = ["--filter=delay?delay-open=3600", "--max-connections=2"];
    let (server, address) = start_on_tcp(&options);
    makes_room(|| Socket::tcp(address).unwrap());
    server.stop();
}

#[test]
fn a_server_stops_while_clients_wait_to_be_accepted() {
    let mut server = late("3600").start();
    let mut clients: Vec<_> = (0..3).map(|_| server.haggle()).collect();
    for client in &mut clients {
        client.send(opt::GO, &go_data(b"", &[]));
    }
    std::thread::sleep(Duration::from_millis(100));
    server.signal(Signal::TERM);
    for client in &mut clients {
        let mut rest = Vec::new();
        client.socket.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
    }
}

#[test]
fn a_request_without_end_through_filters_keeps_no_other_client_waiting() {
    // Written as data, 4 EiB of zeroes take for ever; the filter on top may wait, the others not.
    for filters in [
        &["stats?statsfile=/dev/null", "nozero?zeromode=emulate"][..],
        &["nozero?zeromode=emulate", "stats?statsfile=/dev/null"],
        &["delay?delay-zero=1ms", "nozero?zeromode=emulate"],
        &["noparallel", "nozero?zeromode=emulate"],
    ] {
        let mut serve = Serve::device(["null", "4E"]);
        for filter in filters {
            serve = serve.option(format!("--filter={filter}"));
        }
        let server = serve.start();
        let mut busy = server.session(Mode::Extended, "");
        busy.send(&Request::new(cmd::WRITE_ZEROES, 0, 1 << 62));
        std::thread::sleep(Duration::from_millis(50));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // At least one of them shares a reactor with the busy one.
        let mut others: Vec<_> = (0..3 * cores).map(|_| server.session(Mode::Simple, "")).collect();
        for other in &mut others {
            assert_eq!(other.read(0, 512).unwrap(), [0; 512], "{filters:?}");
        }
        server.kill();
    }
}

#[test]
fn a_client_that_waits_and_has_sent_more_costs_nothing_while_it_waits() {
    let server = late("3s").start();
    let mut client = server.haggle();
    client.send(opt::GO, &go_data(b"", &[]));
    // The beginning of a request.
    client.socket.send(&REQUEST.to_be_bytes());
    client.socket.finish_sending();
    std::thread::sleep(Duration::from_millis(200));
    let before = server.processor_time();
    std::thread::sleep(Duration::from_secs(1));
    let spent = server.processor_time() - before;
    assert!(spent < 20, "{spent} hundredths of a second awake");
    assert_eq!(client.replies(opt::GO).pop().unwrap().kind, rep::ACK);
}
