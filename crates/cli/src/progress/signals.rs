//! Signals during a copy: SIGINT, SIGTERM and SIGHUP stop it, SIGUSR1 asks for the progress.
//!
//! The handlers only write a byte into a pipe, from which one thread of this program reads. A
//! second request to stop does not wait for devices that do not answer.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use copy::CopyCounts;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use super::Display;
use crate::failure::Failure;
use crate::signals::is_ignored;

/// The reading end: one socket a signal.
#[derive(Debug)]
pub(crate) struct Signals {
    ends: Vec<(SignalEvent, UnixStream)>,
}

/// What happened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SignalEvent {
    /// The copy is over.
    Over,
    /// The progress is asked for.
    Show,
    /// It is to stop, with this exit status.
    Stop(u8),
}

impl Signals {
    /// Watches from now on. The second answer is dropped when the copy is over.
    pub(crate) fn watch() -> Result<(Self, UnixStream), Failure> {
        let say = |e: std::io::Error| Failure::new(format!("signals: {e}"));
        let pair = || -> std::io::Result<(UnixStream, UnixStream)> {
            let (here, there) = UnixStream::pair()?;
            here.set_nonblocking(true)?;
            Ok((here, there))
        };
        let mut ends = Vec::new();
        for (signal, event) in [
            (SIGINT, SignalEvent::Stop(130)),
            (SIGTERM, SignalEvent::Stop(143)),
            (SIGHUP, SignalEvent::Stop(129)),
            (SIGUSR1, SignalEvent::Show),
        ] {
            if signal == SIGHUP && is_ignored(signal) {
                // Under nohup(1) the copy goes on without its terminal.
                continue;
            }
            let (here, there) = pair().map_err(say)?;
            signal_hook::low_level::pipe::register(signal, there).map_err(say)?;
            ends.push((event, here));
        }
        let (here, there) = pair().map_err(say)?;
        ends.push((SignalEvent::Over, here));
        Ok((Self { ends }, there))
    }

    /// Until the work is over, which other threads do: shows in `display` what `now` counts, and
    /// calls `shown` after each line that was asked for. The first signal to stop calls `stop`,
    /// which answers with whether that is news; after another one it calls `leave`, and the process
    /// ends, because some device does not answer. Returns the exit status of the last signal to
    /// stop.
    pub(crate) fn follow(
        &self,
        display: &mut Display,
        now: impl Fn() -> CopyCounts,
        shown: impl Fn(),
        stop: impl Fn() -> bool,
        leave: impl Fn(),
    ) -> Option<u8> {
        let mut stopped = None;
        loop {
            match self.next(display.period()) {
                Some(SignalEvent::Over) => return stopped,
                Some(SignalEvent::Show) => {
                    display.line(&now());
                    shown();
                }
                Some(SignalEvent::Stop(code)) if !stop() => {
                    leave();
                    std::process::exit(code.into());
                }
                Some(SignalEvent::Stop(code)) => stopped = Some(code),
                None => display.tick(&now()),
            }
        }
    }

    /// Waits for something to happen, at most `timeout`.
    pub(crate) fn next(&self, timeout: Option<Duration>) -> Option<SignalEvent> {
        let mut fds: Vec<PollFd<'_>> = self
            .ends
            .iter()
            .map(|(_, end)| PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN))
            .collect();
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, timeout.as_ref());
        let ready = fds.iter().position(|fd| !fd.revents().is_empty())?;
        let (event, end) = self.ends.get(ready)?;
        let mut bytes = [0u8; 64];
        // Several instances of one signal are one event.
        let _ = std::io::Read::read(&mut &*end, &mut bytes);
        Some(*event)
    }
}
