//! Both sides of this crate against each other: every negotiation, in pieces of every size.

use wire::{
    ClientHandshake, ClientPolicy, ClientStep, Protocol, ServerHandshake, ServerPolicy, ServerStep,
    ServerTls,
};

use crate::checks::model::Menu;

const SIZE: u64 = 1 << 20;

/// Runs both handshakes to their end; each side receives at most `piece` bytes at a time.
fn negotiate(client: ClientPolicy, server: ServerPolicy, piece: usize) -> (ClientStep, ServerStep) {
    let mut menu = Menu::of_three();
    let mut client = ClientHandshake::new(client);
    let mut server = ServerHandshake::new(server);
    let (mut to_client, mut to_server) = (server.greeting(), Vec::new());
    let (mut client_end, mut server_end) = (None, None);
    for _ in 0..100_000 {
        if client_end.is_none() {
            let heard = to_client.len().min(piece);
            let (consumed, step) = client.advance(&to_client[..heard], &mut to_server);
            to_client.drain(..consumed);
            match step {
                ClientStep::NeedMore => {}
                ClientStep::StartTls => client.tls_established(&mut to_server),
                end => client_end = Some(end),
            }
        }
        if server_end.is_none() {
            let heard = to_server.len().min(piece);
            let input: Vec<u8> = to_server.drain(..heard).collect();
            let (_, step) = server.advance(&input, &menu, &mut to_client);
            match step {
                ServerStep::NeedMore | ServerStep::Wait => {}
                ServerStep::StartTls => {
                    menu.tls = true;
                    server.tls_established();
                }
                end => server_end = Some(end),
            }
        }
        if let (Some(client), Some(server)) = (&client_end, &server_end) {
            // A side that has disconnected does not wait for the reply.
            assert!(to_client.is_empty() || !matches!(client, ClientStep::Ready(_)));
            return (client.clone(), server.clone());
        }
    }
    panic!("no end: client {client_end:?}, server {server_end:?}");
}

#[test]
fn both_sides_agree_on_every_session() {
    let contexts = vec!["test:numbers".to_owned(), "base:allocation".to_owned()];
    for bits in 0..32_u32 {
        let bit = |at: u32| bits >> at & 1 != 0;
        let client = ClientPolicy {
            export: "alpha".into(),
            structured: bit(0),
            extended: bit(1),
            contexts: contexts.clone(),
            ..ClientPolicy::default()
        };
        let server = ServerPolicy {
            structured: bit(2),
            extended: bit(3),
            tls: if bit(4) { ServerTls::On } else { ServerTls::Off },
            ..ServerPolicy::default()
        };
        for tls in [false, bit(4)] {
            let client = ClientPolicy { tls, ..client.clone() };
            for piece in [1, 7, 4096] {
                let (client, server) = negotiate(client.clone(), server.clone(), piece);
                let (ClientStep::Ready(client), ServerStep::Transmit(server)) = (client, server)
                else {
                    panic!("bits {bits}")
                };
                let (mut ours, mut theirs) = (*client.clone(), *server);
                ours.contexts.sort();
                theirs.contexts.sort();
                assert_eq!(ours, theirs, "bits {bits}");
                let expected = if client.mode == wire::Framing::Simple { 0 } else { 2 };
                assert_eq!(client.contexts.len(), expected);
                assert_eq!(client.tls, tls);
            }
        }
    }
}

#[test]
fn old_servers_are_understood() {
    for (fixed_newstyle, no_zeroes) in [(false, false), (false, true), (true, false)] {
        let server = ServerPolicy { fixed_newstyle, no_zeroes, ..ServerPolicy::default() };
        let client = ClientPolicy { export: "alpha".into(), ..ClientPolicy::default() };
        let (client, _) = negotiate(client, server, 5);
        let ClientStep::Ready(session) = client else { panic!("{client:?}") };
        assert_eq!(session.size, SIZE);
        assert_eq!(session.protocol == Protocol::NewstyleFixed, fixed_newstyle);
    }
}

#[test]
fn a_list_of_our_own_server_has_every_detail() {
    let client = ClientPolicy { lists: true, ..ClientPolicy::default() };
    for piece in [1, 100_000] {
        let (client, server) = negotiate(client.clone(), ServerPolicy::default(), piece);
        let ClientStep::Listed(listed) = client else { panic!("{client:?}") };
        assert!(matches!(server, ServerStep::Close(wire::CloseReason::Abort)));
        let names: Vec<&str> = listed.iter().map(|export| export.name.as_str()).collect();
        assert_eq!(names, ["alpha", "beta"]);
        for export in listed {
            let session = export.details.unwrap().unwrap();
            assert_eq!(session.size, if export.name == "beta" { 2 * SIZE } else { SIZE });
            assert_eq!(session.description.as_deref(), Some("a disk for tests"));
            assert_eq!(session.available_contexts.map(|all| all.len()), Some(3));
            assert!(session.blocks_advertised);
        }
    }
}

#[test]
fn required_tls_on_both_sides_works_and_on_one_side_fails() {
    let client = |tls| ClientPolicy { export: "secret".into(), tls, ..ClientPolicy::default() };
    let server = |tls| ServerPolicy { tls, ..ServerPolicy::default() };
    let (ours, _) = negotiate(client(true), server(ServerTls::Require), 3);
    assert!(matches!(ours, ClientStep::Ready(session) if session.tls));
    let (ours, _) = negotiate(client(true), server(ServerTls::Off), 3);
    assert!(matches!(ours, ClientStep::Failed(_)));
    let (ours, _) = negotiate(client(false), server(ServerTls::Require), 3);
    let message = "server requires TLS, which is not enabled here";
    assert!(matches!(ours, ClientStep::Failed(error) if error.to_string() == message));
}
