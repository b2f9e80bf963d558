//! The numbered conformance checks, as far as they can be made without a socket.
//!
//! `server_check_NN_…` and `client_check_NN_…` carry the numbers of the project's checklist. What
//! the program shows over sockets too is stated once, in `blackbox::conformance`. Bytes are written
//! and read by hand, independently of the crate's own codec, so that a mistake in one is not hidden
//! by the same mistake in the other.

mod bytes;
mod client_handshake;
mod client_replies;
mod client_requests;
mod client_server;
mod model;
mod server;

/// The sources that hold the checks, from the top of the repository.
const SOURCES: [&str; 8] = [
    "crates/wire/tests/checks/client_handshake.rs",
    "crates/wire/tests/checks/client_replies.rs",
    "crates/wire/tests/checks/client_requests.rs",
    "crates/wire/tests/checks/server.rs",
    "tests/src/conformance/handshakes.rs",
    "tests/src/conformance/options.rs",
    "tests/src/conformance/replies.rs",
    "tests/src/conformance/requests.rs",
];

fn missing(side: &str, numbers: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let tests = |file| blackbox::listed::tests_of(&blackbox::listed::repository().join(file));
    let names: Vec<String> = SOURCES.into_iter().flat_map(tests).collect();
    let has = |number: &u32| {
        let begin = format!("{side}_check_{number:02}_");
        names.iter().any(|name| name.starts_with(&begin))
    };
    numbers.into_iter().filter(|number| !has(number)).collect()
}

/// The checks that need sockets, clocks, disks or TLS, which are tested elsewhere.
#[test]
fn every_check_that_needs_no_socket_has_a_test() {
    let (clocks_and_sockets, tls) = ([10, 36, 75, 76], [45]);
    let (disks, connections) = ([66, 67], [90]);
    let mut elsewhere = [&clocks_and_sockets[..], &tls, &disks, &connections].concat();
    elsewhere.sort_unstable();
    assert_eq!(missing("server", 1..=91), elsewhere);
    assert_eq!(missing("client", 1..=40), [39]);
}
