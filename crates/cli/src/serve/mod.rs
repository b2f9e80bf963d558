//! `diskferry serve`: exports disks over NBD.

mod arguments;
mod captive;
mod daemon;
mod exports;
mod settings;

use std::io::Write;
use std::process::ExitCode;

use clap::ArgMatches;
use server::Server;

use crate::failure::{Failure, Outcome};
use crate::verb::Verb;
use captive::{End, wait_for_end};
use settings::Settings;

pub(crate) const VERB: Verb = Verb {
    name: "serve",
    summary: "Serve disks over NBD",
    about: "One disk is named as everywhere, or in nbdkit's words: DEVICE ARG key=value. Several \
            are named with --export. Without -U, -p, --vsock or a socket of the service manager \
            it listens on TCP port 10809, or, with --run, on a private Unix socket.",
    example: "  diskferry serve memory 1G --run 'nbdinfo \"$uri\"'",
    arguments: arguments::arguments,
    run,
};

fn run(matches: &ArgMatches) -> Outcome {
    let settings = Settings::resolve(matches)?;
    // Threads and forks do not mix: become a daemon before anything is opened.
    let ready = if settings.daemon { Some(daemon::detach()?) } else { None };
    // Before anybody can connect: a stop that comes early is still a graceful one.
    let events = captive::watch_signals()?;
    let listeners = settings.listen()?;
    let exports = exports::open(&settings)?;
    let places: Vec<_> = listeners.iter().map(|l| l.place().clone()).collect();
    let uri = settings.uri(&places);
    let server = Server::start(exports, listeners, &settings.options)?;
    if let Some(path) = &settings.pidfile {
        write_pidfile(path)?;
    }
    if settings.print_uri {
        let mut out = std::io::stdout();
        // Whoever asked for it may have gone away; serving goes on.
        let _ = writeln!(out, "{uri}").and_then(|()| out.flush());
    }
    if let Some(ready) = ready {
        ready.announce()?;
    }
    let end = wait_for_end(&settings, &places, &uri, events);
    server.stop();
    match end? {
        End::Signal => Ok(ExitCode::SUCCESS),
        End::Command(code) => Ok(ExitCode::from(code)),
    }
}

fn write_pidfile(path: &std::path::Path) -> Result<(), Failure> {
    std::fs::write(path, format!("{}\n", std::process::id()))
        .map_err(|e| Failure::new(format!("{}: write the pid file: {e}", path.display())))
}
