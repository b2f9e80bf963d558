//! `diskferry serve`: exports disks over NBD.

mod about;
mod arguments;
mod captive;
mod daemon;
mod disks;
mod exports;
mod identity;
mod listening;
mod settings;
mod single;
mod surroundings;
mod words;

use std::io::Write;
use std::process::ExitCode;
use std::sync::mpsc::Sender;
use std::time::Duration;

use clap::ArgMatches;
use device::WorkPool;
use filters::Context;
use rustix::process::{Pid, getppid};
use server::{Level, Listener, Server};

use crate::failure::{Failure, Outcome};
use crate::verb::Verb;
use captive::{End, Event, Signals, wait_for_end};
use daemon::Ready;
use settings::Settings;
use single::Client;

pub(crate) const VERB: Verb = Verb {
    name: "serve",
    summary: "Serve disks over NBD",
    about: "One disk is named as everywhere, or in nbdkit's words: DEVICE ARG key=value. Several \
            are named with --export. Without -U, -p, -s, --vsock or a socket of the service \
            manager it listens on TCP port 10809, or, with --run, on a private Unix socket. \
            Parameters go to the filters that know them, and the rest to the device: see \
            --help DEVICE and --filter=FILTER --help. SIGUSR1 makes filters report.",
    example: "  diskferry serve memory 1G --run 'nbdinfo \"$uri\"'",
    arguments: arguments::arguments,
    run,
};

/// How long a client on pipes may take to read what is still owed to it.
const LINGER: Duration = Duration::from_secs(10);

/// How long the end waits for a reader of the log.
const FLUSH: Duration = Duration::from_secs(2);

fn run(matches: &ArgMatches) -> Outcome {
    if let Some(answer) = about::answer(matches) {
        return answer;
    }
    let parent = getppid();
    let mut settings = Settings::resolve(matches)?;
    settings.options.log = settings.log()?;
    for flag in matches.get_many::<String>("debug").unwrap_or_default() {
        settings.options.log.say(format_args!("-D {flag}: there are no debug flags; ignored"));
    }
    let mut listeners = settings.listening.activated()?;
    // Threads and forks do not mix: become a daemon before anything is opened.
    let ready = if settings.daemon { Some(daemon::detach()?) } else { None };
    // Before anybody can connect: a stop that comes early is still a graceful one.
    let signals = Signals::register()?;
    let client = if settings.listening.is_single() { Some(Client::take()?) } else { None };
    if listeners.is_empty() && settings.identity.is_given() {
        // While we may still; the disks are opened by who serves them.
        listeners = listen(&settings)?;
    }
    settle(&settings, parent)?;
    // Only from here on are there other threads: they are who we are by now.
    serve(&settings, signals, client, listeners, ready)
}

/// Becomes what this process is to be while it serves.
fn settle(settings: &Settings, parent: Option<Pid>) -> Result<(), Failure> {
    surroundings::allow_descriptors();
    if settings.lock_memory {
        surroundings::lock_memory()?;
    }
    settings.identity.assume()?;
    if settings.exit_with_parent {
        surroundings::exit_with_parent(parent)?;
    }
    Ok(())
}

fn listen(settings: &Settings) -> Result<Vec<Listener>, Failure> {
    settings.listening.open(settings.run.is_some(), &settings.identity)
}

fn serve(
    settings: &Settings,
    signals: Signals,
    client: Option<Client>,
    mut listeners: Vec<Listener>,
    ready: Option<Ready>,
) -> Outcome {
    let (events, next) = signals.start();
    let context = Context::new(WorkPool::new(settings.options.workers));
    let exports = exports::open(settings, &context)?;
    if listeners.is_empty() {
        // Only now: whoever can connect finds the disks open, and locked.
        listeners = listen(settings)?;
    }
    let places: Vec<_> = listeners.iter().map(|l| l.place().clone()).collect();
    let uri = listening::uri(&places, settings.listening.family, &settings.export_name);
    let mut server = Some(Server::start(exports, listeners, &settings.options)?);
    let is_single = client.is_some();
    if let (Some(client), Some(server)) = (client, &server) {
        adopt(server, client, events.clone())?;
    }
    let stop = events.clone();
    context.control.when_stopped(move || {
        // Nobody listens any more if it ends just now.
        let _ = stop.send(Event::Stop);
    });
    let mut stop = || server.take().map_or((), Server::stop);
    let mut wait = || wait_for_end(settings, &places, &uri, (&events, &next), &context, &mut stop);
    let end = announce(settings, &uri, ready).and_then(|()| wait());
    // Also after a failure: only a server that has stopped has removed its socket.
    stop();
    if is_single && matches!(end, Ok(End::Asked)) {
        let _ = next.recv_timeout(LINGER);
    }
    context.control.end();
    let complaints = context.control.take_complaints();
    let log = &settings.options.log;
    for complaint in &complaints {
        log.event(Level::Error, None, None, format_args!("{complaint}"));
    }
    // What is not written by then has no reader.
    let _ = log.flush(FLUSH);
    match end? {
        _ if !complaints.is_empty() => Ok(ExitCode::FAILURE),
        End::Asked | End::Idle => Ok(ExitCode::SUCCESS),
        End::Command(code) => Ok(ExitCode::from(code)),
    }
}

/// Serves the client that came with us; its end is an event.
fn adopt(server: &Server, client: Client, events: Sender<Event>) -> Result<(), Failure> {
    let (socket, carrier) = client.socket()?;
    server.adopt(socket)?;
    let idle = server.idle();
    std::thread::spawn(move || {
        idle.wait();
        carrier.finish();
        // Nobody listens any more if a signal ended us.
        let _ = events.send(Event::Idle);
    });
    Ok(())
}

/// Tells whoever waits that the server is ready.
fn announce(settings: &Settings, uri: &str, ready: Option<Ready>) -> Result<(), Failure> {
    if let Some(path) = &settings.pidfile {
        write_pidfile(path)?;
    }
    if settings.print_uri {
        let mut out = std::io::stdout();
        // Whoever asked for it may have gone away; serving goes on.
        let _ = writeln!(out, "{uri}").and_then(|()| out.flush());
    }
    ready.map_or(Ok(()), Ready::announce)
}

fn write_pidfile(path: &std::path::Path) -> Result<(), Failure> {
    std::fs::write(path, format!("{}\n", std::process::id()))
        .map_err(|e| Failure::new(format!("{}: write the pid file: {e}", path.display())))
}
