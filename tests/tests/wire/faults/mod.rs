//! A bad network, and servers that go and come back: a copy ends with an equal disk or with an
//! error, never with a wrong one, and never not at all; a client of our proxy sees nothing of it,
//! as long as the server is back in time.

mod copies;
mod given_up;
mod proxies;
mod replies;
mod returns;

use std::path::Path;

use blackbox::launch::{Serve, Server};

/// Exit status of what failed because a way failed.
const TRANSIENT: i32 = 75;

/// Our server of a file, on a socket that it may be started on again.
fn serve_at(socket: &Path, disk: &Path) -> Server {
    Serve::file(disk).start_at(socket)
}

/// The `nbd` device with parameters, as one word.
fn device(uri: &str, params: &str) -> String {
    match (params, uri.contains('?')) {
        ("", _) => uri.to_owned(),
        (_, true) => format!("nbd:{uri}&{params}"),
        (_, false) => format!("nbd:{uri}?{params}"),
    }
}

/// Bytes with holes in them: this many pieces of 64 KiB, every third of which is empty.
fn patchwork(pieces: usize, seed: u64) -> Vec<u8> {
    let piece = 64 << 10;
    let mut bytes = blackbox::temp::pattern(seed, pieces * piece);
    for hole in bytes.chunks_mut(piece).skip(1).step_by(3) {
        hole.fill(0);
    }
    bytes
}
