//! What a request costs a server in instructions, allocations and locks, counted by callgrind: no
//! more than the table in docs/architecture/server.md says, which `BLACKBOX_BLESS=1` writes anew.
//!
//! The counts are those of the binary that is tested: one without optimisation has more of all.
//! They hardly depend on the machine, and not at all on what else it does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::launch::{Serve, Server};
use blackbox::peers::{diskferry, peer, skip_environment};
use blackbox::run::{ferry, text};
use blackbox::temp::{TempDir, pattern};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/architecture/server.md");
/// The line above the rows.
const HEAD: &str = "| over | request | depth | instructions | allocations | locks |\n|---|---|---:|---:|---:|---:|\n";
/// Requests of one row, and of the run that is taken off.
const REQUESTS: u32 = 1024;
const FEW: u32 = 64;
/// What may be counted beyond the table: a part, and so many allocations and locks a request.
const PART: f64 = 0.15;
const OTHERS: f64 = 0.25;
/// How often is looked until it is believed that a request costs too much: how many requests come
/// together, and which threads meet, is chance.
const LOOKS: usize = 4;

/// What a server serves, and the rows over it: what is asked for, its words for `bench`, and how
/// many are in flight.
type Rows = &'static [(&'static str, &'static [&'static str], u32)];

const READS_AND_WRITES: Rows = &[
    ("4 KiB read", &["-s4K"], 1),
    ("4 KiB read", &["-s4K"], 32),
    ("4 KiB write", &["-s4K", "-w", "-f", "raw"], 1),
    ("4 KiB write", &["-s4K", "-w", "-f", "raw"], 32),
    ("256 KiB read", &["-s256K"], 1),
    ("256 KiB write", &["-s256K", "-w", "-f", "raw"], 1),
];
const READS: Rows = &[("4 KiB read", &["-s4K"], 1), ("4 KiB read", &["-s4K"], 32)];
const PACKED: Rows = &[("64 KiB read", &["-s64K"], 1)];

/// A server under callgrind.
struct Counted {
    server: Server,
    out: PathBuf,
    uri: String,
}

/// Instructions, allocations and locks.
type Costs = [f64; 3];

impl Counted {
    fn start(valgrind: &Path, serve: &Serve, uri: impl Fn(&Server) -> String) -> Self {
        let temp = TempDir::below(Path::new("/dev/shm"));
        let (socket, out) = (temp.join("s"), temp.join("out"));
        let mut command = Command::new(valgrind);
        command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", out.display()));
        command.arg(diskferry()).args(serve.arguments(&socket)).arg("--sandbox=off");
        let server = Server::start(command, temp, socket);
        let uri = uri(&server);
        Self { server, out, uri }
    }

    /// All that it has cost, when a client has asked for something.
    fn cost_of(mut self, words: &[&str]) -> Costs {
        ferry([&["bench", "-q"], words, &[&self.uri]].concat()).succeeded();
        self.server.may_end();
        self.server.signal(rustix::process::Signal::TERM);
        let read = || std::fs::read_to_string(&self.out).unwrap_or_default();
        blackbox::wait_for("callgrind has counted", || read().contains("\ntotals: "));
        costs(&read())
    }
}

/// What callgrind has counted.
fn costs(text: &str) -> Costs {
    let mut names = BTreeMap::new();
    let (mut called, mut costs) = (String::new(), [0.0; 3]);
    for line in text.lines() {
        if let Some((_, name)) = line.split_once("fn=(") {
            let (id, name) = name.split_once(')').unwrap_or((name, ""));
            if !name.is_empty() {
                names.insert(id.to_owned(), name.trim().to_owned());
            }
            called = names.get(id).cloned().unwrap_or_default();
        } else if let Some(rest) = line.strip_prefix("calls=") {
            let count: f64 = rest.split(' ').next().unwrap().parse().unwrap();
            let called = called.trim_end_matches(|c: char| c == '\'' || c.is_ascii_digit());
            match called {
                "malloc" | "calloc" | "realloc" | "posix_memalign" | "aligned_alloc" => {
                    costs[1] += count;
                }
                name if name.starts_with("std::sync::poison::mutex::Mutex<T>::lock") => {
                    costs[2] += count;
                }
                _ => {}
            }
        } else if let Some(total) = line.strip_prefix("totals: ") {
            costs[0] = total.trim().parse().unwrap();
        }
    }
    costs
}

/// The rows of one server, each with what a request costs.
fn measured(
    (valgrind, page): (&Path, &str),
    (over, serve): (&str, Serve),
    uri: impl Fn(&Server) -> String,
    rows: Rows,
) -> Vec<(String, Costs)> {
    let run = |words: &[&str], count: u32, depth: u32| {
        let (count, depth) = (format!("-c{count}"), format!("-d{depth}"));
        let words = [&[count.as_str(), depth.as_str()], words].concat();
        Counted::start(valgrind, &serve, &uri).cost_of(&words)
    };
    // What happens once.
    let few = rows.first().map(|(_, words, depth)| run(words, FEW, *depth)).unwrap_or_default();
    let row = |(what, words, depth): &(&str, &[&str], u32)| {
        let name = format!("| {over} | {what} | {depth} |");
        let mut each = Costs::default();
        for _ in 0..LOOKS {
            let many = run(words, FEW + REQUESTS, *depth);
            each = [0, 1, 2].map(|n| (many[n] - few[n]).max(0.0) / f64::from(REQUESTS));
            if fits(page, &name, each) {
                break;
            }
        }
        (name, each)
    };
    rows.iter().map(row).collect()
}

fn written((row, [instructions, allocations, locks]): &(String, Costs)) -> String {
    format!("{row} {instructions:.0} | {allocations:.1} | {locks:.1} |\n")
}

/// What the page says of a row.
fn allowed(page: &str, row: &str) -> Option<Costs> {
    let rest = page.lines().find_map(|line| line.strip_prefix(row))?;
    let numbers: Vec<f64> = rest.split('|').filter_map(|cell| cell.trim().parse().ok()).collect();
    numbers.try_into().ok()
}

/// Whether a row costs what the page allows. One that is not there costs what it likes, until the
/// page is looked at.
fn fits(page: &str, row: &str, costs: Costs) -> bool {
    let Some(most) = allowed(page, row) else { return true };
    let fits = |n: usize| costs[n] <= most[n] * (1.0 + PART) + if n > 0 { OTHERS } else { 0.0 };
    (0..3).all(fits)
}

#[test]
fn a_request_costs_no_more_instructions_allocations_and_locks_than_the_table_says() {
    let Some(valgrind) = peer("valgrind") else { return };
    let quick = ["--tool=callgrind", "--callgrind-out-file=/dev/null", "true"];
    let works = Command::new(&valgrind).args(quick).output();
    if !works.is_ok_and(|done| done.status.success()) {
        skip_environment("valgrind does not run here");
        return;
    }
    let temp = TempDir::below(Path::new("/dev/shm"));
    let disk = temp.file("disk", &pattern(0, 16 << 20));
    let (image, packed) = (temp.join("image"), temp.join("packed"));
    let keys = temp.file("keys.psk", format!("bob:{}\n", "5".repeat(64)).as_bytes());
    for (image, words) in [(&image, &[][..]), (&packed, &["-c"][..])] {
        let words = [&["convert", "-q", "-f", "raw", "-O", "qcow2"], words].concat();
        ferry([&words[..], &[text(&disk), text(image)]].concat()).succeeded();
    }
    let log = format!("--filter=log?logfile={}", temp.join("log").display());
    let behind = Serve::memory("64M").start();
    let plain = |server: &Server| server.uri("");
    let secret = |server: &Server| {
        let (socket, keys) = (server.socket().display(), keys.display());
        format!("nbds+unix://bob@/?socket={socket}&tls-psk-file={keys}")
    };
    let tls = Serve::memory("64M").option("--tls=require");
    let tls = tls.option(format!("--tls-psk={}", keys.display()));
    let qcow2 = |image: &Path| Serve::file(image).option("--format=qcow2");
    let is_blessed = std::env::var_os("BLACKBOX_BLESS").is_some();
    let page = std::fs::read_to_string(PAGE).unwrap();
    let tool = (valgrind.as_path(), if is_blessed { "" } else { page.as_str() });
    let read_only = qcow2(&packed).option("-r");
    let proxy = Serve::proxy(&behind.uri(""));
    // Two at a time, about as long as each other: a server under callgrind has one processor.
    let (mut found, rest) = std::thread::scope(|scope| {
        let rest = scope.spawn(|| {
            let log = Serve::memory("64M").option(log);
            let mut found = measured(tool, ("memory, `log`", log), plain, READS);
            found.extend(measured(tool, ("qcow2 in tmpfs", qcow2(&image)), plain, READS));
            found.extend(measured(tool, ("qcow2, compressed", read_only), plain, PACKED));
            found.extend(measured(tool, ("`nbd`", proxy), plain, READS));
            found.extend(measured(tool, ("memory, TLS", tls), secret, READS));
            found
        });
        let mut found = measured(tool, ("memory", Serve::memory("64M")), plain, READS_AND_WRITES);
        found.extend(measured(tool, ("file in tmpfs", Serve::file(&disk)), plain, READS));
        (found, rest.join().unwrap())
    });
    found.extend(rest);
    if is_blessed {
        let (before, rest) = page.split_once(HEAD).unwrap();
        let after = rest.split_once("\n\n").unwrap().1;
        let rows: String = found.iter().map(written).collect();
        std::fs::write(PAGE, format!("{before}{HEAD}{rows}\n{after}")).unwrap();
        return;
    }
    let is_wrong = |(row, costs): &&(String, Costs)| {
        allowed(&page, row).is_none() || !fits(&page, row, *costs)
    };
    let wrong: String = found.iter().filter(is_wrong).map(written).collect();
    assert!(wrong.is_empty(), "more than docs/architecture/server.md allows:\n{wrong}");
}
