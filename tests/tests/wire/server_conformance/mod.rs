//! What any client may send to our server, and what the server must do: the numbered server
//! checks of the protocol's conformance list, each a test `server_check_NN_what`.
//!
//! The checks on TLS (39 to 45) are in `tests/tls`. Where the protocol leaves the server a choice,
//! the test either accepts every choice or names the one that we documented as ours.

mod block_status;
mod contexts;
mod durability;
mod extended;
mod handshake;
mod proxied;

mod requests;
mod robustness;
mod zeroing;

#[test]
fn every_check_has_a_test() {
    let missing =
        blackbox::listed::missing("server", 1..=91, &["wire/server_conformance", "wire/tls"]);
    assert!(missing.is_empty(), "{missing:?}");
}
