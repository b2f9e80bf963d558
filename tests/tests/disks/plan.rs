//! `copy --plan`: it says what the copy would do, and changes nothing.

use std::collections::BTreeMap;
use std::fs;

use blackbox::launch::Serve;
use blackbox::run::{Job, ferry, json, ours, text};
use blackbox::temp::{TempDir, pattern};
use blackbox::wait_for;
use rustix::process::Signal;

const MIB: u64 = 1 << 20;

/// The names and bytes of all files.
fn files(temp: &TempDir) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(temp.path()).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    files
        .map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap()))
        .collect()
}

#[test]
fn a_plan_counts_data_and_changes_nothing() {
    let temp = TempDir::new();
    let (disk, target, journal) = (temp.join("disk"), temp.join("copy"), temp.join("journal"));
    fs::write(&disk, pattern(0, 3 << 20)).unwrap();
    fs::File::options().write(true).open(&disk).unwrap().set_len(8 * MIB).unwrap();
    let plan = |words: &[&str]| {
        let before = files(&temp);
        let said = ferry([&["copy", "--plan=json"], words].concat());
        assert!(files(&temp) == before, "{words:?}");
        json(said.succeeded())
    };
    let ends = [text(&disk), text(&target)];
    let all = ["--journal", text(&journal), ends[0], ends[1]];
    let missing = plan(&all);
    for (key, value) in
        [("size", 8 * MIB), ("data", 3 * MIB), ("zeroes", 5 * MIB), ("stretches", 1)]
    {
        assert_eq!(missing[key], value, "{missing}");
    }
    assert!(missing["target-exists"] == false && missing["seconds-to-read"].as_f64() > Some(0.0));
    // One that was stopped on the way.
    let slow = [&["copy", "--rate=4M"], &all[..]].concat();
    let job = Job::start(&mut ours(slow));
    let begun = || fs::read_to_string(&journal).is_ok_and(|text| text.contains("durable"));
    wait_for("something is durable", begun);
    job.signal(Signal::KILL);
    job.wait();
    let left = plan(&all);
    let durable = left["durable"].as_u64().unwrap();
    assert_eq!(
        left["data"].as_u64().unwrap() + left["zeroes"].as_u64().unwrap(),
        8 * MIB - durable
    );
    assert!(durable > 0 && left["target-exists"] == true);
    ferry([&["copy", "-q"], &all[..]].concat()).succeeded();
    assert_eq!(plan(&all)["data"], 0);
    let done = plan(&ends);
    assert!(done["compared"].as_u64() > Some(0) && done["compared"] == done["equal"], "{done}");
    // What changed only.
    let list = temp.file("list", br#"[{"start":1048576,"length":65536,"data":true,"zero":false}]"#);
    let some = plan(&["--changes", text(&list), ends[0], ends[1]]);
    assert_eq!(some["data"], 65536, "{some}");
}

#[test]
fn what_a_copy_would_refuse_its_plan_refuses() {
    let temp = TempDir::new();
    let disk = temp.file("disk", &pattern(0, 2 << 20));
    let server = Serve::memory("1M").start();
    let plan = |target: &str| ferry(["copy", "--plan", text(&disk), target]).failed().to_owned();
    assert!(plan(&server.uri("")).contains("too small"));
    assert!(plan(text(&disk)).contains("source itself"));
    // An image that would become raw bytes is warned of, and what is to be left alone refused.
    let image = temp.join("image.qcow2");
    ferry(["create", "-q", "-f", "qcow2", text(&image), "4M"]).succeeded();
    let warned = ferry(["copy", "--plan", text(&disk), text(&image)]);
    warned.succeeded();
    let copied = ferry(["copy", text(&disk), text(&image)]);
    assert!(warned.stderr.contains("becomes a raw disk") && warned.stderr == copied.stderr);
    let clobbers = ["--no-clobber", text(&disk), text(&image)];
    let refusals = [&["copy"][..], &["copy", "--plan"]]
        .map(|verb| ferry([verb, &clobbers].concat()).failed().to_owned());
    assert_eq!(refusals[0], refusals[1]);
    assert!(plan("/nonexistent/copy").contains("No such file"));
    assert!(plan("nbd+unix:///?socket=/nonexistent").contains("No such file"));
    let words = ["copy", "--plan", "--journal", "j", "--digest=sha256/512", text(&disk), "x"];
    assert!(!ferry(words).status.success());
}
