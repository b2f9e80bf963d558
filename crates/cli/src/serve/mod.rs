//! `diskferry serve`: exports disks over NBD.

mod about;
mod access;
mod arguments;
mod attaching;
mod captive;
mod config;
mod daemon;
mod disks;
mod dump;
mod encryption;
mod exports;
mod hot;
mod identity;
mod listening;
mod notify;
mod pidfile;
mod points;
mod reach;
mod reload;
mod settings;
mod signals;
mod single;
mod stopping;
mod surroundings;
mod terminal;
mod words;

use runtime::{Context, Debugging, OperatorLog, WorkPool};
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use attach::Attachment;
use clap::{Arg, ArgMatches, Command, ValueHint};
use rustix::process::{Pid, getppid};
use server::{ListenAddress, Listener, Server};
use serving::control::{Controlled, LiveExports};
use serving::{Live, Severity};

use crate::failure::{ExitResult, Failure, USAGE};
use crate::names;
use crate::sandbox::Sandbox;
use crate::verb::Verb;
use crate::words::Words;
use attaching::MadePoint;
use captive::{CommandEnvironment, End, Event, wait_for_end};
use daemon::Ready;
use exports::OpenExport;
use hot::HotDisks;
use notify::Notify;
use pidfile::PidFile;
use points::ExportPoint;
use reload::HotParts;
use settings::Settings;
use signals::Signals;
use single::OnlyClient;
use stopping::Stopping;
use surroundings::Descriptors;

pub(crate) const VERB: Verb = Verb {
    name: "serve",
    summary: "Serve disks over NBD",
    about: "Name a single disk as for all verbs, or as in nbdkit: DEVICE ARG key=value. For \
            several disks use --export or a file (--config). Without -U, -p, -s, --vsock or \
            socket activation, it listens on TCP port 10809, or with --run on a private Unix \
            socket. Parameters go to the filters that know them, and the rest to the device: see \
            --help DEVICE and --filter=FILTER --help. On SIGUSR1 the server and its filters write \
            a report; SIGHUP reloads a server with --config or --daemon or under a service \
            manager, and ends any other.",
    example: "  diskferry serve memory 1G --run 'nbdinfo \"$uri\"'\n  \
              diskferry serve --filter=cow pattern 1M --run 'nbdinfo --size \"$uri\"'\n  \
              diskferry serve --export a=memory:1G --export b=null:1T \\\n    \
              --run 'diskferry list \"$uri\"'",
    status: "With --run: that of the command, or 1 if the server failed first.",
    usage: USAGE,
    arguments: arguments::arguments,
    run,
};

pub(crate) const ATTACH: Verb = Verb {
    name: "attach",
    summary: "Attach a disk as a file, block device or virtual machine disk",
    about: "POINT is an empty or new file, or a free /dev/nbd0 or /dev/ublkb0; programs read and write the disk there. fsync makes \
            what they wrote durable. Options are those of `serve`; with -U, -p or --vsock the disk is also served. `detach \
            POINT`, a signal or the end of the command of --run detaches it and unmounts the point. `fuse:POINT?cache=true` \
            keeps what was read in the page cache, for a disk that nothing else changes. Users other than root need \
            fusermount3. `vhost-user:SOCKET` is a disk of virtual machines (vhost-user-blk); guest memory that can shrink is \
            accepted with `?unsealed=true`.",
    example: "  diskferry attach memory:1G disk.img --run 'mkfs.ext4 -q disk.img'",
    status: "With --run: that of the command, or 1 if attaching failed first.",
    usage: USAGE,
    arguments: attaching_arguments,
    run: start,
};

fn attaching_arguments(command: Command) -> Command {
    let command = arguments::serving(command);
    let command = command.mut_arg("disk", |disk| {
        disk.required(true).num_args(1).help("A path, URI or DEVICE:ARG?key=value")
    });
    let point = Arg::new("point").value_name("POINT").required(true);
    let point = point.value_parser(Words::Disk).value_hint(ValueHint::FilePath);
    command.arg(point.index(2).help(
        "Where it appears: FILE, fuse:FILE?cache=true, /dev/nbd0, /dev/ublkb0 or vhost-user:SOCKET",
    ))
}

/// How long a client on pipes may take to read the replies that it is owed.
const LINGER: Duration = Duration::from_secs(10);

/// How long the end waits for a reader of the log.
const FLUSH: Duration = Duration::from_secs(2);

fn run(matches: &ArgMatches) -> ExitResult {
    if let Some(answer) = about::answer(matches) {
        return answer;
    }
    start(matches)
}

/// Serves, attaches, or both.
fn start(matches: &ArgMatches) -> ExitResult {
    let parent = getppid();
    let mut settings = match matches.get_one::<PathBuf>("config") {
        Some(path) => Settings::read(path)?,
        None => Settings::resolve(matches, None)?,
    };
    // Read before --user takes effect: the keys may be readable for the first user only.
    settings.options.tls = settings.encryption.acceptor()?;
    if matches.get_flag("check") {
        return Ok(ExitCode::SUCCESS);
    }
    settings.options.log = settings.log()?;
    if let Some(warning) = settings.encryption.warning() {
        settings.options.log.say(format_args!("warning: {warning}"));
    }
    let mut listeners = settings.listening.activated()?;
    settings.listening.look_up()?;
    // Threads and forks do not mix: become a daemon before anything is opened.
    let ready = if settings.daemon { Some(daemon::detach()?) } else { None };
    // Before a client can connect: an early signal still ends it gracefully.
    let notify = Notify::from_environment()?;
    let signals = Signals::register(settings.reloads(&notify))?;
    let client = if settings.listening.is_single() { Some(OnlyClient::take()?) } else { None };
    if listeners.is_empty() && settings.identity.is_given() {
        // While we may still; the disks are opened as the user that serves them.
        listeners = listen(&settings)?;
    }
    let metrics = match &settings.metrics {
        Some(place) => serving::endpoint::listen(place)?,
        None => Vec::new(),
    };
    let control = match &settings.control {
        Some(path) => Some(serving::control::listen(path, settings.identity.user())?),
        None => None,
    };
    let points = attaching::prepare(&settings)?;
    // The sandbox knows the command lines of these processes.
    disk::debug_processes(settings.options.verbose, &settings.debug);
    settle(&settings, parent)?;
    // Other threads are started only from here on: they have the new user, and the sandbox.
    let sandbox = Sandbox::enter(settings.sandbox, &reach::reach(&settings))?.accepting();
    // Programs are started with the limit as it was.
    let descriptors = Descriptors::allow();
    settings.options.log.start(settings.options.verbose)?;
    let log = settings.options.log.clone();
    let stopping = Stopping::new(log, notify.clone(), settings.run.is_some());
    let events = signals.start(&stopping);
    let failed = Cell::new(false);
    let serving = ServeProcess {
        settings: &settings,
        descriptors,
        sandbox,
        notify,
        stopping: stopping.clone(),
        events,
        failed,
        attached: RefCell::default(),
    };
    serving.will_remove(&metrics);
    serving.will_remove(control.as_slice());
    let beside = OtherDoors { metrics, control, points };
    let outcome = serving.serve(client, listeners, beside, ready);
    stopping.tidy();
    // What is not written by then has no reader.
    let _ = settings.options.log.flush(FLUSH);
    outcome
}

/// Switches user, locks memory, and so on, before serving.
fn settle(settings: &Settings, parent: Option<Pid>) -> Result<(), Failure> {
    if settings.lock_memory {
        surroundings::lock_memory()?;
    }
    settings.identity.assume(settings.run.is_some())?;
    if settings.exit_with_parent {
        surroundings::exit_with_parent(parent)?;
    }
    Ok(())
}

fn listen(settings: &Settings) -> Result<Vec<Listener>, Failure> {
    settings.listening.open(settings.run.is_some(), &settings.identity)
}

/// What there is besides listening for clients of NBD.
struct OtherDoors {
    metrics: Vec<Listener>,
    control: Option<Listener>,
    points: Vec<MadePoint>,
}

/// A process that serves.
struct ServeProcess<'a> {
    settings: &'a Settings,
    descriptors: Descriptors,
    sandbox: Sandbox,
    notify: Notify,
    stopping: Arc<Stopping>,
    events: (Sender<Event>, Receiver<Event>),
    /// Not everything ended as it should.
    failed: Cell<bool>,
    /// The disks that are attached.
    attached: RefCell<Vec<Attachment>>,
}

impl ServeProcess<'_> {
    fn serve(
        &self,
        client: Option<OnlyClient>,
        mut listeners: Vec<Listener>,
        beside: OtherDoors,
        ready: Option<Ready>,
    ) -> ExitResult {
        let settings = self.settings;
        self.will_remove(&listeners);
        let context = context(settings);
        self.stopping.waits_for(context.control.clone());
        let (exports, served) = exports::open(settings, &context)?;
        // After errors of the disks, which matter more.
        if let Some(why) = self.sandbox.why_off() {
            // nbdkit confines nothing, and says nothing.
            let level = if names::is_nbdkit() { Severity::Info } else { Severity::Warning };
            settings.options.log.event(level, None, None, format_args!("{why}"));
        }
        let left = context.debugging.left();
        for flag in left.iter().filter(|flag| !is_of_server(flag)) {
            let what = "no served plugin has this flag; ignored";
            settings.options.log.say(format_args!("-D {flag}: {what}"));
        }
        if listeners.is_empty() {
            // Only now: a client that can connect finds the disks open, and locked.
            listeners = listen(settings)?;
            self.will_remove(&listeners);
        }
        let places: Vec<_> = listeners.iter().map(|l| l.place().clone()).collect();
        let uris = settings.uris(&places);
        // Before the first client: what it was promised is kept, however soon the stop comes.
        self.stopping.serves();
        let server = Server::start(exports, listeners, &settings.options)?;
        let is_alone = places.is_empty();
        *self.attached.borrow_mut() =
            attaching::attach(beside.points, &server, &served, is_alone, &self.events.0)?;
        tell_of(&server, beside.metrics, &context)?;
        let disks = HotDisks::new(settings, &context);
        let exports = LiveExports::new(Controlled {
            exports: exports::controlled(settings, &served),
            live: Live::of(server.hub()),
            opener: Box::new(disks.clone()),
            log: settings.options.log.clone(),
        });
        if let Some(listener) = beside.control {
            serving::control::start(listener, &exports)?;
        }
        let hot = HotParts { exports, disks };
        let held = self.sandbox.shut()?;
        settings.options.log.event(Severity::Info, None, None, format_args!("sandbox: {held}"));
        let is_single = client.is_some();
        if let Some(client) = client {
            adopt(&server, client, self.events.0.clone())?;
        }
        let stop = self.events.0.clone();
        context.control.when_stopped(move || {
            // The receiver has gone if it ends just now.
            let _ = stop.send(Event::Stop);
        });
        let mut server = Some(server);
        let ready_now = Announced {
            places: &places,
            uris: &uris,
            served: &served,
            points: &settings.points,
            hot: &hot,
        };
        let end = announce(self, &ready_now, ready)
            .and_then(|()| self.wait(&ready_now, &context, &mut server));
        // Also after a failure.
        self.stop(&mut server);
        if is_single && matches!(end, Ok(End::Asked)) {
            let _ = self.events.1.recv_timeout(LINGER);
        }
        self.end(&context);
        match end? {
            // The panic has been reported.
            _ if self.failed.get() || runtime::panics() > 0 => Ok(ExitCode::FAILURE),
            End::Asked | End::Idle => Ok(ExitCode::SUCCESS),
            End::Command(code) => Ok(ExitCode::from(code)),
        }
    }

    /// Their names are removed even if the end cannot wait.
    fn will_remove(&self, listeners: &[Listener]) {
        for name in listeners.iter().filter_map(Listener::name) {
            let name = name.clone();
            self.stopping.leaves(Arc::new(move || name.remove()));
        }
    }

    fn wait(
        &self,
        ready: &Announced<'_>,
        context: &Context,
        server: &mut Option<Server>,
    ) -> Result<End, Failure> {
        let Self { settings, descriptors, notify, .. } = self;
        let Some(handle) = server.as_ref().map(Server::handle) else { return Ok(End::Asked) };
        let (status, uri) = (ready.status(), ready.uris.first().map_or("", String::as_str));
        let Announced { places, hot, .. } = *ready;
        let beside = CommandEnvironment {
            settings,
            descriptors,
            places,
            uri,
            server: &handle,
            hot,
            notify,
            status: &status,
        };
        notify.ready(&status);
        notify.watch(handle.clone())?;
        let mut stop = || {
            self.stop(server);
            // The command may take as long as it likes.
            self.stopping.rest();
        };
        wait_for_end(&beside, (&self.events.0, &self.events.1), context, &mut stop)
    }

    /// Ends what is attached: what was written there is on the disks then.
    fn detach(&self) {
        for attachment in self.attached.take() {
            if let Err(e) = attachment.end() {
                let log = &self.settings.options.log;
                log.event(Severity::Error, None, None, format_args!("{e}"));
                self.failed.set(true);
            }
        }
    }

    /// Stops serving, unless that has been done.
    fn stop(&self, server: &mut Option<Server>) {
        let Some(server) = server.take() else { return };
        let log = &self.settings.options.log;
        self.stopping.begin();
        log.event(Severity::Info, None, None, format_args!("stopping"));
        self.detach();
        if server.stop() {
            return self.stopping.moved();
        }
        let what = format_args!("a thread still waits for a disk; no client is served any more");
        log.event(Severity::Error, None, None, what);
        self.failed.set(true);
    }

    /// Ends the filters, which write back what they have.
    fn end(&self, context: &Context) {
        self.stopping.begin();
        context.control.end();
        for complaint in context.control.take_complaints() {
            let log = &self.settings.options.log;
            log.event(Severity::Error, None, None, format_args!("{complaint}"));
            self.failed.set(true);
        }
    }
}

/// What the disks are opened with.
fn context(settings: &Settings) -> Context {
    let log = settings.options.log.clone();
    let log = OperatorLog::new(move |line| log.say(line));
    let debugging = Debugging::new(settings.options.verbose, settings.debug.clone());
    let context = Context::new(WorkPool::new(settings.workers)).with_log(log);
    context.with_patience(settings.patience).with_debugging(debugging)
}

/// Starts to serve the metrics.
fn tell_of(server: &Server, metrics: Vec<Listener>, context: &Context) -> Result<(), Failure> {
    let (pool, control) = (context.pool.clone(), &context.control);
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let queue = pool.clone();
    let help = "Work that waits for a thread";
    control.on_measured("diskferry_queue_length", help, move || count(queue.queued()));
    let help = "Threads that work";
    control.on_measured("diskferry_threads_working", help, move || count(pool.working()));
    for listener in metrics {
        let (live, measures) = (Live::of(server.hub()), control.measures());
        serving::endpoint::start(listener, move || live.open_metrics(&measures()))?;
    }
    Ok(())
}

/// Serves the client on standard input and output; its end is an event.
fn adopt(server: &Server, client: OnlyClient, events: Sender<Event>) -> Result<(), Failure> {
    let (socket, carrier) = client.socket()?;
    server.adopt(socket)?;
    let idle = server.idle();
    std::thread::spawn(move || {
        idle.wait();
        carrier.finish();
        // The receiver has gone if a signal ended us.
        let _ = events.send(Event::Idle);
    });
    Ok(())
}

/// What is announced when the server is ready.
#[derive(Clone, Copy, Debug)]
struct Announced<'a> {
    places: &'a [ListenAddress],
    uris: &'a [String],
    served: &'a [OpenExport],
    hot: &'a HotParts,
    points: &'a [ExportPoint],
}

impl Announced<'_> {
    /// What it does there.
    fn does(&self) -> &'static str {
        if self.places.is_empty() && !self.points.is_empty() {
            "attached at"
        } else {
            "listening on"
        }
    }

    /// Where it listens, for people.
    fn listening(&self) -> String {
        let places = || self.places.iter().map(ToString::to_string).collect();
        let mut all: Vec<_> = if self.uris.is_empty() { places() } else { self.uris.to_vec() };
        all.extend(self.points.iter().map(|one| one.point.path.display().to_string()));
        all.join(", ")
    }

    /// The same for the service manager.
    fn status(&self) -> String {
        let exports = match self.served.len() {
            1 => "1 export".to_owned(),
            n => format!("{n} exports"),
        };
        format!("serving {exports} at {}", self.listening())
    }
}

/// The URIs for standard output: a line each; as nbdkit, also for a shell, and in a command.
fn printed(uris: &[String]) -> String {
    let lines = |uri: &String| match names::is_nbdkit() {
        true => format!("{uri}\n{0}\nnbdinfo {0}", quoted(uri)),
        false => uri.clone(),
    };
    uris.iter().map(lines).collect::<Vec<_>>().join("\n")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=,:/.+@%".contains(c);
    if word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Whether a debug flag is one of nbdkit's own, which change what it logs of itself.
fn is_of_server(flag: &str) -> bool {
    names::is_nbdkit()
        && (flag.starts_with("nbdkit.")
            || disk::filter(flag.split('.').next().unwrap_or_default()).is_ok())
}

/// Says that the server is ready; the service manager is told later, when events are waited for.
fn announce(
    serving: &ServeProcess<'_>,
    what: &Announced<'_>,
    ready: Option<Ready>,
) -> Result<(), Failure> {
    let settings = serving.settings;
    if let Some(path) = &settings.pidfile {
        let file = PidFile::write(path)?;
        // nbdkit leaves it to its caller.
        if !names::is_nbdkit() {
            serving.stopping.leaves(Arc::new(move || file.remove()));
        }
    }
    if settings.print_uri {
        let mut out = std::io::stdout();
        // The reader may have gone away; serving goes on.
        let _ = writeln!(out, "{}", printed(what.uris)).and_then(|()| out.flush());
    }
    let line = format_args!("{} {}", what.does(), what.listening());
    settings.options.log.event(Severity::Info, None, None, line);
    terminal::tell(settings, what.places, what.served);
    ready.map_or(Ok(()), Ready::announce)
}
