//! The state of a thread in a plugin's callback: the client it works for, and the plugin's messages
//! so far.
//!
//! A plugin reports a failure by messages and a number, before the callback returns. If the
//! callback fails they become the error; otherwise they go to the log.

use std::cell::RefCell;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use device::Client;
use runtime::{Condvar, Mutex, OperatorLog};

use crate::abi;

/// The most messages kept for one callback; later ones are dropped.
const MESSAGES: usize = 16;
/// The most bytes kept of a message.
const LONGEST: usize = 2048;

/// On whose behalf a plugin is called.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    /// The client, if a server has one.
    pub(crate) client: Option<Client>,
    /// The export that was asked for.
    pub(crate) export: CString,
    /// Texts that the plugin wants to keep for as long as this lives.
    kept: Mutex<Vec<CString>>,
    left: Arc<Left>,
}

/// Whether the client has left, for threads that wait on its behalf.
#[derive(Debug, Default)]
struct Left(Mutex<bool>, Condvar);

impl Caller {
    /// A client that asked for `export`, up to the first 0 byte.
    pub(crate) fn new(client: Option<Client>, export: &str) -> Self {
        let left = Arc::<Left>::default();
        if let Some(client) = &client {
            let left = left.clone();
            client.presence.on_leaving(move || {
                *left.0.lock() = true;
                left.1.notify_all();
            });
        }
        Self { client, export: c_text(export), kept: Mutex::default(), left }
    }

    /// Waits, but not after the client has left; returns whether it is still connected.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let left = self.left.0.lock();
        let waited = self.left.1.wait_timeout_while(left, time, |left| !*left);
        !*waited.0
    }

    /// Keeps a text, and returns its address for C. It does not move.
    pub(crate) fn keep(&self, text: CString) -> *const std::ffi::c_char {
        let mut kept = self.kept.lock();
        let at = text.as_ptr();
        kept.push(text);
        at
    }
}

/// Text for C: up to the first 0.
pub(crate) fn c_text(text: &str) -> CString {
    let path = device::text::path(text);
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    CString::new(bytes.get(..end).unwrap_or_default()).unwrap_or_default()
}

/// A plugin's request about its client's connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Leave {
    /// Answer the requests in flight, then close.
    Gracefully,
    /// Close at once, without further replies.
    AtOnce,
}

/// Messages and numbers from a callback.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// The number that the plugin set, or 0.
    set: i32,
    /// errno when the callback returned.
    errno: i32,
    messages: Vec<String>,
    /// Whether the connection is to end.
    pub(crate) leave: Option<Leave>,
}

impl Said {
    /// The error number of the failure; `preserved`: errno counts.
    pub(crate) fn number(&self, preserved: bool) -> i32 {
        let number = if self.set == 0 && preserved { self.errno } else { self.set };
        if number == 0 { libc::EIO } else { number }
    }

    /// The messages in one line; empty if there is none.
    pub(crate) fn text(&self) -> String {
        self.messages.join("; ")
    }

    /// Logs the messages of a callback that did not fail, or whose failure is reported elsewhere.
    pub(crate) fn tell(&self, name: &str, log: &OperatorLog) {
        for message in &self.messages {
            log.say(format_args!("{name}: {message}"));
        }
    }
}

#[derive(Default)]
struct Frame {
    caller: Option<Arc<Caller>>,
    said: Said,
}

thread_local! {
    /// The callback that this thread is in.
    static FRAME: RefCell<Option<Frame>> = const { RefCell::new(None) };
}

/// Whether debug messages of plugins are logged.
static TRACED: AtomicBool = AtomicBool::new(false);
/// The log for messages outside of callbacks: plugins have threads of their own.
static LOG: Mutex<Option<OperatorLog>> = Mutex::new(None);
/// Texts that are kept until the program ends, not just for a client.
static KEPT: Mutex<Vec<CString>> = Mutex::new(Vec::new());

/// Sets the log for messages of plugins.
pub(crate) fn log_to(log: &OperatorLog, traced: bool) {
    *LOG.lock() = Some(log.clone());
    TRACED.store(traced, Ordering::Relaxed);
}

/// Whether debug messages are logged.
pub(crate) fn is_traced() -> bool {
    TRACED.load(Ordering::Relaxed)
}

/// Runs a callback for `caller`; returns its result and its messages.
pub(crate) fn within<R>(caller: Option<&Arc<Caller>>, callback: impl FnOnce() -> R) -> (R, Said) {
    let frame = Frame { caller: caller.cloned(), said: Said::default() };
    let before = FRAME.replace(Some(frame));
    abi::set_errno(0);
    let answer = callback();
    let errno = abi::errno();
    let frame = FRAME.replace(before).unwrap_or_default();
    (answer, Said { errno, ..frame.said })
}

/// For the callback that this thread is in; `None` outside of one.
fn framed<R>(work: impl FnOnce(&mut Frame) -> R) -> Option<R> {
    FRAME.try_with(|frame| frame.try_borrow_mut().ok()?.as_mut().map(work)).ok().flatten()
}

/// On whose behalf this thread is in a plugin.
pub(crate) fn caller() -> Option<Arc<Caller>> {
    framed(|frame| frame.caller.clone()).flatten()
}

/// The client on whose behalf this thread is in a plugin.
pub(crate) fn client() -> Option<Client> {
    caller()?.client.clone()
}

/// An error message of the plugin.
pub(crate) fn say(message: &str) {
    let message = message.trim_end();
    let end = message.floor_char_boundary(LONGEST);
    let message = message.get(..end).unwrap_or_default().to_owned();
    let kept = framed(|frame| {
        if frame.said.messages.len() < MESSAGES {
            frame.said.messages.push(message.clone());
        }
    });
    if kept.is_none() {
        tell(format_args!("a plugin: {message}"));
    }
}

/// A debug message of the plugin.
pub(crate) fn trace(message: &str) {
    tell(format_args!("debug: {}", message.trim_end()));
}

fn tell(what: std::fmt::Arguments<'_>) {
    let log = LOG.lock().clone();
    if let Some(log) = log {
        log.say(what);
    }
}

/// The plugin sets an error number.
pub(crate) fn set_error(number: i32) {
    framed(|frame| frame.said.set = number);
}

/// The plugin asks to end the connection; returns whether there is one.
pub(crate) fn leave(how: Leave) -> bool {
    framed(|frame| {
        let is_there = frame.caller.as_ref().is_some_and(|caller| caller.client.is_some());
        frame.said.leave = Some(how).filter(|_| is_there).or(frame.said.leave);
        is_there
    })
    .unwrap_or(false)
}

/// Keeps a text as long as the client that this thread works for, or until the program ends.
pub(crate) fn keep(text: CString) -> *const std::ffi::c_char {
    if let Some(caller) = caller() {
        return caller.keep(text);
    }
    let at = text.as_ptr();
    KEPT.lock().push(text);
    at
}

/// How to end a serving program, which plugins may ask for.
static STOP: Mutex<Option<runtime::Control>> = Mutex::new(None);

/// Sets `control` for plugins that ask for the program's end.
pub(crate) fn stopped_by(control: &runtime::Control) {
    *STOP.lock() = Some(control.clone());
}

/// The plugin asks for the program's end.
pub(crate) fn stop() {
    let control = STOP.lock().clone();
    if let Some(control) = control {
        control.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_callback_says_is_its_own_and_the_number_that_was_set_counts_first() {
        let ((), said) = within(None, || {
            say("one\n");
            let ((), inner) = within(None, || say("of another"));
            assert_eq!(inner.text(), "of another");
            say("two");
            abi::set_errno(libc::ENOENT);
        });
        assert_eq!(said.text(), "one; two");
        assert_eq!(said.number(true), libc::ENOENT);
        assert_eq!(said.number(false), libc::EIO, "errno means nothing unless the plugin says so");
        let ((), said) = within(None, || {
            set_error(libc::ENOSPC);
            abi::set_errno(libc::ENOENT);
        });
        assert_eq!(said.number(true), libc::ENOSPC);
    }

    #[test]
    fn messages_of_a_plugin_that_never_stops_are_not_kept() {
        let ((), said) = within(None, || (0..1000).for_each(|_| say(&"ä".repeat(100_000))));
        assert!(said.text().len() <= MESSAGES * (LONGEST + 2));
    }
}
