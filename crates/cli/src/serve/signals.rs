//! Signals while we serve, as events. The handlers only write a byte into a pipe.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};

use super::captive::Event;
use super::stopping::Stopping;
use crate::failure::Failure;
use crate::signals::is_ignored;

/// Signals that are caught, but not handled yet.
#[derive(Debug)]
pub(super) struct Signals {
    end: UnixStream,
    hang_up: UnixStream,
    report: UnixStream,
    reloads: bool,
}

impl Signals {
    /// Catches signals from here on. `reloads`: SIGHUP reloads instead of ending the server. Starts
    /// no thread.
    pub(super) fn register(reloads: bool) -> Result<Self, Failure> {
        let catch = |signals: &[i32]| -> std::io::Result<UnixStream> {
            let (receiver, sender) = UnixStream::pair()?;
            for signal in signals {
                signal_hook::low_level::pipe::register(*signal, sender.try_clone()?)?;
            }
            Ok(receiver)
        };
        let say = |e: std::io::Error| Failure::new(format!("signals: {e}"));
        // Under nohup(1) a server goes on without its terminal; one that reloads has none.
        let hang_up: &[i32] = if is_ignored(SIGHUP) && !reloads { &[] } else { &[SIGHUP] };
        Ok(Self {
            end: catch(&[SIGTERM, SIGINT, SIGQUIT]).map_err(say)?,
            hang_up: catch(hang_up).map_err(say)?,
            report: catch(&[SIGUSR1]).map_err(say)?,
            reloads,
        })
    }

    /// From here on they are events, and `stopping` is told of those that end the server, even
    /// while no thread reads events.
    pub(super) fn start(self, stopping: &Arc<Stopping>) -> (Sender<Event>, Receiver<Event>) {
        let (events, next) = channel();
        let watch = |from: UnixStream, event: Box<dyn Fn() -> Option<Event> + Send>| {
            let events = events.clone();
            std::thread::spawn(move || {
                each(from, || event().is_none_or(|e| events.send(e).is_ok()))
            });
        };
        let asked = stopping.clone();
        watch(self.end, Box::new(move || asked.signal().then_some(Event::Signal)));
        let asked = stopping.clone();
        let reloads = self.reloads;
        watch(
            self.hang_up,
            Box::new(move || match reloads {
                true => Some(Event::Reload),
                false => asked.hang_up().then_some(Event::Signal),
            }),
        );
        watch(self.report, Box::new(|| Some(Event::Report)));
        (events, next)
    }
}

/// Calls `then` for each byte, as long as it returns true.
fn each(mut from: UnixStream, mut then: impl FnMut() -> bool) {
    let mut byte = [0];
    while from.read_exact(&mut byte).is_ok() && then() {}
}
