//! What `serve` takes, in nbdkit's words where it has them.

use std::path::PathBuf;

use clap::{Arg, ArgAction, Command, ValueHint, value_parser};

use server::limits::{LIMITS, ServerLimit, ValueForm, fixed_lines};

use crate::arguments::{disk_as, filter_argument, flag, value};
use crate::image::{external_argument, format_argument, object};
use crate::patience;
use crate::sandbox;
use crate::words::Words;

use super::encryption;

pub(super) fn arguments(command: Command) -> Command {
    about(serving(command.disable_help_flag(true)))
}

/// What is said of serving: the options of `attach` as well.
pub(super) fn serving(command: Command) -> Command {
    // What is typed counts before what a configuration says, which is put in front of it.
    let command = command.args_override_self(true);
    let command = process(listening(disks(command)));
    handshake(limits(upstream(access(encryption::arguments(command)))))
}

fn disks(command: Command) -> Command {
    command
        .arg(
            disk_as(
                "disk",
                "DISK",
                "A path, URI or DEVICE:ARG?key=value; or DEVICE [ARG] [key=value]...",
            )
            .required(false)
            .num_args(0..),
        )
        .next_help_heading("Disks")
        .arg(
            value("--export NAME=DISK", "Serve a disk under a name; may be repeated")
                .value_parser(Words::Disk)
                .action(ArgAction::Append),
        )
        .arg(value("--default-export NAME", "The export for clients that name none"))
        .arg(
            value("--description TEXT", "Text that lists of exports show")
                .default_value("")
                .hide_default_value(true),
        )
        .arg(format_argument(
            "format",
            "Serve the disk in an image of this format; never guessed. An image that cannot be written is read-only",
        ))
        .arg(flag(
            "--image-opts",
            "The name of the disk is a list of QEMU's options, with a driver: driver=qcow2,file.filename=FILE",
        ))
        .arg(object())
        .arg(external_argument())
        .arg(sandbox::argument())
        .arg(filter_argument(
            "filter",
            "Apply a filter to each disk; may be repeated, the first is nearest the client",
        ))
        .arg(flag("-r, --readonly", "Refuse writes").alias("read-only"))
        .arg(
            value(
                "--config FILE",
                "Read options and exports from a file (TOML); SIGHUP reads it again",
            )
            .value_parser(value_parser!(PathBuf))
            .value_hint(ValueHint::FilePath),
        )
        .arg(flag("--check", "Check the command line and its --config, and exit"))
}

fn about(command: Command) -> Command {
    command
        .next_help_heading("Information")
        .arg(flag("--help", "Print help; with a device or filters, theirs"))
        .arg(
            Arg::new("brief-help")
                .short('h')
                .action(ArgAction::SetTrue)
                .help("The same, without rarely needed options"),
        )
        .arg(flag("-V, --version", "Print the version"))
        .arg(flag("--dump-config", "Print what this program can do, as key=value lines"))
        .arg(
            flag("--dump-plugin", "Print what a device can do, as key=value lines")
                .visible_alias("dump-device"),
        )
        .arg(flag("--short-options", "Print all options of one letter").hide(true))
        .arg(flag("--long-options", "Print all long options").hide(true))
}

fn listening(command: Command) -> Command {
    command
        .next_help_heading("Listening")
        .arg(
            value(
                "-U, --unix PATH",
                "Listen on a Unix socket; - for a private one; may be repeated",
            )
            .action(ArgAction::Append)
            .value_hint(ValueHint::FilePath),
        )
        .arg(
            value(
                "-p, --port PORT",
                "Listen on a TCP (or vsock) port; 0 for any free TCP port; may be repeated",
            )
            .action(ArgAction::Append)
            .value_parser(value_parser!(u32)),
        )
        .arg(
            value("-i, --ipaddr ADDR", "Listen on this address only; may be repeated")
                .action(ArgAction::Append)
                .alias("ip-addr")
                .value_hint(ValueHint::Hostname),
        )
        .arg(flag("-4, --ipv4-only", "Listen on IPv4 addresses only").overrides_with("ipv6-only"))
        .arg(flag("-6, --ipv6-only", "Listen on IPv6 addresses only").overrides_with("ipv4-only"))
        .arg(flag("--vsock", "Listen on vsock instead of TCP"))
        .arg(
            flag("-s, --single", "Serve one client, on standard input and output, and end")
                .alias("stdin"),
        )
        .arg(value("--socket-mode MODE", "The mode of the Unix sockets, for example 0660"))
        .arg(value(
            "--socket-owner USER[:GROUP]",
            "The owner of the Unix sockets; :GROUP sets only the group",
        ))
        .arg(
            value(
                "--attach POINT",
                "Attach the disk as a file, as `attach` does, instead of or in addition to \
                    listening; EXPORT=POINT attaches another export; may be repeated",
            )
            .value_parser(Words::Disk)
            .action(ArgAction::Append)
            .value_hint(ValueHint::FilePath),
        )
        .arg(value("--selinux-label LABEL", "The SELinux label of the listening sockets"))
        .arg(
            flag("--keepalive", "Probe silent TCP clients (always done)")
                .alias("keep-alive")
                .hide(true),
        )
}

fn handshake(command: Command) -> Command {
    command
        .next_help_heading("Protocol, for tests")
        .arg(
            flag("-n, --newstyle", "Speak the newstyle protocol (the default)")
                .alias("new-style")
                .overrides_with("oldstyle"),
        )
        .arg(
            flag("-o, --oldstyle", "Speak the oldstyle protocol: one export without a name")
                .alias("old-style")
                .overrides_with("newstyle"),
        )
        .arg(value(
            "--mask-handshake MASK",
            "Offer only these flags: 1 fixed newstyle, 2 no zeroes",
        ))
        .arg(
            flag("--no-sr", "Offer neither structured replies nor extended headers")
                .alias("no-structured-replies"),
        )
        .arg(flag("--no-eh", "Offer no extended headers").aliases(["no-extended-headers"]))
        .arg(flag("--no-mc", "Offer no metadata contexts").alias("no-meta-contexts"))
}

fn upstream(command: Command) -> Command {
    patience::arguments(command.next_help_heading("Other servers, behind this one"))
}

fn access(command: Command) -> Command {
    command.arg(
        value(
            "--allow NAME=RULES",
            "Restrict the export NAME to these clients, in lists too: \
             RULES are those of --filter=ip, as tls, psk-user:USER, dn:PATTERN, uid:1000 or \
             10.0.0.0/8; may be repeated",
        )
        .action(ArgAction::Append),
    )
}

/// Options for the limits that can be set, and at the end those that cannot.
fn limits(command: Command) -> Command {
    let fixed = format!("Limits that are fixed:\n{}\n", fixed_lines());
    let after = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let command = command.after_long_help(format!("{fixed}{after}")).next_help_heading("Limits");
    LIMITS.iter().fold(command, |command, limit| match limit.option {
        Some((option, written)) => command.arg(limit_argument(limit, option, written)),
        None => command,
    })
}

fn limit_argument(limit: &'static ServerLimit, option: &'static str, written: ValueForm) -> Arg {
    let name = match written {
        ValueForm::Number => "N",
        ValueForm::Time => "SECONDS",
        ValueForm::Size => "SIZE",
    };
    let argument =
        value(option, "").value_name(name).help(format!("{}; {}", limit.what, limit.then));
    let argument = match written {
        ValueForm::Number => argument.value_parser(value_parser!(u32).range(1..)),
        ValueForm::Time | ValueForm::Size => argument,
    };
    let argument = match option {
        "threads" => argument.short('t'),
        // nbdkit's words.
        "handshake-timeout" => argument.aliases(["timeout", "time-out"]),
        _ => argument,
    };
    match limit.default() {
        Some(value) => argument.default_value(value),
        None => argument,
    }
}

fn process(command: Command) -> Command {
    command
        .next_help_heading("Running")
        .arg(
            value("-e, --exportname NAME", "The name in $exportname and $uri of --run")
                .alias("export-name"),
        )
        .arg(value("--run CMD", "Run a shell command alongside the server; exit when it exits"))
        .arg(flag("--print-uri", "Print the URI on standard output when ready").aliases([
            "print-url",
            "show-uri",
            "show-url",
        ]))
        .arg(
            value("-P, --pidfile FILE", "Write the process id to a file when ready")
                .alias("pid-file")
                .value_parser(value_parser!(PathBuf))
                .value_hint(ValueHint::FilePath),
        )
        .arg(flag("--daemon", "Go into the background when ready").conflicts_with("run"))
        .arg(
            flag("-f, --foreground", "Stay in the foreground (as always without --daemon)")
                .alias("no-fork")
                .conflicts_with("daemon"),
        )
        .arg(
            flag("--exit-with-parent", "End when the parent process ends").conflicts_with("daemon"),
        )
        .arg(value("-u, --user USER", "Become this user when the sockets are open"))
        .arg(value("-g, --group GROUP", "Become this group when the sockets are open"))
        .arg(flag("--swap", "Lock the program in memory, so that it can serve swap space"))
        .arg(value(
            "--metrics WHERE",
            "Serve OpenMetrics over HTTP on a Unix socket (/PATH) or a loopback PORT",
        ))
        .arg(
            value(
                "--control SOCKET",
                "Take commands of `diskferry ctl` at this Unix socket, from our own user and root",
            )
            .value_parser(value_parser!(PathBuf))
            .value_hint(ValueHint::FilePath),
        )
        .arg(value("--log WHERE", "Where the log goes: stderr, syslog, null or /PATH"))
        .arg(
            value("--log-format text|json", "Lines of text, or a JSON object in each line")
                .value_parser(["text", "json"])
                .hide_possible_values(true),
        )
        .arg(value("--name NAME", "A name for this server in its log messages"))
        .arg(flag("-v, --verbose", "Log also which clients connect, and why connections end"))
        .arg(
            value("-D, --debug PLUGIN.FLAG=N", "Set a debug flag of a plugin; may be repeated")
                .value_parser(debug_flag)
                .action(ArgAction::Append),
        )
}

/// A flag as nbdkit writes it.
fn debug_flag(word: &str) -> Result<String, &'static str> {
    let named = word.split_once('=').is_some_and(|(flag, number)| {
        flag.split_once('.').is_some_and(|(plugin, flag)| !plugin.is_empty() && !flag.is_empty())
            && number.parse::<i32>().is_ok()
    });
    if named { Ok(word.to_owned()) } else { Err("it is not PLUGIN.FLAG=N") }
}
