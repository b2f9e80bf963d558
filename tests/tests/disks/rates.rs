//! What holds a copy up, as its progress says it, and a rate that is changed while it runs.

use std::fs;

use blackbox::run::{Job, ferry, json, ours, text};
use blackbox::temp::{TempDir, pattern};
use blackbox::wait_for;

/// The last `waiting-for` of a copy's progress so far.
fn waits(job: &Job) -> Option<String> {
    let said = job.said();
    // The last line may be incomplete, and what filters say is text.
    let whole = said.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines: Vec<_> = whole.lines().filter(|line| line.starts_with('{')).map(json).collect();
    let last = lines.iter().rfind(|line| line["type"] == "progress")?;
    last["data"]["waiting-for"].as_str().map(str::to_owned)
}

#[test]
fn a_rate_in_a_file_is_changed_while_the_copy_runs_and_the_progress_says_what_it_waits_for() {
    let temp = TempDir::new();
    let (disk, copy) = (temp.file("disk", &pattern(0, 4 << 20)), temp.join("copy"));
    // At this rate it would take 48 days.
    let file = temp.file("rate", b"1\n");
    let words = ["copy", "--progress=json", "--rate-file", text(&file), text(&disk), text(&copy)];
    let job = Job::start(&mut ours(words));
    wait_for("it is held back", || waits(&job).as_deref() == Some("rate"));
    assert!(!copy.exists());
    // Makes no sense, and changes nothing.
    fs::write(&file, "fast\n").unwrap();
    wait_for("it complains", || job.said().contains("fast"));
    // The rate stays that of a file that has gone away.
    fs::remove_file(&file).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert!(!copy.exists() && waits(&job).as_deref() == Some("rate"));
    fs::write(&file, "off\n").unwrap();
    job.wait().succeeded();
    assert!(fs::read(&copy).unwrap() == fs::read(&disk).unwrap());
    // A name that was mistyped must not copy at full speed.
    let words = ["copy", "--rate-file", "/nonexistent/rate", text(&disk), "null:"];
    let refused = ferry(words);
    assert!(refused.refused().contains("create it first"), "{refused:?}");
}

#[test]
fn the_slower_end_is_waited_for() {
    let temp = TempDir::new();
    let (disk, copy) = (temp.file("disk", &pattern(0, 4 << 20)), temp.join("copy"));
    for (filter, wanted) in [
        ("--source-filter=delay?rdelay=100ms", "source"),
        ("--target-filter=delay?wdelay=100ms", "target"),
    ] {
        let words = ["copy", "--progress=json", "--synchronous", "--request-size=64K", filter];
        let job = Job::start(&mut ours(words.into_iter().chain([text(&disk), text(&copy)])));
        wait_for("it waits", || waits(&job).as_deref() == Some(wanted));
        let done = job.wait();
        done.succeeded();
        let lines: Vec<_> = done.stderr.lines().map(json).collect();
        let rates = |key: &str| {
            let all = lines.iter().filter_map(|line| line["data"][key].as_u64());
            all.max().unwrap_or(0)
        };
        assert!(rates("read-rate") > 0 && rates("write-rate") > 0, "{lines:?}");
    }
}

#[test]
fn a_timetable_says_the_rate_by_the_time_of_the_day() {
    let temp = TempDir::new();
    let (disk, copy) = (temp.file("disk", &pattern(0, 4 << 20)), temp.join("copy"));
    let copied = |table: &str| {
        let words = ["copy", "--progress=json", "--bandwidth-schedule", table];
        ours(words.into_iter().chain([text(&disk), text(&copy)]))
    };
    let job = Job::start(&mut copied("00:00,1 12:00,1/s"));
    wait_for("it is held back", || waits(&job).as_deref() == Some("rate"));
    assert!(!job.signal_until_it_ends(rustix::process::Signal::TERM).status.success());
    Job::start(&mut copied("00:00,off Sun-12:00,off")).wait().succeeded();
    assert!(fs::read(&copy).unwrap() == fs::read(&disk).unwrap());
    for (options, why) in [
        (&["--bandwidth-schedule", "8,512K"][..], "is not a time and a rate"),
        (&["--bandwidth-schedule", "08:00,1M", "--rate", "1M"], "cannot be used with"),
    ] {
        let ends = [text(&disk), text(&copy)];
        let refused = ferry(["copy"].into_iter().chain(options.iter().copied()).chain(ends));
        assert!(refused.refused().contains(why), "{refused:?}");
    }
}
