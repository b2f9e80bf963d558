//! Waiting for the end: a signal, a filter that asks for it, the only client's end, or the command
//! of --run. Meanwhile, SIGUSR1 makes the server and its filters report, and SIGHUP may make it
//! reload.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use programs::{Program, Running, StandardStreams};
use runtime::Context;
use rustix::process::Signal;
use server::{ListenAddress, ServerHandle};
use serving::Severity;

use super::notify::Notify;
use super::reload::{HotParts, reload};
use super::settings::Settings;
use super::surroundings::Descriptors;
use crate::failure::Failure;

/// Why the server ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// A signal or a filter asked for it.
    Asked,
    /// The command ended, with this status.
    Command(u8),
    /// The only client has gone.
    Idle,
}

/// What may happen while we serve.
#[derive(Debug)]
pub(super) enum Event {
    /// The command ended.
    Ended(std::io::Result<ExitStatus>),
    /// The only client has gone.
    Idle,
    /// What can be reloaded may have changed.
    Reload,
    /// The user asks for a report.
    Report,
    /// The user asks for the end.
    Signal,
    /// A filter asks for the end.
    Stop,
}

/// The environment of the command of --run, and what it inherits.
#[derive(Debug)]
pub(super) struct CommandEnvironment<'a> {
    pub(super) settings: &'a Settings,
    pub(super) descriptors: &'a Descriptors,
    pub(super) places: &'a [ListenAddress],
    pub(super) uri: &'a str,
    pub(super) server: &'a ServerHandle,
    pub(super) hot: &'a HotParts,
    pub(super) notify: &'a Notify,
    /// What the service manager shows.
    pub(super) status: &'a str,
}

/// Serves until there is a reason to end. `stop` ends serving, and may be called here when the
/// command is still to be waited for.
pub(super) fn wait_for_end(
    beside: &CommandEnvironment<'_>,
    (events, next): (&Sender<Event>, &Receiver<Event>),
    context: &Context,
    stop: &mut dyn FnMut(),
) -> Result<End, Failure> {
    let settings = beside.settings;
    let command = match &settings.run {
        Some(command) => Some(beside.start(command, events)?),
        None => None,
    };
    let mut asked = false;
    loop {
        // This function holds a sender, so this ends only with an event.
        match next.recv() {
            Ok(Event::Report) => {
                for line in beside.server.live().lines(&context.control.measures()()) {
                    settings.options.log.say(format_args!("{line}"));
                }
                context.control.report();
            }
            Ok(Event::Reload) => beside.reload(),
            Ok(Event::Ended(status)) => {
                let status = status.map_err(|e| Failure::new(format!("--run: wait: {e}")))?;
                return Ok(End::Command(code(status)));
            }
            // The command does not depend on the server, and its status is still to be passed on.
            Ok(Event::Stop) if command.is_some() => stop(),
            Ok(Event::Signal) if !asked && command.is_some() => {
                // The command decides; the server ends when it does.
                asked = true;
                // It may have ended just now.
                let _ = command.as_ref().map(|c| c.signal(Signal::TERM));
            }
            Ok(Event::Idle) => return Ok(End::Idle),
            Ok(Event::Signal | Event::Stop) | Err(_) => return Ok(End::Asked),
        }
    }
}

impl CommandEnvironment<'_> {
    fn reload(&self) {
        self.notify.reloading();
        match reload(self.settings, self.server, self.hot) {
            Ok(()) => self.notify.ready(self.status),
            Err(failure) => {
                let what = format!("not reloaded: {}", failure.line());
                self.settings.options.log.event(
                    Severity::Error,
                    None,
                    None,
                    format_args!("{what}"),
                );
                self.notify.ready(&what);
            }
        }
    }

    /// Starts the command. Its end is an event. Returns a way to signal it that never reaches
    /// another process, also when it has ended.
    fn start(&self, command: &str, events: &Sender<Event>) -> Result<Arc<Running>, Failure> {
        let running = Arc::new(self.spawn(command)?);
        let (events, awaited) = (events.clone(), running.clone());
        std::thread::spawn(move || {
            let status = awaited.wait();
            // The receiver has gone if a signal came twice.
            let _ = events.send(Event::Ended(status));
        });
        Ok(running)
    }

    fn spawn(&self, command: &str) -> Result<Running, Failure> {
        let (mut socket, mut port) = (String::new(), String::new());
        // The first of each kind counts.
        for place in self.places.iter().rev() {
            match place {
                ListenAddress::Unix(path) => socket = path.to_string_lossy().into_owned(),
                ListenAddress::Tcp(address) => port = address.port().to_string(),
                ListenAddress::Vsock(p) => port = p.to_string(),
                ListenAddress::Activated => {}
            }
        }
        let [when, certificates, keys] = self.settings.encryption.variables();
        let export = self.settings.export_name.clone();
        let uri = self.uri.to_owned();
        let values = [uri.clone(), uri, socket, port, export, when, certificates, keys];
        let values: Vec<_> = VARIABLES.into_iter().zip(values.iter().map(String::as_str)).collect();
        self.descriptors
            .as_before(|| programs::start(&program(command), &values, StandardStreams::default()))
            .map_err(|e| Failure::new(format!("--run: start sh: {e}")))
    }
}

/// The variables for the command, by nbdkit's names.
const VARIABLES: [&str; 8] =
    ["uri", "nbd", "unixsocket", "port", "exportname", "tls", "tls_certificates", "tls_psk"];

/// The process of a command.
pub(super) fn program(command: &str) -> Program {
    Program::script(command, &VARIABLES)
}

/// The exit status to pass on: the command's own, or 128 and its signal.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}
