//! Retries of the first connection, as often, or for as long, as was asked for.

use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Result};

use super::ExportSpec;
use crate::backoff;

/// How long after a failure the first connection is tried again, where a number of tries is given.
const PAUSE: Duration = Duration::from_secs(1);

/// Tries as often, or for as long, as the target says.
pub(crate) fn persist<T>(target: &ExportSpec, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let (begun, mut failed) = (Instant::now(), 0);
    loop {
        let why = match work() {
            Ok(done) => return Ok(done),
            Err(e) if !is_worth_another(&e) => return Err(e),
            Err(e) => e,
        };
        failed += 1;
        let left = target.open_within.map(|limit| limit.saturating_sub(begun.elapsed()));
        match left.filter(|left| !left.is_zero()) {
            Some(left) => std::thread::sleep(backoff::wait(failed).min(left)),
            None if failed <= target.retries => std::thread::sleep(PAUSE),
            None => return Err(why),
        }
    }
}

/// Whether another attempt may succeed: errors in the request itself do not go away.
fn is_worth_another(e: &Error) -> bool {
    !matches!(
        (e.kind(), e.fault()),
        (ErrorKind::InvalidInput | ErrorKind::Unsupported, Fault::User)
    )
}
