//! Memory control groups: a command that gets this many bytes and no more. Needs root.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::peers::skip_environment;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A memory control group (version 1); removed when dropped.
#[derive(Debug)]
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// A group whose processes, and the pages of files that they read and write, have `limit`
    /// bytes; `None`, after saying so, where that is not to be had.
    pub fn new(limit: u64) -> Option<Self> {
        let name = format!("df-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = mounted()?.join(name);
        let made = fs::create_dir(&path)
            .and_then(|()| fs::write(path.join("memory.limit_in_bytes"), limit.to_string()));
        let group = Self(path);
        if made.is_err() {
            skip_environment("making a memory control group needs root");
            return None;
        }
        Some(group)
    }

    /// A command that runs `program` in the group.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        let enter = r#"echo $$ > "$0"; exec "$@""#;
        command.args(["-c", enter]).arg(self.0.join("cgroup.procs")).arg(program);
        command
    }

    fn number(&self, file: &str) -> u64 {
        fs::read_to_string(self.0.join(file)).unwrap().trim().parse().unwrap()
    }

    /// The most bytes that it had, and how often it had reached its limit.
    pub fn peak(&self) -> (u64, u64) {
        (self.number("memory.max_usage_in_bytes"), self.number("memory.failcnt"))
    }

    /// Forgets the most that it had.
    pub fn forget_peak(&self) {
        fs::write(self.0.join("memory.max_usage_in_bytes"), "0").unwrap();
    }

    /// How many of its processes were killed because there was no memory.
    pub fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("memory.oom_control")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.map_or(0, |number| number.trim().parse().unwrap())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("memory.force_empty"), "0");
        let _ = fs::remove_dir(&self.0);
    }
}

/// Where the groups are; they are mounted if they are not yet.
fn mounted() -> Option<PathBuf> {
    let path = PathBuf::from("/sys/fs/cgroup/memory");
    if path.join("memory.limit_in_bytes").exists() {
        return Some(path);
    }
    let own = PathBuf::from("/tmp/df-cgroup-memory");
    let is_mounted = || own.join("memory.usage_in_bytes").exists();
    let _ = fs::create_dir(&own);
    // Only what root made there.
    let is_ours = fs::metadata(&own).is_ok_and(|m| m.uid() == 0 && m.is_dir());
    if is_ours && !is_mounted() {
        let _ =
            Command::new("mount").args(["-t", "cgroup", "-o", "memory", "none"]).arg(&own).status();
    }
    if is_ours && is_mounted() {
        return Some(own);
    }
    skip_environment("memory control groups of version 1 are not to be had");
    None
}
