//! Signals that matter to every verb: which were ignored at the start, those that must not end the
//! program, and the one that must not be ignored.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGCHLD, SIGUSR1, SIGXFSZ};

/// A write beyond the limit of file sizes (ulimit -f) is an error of that write, and does not end
/// the program. Programs that we start have the signal as it was: a handler, unlike an ignored
/// signal, does not survive exec(2).
pub(crate) fn outlive_file_size_limit() {
    if !is_ignored(SIGXFSZ) {
        // Without it the signal ends the program, as usual.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
    }
}

/// Where the parent ignores SIGCHLD, this program would, too, and the system would discard the
/// statuses of programs that it starts.
pub(crate) fn hear_how_programs_end() {
    if is_ignored(SIGCHLD) {
        // Without it asking for their status fails.
        let _ = signal_hook::flag::register(SIGCHLD, Arc::new(AtomicBool::new(false)));
    }
}

/// Whether the parent of this program had the signal ignored.
pub(crate) fn is_ignored(signal: i32) -> bool {
    static IGNORED: OnceLock<u64> = OnceLock::new();
    let mask = *IGNORED.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0)
    });
    (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1
}

/// Lives on when it is asked how far it is before there is anything to tell.
pub(crate) fn outlive_questions() {
    // Without room for a handler it ends by the first such question, as it would have anyway.
    let _ = signal_hook::flag::register(SIGUSR1, Arc::default());
}
