//! Waiting for the end: a signal, a filter that asks for it, the only client's end, or the command
//! of --run. Meanwhile, SIGUSR1 makes filters report.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};

use filters::Context;
use server::Place;
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM, SIGUSR1};

use super::settings::Settings;
use crate::failure::Failure;

/// Why the server ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// It was asked to.
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
    /// The user asks what is going on.
    Report,
    /// The user asks for the end.
    Signal,
    /// A filter asks for the end.
    Stop,
}

/// Serves until there is a reason to end. `stop` ends serving, and may be called here when the
/// command is still to be waited for.
pub(super) fn wait_for_end(
    settings: &Settings,
    places: &[Place],
    uri: &str,
    (events, next): (&Sender<Event>, &Receiver<Event>),
    context: &Context,
    stop: &mut dyn FnMut(),
) -> Result<End, Failure> {
    let pid = match &settings.run {
        Some(command) => {
            let child = start(command, settings, places, uri)?;
            let pid = child.id();
            watch_child(child, events.clone());
            Some(pid)
        }
        None => None,
    };
    let mut asked = false;
    loop {
        // There is always a sender here, so this ends only with an event.
        match next.recv() {
            Ok(Event::Report) => context.control.report(),
            Ok(Event::Ended(status)) => {
                let status = status.map_err(|e| Failure::new(format!("--run: wait: {e}")))?;
                return Ok(End::Command(code(status)));
            }
            // The command does not depend on us, and its status is still to be passed on.
            Ok(Event::Stop) if pid.is_some() => stop(),
            Ok(Event::Signal) if !asked && pid.is_some() => {
                // The command decides; it ends us when it ends.
                asked = true;
                if let Some(pid) = pid {
                    terminate(pid);
                }
            }
            Ok(Event::Idle) => return Ok(End::Idle),
            Ok(Event::Signal | Event::Stop) | Err(_) => return Ok(End::Asked),
        }
    }
}

/// Signals that are caught and not looked at yet.
#[derive(Debug)]
pub(super) struct Signals {
    end: UnixStream,
    report: UnixStream,
}

impl Signals {
    /// From here on signals are kept. Starts no thread.
    pub(super) fn register() -> Result<Self, Failure> {
        let catch = |signals: &[i32]| -> std::io::Result<UnixStream> {
            let (receiver, sender) = UnixStream::pair()?;
            for signal in signals {
                signal_hook::low_level::pipe::register(*signal, sender.try_clone()?)?;
            }
            Ok(receiver)
        };
        let say = |e: std::io::Error| Failure::new(format!("signals: {e}"));
        Ok(Self {
            end: catch(&[SIGTERM, SIGINT, SIGQUIT]).map_err(say)?,
            report: catch(&[SIGUSR1]).map_err(say)?,
        })
    }

    /// From here on they are events.
    pub(super) fn start(self) -> (Sender<Event>, Receiver<Event>) {
        let (events, next) = channel();
        let watch = |mut from: UnixStream, event: fn() -> Event| {
            let events = events.clone();
            std::thread::spawn(move || {
                let mut byte = [0];
                while from.read_exact(&mut byte).is_ok() && events.send(event()).is_ok() {}
            });
        };
        watch(self.end, || Event::Signal);
        watch(self.report, || Event::Report);
        (events, next)
    }
}

fn watch_child(mut child: Child, events: Sender<Event>) {
    std::thread::spawn(move || {
        let status = child.wait();
        // Nobody listens any more if a signal came twice.
        let _ = events.send(Event::Ended(status));
    });
}

fn start(
    command: &str,
    settings: &Settings,
    places: &[Place],
    uri: &str,
) -> Result<Child, Failure> {
    let (mut socket, mut port) = (String::new(), String::new());
    match places.first() {
        Some(Place::Unix(path)) => socket = path.to_string_lossy().into_owned(),
        Some(Place::Tcp(address)) => port = address.port().to_string(),
        Some(Place::Vsock(p)) => port = p.to_string(),
        Some(Place::Activated) | None => {}
    }
    Command::new("sh")
        .args(["-c", command])
        .env("uri", uri)
        .env("nbd", uri)
        .env("unixsocket", socket)
        .env("port", port)
        .env("exportname", &settings.export_name)
        .spawn()
        .map_err(|e| Failure::new(format!("--run: start sh: {e}")))
}

fn terminate(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended just now.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// The exit status to pass on: the command's own, or 128 and its signal.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}
