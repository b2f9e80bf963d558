//! How long to wait before a server is tried again.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

/// The first wait, at most; each is twice as long.
const FIRST: Duration = Duration::from_millis(100);
/// The longest.
const LONGEST: Duration = Duration::from_secs(5);

/// How long to wait when this many tries (at least 1) have failed in a row: between half of the
/// wait and all of it, so that not all clients of a server come back at the same moment.
pub(crate) fn wait(failed: u32) -> Duration {
    jittered(failed, RandomState::new().build_hasher().finish())
}

fn jittered(failed: u32, random: u64) -> Duration {
    let doublings = failed.saturating_sub(1).min(16);
    let longest = FIRST.saturating_mul(1 << doublings).min(LONGEST);
    let half = longest / 2;
    let part = u32::try_from(random % 1024).unwrap_or(0);
    half + half * part / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_are_never_the_same_for_all() {
        let ms = Duration::from_millis;
        assert_eq!(jittered(1, 0), ms(50));
        assert!(jittered(1, 1023) <= ms(100));
        assert_eq!(jittered(3, 0), ms(200));
        assert_eq!(jittered(1000, 0), ms(2500));
        assert!(jittered(u32::MAX, u64::MAX) <= ms(5000));
        assert!(jittered(5, 1) < jittered(5, 1000));
    }
}
