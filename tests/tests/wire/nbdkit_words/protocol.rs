//! What is listened on, and what is offered to clients.

use std::time::{Duration, Instant};

use blackbox::haggle::Haggler;
use blackbox::launch::Serve;
use blackbox::peers::{diskferry, peer, skip_environment};
use blackbox::run::{ours, run};

#[test]
fn an_oldstyle_client_waits_for_a_slow_device() {
    // The filter accepts it later; until then nothing may be sent.
    let server = Serve::memory("1M").option("-o").option("--filter=delay?delay-open=300ms").start();
    let begun = Instant::now();
    let mut socket = server.connect();
    socket.receive(152, "the oldstyle greeting");
    assert!(begun.elapsed() >= Duration::from_millis(300));
}

#[test]
fn no_sr_and_no_mc_leave_only_what_older_servers_have() {
    let Some(nbdinfo) = peer("nbdinfo") else { return };
    let told = |option: &str| {
        let run_line = format!("{} \"$uri\"", nbdinfo.display());
        let outcome = run(&mut ours(["serve", option, "memory", "1M", "--run", &run_line]));
        outcome.succeeded().to_owned()
    };
    for option in ["--no-sr", "--no-structured-replies"] {
        let text = told(option);
        assert!(text.contains("using simple packets"), "{text}");
    }
    for option in ["--no-mc", "--no-meta-contexts"] {
        let text = told(option);
        assert!(!text.contains("using simple packets") && !text.contains("base:allocation"));
    }
}

#[test]
fn no_sr_refuses_extended_headers_too() {
    let server = Serve::memory("1M").option("--no-sr").start();
    let mut haggler = Haggler::new(server.connect());
    for option in [8, 11] {
        let replies = haggler.ask(option, &[]);
        assert!(replies.iter().all(|reply| reply.is_error()), "{option}: {replies:?}");
    }
}

#[test]
fn only_one_family_of_addresses_is_listened_on() {
    let listens = |option: &str| {
        let shell = format!(
            "for h in 127.0.0.1 '[::1]'; do {} info nbd://$h:$port >/dev/null 2>&1 \
             && echo $h; done; true",
            diskferry().display()
        );
        let outcome = run(&mut ours(["serve", option, "-p", "0", "memory", "1M", "--run", &shell]));
        outcome.succeeded().to_owned()
    };
    assert_eq!(listens("-4"), "127.0.0.1\n");
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skip_environment("no IPv6 here");
    }
    assert_eq!(listens("-6"), "[::1]\n");
    assert_eq!(listens("-v"), "127.0.0.1\n[::1]\n");
}
