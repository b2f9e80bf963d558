//! Checks 38 to 44, as far as they need no TLS: what each side may send before and after it.

use wire::{Framing, ServerPolicy, ServerTls};

use crate::bytes::{
    ACK, Ask, INFO, INVALID, POLICY, TLS_REQD, UNSUP, go, info, kinds, meta, option,
};
use crate::model::Connection;

fn with(tls: ServerTls) -> Connection {
    Connection::with(ServerPolicy { tls, ..ServerPolicy::default() })
}

fn under_tls() -> Connection {
    let mut connection = with(ServerTls::Require);
    assert_eq!(kinds(&connection.send(option(5, []))), [ACK]);
    connection.tls_established();
    connection
}

#[test]
fn server_check_38_without_tls_starttls_is_refused_and_the_handshake_goes_on() {
    let mut connection = with(ServerTls::Off);
    assert_eq!(kinds(&connection.send(option(5, []))), [POLICY]);
    assert_eq!(kinds(&connection.send(go("secret"))), [POLICY], "never TLS_REQD");
    assert_eq!(kinds(&connection.send(go("disk"))), [INFO, ACK]);
}

#[test]
fn server_check_39_where_tls_is_required_every_other_option_is_refused() {
    let mut connection = with(ServerTls::Require);
    for message in [
        option(3, []),
        info(6, "disk", &[]),
        go("nope"),
        option(8, []),
        option(11, []),
        meta(10, "disk", &[]),
        option(99, [1; 100]),
        option(99, vec![1; (1 << 20) + 1]),
    ] {
        assert_eq!(kinds(&connection.send(message)), [TLS_REQD]);
    }
    assert_eq!(connection.send(option(1, "disk")), b"");
    assert!(!connection.is_open());
    let mut leaving = with(ServerTls::Require);
    assert_eq!(kinds(&leaving.send(option(2, []))), [ACK]);
}

#[test]
fn server_check_40_starttls_with_data_is_invalid() {
    let mut connection = with(ServerTls::On);
    assert_eq!(kinds(&connection.send(option(5, [0]))), [INVALID]);
    assert!(!connection.starts_tls);
    assert_eq!(kinds(&connection.send(option(5, []))), [ACK]);
    assert!(connection.starts_tls);
}

#[test]
fn server_check_41_starttls_forgets_what_was_negotiated() {
    let mut connection = with(ServerTls::On);
    connection.send(option(8, []));
    connection.send(meta(10, "disk", &["base:allocation"]));
    connection.send(option(5, []));
    connection.tls_established();
    assert_eq!(kinds(&connection.send(go("disk"))), [INFO, ACK]);
    let session = connection.session();
    assert_eq!((session.mode, session.contexts.len(), session.tls), (Framing::Simple, 0, true));
    assert!(!session.flags.contains(wire::TransmissionFlags::SEND_DF));
    let answers = connection.ask(Ask { length: 1, ..Ask::default() }, &[]);
    assert!(!answers[0].is_chunk());
}

#[test]
fn server_check_42_plain_text_after_starttls_ends_the_connection_unanswered() {
    let mut connection = with(ServerTls::On);
    let out = connection.send(option(5, []).raw(option(3, [])));
    assert!(!connection.is_open());
    assert_eq!(out, b"", "not even the agreement");
}

#[test]
fn server_check_42_plain_text_while_tls_starts_ends_the_connection() {
    let mut handshake =
        wire::ServerHandshake::new(ServerPolicy { tls: ServerTls::On, ..ServerPolicy::default() });
    let menu = crate::model::Menu::default();
    let mut out = Vec::new();
    handshake.advance(&[0, 0, 0, 3], &menu, &mut out);
    handshake.advance(option(5, []).as_ref(), &menu, &mut out);
    out.clear();
    let (_, step) = handshake.advance(option(3, []).as_ref(), &menu, &mut out);
    assert!(matches!(step, wire::ServerStep::Close(_)));
    assert_eq!(out, b"");
}

#[test]
fn server_check_43_starttls_inside_tls_is_invalid() {
    let mut connection = under_tls();
    assert_eq!(kinds(&connection.send(option(5, []))), [INVALID]);
    assert_eq!(kinds(&connection.send(go("disk"))), [INFO, ACK]);
}

#[test]
fn server_check_43_inside_tls_every_option_is_answered() {
    let mut connection = under_tls();
    assert_eq!(kinds(&connection.send(option(99, []))), [UNSUP]);
    assert_eq!(kinds(&connection.send(go("secret"))), [INFO, ACK]);
}

#[test]
fn server_check_44_selective_tls_guards_some_exports() {
    let mut connection = with(ServerTls::On);
    assert_eq!(kinds(&connection.send(go("secret"))), [TLS_REQD]);
    assert_eq!(kinds(&connection.send(info(6, "secret", &[]))), [TLS_REQD]);
    assert_eq!(kinds(&connection.send(go("disk"))), [INFO, ACK]);
    let mut old = with(ServerTls::On);
    assert_eq!(old.send(option(1, "secret")), b"");
    assert!(!old.is_open());
}
