//! `diskferry shell`: nbdsh's options and prompt, in the system's Python.
//!
//! The shell is a module of the package `diskferry` (crates/python). This only starts Python with
//! it, and says how to install what is missing.

use std::os::unix::process::CommandExt;
use std::process::Command as Program;

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::arguments::{flag, value};
use crate::failure::{ExitResult, Failure, USAGE};
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "shell",
    summary: "Interactive NBD shell (Python)",
    about: "Options and prompt are nbdsh's: `h` is a handle of the module `nbd`, a drop-in for \
            libnbd's; the module `diskferry` is imported too. It needs Python 3.11 and the \
            package in crates/python. With -c there is no prompt; options take effect in order.",
    example: "  diskferry serve memory 1M \\\n    \
              --run 'diskferry shell -u \"$uri\" -c \"print(h.get_size())\"'",
    status: "1: a statement failed.",
    usage: USAGE,
    arguments,
    run,
};

/// The Python code. It says in one line that the package is missing, and how to install it.
const BEGIN: &str = "\
import sys
try:
    from diskferry.shell import main
except ModuleNotFoundError as missing:
    sys.exit(f'diskferry: shell: {missing} ({sys.executable}); install the package from a checkout \
of diskferry: python3 -m pip install ./crates/python')
sys.exit(main(sys.argv[1:]))
";

fn arguments(command: Command) -> Command {
    let again = |arg: Arg| arg.action(ArgAction::Append);
    command
        .arg(again(value("--uri URI", "Connect to an NBD URI")).short('u').alias("connect"))
        .arg(flag("-b, --base-allocation", "Ask for the map (base:allocation)"))
        .arg(
            again(value("--command CMD", "Run a statement of Python (- reads standard input)"))
                .short('c')
                .allow_hyphen_values(true),
        )
        .arg(flag("--opt-mode", "Stop before an export is chosen, to negotiate options"))
        .arg(Arg::new("no-handle").short('n').action(ArgAction::SetTrue).help("Make no handle `h`"))
        .arg(flag("-v, --verbose", "Print what is negotiated, and messages of servers"))
}

fn run(_: &ArgMatches) -> ExitResult {
    // Unchanged: their order matters.
    let words = std::env::args_os().skip_while(|word| word != VERB.name).skip(1);
    let mut python = Program::new("python3");
    python.args(["-c", BEGIN]).args(words);
    let e = python.exec();
    Err(Failure::new(format!("python3: {e}; the shell needs Python 3.11 or newer")))
}
