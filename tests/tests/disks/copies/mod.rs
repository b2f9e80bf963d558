//! Random copies between all kinds of ends, on four file systems, while system calls fail or do
//! less than they were asked: exit 0 means that the target holds the source, byte for byte,
//! and a failure is a failure: status 1, one line, no half file.

mod ends;
mod table;

use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::MIB;
use blackbox::dice::{Case, Dice, long_form, seeds};
use blackbox::peers::{diskferry, skip_environment};
use blackbox::run::{Job, Outcome};
use blackbox::storage::Mounted;

use ends::{End, Kind, SOURCES, TARGETS, pattern, random};

#[test]
fn a_copy_is_whole_or_has_failed_whatever_goes_wrong() {
    if !cfg!(target_arch = "x86_64") {
        return skip_environment("faults are injected on x86_64 only");
    }
    let all = ["tmpfs", "ext4", "xfs", "btrfs"].map(|kind| Mounted::new(kind, 320 * MIB));
    let disks: Vec<&Mounted> = all.iter().flatten().collect();
    if disks.is_empty() {
        return;
    }
    // A target on it fails when it holds a MiB.
    let small = Mounted::new("tmpfs", MIB);
    let count = if long_form() { 200 } else { 110 };
    for seed in seeds() {
        for number in 0..count {
            let _case = Case::new(&format!("copy {number}"), seed);
            Copy::new(&disks, small.as_ref(), Dice::new(seed).with(number)).run();
        }
    }
}

/// One copy, and what is known about it.
struct Copy {
    dice: Dice,
    source: PathBuf,
    target: PathBuf,
    /// Options of the copy.
    words: Vec<String>,
    /// Rules for what goes wrong in the copier, and whether it must get over all of them.
    rules: Vec<String>,
    /// No file may become longer than this many bytes.
    limit: Option<usize>,
    is_harmless: bool,
}

impl Copy {
    fn new(disks: &[&Mounted], small: Option<&Mounted>, mut dice: Dice) -> Self {
        let small = small.filter(|_| dice.percent(6));
        let mut directory = |name: &str, small: Option<&Mounted>| {
            let path = small.unwrap_or_else(|| dice.pick(disks)).join(name);
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let (source, target) = (directory("copy-source", None), directory("copy-target", small));
        let (words, rules) = (Vec::new(), Vec::new());
        Self { dice, source, target, words, rules, limit: None, is_harmless: small.is_none() }
    }

    fn run(mut self) {
        // What is there before must fit.
        let targets = if self.is_harmless { TARGETS } else { &[Kind::File][..] };
        let kinds = (self.dice.pick(SOURCES), self.dice.pick(targets));
        let size = self.size(kinds);
        let content = match kinds.0 {
            Kind::Pattern => pattern(size),
            Kind::Null => vec![0; size],
            _ => random(size, &mut self.dice),
        };
        let Some(source) = End::new(kinds.0, &self.source, &content, &mut self.dice) else {
            return;
        };
        self.options();
        let content = self.source_filters(content);
        let is_filtered = self.target_filters();
        let old = self.old_content(kinds.1, content.len(), is_filtered);
        let Some(target) = End::new(kinds.1, &self.target, &old, &mut self.dice) else { return };
        let is_new = kinds.1 == Kind::File;
        if is_new {
            std::fs::remove_file(target.file.as_ref().unwrap()).unwrap();
        }
        self.faults();
        if is_new && self.dice.percent(6) {
            self.limit = Some(self.dice.below(1_000_000));
            self.is_harmless = false;
        }

        let outcome = self.copy(&source.word, &target.word);
        let now = target.content();
        if outcome.status.success() {
            let now = now.unwrap_or_else(|| panic!("success, and no target: {outcome:#?}"));
            let whole = matches!(kinds.1, Kind::File | Kind::Old) && !is_filtered;
            let rest = if whole { &[] } else { &old[content.len().min(old.len())..] };
            same(&now, &content, rest, &outcome);
            return;
        }
        let allowed = !self.is_harmless || kinds.0.is_faulty() || kinds.1.is_faulty();
        assert!(allowed, "nothing went wrong that matters: {outcome:#?}");
        assert!([Some(1), Some(75)].contains(&outcome.status.code()), "{outcome:#?}");
        let said = outcome.failed();
        let Some(now) = now else { return };
        if ["may not last", "may not keep"].iter().any(|words| said.contains(words)) {
            // All is there, but for the zeroes at an end that was not set, and only the disk has
            // not promised to keep it.
            let there = content.len().min(now.len());
            let is_whole = now[..there] == content[..there];
            assert!(
                is_whole && content[there..].iter().all(|byte| *byte == 0),
                "not all bytes are there: {outcome:#?}"
            );
        } else if is_new {
            panic!("the half file is still there: {outcome:#?}");
        } else if now != old {
            assert!(said.contains("incomplete"), "changed without a word: {outcome:#?}");
        }
    }

    fn size(&mut self, kinds: (Kind, Kind)) -> usize {
        let size = match self.dice.below(10) {
            0 => self.dice.below(5000),
            1 => self.dice.below(100) << 12,
            _ => self.dice.between(100_000, 2_500_000),
        };
        // Nothing smaller is a disk for some servers.
        let size = size.max(1);
        if kinds.0.has_sectors() || kinds.1.has_sectors() {
            size.next_multiple_of(512)
        } else {
            size
        }
    }

    fn option(&mut self, percent: usize, name: &str, values: &[&str]) {
        if self.dice.percent(percent) {
            self.words.push(format!("{name}={}", self.dice.pick(values)));
        }
    }

    fn options(&mut self) {
        self.option(50, "--connections", &["1", "2", "3", "8"]);
        self.option(50, "--requests", &["1", "2", "16", "64"]);
        self.option(50, "--request-size", &["4K", "32K", "64K", "256K", "1M"]);
        self.option(40, "--threads", &["1", "2", "3"]);
        self.option(40, "--sparse", &["0", "512", "4K", "64K"]);
        self.option(20, "--queue-size", &["64K", "1M"]);
        for option in ["--allocated", "--no-extents"] {
            if self.dice.percent(15) {
                self.words.push(option.to_owned());
            }
        }
    }

    /// Chooses filters for the source. Returns what is seen through them.
    fn source_filters(&mut self, content: Vec<u8>) -> Vec<u8> {
        if self.dice.percent(15) && content.len() >= 4096 {
            let start = self.dice.below(content.len() / 1024) * 512;
            let len = (content.len() - start) / 1024 * 512;
            self.words.push(format!("--source-filter=offset?offset={start}&range={len}"));
            return content[start..start + len].to_vec();
        }
        let plain = [
            "cache?cache-on-read=true",
            "cache",
            "blocksize?minblock=1&maxdata=20000",
            "noparallel",
        ];
        self.option(15, "--source-filter", &plain);
        content
    }

    /// Chooses filters for the target, and whether there are any.
    fn target_filters(&mut self) -> bool {
        let before = self.words.len();
        let plain = ["cache", "blocksize?minblock=1&maxdata=20000", "log?logfile=/dev/null"];
        self.option(15, "--target-filter", &plain);
        self.words.len() > before
    }

    /// What the target holds before: zeroes, if the copier is told so.
    fn old_content(&mut self, kind: Kind, size: usize, is_filtered: bool) -> Vec<u8> {
        let longer = self.dice.pick(&[0, 0, 512, 4096, 70_000 * 512]).min(300_032);
        let size = match kind {
            Kind::Old if !is_filtered => self.dice.pick(&[0, size / 2, size, size + longer]),
            // A new one is emptied at once by a filter that is not there yet.
            Kind::File => 0,
            _ => size + longer,
        };
        let size = if kind.has_sectors() { size.next_multiple_of(512) } else { size };
        if kind != Kind::Old && self.dice.percent(15) {
            self.words.push("--target-is-zero".to_owned());
            return vec![0; size];
        }
        random(size, &mut self.dice)
    }

    /// What goes wrong in the copier.
    fn faults(&mut self) {
        if self.dice.percent(35) {
            return;
        }
        // Whatever the program can get over.
        let harmless = [
            "pread64=short@30%:SOURCE",
            "pread64=EINTR@20%:SOURCE",
            "pwrite64=short@30%:TARGET",
            "pwrite64=EINTR@20%:TARGET",
            "copy_file_range=short@50%",
            "copy_file_range=EOPNOTSUPP@2+",
            "copy_file_range=EXDEV@1+",
            "fallocate=EOPNOTSUPP@2+:TARGET",
            "fallocate=EINTR@20%:TARGET",
            "fdatasync=EINTR@1:TARGET",
            "readv=short@30%:socket",
            "recvfrom=short@30%:socket",
            "sendto=short@30%:socket",
        ];
        let harmful = [
            "pread64=EIO@N:SOURCE",
            "pread64=EIO@N+:SOURCE",
            "pread64=EIO@3%:SOURCE",
            "pwrite64=EIO@N:TARGET",
            "pwrite64=ENOSPC@N+:TARGET",
            "pwrite64=ENOSPC@3%:TARGET",
            "copy_file_range=EIO@N",
            "copy_file_range=ENOSPC@N",
            "fallocate=EIO@N:TARGET",
            "fallocate=ENOSPC@N+:TARGET",
            "ftruncate=EIO@N:TARGET",
            "ftruncate=ENOSPC@1:TARGET",
            "fdatasync=EIO@1:TARGET",
            "fdatasync=ENOSPC@1:TARGET",
            "fsync=EIO@1:TARGET",
            "lseek=EIO@N:SOURCE",
            "close=EIO@N:TARGET",
            "sync_file_range=EIO@N:TARGET",
            "readv=EIO@N:socket",
            "sendto=EIO@N:socket",
        ];
        for _ in 0..self.dice.between(1, 3) {
            let is_harmless = self.dice.percent(50);
            let rule = self.dice.pick(if is_harmless { &harmless[..] } else { &harmful[..] });
            self.is_harmless &= is_harmless;
            let number = self.dice.between(1, 9).to_string();
            let rule = rule.replace("@N", &format!("@{number}"));
            let rule = rule.replace("SOURCE", &self.source.display().to_string());
            self.rules.push(rule.replace("TARGET", &self.target.display().to_string()));
        }
    }

    fn copy(&mut self, source: &str, target: &str) -> Outcome {
        let faulty = if self.rules.is_empty() {
            Command::new(diskferry())
        } else {
            let mut command = Command::new(env!("CARGO_BIN_EXE_faulty"));
            command.arg(self.dice.below(1 << 30).to_string()).args(&self.rules);
            command.arg("--").arg(diskferry());
            command
        };
        let mut command = match self.limit {
            None => faulty,
            Some(limit) => {
                let mut command = Command::new("prlimit");
                command.args([&format!("--fsize={limit}"), "--"]).arg(faulty.get_program());
                command.args(faulty.get_args());
                command
            }
        };
        command.args(["copy", "--quiet"]).args(&self.words).args([source, target]);
        command.env("TMPDIR", &self.source);
        Job::start(&mut command).wait()
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        for directory in [&self.source, &self.target] {
            remove(directory);
        }
    }
}

fn remove(directory: &Path) {
    let _ = std::fs::remove_dir_all(directory);
}

/// Panics unless `now` is `content`, and then `rest`.
fn same(now: &[u8], content: &[u8], rest: &[u8], outcome: &Outcome) {
    let expected = content.iter().chain(rest);
    let wrong = now.iter().zip(expected).position(|(a, b)| a != b);
    if let Some(at) = wrong {
        let count = now.iter().zip(content).filter(|(a, b)| a != b).count();
        let place = if at < content.len() { "" } else { " beyond the source's end" };
        panic!("byte {at} is wrong{place} ({count} wrong bytes), and success: {outcome:#?}");
    }
    let lengths = (now.len(), content.len() + rest.len());
    assert!(lengths.0 == lengths.1, "length {} and not {}: {outcome:#?}", lengths.0, lengths.1);
}
