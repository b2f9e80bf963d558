//! `plan`, `run`, `finish`, `status`: many disks are copied by processes that are killed, doubled
//! and late, every disk is right in the end, and hardly anything is read twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use blackbox::launch::{Serve, Server};
use blackbox::run::{Job, Outcome, ferry, json, ours, run, text};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, wait_for};
use rustix::process::Signal;

/// Bytes that a kill may cost: what is in flight in the threads of a shard, and what was copied of
/// stretches of 4 MiB that were not complete, or not flushed.
const LOSS: u64 = 16 * MIB;

/// A number below `n`, another one each time.
fn random(n: u64) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() % n
}

/// A directory with a job and its plan.
struct Fleet {
    temp: TempDir,
}

impl Fleet {
    fn new(job: &str) -> Self {
        let temp = TempDir::new();
        fs::create_dir(temp.join("out")).unwrap();
        temp.file("job.toml", job.as_bytes());
        Self { temp }
    }

    fn verb(&self, verb: &str, words: &[&str]) -> Outcome {
        let plan = self.path("plan.json");
        ferry([&[verb, text(&plan)], words].concat())
    }

    fn plan(&self) -> Outcome {
        ferry(["plan", text(&self.path("job.toml")), "-o", text(&self.path("plan.json"))])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.join(name)
    }

    fn start(&self, words: &[&str]) -> Job {
        let plan = self.path("plan.json");
        Job::start(&mut ours([&["run", text(&plan), "-q"], words].concat()))
    }

    /// Bytes of all journals.
    fn noted(&self) -> u64 {
        let entries = fs::read_dir(self.path("plan.json.state")).unwrap();
        entries.map(|entry| entry.unwrap().metadata().map_or(0, |about| about.len())).sum()
    }
}

/// Disks of so many MiB, with holes, and the bytes of data in all of them.
fn sources(temp: &TempDir, count: u64, mib: u64) -> u64 {
    let mut data = 0;
    for n in 0..count {
        let path = temp.sparse_file(&format!("disk {n}.raw"), mib * MIB + n * 512);
        let file = fs::File::options().write(true).open(&path).unwrap();
        // Each MiB of each disk is another one.
        let mut bytes = pattern(n * MIB, 1 << 20);
        for at in (0..mib).filter(|at| (at + n) % 5 != 2) {
            bytes[..16].copy_from_slice(&u128::from((n << 32) + at + 1).to_le_bytes());
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes, at * MIB).unwrap();
            data += MIB;
        }
    }
    data
}

/// A server of each source, all of which count what is read of them.
fn served(sources: &TempDir, count: u64) -> Vec<(Server, PathBuf)> {
    let serve = |n: u64| {
        let reads = sources.join(&format!("reads-{n}"));
        let filter = format!("--filter=stats?statsformat=json&statsfile={}", text(&reads));
        let source = sources.join(&format!("disk {n}.raw"));
        (Serve::file(&source).option("-r").option(filter).start(), reads)
    };
    (0..count).map(serve).collect()
}

fn bytes_read(server: Server, reads: &Path) -> u64 {
    assert!(server.stop().success());
    let report = json(&fs::read_to_string(reads).unwrap());
    report["operations"]["read"]["bytes"].as_u64().unwrap()
}

/// Runs all shares by processes, each of which is killed once, at a random time, and started again.
/// Returns how many were killed.
fn run_with_kills(fleet: &Fleet, workers: u64) -> u64 {
    let mut kills = 0;
    let shares: Vec<String> = (0..workers).map(|n| format!("{n}/{workers}")).collect();
    for _ in 0..2 {
        let jobs: Vec<Job> = shares.iter().map(|share| fleet.start(&["--shard", share])).collect();
        for job in jobs {
            let before = fleet.noted();
            let ended = || !blackbox::run::runs(job.pid());
            wait_for("a journal grows", || fleet.noted() > before + 500 || ended());
            std::thread::sleep(Duration::from_micros(random(20_000)));
            job.signal(Signal::KILL);
            kills += u64::from(!job.wait().status.success());
        }
    }
    for share in &shares {
        // Two at the same time.
        let (one, other) = (fleet.start(&["--shard", share]), fleet.start(&["--shard", share]));
        one.wait().succeeded();
        other.wait().succeeded();
    }
    kills
}

#[test]
fn disks_are_right_whatever_becomes_of_the_processes_and_little_is_read_twice() {
    const DISKS: u64 = 40;
    let temp = TempDir::new();
    let data = sources(&temp, DISKS, 12);
    let servers = served(&temp, DISKS);
    let mut job = "[limits]\nshard-size = \"4M\"\nreaders = 3\n".to_owned();
    for (n, (server, _)) in servers.iter().enumerate() {
        let uri = server.uri("");
        job += &format!(
            "[[disk]]\nsource = {uri:?}\ntarget = \"out/{n} 'a\\\".raw\"\nhost = \"h{}\"\n",
            n % 4
        );
    }
    let fleet = Fleet::new(&job);
    let told = fleet.plan();
    assert!(told.succeeded().starts_with("disks: 40, shards: "), "{told:?}");
    let target = |n: u64| fleet.path(&format!("out/{n} 'a\".raw"));
    let mark = |n: u64| fleet.path(&format!("out/{n} 'a\".raw.incomplete"));
    assert!((0..DISKS).all(|n| target(n).exists() && mark(n).exists()));
    let said = fleet.verb("finish", &[]).failed().to_owned();
    assert!(said.contains("shards are missing: 0.0 ("), "{said}");
    let kills = run_with_kills(&fleet, 4);
    assert!(kills > 0, "none was killed");
    let status = json(&fleet.verb("status", &["--json"]).stdout);
    assert_eq!((status["copied"].as_u64(), status["data"].as_u64()), (Some(data), Some(data)));
    assert!((0..DISKS).all(|n| mark(n).exists()));
    let digests = fleet.verb("finish", &["--verify"]);
    assert_eq!(digests.succeeded().lines().count(), 40);
    assert!(!(0..DISKS).any(|n| mark(n).exists()));
    for n in 0..DISKS {
        let source = temp.join(&format!("disk {n}.raw"));
        assert!(fs::read(&source).unwrap() == fs::read(target(n)).unwrap(), "{n}");
    }
    // Once more, and what comes late: nothing is changed.
    assert_eq!(fleet.verb("finish", &[]).succeeded(), digests.stdout);
    fs::write(target(0), "of another owner by now").unwrap();
    fleet.verb("run", &["--all"]).succeeded();
    assert_eq!(fs::read(target(0)).unwrap(), b"of another owner by now");
    let read: u64 = servers.into_iter().map(|(server, reads)| bytes_read(server, &reads)).sum();
    println!("{data} bytes of data, {read} read, {kills} kills");
    assert!(read <= data + data / 20 + kills * LOSS, "{data}, {read}, {kills}");
}

#[test]
fn several_that_finish_at_once_wait_for_each_other_and_for_a_last_writer() {
    let temp = TempDir::new();
    sources(&temp, 6, 4);
    let sources = text(temp.path());
    let fleet = Fleet::new(&format!(
        "[limits]\nshard-size = \"2M\"\n[[disk]]\nsource = \"{sources}/disk*.raw\"\ntarget = \"out/{{name}}.raw\"\n"
    ));
    fleet.plan().succeeded();
    fleet.verb("run", &["--all", "-q"]).succeeded();
    let writer = Serve::file(&fleet.path("out/disk 0.raw")).start();
    let plan = fleet.path("plan.json");
    let finish = |_| Job::start(&mut ours(["finish", text(&plan)]));
    let finishes: Vec<Job> = (0..4).map(finish).collect();
    let journal = fs::File::open(fleet.path("plan.json.state/0.0.journal")).unwrap();
    wait_for("one is at the first disk", || {
        let taken = journal.try_lock_shared();
        journal.unlock().unwrap();
        taken.is_err()
    });
    assert!(writer.stop().success());
    let ends: Vec<Outcome> = finishes.into_iter().map(Job::wait).collect();
    for end in &ends {
        assert_eq!(end.succeeded().lines().count(), 6);
        assert_eq!(end.stdout, ends[0].stdout);
    }
    let left = fs::read_dir(fleet.path("plan.json.state")).unwrap();
    let is_left = |name: &str| name.ends_with(".journal") || name.ends_with(".new");
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| is_left(&name.to_string_lossy())), "{left:?}");
}

#[test]
fn a_missing_shard_is_named_and_a_target_that_was_changed_is_found() {
    let temp = TempDir::new();
    sources(&temp, 2, 12);
    let job = format!(
        "[limits]\nshard-size = \"4M\"\n[[disk]]\nsource = \"{0}/disk*.raw\"\ntarget = \"out/{{name}}.qcow2\"\ntarget-format = \
         \"qcow2\"\n[[disk]]\nsource = \"{0}/disk*.raw\"\ntarget = \"out/{{name}}.raw\"\n",
        text(temp.path())
    );
    let fleet = Fleet::new(&job);
    fleet.plan().succeeded();
    assert!(fleet.plan().failed().contains("the file exists"));
    let status = json(&fleet.verb("status", &["--json"]).stdout);
    let shards = |disk: usize| status["disks"][disk]["shards"]["waiting"].as_u64().unwrap();
    // An image has one writer.
    assert!(shards(0) == 1 && shards(2) > 1, "{status}");
    // All but one share.
    fleet.verb("run", &["--shard", "0/3"]).succeeded();
    fleet.verb("run", &["--shard", "2/3"]).succeeded();
    let before: Vec<_> = ["disk 0.raw", "disk 1.raw"]
        .map(|name| fs::read(fleet.path(&format!("out/{name}"))).unwrap())
        .into();
    let said = fleet.verb("finish", &[]).failed().to_owned();
    assert!(said.contains("was not begun") || said.contains("is not done"), "{said}");
    let after: Vec<_> = ["disk 0.raw", "disk 1.raw"]
        .map(|name| fs::read(fleet.path(&format!("out/{name}"))).unwrap())
        .into();
    assert!(before == after && fleet.path("out/disk 0.raw.incomplete").exists());
    // A journal that was torn.
    let journal = fleet.path("plan.json.state/2.0.journal");
    let whole = fs::read(&journal).unwrap();
    fs::write(&journal, [&whole[..whole.len() / 2], b"\0\0"].concat()).unwrap();
    fleet.verb("run", &["--all", "--workers", "3"]).succeeded();
    // Another program wrote to a target.
    let target = fleet.path("out/disk 1.raw");
    let bytes = fs::read(&target).unwrap();
    let mut changed = bytes.clone();
    changed[5 << 20] ^= 1;
    fs::write(&target, &changed).unwrap();
    let said = fleet.verb("finish", &["-q"]).failed().to_owned();
    assert!(
        said.contains("does not hold what shard 3.") && said.contains("from 4194304 on"),
        "{said}"
    );
    let journal = said.split_once("; remove ").unwrap().1.split(" and run").next().unwrap();
    fs::remove_file(journal).unwrap();
    fleet.verb("run", &["--all"]).succeeded();
    fleet.verb("finish", &["-q"]).succeeded();
    assert!(fs::read(&target).unwrap() == bytes);
    let words = ["compare", "-f", "raw", "-F", "qcow2"];
    let ends = [temp.join("disk 1.raw"), fleet.path("out/disk 1.qcow2")];
    run(ours(words).args(ends)).succeeded();
}

#[test]
fn a_changed_source_is_refused_with_what_differs_and_a_lost_one_may_come_back() {
    let temp = TempDir::new();
    sources(&temp, 1, 12);
    let source = temp.join("disk 0.raw");
    let served = Serve::file(&source).option("-r");
    let socket = temp.join("socket");
    let server = served.clone().start_at(&socket);
    let job = format!(
        "[[disk]]\nsource = {:?}\ntarget = \"out/a\"\n[[disk]]\nsource = \"nbd+unix:///?socket={}\"\ntarget = \"out/b\"\n",
        text(&source),
        text(&socket)
    );
    let fleet = Fleet::new(&job);
    fleet.plan().succeeded();
    assert!(server.stop().success());
    // The other disk is copied all the same.
    let lost = fleet.verb("run", &["--all"]);
    assert_eq!(lost.status.code(), Some(75), "{lost:?}");
    let status = json(&fleet.verb("status", &["--json"]).stdout);
    let states = [0, 1].map(|disk| status["disks"][disk]["state"].as_str().unwrap().to_owned());
    assert_eq!(states, ["done", "failed"]);
    assert!(fleet.verb("finish", &[]).failed().contains("1.0 ("));
    let server = served.clone().start_at(&socket);
    fleet.verb("run", &["--all"]).succeeded();
    assert!(server.stop().success());
    // What is done is not asked for again. A shard that is not would be of another source.
    let file = fs::File::options().write(true).open(&source).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xee; 4096], 0).unwrap();
    let server = served.start_at(&socket);
    fs::remove_file(fleet.path("plan.json.state/0.0.journal")).unwrap();
    fs::remove_file(fleet.path("plan.json.state/1.0.journal")).unwrap();
    let changed = fleet.verb("run", &["--all"]);
    assert_eq!(changed.status.code(), Some(1), "{changed:?}");
    let said = &changed.stderr;
    assert!(said.contains("its modification time has changed"), "{said}");
    assert!(said.contains("its content has changed; nothing was changed"), "{said}");
    assert!(server.stop().success());
}

#[test]
fn secrets_are_in_no_plan_and_no_other_file() {
    for source in [
        "https://user:hidden-word@127.0.0.1:1/disk",
        "https://127.0.0.1:1/disk?token=hidden-word",
        "http:http://127.0.0.1:1/disk?user=me&password=hidden-word",
    ] {
        let fleet = Fleet::new(&format!("[[disk]]\nsource = {source:?}\ntarget = \"out/a\"\n"));
        let refused = fleet.plan();
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(!format!("{refused:?}").contains("hidden-word"), "{refused:?}");
        assert!(!fleet.path("plan.json").exists() && !fleet.path("out/a").exists());
    }
    // Named as what has them, they are read by each process.
    let fleet = Fleet::new(
        "[[disk]]\nsource = \"http:http://127.0.0.1:1/d?user=me&password=-env:WORD\"\ntarget = \"out/a\"\n",
    );
    let (job, plan) = (fleet.path("job.toml"), fleet.path("plan.json"));
    let words = ["plan", text(&job), "-o", text(&plan)];
    let failed = run(ours(words).env("WORD", "hidden-word"));
    assert_eq!(failed.status.code(), Some(75), "{failed:?}");
    assert!(!failed.stderr.contains("hidden-word"), "{failed:?}");
}

#[test]
fn the_status_of_a_plan_is_a_page_without_scripts() {
    let fleet = Fleet::new("[[disk]]\nsource = \"pattern:8M\"\ntarget = \"out/<b>&.raw\"\n");
    fleet.plan().succeeded();
    fleet.verb("run", &["--all", "-q"]).succeeded();
    let page = fleet.path("status.html");
    fleet.verb("status", &["--html", text(&page)]).succeeded();
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg ") && page.contains("&lt;b&gt;&amp;.raw"), "{page}");
    for word in ["<script", "<b>", "href", "src=", "url(", "@import", "onload"] {
        assert!(!page.contains(word), "{word}: {page}");
    }
    for line in fleet.verb("status", &[]).succeeded().lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}
