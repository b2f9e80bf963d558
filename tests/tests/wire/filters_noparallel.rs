//! With `serialize=connections` a second client waits in its handshake until the first has gone.

use std::time::Duration;

use blackbox::launch::Serve;
use blackbox::nbd::{cmd, go_data, opt, rep};
use blackbox::session::{Mode, Request};

fn serve() -> Serve {
    Serve::device(["memory", "1M", "serialize=connections"]).option("--filter=noparallel")
}

#[test]
fn a_second_client_is_accepted_when_the_first_has_gone() {
    let server = serve().start();
    let mut first = server.session(Mode::Structured, "");
    let mut second = server.haggle();
    second.send(opt::GO, &go_data(b"", &[]));
    second.socket.assert_silent(Duration::from_millis(100));
    first.write(0, &[1]);
    drop(first);
    while second.reply(opt::GO).kind != rep::ACK {}
    drop(second);
    server.session(Mode::Structured, "").assert_alive();
}

#[test]
fn a_client_that_gives_up_while_it_waits_does_not_keep_its_place() {
    let server = serve().start();
    let mut first = server.session(Mode::Structured, "");
    let mut second = server.haggle();
    second.send(opt::GO, &go_data(b"", &[]));
    second.socket.assert_silent(Duration::from_millis(100));
    drop(second);
    first.assert_alive();
    // One that only looks at the export has a place as well, and gives it back.
    drop(first);
    let mut looking = server.haggle();
    looking.export(opt::INFO, "", &[]).unwrap();
    drop(looking);
    server.session(Mode::Structured, "").assert_alive();
}

#[test]
fn the_next_client_does_not_wait_for_requests_of_one_that_has_gone() {
    // What is asked for waits for an hour.
    for filters in
        [&["delay?delay-read=3600"][..], &["cow", "delay?delay-read=3600"], &["rate?rate=1"]]
    {
        let mut serve = serve();
        for filter in filters {
            serve = serve.option(format!("--filter={filter}"));
        }
        let server = serve.start();
        let mut first = server.session(Mode::Structured, "");
        first.send(&Request::new(cmd::READ, 0, 4096));
        first.send(&Request::new(cmd::READ, 4096, 4096));
        drop(first);
        // It is accepted.
        server.session(Mode::Structured, "").flush();
        assert!(server.stop().success(), "{filters:?}");
    }
}
