//! What is left when a conversion does not end as it should: killed, no room, a source that goes away.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::Duration;

use blackbox::MIB;
use blackbox::dice::{Case, Dice, long_form, seeds};
use blackbox::launch::Serve;
use blackbox::run::{Job, ours};
use blackbox::storage::Mounted;
use blackbox::temp::pattern;
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
fn who_is_killed_leaves_no_image_that_looks_complete() {
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
    // A raw disk says nothing of itself.
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
        thread::sleep(Duration::from_millis(150));
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

#[test]
fn a_server_that_goes_away_midway_is_an_error() {
    let Some(ground) = Ground::new() else { return };
    let source = ground.temp.join("source.disk");
    noise(&source, 6 << 20);
    for (format, options) in &TARGETS[..3] {
        let server = Serve::file(&source).option("--filter=rate?rate=16M&burstiness=0.1").start();
        let target = ground.temp.join("target");
        let mut command = ours(["convert", "-f", "raw", "-O", format]);
        let uri = server.uri("");
        let job = Job::start(command.args(*options).args([&uri, text(&target)]));
        thread::sleep(Duration::from_millis(300));
        server.kill();
        let outcome = job.wait();
        outcome.failed();
        assert!(!target.exists(), "{outcome:#?}");
    }
}
