//! Our server in front of another one, through the `nbd` device: what passes through, and what
//! happens when the other one goes away.

mod abilities;
mod chain;
mod commands;
mod growing;
mod loss;
mod routes;

use std::path::Path;

use blackbox::launch::{Serve, Server};
use blackbox::run::{json, program, run};
use serde_json::Value;

/// Our server in front of `uri`, with further parameters of the `nbd` device.
fn in_front_of(uri: &str, words: &[&str]) -> Server {
    let uri = format!("uri={uri}");
    Serve::device(["nbd", &uri].into_iter().chain(words.iter().copied())).start()
}

/// The output of nbdinfo for the default export.
#[track_caller]
fn describe(nbdinfo: &Path, uri: &str) -> Value {
    let outcome = run(&mut program(&nbdinfo.to_owned(), ["--json", "--no-content", uri]));
    let whole = json(outcome.succeeded());
    whole["exports"][0].clone()
}
