//! `diskferry completions`: shell completions, from the table of verbs.

mod bash;

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;

use crate::failure::{ExitResult, Failure, USAGE};
use crate::output;
use crate::verb::Verb;
use crate::verbs::{VERBS, command};

pub(crate) const VERB: Verb = Verb {
    name: "completions",
    summary: "Print completions for a shell",
    about: "The script goes to standard output.",
    example: "  diskferry completions bash > diskferry.bash",
    status: "",
    usage: USAGE,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command.arg(
        Arg::new("shell").value_name("SHELL").required(true).value_parser(value_parser!(Shell)),
    )
}

fn run(matches: &ArgMatches) -> ExitResult {
    let shell = *matches.get_one::<Shell>("shell").ok_or_else(|| Failure::usage("no shell"))?;
    let script = match shell {
        Shell::Bash => bash::script(),
        Shell::Fish => of_clap(shell) + &devices_for_fish(),
        Shell::Zsh => with_devices_for_zsh(&of_clap(shell)),
        other => of_clap(other),
    };
    output::text(&script)
}

fn of_clap(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "diskferry", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The devices, beside the files, which fish offers by itself.
fn devices_for_fish() -> String {
    let whole = command();
    let verbs = VERBS.iter().filter(|verb| {
        let command = whole.find_subcommand(verb.name);
        command.is_some_and(|command| command.get_positionals().any(bash::is_disk))
    });
    let verbs: Vec<_> = verbs.map(|verb| verb.name).collect();
    format!(
        "complete -c diskferry -n \"__fish_diskferry_using_subcommand {}\" -a \"{}\" -d 'Device'\n",
        verbs.join(" "),
        bash::schemes().join(" ")
    )
}

/// clap offers files for a disk; zsh gets the devices beside them.
fn with_devices_for_zsh(script: &str) -> String {
    let quoted: Vec<_> = bash::schemes().iter().map(|s| s.replace(':', "\\:")).collect();
    let function = format!(
        "_diskferry_disks() {{\n    _alternative 'files:file:_files' \\\n        \
         \"devices:device:compadd -S '' -- {}\"\n}}\n\n_diskferry() {{",
        quoted.join(" ")
    );
    let mut out = String::with_capacity(script.len() + function.len());
    for line in script.lines() {
        let name = line.trim_start_matches(['\'', '*', ':']);
        if ["disk -- ", "source -- ", "target -- "].iter().any(|word| name.starts_with(word)) {
            out += &line.replace(":_files'", ":_diskferry_disks'");
        } else if line == "_diskferry() {" {
            out += &function;
        } else {
            out += line;
        }
        out.push('\n');
    }
    out
}
