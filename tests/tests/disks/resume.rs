//! `copy --journal`: a copy that is stopped at any moment goes on, its target is right in the end,
//! and hardly anything is copied twice.

use std::fs;
use std::path::Path;
use std::time::Duration;

use blackbox::launch::{Serve, allocated};
use blackbox::peers::peer;
use blackbox::run::{Job, ferry, json, ours, program, run, text};
use blackbox::temp::TempDir;
use blackbox::{MIB, wait_for};
use rustix::process::Signal;

/// Kills of one copy.
const KILLS: u64 = 6;
/// Bytes that a kill may cost: what is in flight, what was not flushed, and what was written while
/// a flush was on its way.
const LOSS: u64 = 16 * MIB;

/// A file of data, holes and zeroes, and how many bytes of data are in it.
fn source(temp: &TempDir, mib: u64) -> (std::path::PathBuf, u64) {
    let path = temp.sparse_file("source.raw", mib * MIB);
    let file = fs::File::options().write(true).open(&path).unwrap();
    let mut data = 0;
    for at in 0..mib {
        if at % 7 == 3 {
            continue;
        }
        let mut bytes = blackbox::temp::pattern(at * MIB, 1 << 20);
        if at % 5 == 0 {
            bytes[300 << 10..600 << 10].fill(0);
        }
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, at * MIB).unwrap();
        data += MIB;
    }
    (path, data)
}

/// A number below `n`, another one each time.
fn random(n: u64) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() % n
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |about| about.len())
}

/// Runs the copy and kills it, again and again, each time a little after the journal has grown;
/// then lets it end. Returns how often it was killed.
fn killed_again_and_again(words: &[&str], journal: &Path) -> u64 {
    let mut kills = 0;
    for _ in 0..KILLS {
        let before = length(journal);
        let job = Job::start(&mut ours(words));
        let ended = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", job.pid().as_raw_nonzero()));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        wait_for("the journal grows", || length(journal) > before + 200 || ended());
        if ended() {
            job.wait().succeeded();
            break;
        }
        std::thread::sleep(Duration::from_micros(random(30_000)));
        job.signal(Signal::KILL);
        job.wait();
        kills += 1;
    }
    ferry(words).succeeded();
    kills
}

#[test]
fn a_copy_that_is_killed_again_and_again_is_right_and_copies_little_twice() {
    let temp = TempDir::new();
    let (source, data) = source(&temp, 320);
    let wanted = fs::read(&source).unwrap();
    for served in [false, true] {
        let (target, journal) = (temp.join("target.raw"), temp.join("journal"));
        let (stats, reads) = (temp.join("stats"), temp.join("reads"));
        let filters =
            |file: &Path| format!("--filter=stats?statsformat=json&statsfile={}", text(file));
        let reading = Serve::file(&source).option("-r").option(filters(&reads)).start();
        let writing = served.then(|| {
            drop(fs::File::create(&target).unwrap().set_len(wanted.len() as u64));
            Serve::file(&target).option(filters(&stats)).start()
        });
        let to = writing.as_ref().map_or(text(&target).to_owned(), |server| server.uri(""));
        let from = reading.uri("");
        let words = ["copy", "-q", "--journal", text(&journal), &from, &to];
        let kills = killed_again_and_again(&words, &journal);
        assert!(kills > 0, "it was never killed");
        assert!(fs::read(&target).unwrap() == wanted, "served: {served}");
        let count = |file: &Path, kind: &str| {
            let report = json(&fs::read_to_string(file).unwrap());
            report["operations"][kind]["bytes"].as_u64().unwrap()
        };
        assert!(reading.stop().success());
        let read = count(&reads, "read");
        assert!(
            read <= data + kills * LOSS + 8 * MIB,
            "{read} bytes read, {kills} kills, of {data}"
        );
        if let Some(server) = writing {
            assert!(server.stop().success());
            let written = count(&stats, "write");
            assert!(written <= data + kills * LOSS, "{written} written, {kills} kills, of {data}");
        }
        fs::remove_file(&target).unwrap();
        fs::remove_file(&journal).unwrap();
    }
}

#[test]
fn a_copy_that_fails_goes_on_and_one_that_is_complete_is_only_checked() {
    let temp = TempDir::new();
    let (source, _) = source(&temp, 40);
    let (target, journal) = (temp.join("target.raw"), temp.join("journal"));
    let named =
        |from: &Path| ferry(["copy", "--journal", text(&journal), text(from), text(&target)]);
    // It is stopped when something is durable.
    let words = ["copy", "-q", "--journal", text(&journal), text(&source), text(&target)];
    let slow = ["--source-filter=delay?rdelay=5ms", "--request-size=64K", "-T", "1", "-R", "1"];
    let job = Job::start(&mut ours([&words[..], &slow].concat()));
    let begun = || fs::read_to_string(&journal).is_ok_and(|text| text.contains("durable"));
    wait_for("something is durable", begun);
    job.signal(Signal::TERM);
    let stopped = job.wait();
    assert_eq!(stopped.status.code(), Some(143), "{stopped:?}");
    assert!(stopped.failed().ends_with("; the same command resumes it"), "{stopped:?}");
    assert!(target.exists());
    // A journal whose end was torn.
    let torn = fs::read(&journal).unwrap();
    fs::write(&journal, [&torn[..], b"{\"durable\":[[0,"].concat()).unwrap();
    named(&source).succeeded();
    assert!(fs::read(&target).unwrap() == fs::read(&source).unwrap());
    let before = fs::metadata(&target).unwrap().modified().unwrap();
    let again = named(&source);
    again.succeeded();
    assert!(again.stderr.contains("nothing was done"), "{again:?}");
    assert_eq!(fs::metadata(&target).unwrap().modified().unwrap(), before);
    // The target was written by another program.
    let bytes = fs::read(&target).unwrap();
    fs::write(&target, vec![1; bytes.len()]).unwrap();
    assert!(named(&source).failed().contains("another program wrote to the target"));
    fs::write(&target, &bytes).unwrap();
    // The source was written since; or is another file.
    let other = temp.join("other.raw");
    fs::copy(&source, &other).unwrap();
    assert!(named(&other).failed().contains("another source: its name was"));
    let mut bytes = fs::read(&source).unwrap();
    bytes[5] ^= 1;
    fs::write(&source, &bytes).unwrap();
    assert!(named(&source).failed().contains("its modification time has changed"));
    // The target is another file of that name.
    fs::remove_file(&target).unwrap();
    assert!(named(&source).failed().contains("another source"));
    assert!(!target.exists());
}

#[test]
fn a_copy_that_is_killed_has_the_digest_and_manifest_of_one_that_was_not() {
    let temp = TempDir::new();
    let (source, data) = source(&temp, 160);
    // Its last block is a short one.
    let file = fs::File::options().write(true).open(&source).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[5; 1000], 160 * MIB).unwrap();
    let (target, journal) = (temp.join("target"), temp.join("journal"));
    let (manifest, reads) = (temp.join("manifest"), temp.join("reads"));
    let stats = format!("--filter=stats?statsformat=json&statsfile={}", text(&reads));
    for (format, kind) in [("raw", "sha256/64K"), ("qcow2", "blake3/64K"), ("raw", "md5/16M")] {
        let serving = Serve::file(&source).option("-r").option(&stats).start();
        let from = serving.uri("");
        let hash = format!("--blkhash={kind}");
        let words = ["copy", "-q", "--journal", text(&journal), "-O", format, &hash];
        let words = [&words[..], &["--manifest", text(&manifest), &from, text(&target)]].concat();
        let kills = killed_again_and_again(&words, &journal);
        assert!(kills > 0, "it was never killed");
        let digest = ["digest", "-a", kind, "-f", "raw", text(&source), "--manifest"];
        let wanted_manifest = temp.join("wanted");
        let wanted = ferry(digest.iter().chain([&text(&wanted_manifest)]));
        let wanted = wanted.succeeded().split(' ').next().unwrap().to_owned();
        // By the journal of a copy that is complete, which reads nothing but samples.
        for _ in 0..2 {
            assert_eq!(ferry(&words).succeeded().trim(), wanted, "{format}, {kind}");
            assert!(fs::read(&manifest).unwrap() == fs::read(&wanted_manifest).unwrap());
        }
        assert!(serving.stop().success());
        let report = json(&fs::read_to_string(&reads).unwrap());
        let read = report["operations"]["read"]["bytes"].as_u64().unwrap();
        let loss = LOSS + if kind == "md5/16M" { 64 * MIB } else { 8 * MIB };
        assert!(read <= data + kills * loss + 8 * MIB, "{read} bytes read, {kills} kills");
        fs::remove_file(&target).unwrap();
        fs::remove_file(&journal).unwrap();
    }
}

#[test]
fn a_journal_without_the_digest_that_is_asked_for_is_left_alone() {
    let temp = TempDir::new();
    let (source, _) = source(&temp, 24);
    let (target, journal) = (temp.join("target"), temp.join("journal"));
    let copy = |words: &[&str]| {
        let all = ["copy", "-q", "--journal", text(&journal)];
        ferry([&all, words, &[text(&source), text(&target)]].concat())
    };
    let wanted = ferry(["digest", "-f", "raw", text(&source)]).succeeded()[..64].to_owned();
    copy(&[]).succeeded();
    let before = fs::read(&journal).unwrap();
    assert!(copy(&["--digest"]).failed().contains("its journal has no digests"));
    assert!(fs::read(&journal).unwrap() == before);
    fs::remove_file(&journal).unwrap();
    assert_eq!(&copy(&["--digest", "--verify"]).succeeded()[..64], wanted);
    let kept = fs::read_to_string(&journal).unwrap();
    assert!(copy(&["--digest=sha1"]).failed().contains("has digests sha256/64K"));
    // Without some of the lines, or torn: what they said is read again.
    let lines: Vec<_> = kept.lines().filter(|line| !line.contains("done")).collect();
    for keeps in 1..lines.len() {
        for torn in ["", "{\"digested\":[4194304,41", "{\"digested\":[0,4194304,\"0\"]}\n"] {
            let some = lines[..keeps].join("\n") + "\n" + torn;
            fs::write(&journal, some).unwrap();
            assert_eq!(&copy(&["--digest"]).succeeded()[..64], wanted, "{keeps}, {torn}");
        }
    }
    let samples: Vec<_> = kept.lines().filter(|line| !line.contains("[8388608,")).collect();
    fs::write(&journal, samples.join("\n") + "\n").unwrap();
    let lacking = copy(&["--digest"]);
    assert_eq!(lacking.status.code(), Some(1));
    assert!(lacking.stderr.contains("its journal does not have it"), "{lacking:?}");
}

#[test]
fn what_cannot_be_gone_on_with_says_so_and_changes_nothing() {
    let temp = TempDir::new();
    let (source, _) = source(&temp, 8);
    let (target, journal) = (temp.join("target"), temp.join("journal"));
    let try_it = |words: &[&str]| {
        let all = [&["copy", "--journal", text(&journal)], words].concat();
        let refused = ferry(all);
        refused.failed();
        assert!(!target.exists(), "{words:?}");
        refused.stderr
    };
    let (from, to) = (text(&source), text(&target));
    let stream = ["-O", "vmdk", "-o", "subformat=streamOptimized", from, to];
    assert!(try_it(&stream).contains("its grains are compressed"));
    assert!(try_it(&["-O", "qcow2", "-c", from, to]).contains("is written once, in order"));
    assert!(try_it(&["--no-flush", from, to]).contains("--no-flush"));
    let _ = fs::remove_file(&journal);
    assert!(try_it(&["--digest=sha256/512", from, to]).contains("4096 bytes at least"));
    assert!(!journal.exists());
    // What is no journal is no place for one.
    let all = ["copy", "--journal", from, from, to];
    assert!(ferry(all).failed().contains("is not a journal"));
    assert!(!target.exists());
}

/// The formats that are written in any order, with what their options are here.
const WRITTEN: [(&str, &[&str]); 5] = [
    ("qcow2", &["-o", "cluster_size=16k"]),
    ("vmdk", &[]),
    ("vdi", &[]),
    ("vpc", &["-o", "force_size=on"]),
    ("vhdx", &[]),
];

#[test]
fn an_image_whose_copy_is_killed_is_an_image_and_the_copy_goes_on() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let (source, _) = source(&temp, 64);
    for (format, options) in WRITTEN {
        let (target, journal) = (temp.join("target"), temp.join("journal"));
        let mark = temp.join("target.incomplete");
        let words = ["convert", "-f", "raw", "-O", format, "--journal", text(&journal)];
        let ends = [text(&source), text(&target)];
        let words = [&words[..], options, &ends].concat();
        let before = length(&journal);
        let slow = ["-r", "32M"];
        let job = Job::start(&mut ours([&words[..1], &slow, &words[1..]].concat()));
        wait_for("the journal grows", || length(&journal) > before + 400);
        assert!(mark.exists(), "{format}");
        job.signal(Signal::KILL);
        job.wait();
        assert!(mark.exists(), "{format}");
        // It is an image, without corruption, whatever room was lost.
        for verb in ["info", "map", "check"].iter().take(if format == "qcow2" { 3 } else { 2 }) {
            let opened = ferry([verb, "-f", format, text(&target)]);
            assert!(matches!(opened.status.code(), Some(0 | 3)), "{opened:?}");
            assert!(opened.stderr.contains("warning: "), "{opened:?}");
            assert!(opened.stderr.contains(": incomplete: "), "{opened:?}");
        }
        if matches!(format, "qcow2") {
            let checked = program(&qemu_img, ["check", "-q", "-f", format, text(&target)]);
            let status = run(&mut { checked }).status.code();
            assert!(matches!(status, Some(0 | 3)), "{format}: {status:?}");
        }
        ferry(&words).succeeded();
        assert!(!mark.exists(), "{format}");
        let same = ["compare", "-f", "raw", "-F", format, text(&source), text(&target)];
        assert!(run(&mut program(&qemu_img, same)).status.success(), "{format}");
        let again = ferry(&words);
        assert!(
            again.succeeded().is_empty() && again.stderr.contains("nothing was done"),
            "{again:?}"
        );
        fs::remove_file(&target).unwrap();
        fs::remove_file(&journal).unwrap();
    }
}

#[test]
fn every_kind_of_source_goes_on_into_every_kind_of_target() {
    let temp = TempDir::new();
    let (raw, _) = source(&temp, 24);
    let (packed, serving) = (temp.join("packed"), Serve::file(&raw).option("-r").start());
    ferry(["convert", "-f", "raw", "-O", "qcow2", "-c", text(&raw), text(&packed)]).succeeded();
    let wanted = fs::read(&raw).unwrap();
    let uri = serving.uri("");
    for from in [&[text(&raw)][..], &["-f", "qcow2", text(&packed)], &[&*uri]] {
        for to in ["raw", "qcow2", "server"] {
            let (target, journal) = (temp.join("target"), temp.join("journal"));
            let server = (to == "server").then(|| {
                drop(fs::File::create(&target).unwrap().set_len(wanted.len() as u64));
                Serve::file(&target).start()
            });
            let name = server.as_ref().map_or(text(&target).to_owned(), |server| server.uri(""));
            let format: &[&str] = if to == "server" { &[] } else { &["-O", to] };
            let words = [&["copy", "-q", "--journal", text(&journal)], format, from, &[&name]];
            let words = words.concat();
            // The first one is stopped when something is durable.
            let slow = [&["copy", "--rate", "16M"], &words[1..]].concat();
            let job = Job::start(&mut ours(slow));
            let begun = || fs::read_to_string(&journal).is_ok_and(|text| text.contains("durable"));
            wait_for("something is durable", begun);
            job.signal(Signal::KILL);
            job.wait();
            ferry(&words).succeeded();
            drop(server);
            let format = if to == "server" { "raw" } else { to };
            ferry(["compare", "-f", "raw", "-F", format, text(&raw), text(&target)]).succeeded();
            fs::remove_file(&target).unwrap();
            fs::remove_file(&journal).unwrap();
        }
    }
}

#[test]
fn a_copy_whose_servers_are_killed_goes_on_when_they_are_back() {
    let temp = TempDir::new();
    let (raw, _) = source(&temp, 160);
    let wanted = fs::read(&raw).unwrap();
    let sockets = [temp.join("from"), temp.join("to")];
    let (target, journal) = (temp.join("target"), temp.join("journal"));
    // Which of the servers die, and whether the copy does, too.
    for (dying, with_copy) in [(0..1, false), (1..2, false), (0..2, false), (0..2, true)] {
        drop(fs::File::create(&target).unwrap().set_len(wanted.len() as u64));
        let start = |which: usize| match which {
            0 => Serve::file(&raw).option("-r").start_at(&sockets[0]),
            _ => Serve::file(&target).start_at(&sockets[1]),
        };
        let mut servers = [Some(start(0)), Some(start(1))];
        let uris = servers.each_ref().map(|server| server.as_ref().unwrap().uri(""));
        let words = ["copy", "-q", "--journal", text(&journal), &uris[0], &uris[1]];
        for _ in 0..3 {
            let before = length(&journal);
            let slow = [&["copy", "--rate=64M"], &words[1..]].concat();
            let job = Job::start(&mut ours(slow));
            wait_for("something is durable", || length(&journal) > before + 400);
            std::thread::sleep(Duration::from_micros(random(30_000)));
            if with_copy {
                job.signal(Signal::KILL);
            }
            dying.clone().for_each(|which| servers[which].take().unwrap().kill());
            let died = job.wait();
            if !with_copy {
                assert_eq!(died.status.code(), Some(75), "{died:?}");
                assert!(died.failed().ends_with("; the same command resumes it"), "{died:?}");
            }
            dying.clone().for_each(|which| servers[which] = Some(start(which)));
        }
        ferry(words).succeeded();
        drop(servers);
        assert!(fs::read(&target).unwrap() == wanted, "{dying:?}, {with_copy}");
        fs::remove_file(&target).unwrap();
        fs::remove_file(&journal).unwrap();
    }
}

/// Kills of the large disk, by `scripts/test --long`.
const MANY: &str = "RESUME_KILLS";

#[test]
fn a_large_copy_that_is_killed_fifty_times_costs_little_more() {
    let Some(kills) = std::env::var(MANY).ok().and_then(|n| n.parse::<u64>().ok()) else {
        return println!("skipped: {MANY}=50 copies 20 GiB");
    };
    let temp = TempDir::new();
    let (stats, reads) = (temp.join("stats"), temp.join("reads"));
    let (target, journal) = (temp.sparse_file("target.raw", 20 << 30), temp.join("journal"));
    let filters = |file: &Path| format!("--filter=stats?statsformat=json&statsfile={}", text(file));
    let reading = Serve::device(["sparse-random", "20G", "seed=7", "percent=75"]);
    let reading = reading.option(filters(&reads)).start();
    let writing = Serve::file(&target).option(filters(&stats)).start();
    let (from, to) = (reading.uri(""), writing.uri(""));
    let words = ["copy", "-q", "--journal", text(&journal), &*from, &*to];
    for _ in 0..kills {
        let before = length(&journal);
        let job = Job::start(&mut ours(words));
        // About a fiftieth more is durable.
        let grown = || length(&journal) > before + 400 + random(400);
        wait_for("the journal grows", grown);
        job.signal(Signal::KILL);
        job.wait();
    }
    ferry(words).succeeded();
    ferry(["compare", "sparse-random:20G?seed=7&percent=75", &to]).succeeded();
    assert!(writing.stop().success() && reading.stop().success());
    let count = |file: &Path, kind: &str| {
        let report = json(&fs::read_to_string(file).unwrap());
        report["operations"][kind]["bytes"].as_u64().unwrap()
    };
    let data = allocated(&target);
    let (read, written) = (count(&reads, "read"), count(&stats, "write"));
    println!("{kills} kills of {data} bytes of data: {read} read, {written} written");
    assert!(written <= data + data / 20, "{written} written of {data}");
    assert!(read <= data + data / 20, "{read} read of {data}");
}

#[test]
fn a_journal_is_not_done_before_the_target_is_verified() {
    let temp = TempDir::new();
    let source = temp.file("source", &blackbox::temp::pattern(0, 8 << 20));
    let (target, journal) = (temp.file("target", &[0; 8 << 20]), temp.join("journal"));
    // What is read of it is not what was written, between the places of the samples as well.
    let lying = Serve::file(&target).option("--filter=evil?evil-probability=1e-5&evil-seed=1");
    let lying = lying.start();
    let uri = lying.uri("");
    let words = ["copy", "-q", "--verify", "--journal", text(&journal), text(&source), &*uri];
    for _ in 0..2 {
        assert_eq!(ferry(words).status.code(), Some(1));
        assert!(!fs::read_to_string(&journal).unwrap().contains("done"));
    }
    drop(lying);
    fs::remove_file(&journal).unwrap();
    // One that was done, and was written by another since, where no sample looks.
    let words = ["copy", "-q", "--journal", text(&journal), text(&source), text(&target)];
    ferry(words).succeeded();
    let file = fs::File::options().write(true).open(&target).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[9; 512], (1 << 20) + (100 << 10)).unwrap();
    ferry(words).succeeded();
    let verified = ferry([&words[..1], &["--verify"], &words[1..]].concat());
    assert!(verified.failed().contains("verify: its contents differ"), "{verified:?}");
}

#[test]
fn a_mark_that_a_kill_cut_off_is_removed_with_the_rest() {
    let temp = TempDir::new();
    let (source, _) = source(&temp, 4);
    let (target, journal) = (temp.join("target"), temp.join("journal"));
    let words = ["copy", "-q", "--journal", text(&journal), text(&source), text(&target)];
    for mark in ["", "is not", "what somebody else has written"] {
        ferry(words).succeeded();
        fs::remove_file(&journal).unwrap();
        let beside = temp.join("target.incomplete");
        fs::write(&beside, mark.replace("is not", &format!("{} is not", text(&target)))).unwrap();
        let copied = ferry(words);
        match mark.starts_with("what") {
            // It is not ours, and the copy says that it stays.
            true => assert!(copied.stderr.contains("target.incomplete"), "{copied:?}"),
            false => assert!(copied.succeeded().is_empty() && !beside.exists(), "{mark}"),
        }
        let _ = fs::remove_file(&journal);
    }
}
