//! What a server holds of the system.

use std::fs;

use blackbox::MIB;

/// What it may grow by from its first spell to any later one, in bytes: buffers that are kept for
/// reuse, and what the allocator keeps.
const GROWTH: u64 = 48 * MIB;
/// Threads that wait for disks, with those beyond the limit, reactors and all others.
const THREADS: usize = 128;
/// What it may hold beside its limit of memory, in bytes.
const BESIDE: u64 = 96 * MIB;

/// At one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    /// Anonymous bytes in memory.
    pub(crate) memory: u64,
}

impl Held {
    pub(crate) fn of(process: i32) -> Self {
        let status =
            fs::read_to_string(format!("/proc/{process}/status")).expect("the server runs");
        let field = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
        let threads = usize::try_from(field("Threads:")).unwrap();
        Self { descriptors, threads, memory: field("RssAnon:") * 1024 }
    }

    /// What descriptors of a process lead to, for people.
    pub(crate) fn names(process: i32) -> Vec<String> {
        let all = fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
        let links = all.filter_map(|one| fs::read_link(one.path()).ok());
        links.map(|link| link.display().to_string()).collect()
    }

    /// Panics if it grew since its first spell.
    pub(crate) fn fits(self, first: Self) {
        let grown = self.memory.saturating_sub(first.memory);
        assert!(grown <= GROWTH, "it keeps {grown} bytes of memory: {self:?}, and had {first:?}");
        assert!(self.threads <= THREADS, "it has {} threads", self.threads);
    }

    /// Panics if it holds more than its limit and what it may have besides.
    pub(crate) fn is_within(self, limit: u64) {
        assert!(self.memory <= limit + BESIDE, "{self:?}, with a limit of {limit} bytes");
    }
}
