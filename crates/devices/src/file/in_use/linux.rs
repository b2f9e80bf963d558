//! What the system uses a block device for, and its facts, from /sys and /proc. The device is not
//! opened.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use device::{Params, text};

use crate::file::block;
use crate::file::descriptor::path_of;
use crate::inspection::{Fact, Facts};

/// What uses the block device that the parameters of `file` name, or a part of it, or the disk that
/// it is a part of: words for people. Empty for a file, and with `lock=off`, which says that it is
/// to be used all the same.
pub(crate) fn users(params: &Params) -> Vec<String> {
    if params.get("lock") == Some("off") {
        return Vec::new();
    }
    all_users(params)
}

fn all_users(params: &Params) -> Vec<String> {
    let Some((number, about)) = named(params) else { return Vec::new() };
    let mut users = of_one(number, &about, "");
    for (name, part) in partitions(&about) {
        if let Some(number) = block::number_of(&part) {
            users.extend(of_one(number, &part, &format!("its partition {name} is ")));
        }
    }
    // Only users of the whole disk: its other partitions do not matter to this one.
    let disk = about.join("..");
    if about.join("partition").exists()
        && let Some(number) = block::number_of(&disk)
    {
        users.extend(of_one(number, &disk, "its disk is "));
    }
    users
}

/// The facts of the block device that the parameters of `file` name. Empty for a file.
pub(crate) fn facts(params: &Params) -> Facts {
    let Some((number, about)) = named(params) else { return Vec::new() };
    let queue = |name: &str| block::queue_text(number, name);
    let mut facts = Facts::new();
    let sectors = fs::read_to_string(about.join("size")).ok();
    if let Some(size) = sectors.and_then(|n| n.trim().parse::<u64>().ok()?.checked_mul(512)) {
        facts.push(("device-size", Fact::Number(size)));
    }
    for (key, name) in [
        ("logical-block-size", "logical_block_size"),
        ("physical-block-size", "physical_block_size"),
        ("minimum-io-size", "minimum_io_size"),
        ("optimal-io-size", "optimal_io_size"),
        ("discard-granularity", "discard_granularity"),
        ("discard-max-bytes", "discard_max_bytes"),
        ("write-zeroes-max-bytes", "write_zeroes_max_bytes"),
        ("write-zeroes-unmap-max-bytes", "write_zeroes_unmap_max_bytes"),
    ] {
        if let Some(number) = queue(name).and_then(|text| text.parse().ok()) {
            facts.push((key, Fact::Number(number)));
        }
    }
    if let Some(offset) = number_in(&about.join("alignment_offset")) {
        facts.push(("alignment-offset", Fact::Number(offset)));
    }
    if let Some(flag) = queue("rotational") {
        facts.push(("is-rotational", Fact::Flag(flag == "1")));
    }
    if let Some(flag) = number_in(&about.join("ro")) {
        facts.push(("is-read-only", Fact::Flag(flag != 0)));
    }
    let partitions: Vec<_> = partitions(&about).into_iter().map(|(name, _)| name).collect();
    for (key, texts) in [("partitions", partitions), ("in-use", all_users(params))] {
        if !texts.is_empty() {
            facts.push((key, Fact::Texts(texts)));
        }
    }
    facts
}

/// Its number, and where the kernel describes it.
fn named(params: &Params) -> Option<(u64, PathBuf)> {
    let found = fs::metadata(path_of(params).ok()?).ok()?;
    found.file_type().is_block_device().then_some(())?;
    let number = found.rdev();
    let about = fs::canonicalize(block::about(number)).ok()?;
    Some((number, about))
}

/// Its partitions: their names, and where they are described.
fn partitions(about: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(about).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists() {
            found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
        }
    }
    found.sort();
    found
}

fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// What uses one device, each with `before` in front.
fn of_one(number: u64, about: &Path, before: &str) -> Vec<String> {
    let mut users = mounts(number);
    for holder in fs::read_dir(about.join("holders")).into_iter().flatten().flatten() {
        users.push(format!("held by {}", holder.file_name().to_string_lossy()));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let is_it = |path: &str| {
        fs::metadata(text::unescaped(path.as_bytes())).is_ok_and(|found| found.rdev() == number)
    };
    if swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).any(is_it) {
        users.push("used for swap".to_owned());
    }
    // The kernel lets others write below a loop device.
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let below = fs::read_to_string(entry.path().join("loop/backing_file"));
        if below.is_ok_and(|path| is_it(path.trim_end_matches('\n'))) {
            users.push(format!("below {}", entry.file_name().to_string_lossy()));
        }
    }
    users.into_iter().map(|user| format!("{before}{user}")).collect()
}

fn mounts(number: u64) -> Vec<String> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let numbers = format!("{major}:{minor}");
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut users = Vec::new();
    for line in table.lines() {
        let Some((front, behind)) = line.split_once(" - ") else { continue };
        let mut front = front.split(' ').skip(2);
        let (device, point) = (front.next(), front.nth(1).unwrap_or_default());
        // A file system on several devices has a number of its own, and is mounted by the path of
        // one.
        let source = behind.split(' ').nth(1).unwrap_or_default();
        let is_it = device == Some(&*numbers)
            || (source.starts_with('/')
                && fs::metadata(text::unescaped(source.as_bytes())).is_ok_and(|found| {
                    found.file_type().is_block_device() && found.rdev() == number
                }));
        if is_it {
            users.push(format!(
                "mounted on {}",
                text::unescaped(point.as_bytes()).to_string_lossy()
            ));
        }
    }
    users.dedup();
    users
}
