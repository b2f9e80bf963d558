//! Other projects' clients against our server: libnbd's tools, QEMU's, fio, and the shell,
//! service manager and signals that start, find and stop a server.

mod fio;
mod libnbd;
mod qemu;
mod service;
mod socket;

use std::path::Path;

use blackbox::run::{Outcome, program, run};

/// Runs a peer and returns what it did.
fn peer_run<S: AsRef<std::ffi::OsStr>>(path: &Path, args: impl IntoIterator<Item = S>) -> Outcome {
    run(&mut program(&path.to_path_buf(), args))
}

/// Runs a peer that must succeed; returns its standard output.
#[track_caller]
fn peer_ok<S: AsRef<std::ffi::OsStr>>(path: &Path, args: impl IntoIterator<Item = S>) -> String {
    peer_run(path, args).succeeded().to_owned()
}
