//! nbdkit's command lines, given to `diskferry serve` as they are: the same lines run by both with
//! the same result, every option, parameters of filters, and what is refused with which hint.

mod about;
mod copies;
mod identity;
mod lines;
mod parameters;
mod process;
mod protocol;
mod single;

use std::path::Path;
use std::process::Command;

use blackbox::peers::{diskferry, peer};
use blackbox::run::{Outcome, ours, run};
use blackbox::temp::TempDir;

/// A shell line in which `SERVER` is the server and `NBDSH` is nbdsh.
fn line(text: &str, server: &str, directory: &Path) -> Outcome {
    let nbdsh = format!("{} -m nbd", peer("nbdsh").unwrap().display());
    let text = text.replace("SERVER", server).replace("NBDSH", &nbdsh);
    let mut command = Command::new("sh");
    run(command.args(["-c", &text]).current_dir(directory))
}

fn our_line(text: &str) -> Outcome {
    let temp = TempDir::new();
    line(text, &format!("{} serve", diskferry().display()), temp.path())
}

fn has_peers() -> bool {
    ["nbdkit", "nbdsh", "nbdinfo", "nbdcopy", "qemu-img"].iter().all(|name| peer(name).is_some())
}

/// The filters that this program has.
fn filters() -> Vec<String> {
    let outcome = run(&mut ours(["serve", "--dump-config"]));
    let lines = outcome.succeeded().lines();
    let line = lines.filter_map(|l| l.strip_prefix("filters=")).next().unwrap();
    line.split(',').map(str::to_owned).collect()
}

/// A TCP port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
