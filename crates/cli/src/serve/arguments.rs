//! What `serve` takes, in nbdkit's words where it has them.

use std::path::PathBuf;

use clap::{Arg, ArgAction, Command, ValueHint, value_parser};

fn flag(id: &'static str, help: &'static str) -> Arg {
    Arg::new(id).long(id).action(ArgAction::SetTrue).help(help)
}

fn value(id: &'static str, name: &'static str, help: &'static str) -> Arg {
    Arg::new(id).long(id).value_name(name).help(help)
}

pub(super) fn arguments(command: Command) -> Command {
    command
        .arg(
            Arg::new("disk")
                .value_name("DISK")
                .num_args(0..)
                .value_hint(ValueHint::FilePath)
                .help("A path, URI or DEVICE:ARG?key=value; or DEVICE [ARG] [key=value]..."),
        )
        .arg(
            value("export", "NAME=DISK", "Serve a disk under a name; may be repeated")
                .action(ArgAction::Append),
        )
        .arg(value("default-export", "NAME", "What a client gets that asks for no name"))
        .arg(value("description", "TEXT", "What to say of the disk in a list").default_value(""))
        .arg(flag("readonly", "Refuse writes").short('r'))
        .arg(
            value("unix", "PATH", "Listen on a Unix socket; - for a private one")
                .short('U')
                .value_hint(ValueHint::FilePath),
        )
        .arg(
            value("port", "PORT", "Listen on a TCP (or vsock) port; 0 for any free TCP port")
                .short('p')
                .value_parser(value_parser!(u32)),
        )
        .arg(
            value("ipaddr", "ADDR", "Listen on this address only")
                .short('i')
                .value_hint(ValueHint::Hostname),
        )
        .arg(flag("vsock", "Listen on vsock instead of TCP"))
        .arg(
            value("exportname", "NAME", "The name in $exportname and $uri of --run")
                .short('e')
                .alias("export-name"),
        )
        .arg(value("run", "CMD", "Run a shell command beside the server; end when it ends"))
        .arg(flag("print-uri", "Print the URI on standard output when ready"))
        .arg(
            value("pidfile", "FILE", "Write the process id to a file when ready")
                .short('P')
                .value_parser(value_parser!(PathBuf))
                .value_hint(ValueHint::FilePath),
        )
        .arg(flag("daemon", "Go into the background when ready").conflicts_with("run"))
        .arg(
            flag("foreground", "Stay in the foreground (as always without --daemon)")
                .short('f')
                .alias("no-fork")
                .conflicts_with("daemon"),
        )
        .arg(
            value("threads", "N", "Threads for requests that wait for a disk")
                .short('t')
                .value_parser(value_parser!(u16).range(1..))
                .default_value("16"),
        )
        .arg(
            value("max-connections", "N", "Clients at a time; more are turned away")
                .value_parser(value_parser!(u32).range(1..))
                .default_value("1000"),
        )
        .arg(
            value("handshake-timeout", "SECONDS", "How long a client may haggle")
                .alias("timeout")
                .value_parser(value_parser!(u32).range(1..))
                .default_value("10"),
        )
        .arg(
            value("memory-limit", "SIZE", "Bytes of requests in flight, of all clients")
                .default_value("512M"),
        )
        .arg(flag("verbose", "Say why connections are closed").short('v'))
}
