//! How many system calls a request of each kind costs a server, over each kind of device: no more
//! than the tables here allow, counted by strace. docs/architecture/server.md shows the same
//! tables.
//!
//! Requests are sent in batches, as a client with some depth sends them.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use blackbox::launch::{Serve, Server};
use blackbox::nbd::{cmd, tflag};
use blackbox::peers::{diskferry, peer};
use blackbox::run::ferry;
use blackbox::session::{Mode, Request, Session};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

/// The size of every disk here, in bytes.
const SIZE: u64 = 64 * MIB;

/// What is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Read4K,
    Read4KAlone,
    Read256K,
    ReadHole,
    Write4K,
    Write4KAlone,
    Write256K,
    Zero,
    Trim,
    Flush,
    Status,
}
use Kind::*;

/// The calls for one request. What is not named is shared by a batch.
type Costs = &'static [(Kind, &'static [(&'static str, u32)])];

const IN_MEMORY: Costs = &[
    (Read4K, &[("pread64", 1)]),
    (Read256K, &[("fstat", 1), ("lseek", 1), ("cachestat", 1), ("sendto", 1), ("sendfile", 1)]),
    (ReadHole, &[("fstat", 2), ("lseek", 1)]),
    (Write4K, &[("pwrite64", 1)]),
    (Zero, &[("fallocate", 1)]),
    (Trim, &[("fallocate", 1)]),
    (Flush, &[("fdatasync", 1)]),
    (Status, &[("fstat", 1), ("lseek", 1), ("cachestat", 1)]),
];

/// The file's bytes are in the page cache.
const ON_DISK: Costs = &[
    (Read4K, &[("preadv2", 1)]),
    (Read256K, &[("preadv2", 2), ("cachestat", 1), ("sendto", 1), ("sendfile", 1)]),
    (ReadHole, &[("fstat", 1), ("lseek", 1)]),
    // For a while after a write that took long the pool writes, and each is answered when it has
    // ended.
    (Write4K, &[("pwrite64", 1), ("sendto", 1)]),
    (Zero, &[("fallocate", 1)]),
    (Trim, &[("fallocate", 1)]),
    (Flush, &[("fdatasync", 1)]),
    (Status, &[]),
];

const PROXY: Costs = &[
    (Read4K, &[]),
    (Read256K, &[("readv", 1)]),
    (ReadHole, &[]),
    (Write4K, &[]),
    (Zero, &[]),
    (Trim, &[]),
    (Flush, &[]),
    (Status, &[]),
];

/// By what these are reached, and what that costs. One request at a time is a batch of one: what
/// moves it and its reply counts, too.
const OTHERS: &[(&str, Costs)] = &[
    ("file in tmpfs", ALONE),
    ("file in tmpfs, `log`", LOGGED),
    ("qcow2 in tmpfs", IN_IMAGE),
    ("qcow2 in tmpfs, compressed", PACKED),
];

const ALONE: Costs = &[
    (Read4KAlone, &[("pread64", 1), ("recvfrom", 1), ("sendto", 1)]),
    (Write4KAlone, &[("pwrite64", 1), ("recvfrom", 1), ("sendto", 1)]),
    // As many as the client's socket holds at a time. Replies of a turn go together; where the
    // client is slower than the server, a turn is one write.
    (Write256K, &[("pwrite64", 1), ("recvfrom", 4), ("sendto", 1)]),
];

/// The lines of many requests are one write.
const LOGGED: Costs = &[(Read4K, &[("pread64", 1)]), (Write4K, &[("pwrite64", 1)])];

/// All clusters are there.
const IN_IMAGE: Costs = &[
    (Read4K, &[("pread64", 1)]),
    (Read256K, &[("getsockopt", 1), ("ioctl", 1), ("sendto", 1), ("sendfile", 1)]),
    (Write4K, &[("pwrite64", 1)]),
    (Write256K, &[("pwrite64", 1), ("recvfrom", 4), ("sendto", 1)]),
    (Status, &[]),
];

/// Four clusters of 64 KiB.
const PACKED: Costs = &[(Read256K, &[("pread64", 4), ("sendto", 1)])];

/// A copy of a file in which each second block of 4 KiB is a hole, and what each block of data
/// costs.
const TOOTH: &[(&str, u32)] = &[("pwrite64", 1)];

/// A request's share of what a batch has in common, and a little room.
const SHARE: f64 = 0.5;

/// Depends on how threads happen to run, or makes one.
const OF_THREADS: &[&str] = &[
    "brk",
    "clone3",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_wait",
    "exit",
    "getrandom",
    "gettid",
    "madvise",
    "mmap",
    "mprotect",
    "munmap",
    "prctl",
    "rseq",
    "rt_sigprocmask",
    "sched_getaffinity",
    "sched_yield",
    "set_robust_list",
    "sigaltstack",
];

/// The second half of every disk is a hole in the beginning, and is read and zeroed; the first
/// half is data.
const HALF: u64 = SIZE / 2;
/// Requests of one row.
const REQUESTS: u32 = 128;

impl Kind {
    fn text(self) -> &'static str {
        match self {
            Read4K => "4 KiB read",
            Read4KAlone => "4 KiB read, one at a time",
            Read256K => "256 KiB read",
            ReadHole => "256 KiB read of a hole",
            Write4K => "4 KiB write",
            Write4KAlone => "4 KiB write, one at a time",
            Write256K => "256 KiB write",
            Zero => "4 KiB zero",
            Trim => "4 KiB trim",
            Flush => "flush",
            Status => "block status",
        }
    }

    fn request(self, n: u64) -> Request {
        let small = n * 7 % 256 * 64 * 1024;
        match self {
            Read4K | Read4KAlone => Request::new(cmd::READ, small, 4096),
            Read256K => Request::new(cmd::READ, n * 5 % 64 * 256 * 1024, 256 * 1024),
            ReadHole => Request::new(cmd::READ, HALF + n * 5 % 64 * 256 * 1024, 256 * 1024),
            Write4K | Write4KAlone => Request::write(small, &[7; 4096]),
            Write256K => Request::write(n * 5 % 64 * 256 * 1024, &[7; 256 << 10]),
            Zero => Request::new(cmd::WRITE_ZEROES, HALF + small, 4096),
            Trim => Request::new(cmd::TRIM, HALF + small, 4096),
            Flush => Request::new(cmd::FLUSH, 0, 0),
            Status => Request::new(cmd::BLOCK_STATUS, small, 4096),
        }
    }

    /// How many are sent in one piece.
    fn batch(self) -> u64 {
        match self {
            Read4KAlone | Write4KAlone => 1,
            Read256K | ReadHole | Write256K => 8,
            _ => 32,
        }
    }
}

/// A server under strace, the first half of whose disk is data.
struct Traced {
    server: Server,
    session: Session,
    log: PathBuf,
}

impl Traced {
    fn start(serve: Serve, temp: &TempDir) -> Self {
        let log = temp.join("calls");
        let server = serve.traced_for(&log, "all").start();
        let mut session = server.session(Mode::Structured, "");
        if !session.has(tflag::READ_ONLY) {
            for at in (0..HALF).step_by(index(4 * MIB)) {
                session.write(at, &pattern(at, index(4 * MIB)));
            }
            session.flush();
        }
        Self { server, session, log }
    }

    fn ask(&mut self, kind: Kind, from: u64, count: u64) {
        let mut n = from;
        while n < from + count {
            let (mut bytes, mut cookies) = (Vec::new(), Vec::new());
            for _ in 0..kind.batch().min(from + count - n) {
                let request = kind.request(n);
                let cookie = self.session.register(&request);
                bytes.extend(self.session.bytes(&request, cookie));
                cookies.push(cookie);
                n += 1;
            }
            self.session.socket.send(&bytes);
            for cookie in cookies {
                assert_eq!(self.session.wait(cookie).error, 0, "{kind:?}");
            }
        }
    }

    fn logged(&self) -> usize {
        std::fs::read(&self.log).unwrap().len()
    }

    /// The calls for one request, on average.
    fn calls(&mut self, kind: Kind) -> BTreeMap<String, f64> {
        // What happens only once has happened then.
        self.ask(kind, 0, kind.batch());
        let before = self.logged();
        self.ask(kind, kind.batch(), REQUESTS.into());
        counted(&std::fs::read(&self.log).unwrap()[before..], REQUESTS)
    }
}

/// How often each call was logged, for each of so many `pieces` of work.
fn counted(log: &[u8], pieces: u32) -> BTreeMap<String, f64> {
    let mut calls = BTreeMap::new();
    for line in String::from_utf8_lossy(log).lines() {
        // A call during which another thread's is logged has two lines; the second has no name
        // in this place.
        let call = line.split_whitespace().nth(1).and_then(|word| word.split_once('('));
        if let Some((name, _)) = call {
            // An strace that is older than the kernel knows only the number.
            let name = if name == "syscall_0x1c3" { "cachestat" } else { name };
            *calls.entry(name.to_owned()).or_insert(0.0) += 1.0 / f64::from(pieces);
        }
    }
    calls
}

/// The calls of which there are more than are `named`.
fn too_many(calls: BTreeMap<String, f64>, named: &[(&str, u32)], waits: bool) -> Vec<String> {
    let too_many = calls.into_iter().filter(|(call, n)| {
        let free = OF_THREADS.contains(&call.as_str()) || (waits && call == "futex");
        let most = named.iter().find(|(name, _)| name == call).map_or(0, |(_, n)| *n);
        !free && *n > f64::from(most) + SHARE
    });
    too_many.map(|(call, n)| format!("{call} {n:.2}")).collect()
}

/// Whether a server can be traced here.
fn can_trace() -> bool {
    peer("strace").is_some()
}

/// How often is looked until it is believed that a request costs too much: where strace makes calls
/// slow and others have the processor, a server's turns are short, and so are its batches.
const LOOKS: usize = 5;

/// Checks every kind of request; `waits`: threads wake one another, and a reactor, which costs
/// calls too, though fewer than one a request.
fn check(serve: Serve, costs: Costs, waits: bool) {
    // One at a time: they would only make one another slow.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let temp = TempDir::new();
    let mut traced = Traced::start(serve, &temp);
    let wrong: Vec<_> =
        costs.iter().filter_map(|(kind, named)| traced.wrong(*kind, named, waits)).collect();
    drop(traced.session);
    traced.server.stop();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

impl Traced {
    /// What is wrong with a kind of request however often one looks.
    fn wrong(&mut self, kind: Kind, named: &[(&str, u32)], waits: bool) -> Option<String> {
        let mut wrong = String::new();
        for _ in 0..LOOKS {
            let too_many = too_many(self.calls(kind), named, waits);
            if too_many.is_empty() {
                return None;
            }
            wrong = format!("{}: {}", kind.text(), too_many.join(", "));
        }
        Some(wrong)
    }
}

/// A directory in memory, where the server never waits.
fn in_memory() -> TempDir {
    TempDir::below(Path::new("/dev/shm"))
}

fn file(temp: &TempDir) -> Serve {
    Serve::file(&temp.sparse_file("disk", SIZE))
}

#[test]
fn what_is_in_memory_costs_no_more_than_the_table_says() {
    if can_trace() {
        let temp = in_memory();
        check(Serve::memory("64M"), IN_MEMORY, false);
        check(file(&temp), IN_MEMORY, false);
    }
}

#[test]
fn a_transparent_filter_over_memory_costs_no_call() {
    if can_trace() {
        let temp = in_memory();
        check(Serve::memory("64M").option("--filter=limit"), IN_MEMORY, false);
        check(file(&temp).option("--filter=limit"), IN_MEMORY, false);
    }
}

#[test]
fn a_file_on_a_disk_costs_no_more_than_the_table_says() {
    if can_trace() {
        check(file(&TempDir::new()), ON_DISK, true);
    }
}

#[test]
fn a_transparent_filter_over_a_disk_costs_no_call() {
    if can_trace() {
        check(file(&TempDir::new()).option("--filter=limit"), ON_DISK, true);
    }
}

#[test]
fn one_at_a_time_and_long_writes_cost_no_more_than_the_table_says() {
    if can_trace() {
        let temp = in_memory();
        check(file(&temp), ALONE, false);
    }
}

#[test]
fn a_log_costs_a_fraction_of_a_call() {
    if can_trace() {
        let temp = in_memory();
        let log = format!("--filter=log?logfile={}", temp.join("log").display());
        check(file(&temp).option(log), LOGGED, true);
    }
}

#[test]
fn clusters_of_an_image_cost_no_more_than_the_table_says() {
    if can_trace() {
        let temp = in_memory();
        let image = temp.join("image");
        ferry(["create", "-q", "-f", "qcow2", image.to_str().unwrap(), "64M"]).succeeded();
        check(Serve::file(&image).option("--format=qcow2"), IN_IMAGE, false);
        let (raw, packed) = (temp.file("raw", &pattern(0, index(SIZE))), temp.join("packed"));
        let words = ["convert", "-q", "-c", "-O", "qcow2"].map(std::ffi::OsStr::new);
        ferry([&words[..], &[raw.as_os_str(), packed.as_os_str()]].concat()).succeeded();
        check(Serve::file(&packed).option("--format=qcow2").option("-r"), PACKED, true);
    }
}

#[test]
fn a_proxy_sends_a_batch_as_a_batch_on_both_sides() {
    if can_trace() {
        let behind = Serve::memory("64M").start();
        check(Serve::proxy(&behind.uri("")), PROXY, true);
    }
}

/// Otherwise the client would do nothing until all are answered, and the server nothing until it
/// sends more.
#[test]
fn replies_to_a_batch_are_sent_in_portions() {
    if !can_trace() {
        return;
    }
    let temp = in_memory();
    let mut traced = Traced::start(file(&temp), &temp);
    for kind in [Read4K, Write4K] {
        let calls = traced.calls(kind);
        let sends = calls.get("sendto").copied().unwrap_or(0.0);
        assert!(sends >= 1.0 / 8.0, "{kind:?}: {sends} calls of sendto each: {calls:?}");
    }
    drop(traced.session);
    traced.server.stop();
}

#[test]
fn what_the_pool_has_done_is_answered_as_a_batch() {
    if can_trace() {
        let shared: Costs = &[(Flush, &[("fdatasync", 1)])];
        check(file(&TempDir::new()), shared, true);
    }
}

/// With one worker, reads and writes begin while others wait: they are done by threads of the pool.
#[test]
fn a_copy_between_files_on_a_disk_has_depth() {
    if !can_trace() {
        return;
    }
    let temp = TempDir::new();
    let source = temp.file("source", &pattern(0, index(SIZE)));
    let (target, log) = (temp.join("target"), temp.join("calls"));
    let status = Command::new("strace")
        .args(["-f", "-e", "trace=pread64,preadv2,pwrite64", "-o"])
        .args([log.clone(), diskferry()])
        .args(["copy", "--quiet", "--threads=1"])
        .args([&source, &target])
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(std::fs::read(&target).unwrap(), pattern(0, index(SIZE)));
    let calls = std::fs::read_to_string(&log).unwrap();
    let begun = |line: &&str| line.contains("pwrite64(") && line.contains("unfinished");
    assert!(calls.lines().any(|line| begun(&line)), "one after the other");
}

#[test]
fn a_block_between_holes_of_a_file_costs_one_write() {
    if !can_trace() {
        return;
    }
    const TEETH: u32 = 4096;
    let temp = in_memory();
    let source = temp.sparse_file("source", u64::from(TEETH) * 8192);
    let file = std::fs::File::options().write(true).open(&source).unwrap();
    for n in 0..u64::from(TEETH) {
        file.write_all_at(&pattern(n * 8192, 4096), n * 8192).unwrap();
    }
    let (target, log) = (temp.join("target"), temp.join("calls"));
    let status = Command::new("strace")
        .args(["-f", "-o"])
        .args([log.clone(), diskferry()])
        .args(["copy", "--quiet"])
        .args([&source, &target])
        .status()
        .unwrap();
    assert!(status.success());
    assert!(std::fs::read(&target).unwrap() == std::fs::read(&source).unwrap());
    let blocks = |path| std::fs::metadata(path).unwrap().blocks();
    assert_eq!(blocks(&target), blocks(&source));
    let calls = counted(&std::fs::read(&log).unwrap(), TEETH);
    let wrong = too_many(calls, TOOTH, true);
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// What a verb that only looks takes from its start to its end: calls of the system, and no thread.
const LOOKING: &[(&[&str], usize)] = &[
    (&["--version"], 120),
    (&["create", "new", "1M"], 190),
    (&["info", "disk"], 260),
    (&["info", "--output=json", "image"], 260),
    (&["map", "disk"], 260),
    (&["check", "image"], 260),
];

#[test]
fn a_verb_that_only_looks_starts_no_thread_and_takes_few_calls() {
    if !can_trace() {
        return;
    }
    let temp = TempDir::new();
    temp.sparse_file("disk", MIB);
    let in_it = |program: &Path, words: &[&str]| {
        let mut command = Command::new(program);
        // Of cargo: libraries are looked for in many places then.
        command.env_remove("LD_LIBRARY_PATH").current_dir(temp.path());
        let done = command.args(words).output().unwrap();
        assert!(done.status.success(), "{words:?}: {done:?}");
    };
    in_it(&diskferry(), &["create", "-q", "-f", "qcow2", "image", "1M"]);
    for (words, most) in LOOKING {
        let program = diskferry();
        let traced = [&["-f", "-o", "calls", program.to_str().unwrap()], *words].concat();
        in_it(Path::new("strace"), &traced);
        let calls = std::fs::read_to_string(temp.join("calls")).unwrap();
        let count = calls.lines().count();
        assert!(count <= *most, "{words:?}: {count} calls, and {most} are enough");
        for heavy in ["clone", "io_uring_setup", "eventfd", "epoll_create"] {
            assert!(!calls.contains(heavy), "{words:?}: {heavy}");
        }
    }
}

#[test]
fn the_architecture_shows_these_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/architecture/server.md");
    let text = std::fs::read_to_string(path).unwrap();
    let cell = |calls: &[(&str, u32)]| {
        let calls: Vec<_> = calls.iter().map(|(call, n)| format!("`{call}` {n}")).collect();
        if calls.is_empty() { "–".to_owned() } else { calls.join(", ") }
    };
    let mut rows = Vec::new();
    for (i, (kind, _)) in IN_MEMORY.iter().enumerate() {
        let cells = [IN_MEMORY, ON_DISK, PROXY].map(|costs| {
            assert_eq!(costs[i].0, *kind);
            cell(costs[i].1)
        });
        rows.push(format!("| {} | {} |", kind.text(), cells.join(" | ")));
    }
    for (over, costs) in OTHERS {
        let row = |(kind, calls): &(Kind, &[(&str, u32)])| {
            format!("| {over} | {} | {} |", kind.text(), cell(calls))
        };
        rows.extend(costs.iter().map(row));
    }
    rows.push(format!(
        "| copy of a comb in tmpfs | 4 KiB of data and 4 KiB of hole | {} |",
        cell(TOOTH)
    ));
    for row in rows {
        assert!(text.contains(&row), "missing: {row}");
    }
}
