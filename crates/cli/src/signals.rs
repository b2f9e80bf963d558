//! Signals that matter to every verb: which were ignored from the start, the one that must not
//! end us, and the one that we must hear.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGCHLD, SIGXFSZ};

/// A write beyond the limit of file sizes (ulimit -f) is an error of that write, and does not end
/// the program. Programs that we start have the signal as we had it: a handler, other than a
/// signal that is ignored, does not outlive exec(2).
pub(crate) fn outlive_file_size_limit() {
    if !is_ignored(SIGXFSZ) {
        // Without it the system does what it always did.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
    }
}

/// Where our parent ignores SIGCHLD, so would we, and the system would forget how programs
/// end that we start.
pub(crate) fn hear_how_programs_end() {
    if is_ignored(SIGCHLD) {
        // Without it their status is an error.
        let _ = signal_hook::flag::register(SIGCHLD, Arc::new(AtomicBool::new(false)));
    }
}

/// Whether the parent of this program had the signal ignored.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0);
    (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1
}
