//! The two sides of the handshake, and what they share.

pub(crate) mod client;
mod client_options;
pub(crate) mod server;
mod server_options;

/// Collects `wanted` bytes of a message in `partial`, from `rest`. Returns whether all are there;
/// memory follows what has arrived, not what was announced.
fn fill(partial: &mut Vec<u8>, rest: &mut &[u8], wanted: usize) -> bool {
    let missing = wanted.saturating_sub(partial.len());
    let (taken, left) = rest.split_at(missing.min(rest.len()));
    partial.extend_from_slice(taken);
    *rest = left;
    taken.len() == missing
}
