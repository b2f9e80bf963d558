//! How much memory is free for the page cache: what the system could give without swapping, and
//! what the control groups of this process leave, of both versions.

use std::fs;
use std::path::{Path, PathBuf};

/// The greatest depth of groups.
const DEEPEST: usize = 64;

/// Bytes that are free. A source that cannot be read sets no bound; 0 if none can.
pub(crate) fn free() -> u64 {
    let available = available();
    let left = left_by_groups();
    available.into_iter().chain(left).min().unwrap_or(0)
}

/// `MemAvailable` of /proc/meminfo.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The least that any of the groups leaves.
fn left_by_groups() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let version = match controllers {
                "" => Version::Two,
                list if list.split(',').any(|c| c == "memory") => Version::One,
                _ => return None,
            };
            left_above(&version.directory(&mounts, path)?, version)
        })
        .min()
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// Names of the files that hold the limits and the use, and the field of `memory.stat` for
    /// memory that can be freed at once. Beyond `memory.high` no process is killed, but all are
    /// made to wait.
    fn files(self) -> (&'static [&'static str], &'static str, &'static str) {
        match self {
            Self::One => {
                (&["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_inactive_file")
            }
            Self::Two => (&["memory.max", "memory.high"], "memory.current", "inactive_file"),
        }
    }

    /// Where the group's files lie.
    fn directory(self, mounts: &str, group: &str) -> Option<(PathBuf, PathBuf)> {
        mounts.lines().find_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let mut kind = kind.split(' ');
            let fits = match self {
                Self::One => {
                    kind.next() == Some("cgroup")
                        && kind.nth(1).is_some_and(|o| o.split(',').any(|o| o == "memory"))
                }
                Self::Two => kind.next() == Some("cgroup2"),
            };
            let (root, point) = mount.split(' ').nth(3).zip(mount.split(' ').nth(4))?;
            // Where only a part of the groups is shown, the group may be named from another root.
            let within = group.strip_prefix(root.trim_end_matches('/')).unwrap_or("");
            let point = PathBuf::from(point);
            fits.then(|| (point.join(within.trim_start_matches('/')), point))
        })
    }
}

/// What a group and all above it leave.
fn left_above((group, top): &(PathBuf, PathBuf), version: Version) -> Option<u64> {
    let above = group.ancestors().take(DEEPEST).take_while(|path| path.starts_with(top));
    above.filter_map(|path| left_in(path, version)).min()
}

fn left_in(group: &Path, version: Version) -> Option<u64> {
    let (limits, used, inactive) = version.files();
    let number = |name| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = limits.iter().copied().filter_map(number).min()?;
    let used = number(used)?;
    let stat = fs::read_to_string(group.join("memory.stat")).ok()?;
    let inactive = stat.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        value.parse::<u64>().ok().filter(|_| name == inactive)
    });
    Some(limit.saturating_sub(used.saturating_sub(inactive.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_where_it_is_mounted() {
        let mounts = "24 1 0:22 / /proc rw - proc proc rw\n\
                      30 28 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      31 28 0:27 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
                      32 28 0:28 /pod /groups rw - cgroup2 cgroup2 rw\n";
        let found = |version: Version, group| version.directory(mounts, group).map(|(d, _)| d);
        assert_eq!(found(Version::One, "/a/b"), Some("/sys/fs/cgroup/memory/a/b".into()));
        assert_eq!(found(Version::One, "/"), Some("/sys/fs/cgroup/memory".into()));
        assert_eq!(found(Version::Two, "/pod/one"), Some("/groups/one".into()));
        assert_eq!(found(Version::Two, "/other"), Some("/groups".into()));
    }

    #[test]
    fn the_least_of_a_group_and_those_above_it_counts() {
        let scratch = trial::Scratch::new("/tmp");
        let top = scratch.path("groups");
        let group = top.join("a/b");
        fs::create_dir_all(&group).unwrap();
        let write = |path: &Path, max: &str, current: &str| {
            fs::write(path.join("memory.max"), max).unwrap();
            fs::write(path.join("memory.current"), current).unwrap();
            fs::write(path.join("memory.stat"), "anon 1\ninactive_file 30\n").unwrap();
        };
        write(&group, "max\n", "50\n");
        let left = || left_above(&(group.clone(), top.clone()), Version::Two);
        assert_eq!(left(), None, "no limit");
        write(&top.join("a"), "100\n", "80\n");
        assert_eq!(left(), Some(50));
        write(&group, "70\n", "90\n");
        assert_eq!(left(), Some(10));
        write(&group, "20\n", "90\n");
        assert_eq!(left(), Some(0));
        // A group beyond `memory.high` is slowed down before the limit is reached.
        write(&group, "max\n", "50\n");
        write(&top.join("a"), "max\n", "80\n");
        assert_eq!(left(), None);
        fs::write(group.join("memory.high"), "65\n").unwrap();
        assert_eq!(left(), Some(45));
        fs::write(group.join("memory.max"), "60\n").unwrap();
        assert_eq!(left(), Some(40), "the lower of the two");
        fs::write(top.join("a/memory.high"), "max\n").unwrap();
        assert_eq!(left(), Some(40));
    }

    #[test]
    fn something_is_free() {
        assert!(free() > 0);
    }
}
