//! nbdkit's plugins under `diskferry serve`, as they are: a plugin of these tests, which writes
//! down how it is called, and those of the distribution, each under nbdkit and under ours.

mod answers;
mod callbacks;
mod debian;
mod errors;
mod everywhere;
mod isolated;
mod models;
mod tables;

use std::path::Path;
use std::process::Command;

use blackbox::peers::{diskferry, peer, skip};
use blackbox::run::{Outcome, run};
use blackbox::temp::TempDir;

/// The header that plugins are compiled with.
const HEADER: &str = "/usr/include/nbdkit-plugin.h";

/// The peers that most of these tests need; false after saying that one is missing.
fn has_peers() -> bool {
    let missing = ["nbdkit", "nbdinfo", "nbdcopy", "nbdsh", "cc"].iter().any(|p| peer(p).is_none());
    if !missing && !Path::new(HEADER).exists() {
        skip("needs nbdkit-plugin.h (nbdkit-plugin-dev)");
        return false;
    }
    !missing
}

/// Compiles the witness, in the form that `flags` choose.
fn witness(temp: &TempDir, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire/plugins/witness.c");
    let version = if flags.iter().any(|flag| flag.starts_with("-DV=")) { "" } else { "-DV=2" };
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-w", "-o"]).arg(temp.join(WITNESS)).arg(source);
    cc.args(flags).args(Some(version).filter(|flag| !flag.is_empty()));
    run(&mut cc).succeeded();
}

/// The name of its library.
const WITNESS: &str = "nbdkit-witness-plugin.so";

/// A directory with the witness in the form that `flags` choose; `None`, after saying so, where a
/// peer is missing.
fn scene(flags: &[&str]) -> Option<TempDir> {
    has_peers().then(|| {
        let temp = TempDir::new();
        witness(&temp, flags);
        temp
    })
}

/// Which program serves a plugin.
#[derive(Clone, Copy, Debug)]
enum Host {
    Nbdkit,
    Ours,
}

impl Host {
    const BOTH: [Self; 2] = [Self::Nbdkit, Self::Ours];

    /// Runs a shell line in a directory; `SERVER` is the server.
    fn line(self, directory: &Path, text: &str) -> Outcome {
        let server = match self {
            Self::Nbdkit => "nbdkit -U -".to_owned(),
            Self::Ours => format!("{} serve", diskferry().display()),
        };
        let text = text.replace("SERVER", &server);
        run(Command::new("sh").args(["-c", &text]).current_dir(directory))
    }
}

/// What a host's run left behind.
struct Run {
    outcome: Outcome,
    /// What the witness wrote down.
    log: Vec<String>,
}

/// Serves the witness with these words, and runs a shell command beside it.
fn beside(host: Host, temp: &TempDir, words: &str, command: &str) -> Run {
    let _ = std::fs::remove_file(temp.join("log"));
    let text = format!("SERVER ./nbdkit-witness-plugin.so log=$PWD/log {words} --run '{command}'");
    let outcome = host.line(temp.path(), &text);
    let log = std::fs::read_to_string(temp.join("log")).unwrap_or_default();
    Run { outcome, log: log.lines().map(str::to_owned).collect() }
}

/// The same with a Python program that has `uri`, and `h`, which is not connected yet. `attempt(f)`
/// prints its result.
fn python(host: Host, temp: &TempDir, words: &str, program: &str) -> Run {
    let program = format!(
        "import nbd, os\nuri = os.environ[\"uri\"]\nh = nbd.NBD()\nh.add_meta_context(\"base:allocation\")\n\
         def attempt(f):\n    try:\n        print(f())\n    except nbd.Error as e:\n        print(\"error\", e.errno)\n\
         {program}"
    );
    std::fs::write(temp.join("program"), program).unwrap();
    let python = peer("nbdsh").unwrap();
    beside(host, temp, words, &format!("uri=\"$uri\" {} program", python.display()))
}

/// Data callbacks of a log, with their arguments.
fn data(log: &[String]) -> Vec<&str> {
    let names = ["pread", "pwrite", "flush", "trim", "zero", "extents", "cache"];
    let is_data = |line: &&str| {
        let mut words = line.split(' ');
        words.next().is_some_and(|name| names.contains(&name)) && words.next().is_some()
    };
    log.iter().map(String::as_str).filter(is_data).collect()
}
