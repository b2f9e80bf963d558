//! Waiting for the end: a signal, or the command of --run.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};

use server::Place;
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};

use super::settings::Settings;
use crate::failure::Failure;

/// Why the server ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// It was asked to.
    Signal,
    /// The command ended, with this status.
    Command(u8),
}

/// What may happen while we serve.
#[derive(Debug)]
pub(super) enum Event {
    Ended(std::io::Result<ExitStatus>),
    Signal,
}

/// Serves until there is a reason to end.
pub(super) fn wait_for_end(
    settings: &Settings,
    places: &[Place],
    uri: &str,
    (events, next): (Sender<Event>, Receiver<Event>),
) -> Result<End, Failure> {
    let Some(command) = &settings.run else {
        // The sender is still here, so this ends only with an event.
        let _ = next.recv();
        return Ok(End::Signal);
    };
    let child = start(command, settings, places, uri)?;
    let pid = child.id();
    watch_child(child, events);
    let mut asked = false;
    loop {
        match next.recv() {
            Ok(Event::Ended(status)) => {
                let status = status.map_err(|e| Failure::new(format!("--run: wait: {e}")))?;
                return Ok(End::Command(code(status)));
            }
            Ok(Event::Signal) if !asked => {
                // The command decides; it ends us when it ends.
                asked = true;
                terminate(pid);
            }
            Ok(Event::Signal) | Err(_) => return Ok(End::Signal),
        }
    }
}

/// From here on signals are events.
pub(super) fn watch_signals() -> Result<(Sender<Event>, Receiver<Event>), Failure> {
    let (sender_of_events, next) = channel();
    let events = sender_of_events.clone();
    let say = |e: std::io::Error| Failure::new(format!("signals: {e}"));
    let (mut receiver, sender) = UnixStream::pair().map_err(say)?;
    for signal in [SIGTERM, SIGINT, SIGQUIT] {
        let sender = sender.try_clone().map_err(say)?;
        signal_hook::low_level::pipe::register(signal, sender).map_err(say)?;
    }
    std::thread::spawn(move || {
        let mut byte = [0];
        while receiver.read_exact(&mut byte).is_ok() && events.send(Event::Signal).is_ok() {}
    });
    Ok((sender_of_events, next))
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
