//! Descriptors of one digit, kept free for plugins: some (`iso`) have a shell write to one of theirs by its number, and a
//! POSIX shell (dash) takes no number beyond 9 there. Under nbdkit they get such numbers, because little is open when
//! they get ready; in this program signals, reactors and pools would have them all by then.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

/// How many are kept: more than one plugin of the distribution opens at a time.
const KEPT: usize = 3;

static FREE: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Keeps some, until a plugin is loaded. To be called when the program begins.
pub fn keep_low_descriptors() {
    let null = || File::open("/dev/null").ok();
    let low = std::iter::from_fn(null).take_while(|file| file.as_raw_fd() < 10).take(KEPT);
    // Without them it is as with a program that has many files open from the start.
    FREE.lock().unwrap_or_else(PoisonError::into_inner).extend(low);
}

/// A plugin may have them from here on.
pub(crate) fn release_low_descriptors() {
    FREE.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
