//! `diskferry completions`: shell completions, from the table of verbs.

use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;

use crate::failure::{Failure, Outcome};
use crate::verb::{Verb, command};

pub(crate) const VERB: Verb = Verb {
    name: "completions",
    summary: "Print completions for a shell",
    about: "The script goes to standard output.",
    example: "  diskferry completions bash > diskferry.bash",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command.arg(
        Arg::new("shell").value_name("SHELL").required(true).value_parser(value_parser!(Shell)),
    )
}

fn run(matches: &ArgMatches) -> Outcome {
    let shell = *matches.get_one::<Shell>("shell").ok_or_else(|| Failure::usage("no shell"))?;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "diskferry", &mut script);
    // A reader that has gone away (`| head`) has had enough.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), &script);
    Ok(ExitCode::SUCCESS)
}
