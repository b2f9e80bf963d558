//! Servers without ranges: the object in one pass, from its beginning to its end.
//!
//! The pass goes no further ahead of readers than the window holds. It waits for them, and drops
//! unread bytes only when a reader waits for bytes further on. Bytes that it has passed stay in the
//! window as long as there is room, and cannot be fetched again: a read of them is an error. A pass
//! that breaks off starts again, and passes by what has been handed on: it goes on only if those
//! were the same bytes.

use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Instant;

use device::{Error, ErrorKind, Fault};

use super::answer::protocol;
use super::asking::{Answer, Asker};
use super::calling::Trouble;
use super::fetching::{Filling, ended_early};
use super::headway::Headway;
use super::origin::changed;
use super::passed::Passed;
use super::shared::Shared;
use super::window::CHUNK_LEN;

/// A read of bytes that the pass has left behind.
pub(super) fn passed() -> Error {
    let action = "read: the server sends the object only from its start (it has no ranges), and \
                  this part is no longer in memory";
    Error::new(ErrorKind::Unsupported, Fault::Peer, action)
}

/// Runs the pass over the answer that `asker` has just received, of which `bytes` have come.
pub(super) fn run(shared: &Arc<Shared>, asker: Asker, bytes: &[u8]) {
    let pass = shared.clone();
    shared.state.lock().pass = Some(0);
    let all = 0..shared.state.lock().window.end();
    let mut filling = Filling::new(shared, &all);
    filling.take(bytes);
    if filling.is_full() {
        shared.state.lock().pass = Some(all.end);
        return;
    }
    let work = move || {
        if let Err(panic) = runtime::contained("a fetch", || make(&pass, asker)) {
            let error = Error::from(panic);
            pass.state.lock().broken = Some(error.duplicate());
            pass.fail_all(&error);
        }
    };
    if let Err(e) = std::thread::Builder::new().name("http".into()).spawn(work) {
        let error = Error::os("start a thread", e);
        shared.state.lock().broken = Some(error.duplicate());
        shared.fail_all(&error);
    }
}

fn make(shared: &Arc<Shared>, mut asker: Asker) {
    let all = 0..shared.state.lock().window.end();
    let mut filling = Filling::new(shared, &all);
    filling.passed = Some(Passed::default());
    let mut headway = Headway::new(0);
    let mut going = go_on(shared, &mut asker, &mut filling, &mut headway);
    while let Err(trouble) = going {
        filling.drop_begun();
        let failures = headway.failed(filling.at);
        let gives_up = !trouble.may_pass || failures > shared.retries;
        if gives_up || !shared.pause(&trouble, failures) {
            return end(shared, &filling, trouble.error);
        }
        going = begin_again(shared, &mut asker, &mut filling, &mut headway);
    }
}

/// One more try, from the beginning.
fn begin_again(
    shared: &Arc<Shared>,
    asker: &mut Asker,
    filling: &mut Filling<'_>,
    headway: &mut Headway,
) -> Result<(), Trouble> {
    let Answer::Whole(_) = asker.ask(0, filling.end, true)? else {
        asker.hang_up();
        let action = "GET: the server answers differently each time";
        return Err(Trouble::lasting(protocol(action)));
    };
    pass_by(shared, asker, filling, headway)?;
    go_on(shared, asker, filling, headway)
}

/// The pass has failed, and so does everything that it did not bring, now and later.
fn end(shared: &Arc<Shared>, filling: &Filling<'_>, error: Error) {
    let error = error.on(shared.origin.original()).at(filling.at);
    let mut state = shared.state.lock();
    state.broken = Some(error.duplicate());
    let waiters = state.window.failed(&filling.rest());
    drop(state);
    super::window::fail(waiters, &error);
}

/// Waits until a reader wants more, or there is room for it. Returns whether the device is still
/// open.
fn waits_for_readers(shared: &Arc<Shared>, filling: &Filling<'_>, headway: &mut Headway) -> bool {
    let begun = Instant::now();
    let goes_on = shared.wait_until(|state| {
        let next = filling.rest().start;
        state.pass = Some(next);
        !state.window.is_far_ahead() || state.window.first_awaited(next).is_some()
    });
    headway.not_counting(begun.elapsed());
    goes_on
}

/// Receives once more what has been handed on.
fn pass_by(
    shared: &Arc<Shared>,
    asker: &mut Asker,
    filling: &Filling<'_>,
    headway: &mut Headway,
) -> Result<(), Trouble> {
    let mut seen = Passed::default();
    let mut chunk = vec![0; CHUNK_LEN];
    // Only whole chunks have been.
    let mut left = filling.at;
    while left > 0 {
        let mut filled = 0;
        while filled < chunk.len() {
            if !waits_for_readers(shared, filling, headway) {
                return Ok(());
            }
            let place = chunk.get_mut(filled..).unwrap_or_default();
            match asker.fill(&mut [IoSliceMut::new(place)])? {
                0 => return Err(ended_early(asker, filling.end - filling.at + left)),
                n => filled += n,
            }
        }
        headway.came_again(filled as u64);
        seen.add(&chunk);
        left = left.saturating_sub(filled as u64);
    }
    if filling.passed.as_ref().is_none_or(|passed| !passed.is(&seen)) {
        asker.hang_up();
        return Err(Trouble::lasting(changed(
            "it broke off, and the new response has different bytes",
        )));
    }
    Ok(())
}

/// Receives the rest of the answer.
fn go_on(
    shared: &Arc<Shared>,
    asker: &mut Asker,
    filling: &mut Filling<'_>,
    headway: &mut Headway,
) -> Result<(), Trouble> {
    while !filling.is_full() && waits_for_readers(shared, filling, headway) {
        if filling.receive(asker, u64::MAX)? == 0 {
            return Err(ended_early(asker, filling.end - filling.at));
        }
    }
    Ok(())
}
