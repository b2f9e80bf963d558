//! Servers without ranges: the object in one pass, from its beginning to its end.
//!
//! The pass goes no further ahead of readers than the window holds. It waits for them, and drops
//! unread bytes only when a reader waits for bytes further on. Bytes that it has passed stay in the
//! window as long as there is room, and cannot be fetched again: a read of them is an error. A pass
//! that breaks off starts again, and skips what has come.

use std::io::IoSliceMut;
use std::sync::Arc;

use device::{Error, ErrorKind, Fault};

use super::asking::{Answer, Asker, Trouble};
use super::fetching::{Filling, ended_early};
use super::shared::Shared;

/// A read of bytes that the pass has left behind.
pub(super) fn passed() -> Error {
    let action = "read: the server sends the object only from its beginning (it has no ranges), and \
                  this was passed and is not in memory any more";
    Error::new(ErrorKind::Unsupported, Fault::Peer, action)
}

/// Runs the pass over the answer that `asker` has just received, of which `bytes` have come.
pub(super) fn run(shared: &Arc<Shared>, asker: Asker, bytes: &[u8]) {
    let pass = shared.clone();
    shared.lock().pass = Some(0);
    let all = 0..shared.lock().window.end();
    let mut filling = Filling::new(shared, &all);
    filling.take(bytes);
    if filling.is_full() {
        shared.lock().pass = Some(all.end);
        return;
    }
    let work = move || {
        if let Err(panic) = runtime::contained("a fetch", || make(&pass, asker)) {
            let error = Error::from(panic);
            pass.lock().broken = Some(error.duplicate());
            pass.fail_all(&error);
        }
    };
    if let Err(e) = std::thread::Builder::new().name("http".into()).spawn(work) {
        let error = Error::os("start a thread", e);
        shared.lock().broken = Some(error.duplicate());
        shared.fail_all(&error);
    }
}

fn make(shared: &Arc<Shared>, mut asker: Asker) {
    let all = 0..shared.lock().window.end();
    let mut filling = Filling::new(shared, &all);
    let mut failures = 0;
    let mut skip = 0;
    while !filling.is_full() {
        let before = filling.at;
        let Err(trouble) = go_on(shared, &mut asker, &mut filling, &mut skip) else { return };
        failures = if filling.at > before { 1 } else { failures + 1 };
        let gives_up = !trouble.may_pass || failures > shared.retries;
        if gives_up || !shared.pause(&trouble, failures) {
            return end(shared, &filling, trouble.error);
        }
        // From the beginning, without what has come.
        loop {
            match asker.ask(0, filling.end, true) {
                Ok(Answer::Whole(_)) => break skip = filling.at,
                Ok(_) => asker.hang_up(),
                Err(trouble) if trouble.may_pass && failures <= shared.retries => {
                    failures += 1;
                    if shared.pause(&trouble, failures) {
                        continue;
                    }
                    return end(shared, &filling, trouble.error);
                }
                Err(trouble) => {
                    return end(shared, &filling, trouble.error);
                }
            }
            let action = "GET: the server answers differently each time";
            return end(shared, &filling, Error::new(ErrorKind::Protocol, Fault::Peer, action));
        }
    }
}

/// The pass has failed, and so does everything that it did not bring, now and later.
fn end(shared: &Arc<Shared>, filling: &Filling<'_>, error: Error) {
    let error = error.on(shared.origin.original()).at(filling.at);
    let mut state = shared.lock();
    state.broken = Some(error.duplicate());
    let waiters = state.window.failed(filling.rest());
    drop(state);
    super::window::fail(waiters, &error);
}

/// Receives the rest of the answer, after `skip` bytes.
fn go_on(
    shared: &Arc<Shared>,
    asker: &mut Asker,
    filling: &mut Filling<'_>,
    skip: &mut u64,
) -> Result<(), Trouble> {
    let mut passed_by = if *skip > 0 { vec![0; 64 << 10] } else { Vec::new() };
    while !filling.is_full() {
        let wanted = shared.wait_until(|state| {
            let next = filling.rest().start;
            state.pass = Some(next);
            !state.window.is_far_ahead() || state.window.first_awaited(next).is_some()
        });
        if !wanted {
            return Ok(());
        }
        let n = if *skip > 0 {
            let len = usize::try_from(*skip).unwrap_or(usize::MAX).min(passed_by.len());
            let place = passed_by.get_mut(..len).unwrap_or_default();
            let n = asker.fill(&mut [IoSliceMut::new(place)])? as u64;
            *skip -= n;
            n
        } else {
            filling.receive(asker, u64::MAX)?
        };
        if n == 0 {
            return Err(ended_early(asker, filling.end - filling.at));
        }
    }
    Ok(())
}
