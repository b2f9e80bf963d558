//! Keeps descriptors below 10 free for plugins: some (`iso`) have a shell write to one by its
//! number, and a POSIX shell (dash) takes only one digit there. Under nbdkit they get such numbers,
//! because few files are open when they start; here signals, reactors and pools would have taken
//! them all.

use std::fs::File;
use std::os::fd::AsRawFd;

use runtime::Mutex;

/// How many to keep: more than any plugin of the distribution opens at a time.
const KEPT: usize = 3;

static FREE: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Keeps some until a plugin is loaded. Call it when the program starts.
pub fn keep_low_descriptors() {
    let null = || File::open("/dev/null").ok();
    let low = std::iter::from_fn(null).take_while(|file| file.as_raw_fd() < 10).take(KEPT);
    // Without them, plugins see what a program with many open files would give them.
    FREE.lock().extend(low);
}

/// Frees them for the plugin.
pub(crate) fn release_low_descriptors() {
    FREE.lock().clear();
}
