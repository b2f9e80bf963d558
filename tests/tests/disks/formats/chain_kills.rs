//! A rebase or a commit that is killed leaves an overlay that reads as before, and does its work
//! when it is run again.

use std::thread;
use std::time::Duration;

use blackbox::dice::{Case, Dice, long_form, seeds};
use blackbox::run::{Job, ours};
use blackbox::temp::pattern;
use rustix::process::Signal;

use super::disks::differ;
use super::ground::{Ground, ferry, none_failed, told};

const SIZE: usize = 12 << 20;

#[test]
fn an_overlay_of_which_a_rebase_or_a_commit_is_killed_reads_as_before() {
    let Some(ground) = Ground::new() else { return };
    let rebase = &["rebase", "-f", "qcow2", "-b", "other", "-F", "raw"][..];
    let verbs = [
        ("raw", rebase),
        ("raw", &["rebase", "-c", "-f", "qcow2", "-b", "other", "-F", "raw"]),
        ("raw", &["commit", "-f", "qcow2", "-r", "40M"]),
        ("qcow2", &["commit", "-f", "qcow2", "-r", "40M"]),
        ("raw", &["commit", "-f", "qcow2", "-r", "40M", "-b", "base"]),
    ];
    for seed in seeds() {
        let (mut failures, mut early) = (Vec::new(), 0);
        let rounds = if long_form() { 30 } else { 2 };
        let _case = Case::new("kill", seed);
        let mut dice = Dice::new(seed);
        for (format, words) in verbs {
            for _ in 0..rounds {
                let delay = Duration::from_millis(u64::try_from(dice.below(250)).unwrap());
                match killed(&ground, format, words, delay) {
                    Ok(done) => early += usize::from(!done),
                    Err(e) => failures.push(format!("{words:?} over {format}, {delay:?}: {e}")),
                }
                ground.clear();
            }
        }
        println!("of {} that were killed, {early} had not ended", verbs.len() * rounds);
        none_failed(&failures);
    }
}

/// Kills it after this delay. Says whether it had ended before.
fn killed(ground: &Ground, format: &str, words: &[&str], delay: Duration) -> Result<bool, String> {
    ground.temp.file("other", &pattern(1 << 20, SIZE));
    let first = ground.path("first");
    ground.temp.file("first", &pattern(7 << 20, SIZE - 4096));
    ground.img(&["convert", "-f", "raw", "-O", format, &first, "base"]);
    ground.img(&["create", "-q", "-f", "qcow2", "-b", "base", "-F", format, "over"]);
    ground.img(&["resize", "-q", "-f", "qcow2", "over", "12M"]);
    let commands = ["write -P 1 1M 3M", "write -z 5M 1M", "write -P 2 7000000 2000000"];
    ground.io("qcow2", "over", &commands.map(str::to_owned))?;
    let (truth, over) = (ground.truth("qcow2", "over", "truth"), ground.path("over"));
    let words = [words, &["--allow-external", "chain", &over]].concat();
    let job = Job::start(&mut ours(&words));
    thread::sleep(delay);
    // It may have ended.
    let _ = rustix::process::kill_process(job.pid(), Signal::KILL);
    let done = job.wait().status.success();
    let reads_so = |when: &str| {
        let check = ground.try_img(&["check", "-f", "qcow2", "over"]);
        // 3: leaks.
        if !matches!(check.status.code(), Some(0 | 3)) {
            return Err(format!("{when}: {}", told(&check)));
        }
        let now = ground.truth("qcow2", "over", "now");
        differ(&truth, &now, false).map_err(|e| format!("{when}: {e}"))
    };
    reads_so("killed")?;
    let again = ferry(&words);
    if !again.status.success() {
        return Err(format!("again: {}", told(&again)));
    }
    reads_so("again")?;
    if words.first() == Some(&"commit") {
        let base = ground.truth(format, "base", "below");
        differ(&truth, &base, true).map_err(|e| format!("the backing image: {e}"))?;
    }
    Ok(done)
}
