//! The numbered conformance checks, as far as they can be made without a socket.
//!
//! `server_check_NN_…` and `client_check_NN_…` carry the numbers of the project's checklist. Bytes
//! are written and read here by hand, independently of the crate's own codec, so that a mistake in
//! one is not hidden by the same mistake in the other.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod bytes;
mod client_handshake;
mod client_replies;
mod client_requests;
mod client_server;
mod model;
mod server_handshake;
mod server_requests;
mod server_status;
mod server_tls;

/// The sources that hold the checks.
const SOURCES: [&str; 7] = [
    include_str!("client_handshake.rs"),
    include_str!("client_replies.rs"),
    include_str!("client_requests.rs"),
    include_str!("server_handshake.rs"),
    include_str!("server_requests.rs"),
    include_str!("server_status.rs"),
    include_str!("server_tls.rs"),
];

fn missing(side: &str, numbers: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let named = |number: &u32| {
        let name = format!("fn {side}_check_{number:02}_");
        SOURCES.iter().any(|source| source.contains(&name))
    };
    numbers.into_iter().filter(|number| !named(number)).collect()
}

/// The checks that need sockets, clocks, disks or TLS, which are tested elsewhere.
#[test]
fn every_check_that_needs_no_socket_has_a_test() {
    let (clocks_and_sockets, tls) = ([10, 36, 75, 76], [45]);
    let (disks, connections) = ([66, 67, 72], [90]);
    let elsewhere = [&clocks_and_sockets[..], &tls, &disks, &connections].concat();
    assert_eq!(missing("server", 1..=91), {
        let mut elsewhere = elsewhere;
        elsewhere.sort_unstable();
        elsewhere
    });
    assert_eq!(missing("client", 1..=40), [39]);
}
