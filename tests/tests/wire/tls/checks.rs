//! TLS in the protocol's conformance list: server checks 39 to 45 and client checks 18 and 19, as
//! far as they are not in `hostile.rs` and `calling.rs`. All of them are tests `server_check_NN_…`
//! and `client_check_NN_…`.

use blackbox::haggle::Haggler;
use blackbox::launch::{Serve, Server};
use blackbox::nbd::{BASE_ALLOCATION, context_data, go_data, opt, rep};
use blackbox::run::{ours, run};

use super::certificates::Credentials;
use super::hostile::{assert_serves, gnutls, server};

/// A server that talks only to clients that encrypt.
fn strict(credentials: &Credentials) -> Server {
    let keys = format!("--tls-psk={}", credentials.keys().display());
    Serve::memory("1M").option("--tls=require").option(keys).start()
}

/// Options that are about an export or more than that.
fn options() -> Vec<(u32, Vec<u8>)> {
    vec![
        (opt::LIST, Vec::new()),
        (opt::INFO, go_data(b"", &[])),
        (opt::GO, go_data(b"", &[])),
        (opt::GO, go_data(b"unknown", &[])),
        (opt::STRUCTURED_REPLY, Vec::new()),
        (opt::EXTENDED_HEADERS, Vec::new()),
        (opt::LIST_META_CONTEXT, context_data("", &[])),
        (opt::SET_META_CONTEXT, context_data("", &[BASE_ALLOCATION])),
        (99, vec![7; 100]),
    ]
}

#[test]
fn server_check_39_where_tls_is_required_every_other_option_is_refused() {
    let Some(credentials) = Credentials::make() else { return };
    let server = strict(&credentials);
    let mut haggler = server.haggle();
    for (option, data) in options() {
        assert_eq!(haggler.outcome(option, &data), rep::TLS_REQD, "option {option}");
    }
    haggler.send(opt::EXPORT_NAME, b"");
    haggler.socket.assert_closed();
    let mut leaving = server.haggle();
    assert_eq!(leaving.outcome(opt::ABORT, &[]), rep::ACK, "a client may leave");
    leaving.socket.assert_closed();
    // Nor to a client that knows no options, from which nothing can be hidden but the connection.
    let mut old = Haggler::with_flags(server.connect(), 0);
    old.send(opt::EXPORT_NAME, b"");
    old.socket.assert_closed();
    serves_under_tls(&server, &credentials);
}

#[test]
fn server_check_40_starttls_with_data_is_invalid_and_nothing_begins() {
    let Some(credentials) = Credentials::make() else { return };
    let server = server(&credentials);
    for size in [1, 4096, 100_000] {
        let mut haggler = server.haggle();
        let outcome = haggler.outcome(opt::STARTTLS, &vec![0x16; size]);
        assert!([rep::INVALID, rep::TOO_BIG].contains(&outcome), "{size} bytes: {outcome:#x}");
        haggler.assert_alive();
        assert_eq!(haggler.outcome(opt::STARTTLS, &[]), rep::ACK);
    }
    assert_serves(&server, &credentials);
}

#[test]
fn server_check_43_starttls_under_tls_is_invalid_and_the_session_goes_on() {
    let Some(credentials) = Credentials::make() else { return };
    let server = server(&credentials);
    let Some(told) = gnutls(&server, &credentials, "again") else { return };
    assert_eq!(told.succeeded().trim(), "invalid");
    assert_serves(&server, &credentials);
}

#[test]
fn server_check_44_an_export_for_tls_only_says_so_and_others_are_served() {
    let Some(credentials) = Credentials::make() else { return };
    let keys = format!("--tls-psk={}", credentials.keys().display());
    let exports = Serve::exports(&[("open", "memory:1M"), ("secret", "memory:2M")]);
    let server = exports.option("--tls=on").option(keys).option("--allow=secret=tls").start();
    let mut haggler = server.haggle();
    for option in [opt::INFO, opt::GO] {
        assert_eq!(haggler.outcome(option, &go_data(b"secret", &[])), rep::TLS_REQD);
    }
    assert_eq!(haggler.list().iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["open"]);
    haggler.go("open").assert_alive();
    let mut old = server.haggle();
    old.send(opt::EXPORT_NAME, b"secret");
    old.socket.assert_closed();
}

#[test]
fn client_check_18_a_server_that_requires_tls_gets_it_or_a_clear_refusal() {
    let Some(credentials) = Credentials::make() else { return };
    let server = strict(&credentials);
    for words in [&["info"][..], &["list"], &["map"]] {
        let outcome = run(ours(words).arg(server.uri("")));
        assert!(outcome.failed().contains("TLS"), "{outcome:?}");
    }
    serves_under_tls(&server, &credentials);
}

fn serves_under_tls(server: &Server, credentials: &Credentials) {
    let (socket, keys) = (server.socket().display(), credentials.keys());
    let uri = format!("nbds+unix://bob@/?socket={socket}&tls-psk-file={}", keys.display());
    assert!(run(&mut ours(["info", &uri])).succeeded().contains("with TLS"));
}
