//! The local time of the day, by the time zone of the process.
//!
//! Uses `unsafe` for `localtime_r`, which alone knows the zone: the first call reads it from a
//! file, so it has to come before a sandbox shuts.

#![expect(unsafe_code, reason = "see above")]

use std::mem::MaybeUninit;
use std::time::{SystemTime, UNIX_EPOCH};

/// A moment of the week.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalTime {
    /// Days since Sunday.
    pub(super) weekday: u32,
    /// Since midnight.
    pub(super) minute: u32,
}

impl LocalTime {
    /// Now; the beginning of the week if the system does not know.
    pub(super) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = libc::time_t::try_from(since.as_secs()).unwrap_or(0);
        let mut found = MaybeUninit::<libc::tm>::zeroed();
        // SAFETY: both point to what they say, and all of `tm` may be zero bytes.
        let tm = unsafe {
            libc::localtime_r(&raw const seconds, found.as_mut_ptr());
            found.assume_init()
        };
        let number = |n: libc::c_int| u32::try_from(n).unwrap_or(0);
        let minute = number(tm.tm_hour) * 60 + number(tm.tm_min);
        Self { weekday: number(tm.tm_wday), minute }
    }
}
