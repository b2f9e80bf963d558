//! Plans of many copies whose state is in a real store (versitygw): processes that share nothing
//! but that and their disks, and are killed, doubled and late. What fails in a store is scripted
//! beside the code (`crates/devices/src/http/s3/records_tests.rs`,
//! `crates/transfer/src/fleet/stored/tests.rs`); before a real one it is in `s3_faults`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use blackbox::run::{Job, Outcome, json, run, text};
use blackbox::temp::pattern;
use blackbox::wait_for;
use rustix::process::Signal;

use crate::s3::{Gateway, ID, SECRET};

/// What a killed process held has to run out.
const GUARD: Duration = Duration::from_secs(600);
/// Disks, each of which is several shards, and one image.
const DISKS: u64 = 3;

/// A plan of disks, whose state is in a store.
pub(crate) struct StoredFleet<'a> {
    store: &'a Gateway,
    state: String,
    endpoint: String,
}

impl<'a> StoredFleet<'a> {
    /// Disks and a job. The store is reached by this port.
    pub(crate) fn new(store: &'a Gateway, (name, port): (&str, u16), limits: &str) -> Self {
        let fleet =
            Self { store, state: name.to_owned(), endpoint: format!("http://127.0.0.1:{port}") };
        fs::create_dir_all(fleet.path("out")).unwrap();
        for n in 0..DISKS {
            let size = (16 << 20) + usize::try_from(n).unwrap() * 512;
            fs::write(fleet.path(&format!("{n}.raw")), pattern(n * 77, size)).unwrap();
        }
        let place = format!("s3://disks/{name}?endpoint={}&retry=8", fleet.endpoint);
        let job = format!(
            "state = {place:?}\n[limits]\nshard-size = \"8M\"\n{limits}\n\
             [[disk]]\nsource = \"*.raw\"\ntarget = \"out/{{name}}.img\"\n\
             [[disk]]\nsource = \"0.raw\"\ntarget = \"out/image\"\ntarget-format = \"qcow2\"\n"
        );
        fs::write(fleet.path("job.toml"), job).unwrap();
        fleet
    }

    fn path(&self, name: &str) -> PathBuf {
        self.store.temp().join(&self.state).join(name)
    }

    /// Runs a verb on the plan, which may say nothing that is secret.
    pub(crate) fn verb(&self, verb: &str, words: &[&str]) -> Outcome {
        let plan = self.path("plan.json");
        let mut command = self.store.ours([&[verb, text(&plan)], words].concat());
        let done = Job::start(&mut command).wait_within(GUARD);
        assert!(!(done.stdout.clone() + &done.stderr).contains(SECRET), "{done:?}");
        done
    }

    pub(crate) fn plan(&self) -> Outcome {
        let (job, plan) = (self.path("job.toml"), self.path("plan.json"));
        let done = run(&mut self.store.ours(["plan", text(&job), "-o", text(&plan)]));
        assert!(!(done.stdout.clone() + &done.stderr).contains(SECRET), "{done:?}");
        done
    }

    fn start(&self, words: &[&str]) -> Job {
        let plan = self.path("plan.json");
        Job::start(&mut self.store.ours([&["run", "-q", text(&plan)], words].concat()))
    }

    /// The records, by their names.
    fn records(&self) -> Vec<(String, String)> {
        let entries = fs::read_dir(self.store.object(&self.state)).into_iter().flatten().flatten();
        let read = |path: &Path| {
            let name = path.file_name()?.to_str()?.to_owned();
            Some((name, fs::read_to_string(path).ok()?))
        };
        let mut all: Vec<_> = entries.filter_map(|entry| read(&entry.path())).collect();
        all.sort();
        all
    }

    fn has_journals(&self) -> bool {
        self.records().iter().any(|(name, _)| name.ends_with(".journal"))
    }

    pub(crate) fn all_is_right(&self) {
        for n in 0..DISKS {
            let source = fs::read(self.path(&format!("{n}.raw"))).unwrap();
            assert!(source == fs::read(self.path(&format!("out/{n}.img"))).unwrap(), "disk {n}");
        }
        let (source, image) = (self.path("0.raw"), self.path("out/image"));
        let words = ["compare", "-f", "raw", "-F", "qcow2", text(&source), text(&image)];
        run(&mut self.store.ours(words)).succeeded();
    }
}

#[test]
fn a_plan_whose_state_is_in_a_store_survives_kills_and_is_finished_when_all_is_there() {
    let Some(store) = Gateway::start() else { return };
    let limits = "readers = 2\nrate = \"8M\"";
    let fleet = StoredFleet::new(&store, ("fleets", store.port()), limits);
    fleet.plan().succeeded();
    assert!(fleet.verb("finish", &[]).failed().contains("was not begun"));
    // Killed in the middle; what it holds runs out later.
    let killed = fleet.start(&["--all", "--workers", "2"]);
    wait_for("a journal", || fleet.has_journals());
    killed.signal(Signal::KILL);
    assert!(!killed.wait().status.success());
    let status = json(&fleet.verb("status", &["--json"]).stdout);
    assert!(status["copied"].as_u64() < status["data"].as_u64(), "{status}");
    fleet.verb("run", &["--shard", "0/2", "--workers", "2"]).succeeded();
    let said = fleet.verb("finish", &[]).failed().to_owned();
    assert!(said.contains("shards are missing"), "{said}");
    assert!(fleet.records().iter().all(|(name, _)| !name.ends_with(".finished")));
    // Two at the same time.
    let doubled: Vec<_> = (0..2).map(|_| fleet.start(&["--shard", "1/2"])).collect();
    doubled.into_iter().for_each(|job| {
        job.wait_within(GUARD).succeeded();
    });
    let status = json(&fleet.verb("status", &["--json"]).stdout);
    assert_eq!(status["copied"], status["data"], "{status}");
    let secrets = |fleet: &StoredFleet<'_>| {
        let plan = fs::read_to_string(fleet.path("plan.json")).unwrap();
        let all: String = fleet.records().into_iter().map(|(name, text)| name + &text).collect();
        [ID, SECRET].iter().any(|secret| (plan.clone() + &all).contains(secret))
    };
    assert!(!secrets(&fleet));
    let digests = fleet.verb("finish", &["--verify"]);
    assert_eq!(digests.succeeded().lines().count(), 4);
    fs::write(fleet.path("digests"), &digests.stdout).unwrap();
    run(&mut store.ours(["digest", "--check", text(&fleet.path("digests"))])).succeeded();
    fleet.all_is_right();
    let left = fleet.records();
    assert!(
        left.iter().all(|(name, text)| name.ends_with(".finished") || text.is_empty()),
        "{left:?}"
    );
    assert!(!secrets(&fleet) && !fleet.path("out/0.img.incomplete").exists());
    // Once more, and what comes late.
    assert_eq!(fleet.verb("finish", &[]).succeeded(), digests.stdout);
    fs::write(fleet.path("out/0.img"), "of another owner by now").unwrap();
    fleet.verb("run", &["--all"]).succeeded();
    assert_eq!(fs::read(fleet.path("out/0.img")).unwrap(), b"of another owner by now");
    // Another plan does not take the place.
    fs::remove_file(fleet.path("plan.json")).unwrap();
    assert!(fleet.plan().failed().contains("state of another plan"));
}

#[test]
fn a_place_that_has_a_secret_in_its_name_or_keeps_no_records_is_refused() {
    let Some(store) = Gateway::start() else { return };
    let fleet = StoredFleet::new(&store, ("refused", store.port()), "");
    for (state, why) in [
        (format!("s3://disks/p?access-key={ID}&secret-key={SECRET}"), "has a secret in it"),
        ("https://127.0.0.1:1/p".to_owned(), "name a directory, or s3://BUCKET/PREFIX"),
        (format!("s3://nowhere/p?endpoint={}", fleet.endpoint), "bucket"),
    ] {
        let job = fs::read_to_string(fleet.path("job.toml")).unwrap();
        let (_, rest) = job.split_once('\n').unwrap();
        fs::write(fleet.path("job.toml"), format!("state = {state:?}\n{rest}")).unwrap();
        let said = fleet.plan().failed().to_owned();
        assert!(said.contains(why), "{said}");
        assert!(!fleet.path("plan.json").exists() && !fleet.path("out/0.img").exists());
    }
}
