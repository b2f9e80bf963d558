//! What is left when a conversion does not end as it should: killed, no room, a source that goes
//! away.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use blackbox::dice::{Case, Dice, long_form, seeds};
use blackbox::launch::Serve;
use blackbox::peers::{diskferry, skip_environment};
use blackbox::run::{Job, ours, run};
use blackbox::storage::Mounted;
use blackbox::temp::pattern;
use blackbox::{MIB, eventually, wait_for_lines};
use rustix::process::Signal;

use super::disks::differ;
use super::ground::{Ground, ferry, none_failed, sound, text, told};

const TARGETS: &[(&str, &[&str])] = &[
    ("raw", &[]),
    ("qcow2", &[]),
    ("qcow2", &["-c"]),
    ("qcow2", &["-o", "preallocation=metadata"]),
    ("vmdk", &[]),
    ("vmdk", &["-o", "subformat=streamOptimized"]),
    ("vdi", &[]),
    ("vpc", &["-o", "force_size=on"]),
    ("vhdx", &[]),
];

/// The names in a directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_killed_conversion_leaves_no_image_that_looks_complete() {
    let Some(ground) = Ground::new() else { return };
    let source = ground.temp.file("source.disk", &pattern(5, 6 << 20));
    for seed in seeds() {
        let (mut failures, mut early) = (Vec::new(), 0);
        let rounds = if long_form() { 30 } else { 4 };
        let _case = Case::new("kill", seed);
        let mut dice = Dice::new(seed);
        for (format, options) in TARGETS {
            for round in 0..rounds {
                let keep = round % 2 == 1;
                let target = ground.path("target");
                let mut command = ours(["convert", "-f", "raw", "-O", format, "-r", "40M"]);
                command.args(*options).args(keep.then_some("--keep-partial"));
                let job = Job::start(command.args([text(&source), &target]));
                thread::sleep(Duration::from_millis(u64::try_from(dice.below(220)).unwrap()));
                // It may have ended.
                let _ = rustix::process::kill_process(job.pid(), Signal::KILL);
                let outcome = job.wait();
                early += usize::from(!outcome.status.success());
                failures.extend(
                    left(
                        &ground,
                        format,
                        &source,
                        Path::new(&target),
                        keep,
                        outcome.status.success(),
                    )
                    .err()
                    .map(|e| format!("{format} {options:?}: {e}: {}", told(&outcome))),
                );
                ground.clear();
            }
        }
        println!("of {} that were killed, {early} had not ended", TARGETS.len() * rounds);
        none_failed(&failures);
    }
}

/// What may be there after a kill.
fn left(
    ground: &Ground,
    format: &str,
    source: &Path,
    target: &Path,
    keep: bool,
    done: bool,
) -> Result<(), String> {
    if !target.exists() {
        return if done { Err("done, and no target".into()) } else { Ok(()) };
    }
    // A raw disk has no header.
    if keep && !done && format == "raw" {
        return Ok(());
    }
    let back = ground.temp.join("back");
    let read = ferry(["convert", "-f", format, "-O", "raw", text(target), text(&back)]);
    sound(&read)?;
    if read.status.success() {
        return differ(source, &back, false).map_err(|e| format!("it opens: {e}"));
    }
    if done || !keep { Err(format!("it is there, and broken: {}", told(&read))) } else { Ok(()) }
}

#[test]
fn without_room_there_is_an_error_and_nothing_is_left() {
    let Some(ground) = Ground::new() else { return };
    let source = ground.temp.join("source.disk");
    noise(&source, 24 << 20);
    let mut failures = Vec::new();
    for (kind, size) in [("tmpfs", 4 * MIB), ("ext4", 16 * MIB)] {
        let Some(small) = Mounted::new(kind, size) else { return };
        let before = names(small.path()).len();
        for (format, options) in TARGETS {
            let target = small.join("target");
            let words = ["convert", "-f", "raw", "-O", format];
            let outcome =
                ferry(words.iter().chain(*options).chain(&[text(&source), text(&target)]));
            let wrong = if outcome.status.code() != Some(1) || outcome.stderr.lines().count() != 1 {
                Some(told(&outcome))
            } else if names(small.path()).len() != before {
                Some(format!("left: {:?}", names(small.path())))
            } else {
                None
            };
            failures.extend(wrong.map(|e| format!("{format} {options:?} on {kind}: {e}")));
            let _ = std::fs::remove_file(target);
        }
    }
    none_failed(&failures);
}

/// Bytes that no format makes fewer.
fn noise(path: &Path, size: usize) {
    let mut dice = Dice::new(7);
    let numbers = std::iter::repeat_with(|| dice.number().to_be_bytes());
    std::fs::write(path, numbers.flatten().take(size).collect::<Vec<_>>()).unwrap();
}

#[test]
fn a_source_that_is_cut_off_midway_is_an_error() {
    let Some(ground) = Ground::new() else { return };
    let mut failures = Vec::new();
    for (format, options) in TARGETS {
        let source = ground.temp.join("source.disk");
        noise(&source, 6 << 20);
        let target = ground.temp.join("target");
        let mut command = ours(["convert", "-f", "raw", "-O", format, "-r", "2M"]);
        let job = Job::start(command.args(*options).args([&source, &target]));
        // It has begun, and not ended.
        eventually("the source is open", || has_open(&job, &source).then_some(()));
        thread::sleep(Duration::from_millis(50));
        File::options().write(true).open(&source).unwrap().set_len(700_000).unwrap();
        let outcome = job.wait();
        // Where all was read before it was cut, all is there.
        let wrong = if outcome.status.success() {
            noise(&source, 6 << 20);
            let back = ground.temp.join("back");
            let read = ferry(["convert", "-f", format, text(&target), text(&back)]);
            sound(&read).and_then(|()| differ(&source, &back, false)).err()
        } else {
            target.exists().then(|| "it is there".to_owned())
        };
        failures.extend(wrong.map(|e| format!("{format} {options:?}: {e}: {}", told(&outcome))));
        ground.clear();
    }
    none_failed(&failures);
}

/// Whether it has this file open, or has ended.
fn has_open(job: &Job, path: &Path) -> bool {
    let Ok(held) = std::fs::read_dir(format!("/proc/{}/fd", job.pid())) else { return true };
    let mut links = held.flatten().map(|entry| std::fs::read_link(entry.path()));
    links.any(|link| link.is_ok_and(|link| link == path))
}

#[test]
fn a_server_that_goes_away_midway_is_an_error() {
    let Some(ground) = Ground::new() else { return };
    let source = ground.temp.join("source.disk");
    noise(&source, 6 << 20);
    for (format, options) in &TARGETS[..3] {
        let log = ground.path(&format!("log.{format}{}", options.len()));
        let serve = Serve::file(&source).option("--filter=rate?rate=8M&burstiness=0.1");
        let server = serve.option(format!("--filter=log?logfile={log}")).start();
        let target = ground.temp.join("target");
        let mut command = ours(["convert", "-f", "raw", "-O", format]);
        let uri = server.uri("");
        let job = Job::start(command.args(*options).args([&uri, text(&target)]));
        wait_for_lines(Path::new(&log), "...Read ", 1);
        server.kill();
        let outcome = job.wait();
        outcome.failed();
        assert!(!target.exists(), "{outcome:#?}");
    }
}

/// System calls on the target's file fail, or do less than they were asked.
#[test]
fn a_disk_that_fails_below_a_new_image_is_an_error_and_nothing_is_left() {
    if !cfg!(target_arch = "x86_64") {
        return skip_environment("faults are injected on x86_64 only");
    }
    let Some(ground) = Ground::new() else { return };
    let Some(disk) = Mounted::new("ext4", 64 * MIB) else { return };
    let source = ground.temp.file("source.disk", &pattern(5, (3 << 20) + 1536));
    let before = names(disk.path()).len();
    let target = disk.join("target");
    for seed in seeds() {
        let (mut failures, mut failed) = (Vec::new(), 0);
        let _case = Case::new("faults", seed);
        for (format, options) in TARGETS {
            for rule in [
                "pwrite64=EIO@2",
                "pwrite64=EIO@10%",
                "pwrite64=ENOSPC@4+",
                "pwrite64=short@50%",
                "fdatasync=EIO@1",
                "fdatasync=EIO@2",
                "fallocate=EIO@1+",
                "ftruncate=EIO@1+",
            ] {
                let mut command = Command::new(env!("CARGO_BIN_EXE_faulty"));
                command.arg(seed.to_string()).arg(format!("{rule}:{}", disk.path().display()));
                command.arg("--").arg(diskferry()).args(["convert", "-f", "raw", "-O", format]);
                let outcome = run(command.args(*options).args([text(&source), text(&target)]));
                let wrong = match outcome.status.code() {
                    Some(0) => left(&ground, format, &source, &target, false, true).err(),
                    Some(1) if outcome.stderr.lines().count() != 1 => Some("no one line".into()),
                    Some(1) if names(disk.path()).len() != before => {
                        Some("a target is left".into())
                    }
                    Some(1) => None,
                    _ => Some(String::new()),
                };
                failed += usize::from(!outcome.status.success());
                let wrong =
                    wrong.map(|e| format!("{format} {options:?}, {rule}: {e}: {outcome:#?}"));
                failures.extend(wrong);
                let _ = std::fs::remove_file(&target);
            }
            // What was not made durable is no success.
            assert!(failed > 0, "{format} {options:?}");
        }
        none_failed(&failures);
    }
}

/// The container is an export whose writes and flushes fail: no half image opens.
#[test]
fn a_server_that_fails_below_a_new_image_is_an_error_and_no_image_opens() {
    let Some(ground) = Ground::new() else { return };
    let source = ground.temp.file("source.disk", &pattern(5, (3 << 20) + 1536));
    let mut failures = Vec::new();
    for (format, options) in TARGETS {
        for rate in [
            "error-pwrite-rate=100%",
            "error-pwrite-rate=10%",
            "error-zero-rate=100%",
            "error-flush-rate=100%",
            "error-rate=5%",
        ] {
            let image = ground.temp.sparse_file("image", 16 << 20);
            let serve = Serve::device(["file", text(&image)]);
            let server = serve.option(format!("--filter=error?{rate}")).start();
            let words = ["convert", "-f", "raw", "-O", format];
            let uri = server.uri("");
            let outcome = ferry(words.iter().chain(*options).chain(&[text(&source), &uri]));
            drop(server);
            let wrong = sound(&outcome).err().or_else(|| match outcome.status.code() {
                Some(0) if rate.starts_with("error-pwrite-rate=100") => Some("success".into()),
                Some(0) if rate.starts_with("error-flush") => {
                    Some("success, and not durable".into())
                }
                Some(0) => ground_reads(&ground, format, &source, &image).err(),
                Some(1) if outcome.stderr.lines().count() != 1 => Some("no one line".into()),
                // A raw disk has no header.
                Some(1) if *format != "raw" => {
                    let back = ground.path("back");
                    let read = ferry(["convert", "-f", format, text(&image), &back]);
                    let same = || differ(&source, Path::new(&back), false).err();
                    read.status.success().then(same).flatten().map(|e| format!("it opens: {e}"))
                }
                Some(1) => None,
                _ => Some(String::new()),
            });
            let wrong =
                wrong.map(|e| format!("{format} {options:?}, {rate}: {e}: {}", told(&outcome)));
            failures.extend(wrong);
            ground.clear();
        }
    }
    none_failed(&failures);
}

/// The image, which may be followed by other bytes, holds the disk.
fn ground_reads(ground: &Ground, format: &str, source: &Path, image: &Path) -> Result<(), String> {
    let back = ground.path("back");
    let read = ferry(["convert", "-f", format, "-O", "raw", text(image), &back]);
    if !read.status.success() {
        return Err(told(&read));
    }
    differ(source, Path::new(&back), true)
}
