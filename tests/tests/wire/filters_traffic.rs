//! Filters that watch, break and repair traffic, as real clients see them, and beside
//! nbdkit's where what they write is nbdkit's.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use blackbox::launch::Serve;
use blackbox::nbd::{cmd, err};
use blackbox::peers::{diskferry, peer};
use blackbox::run::{Outcome, ours, run};
use blackbox::session::{Mode, Request};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

/// What a client does, in nbdsh's words.
const SCRIPT: &str = "
def extents(*args): return 0
h.pread(512, 0)
h.pwrite(b'x' * 4096, 4096)
h.pwrite(b'x' * 4096, 4096, nbd.CMD_FLAG_FUA)
h.zero(4096, 0)
h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)
h.zero(4096, 65536, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_FUA)
h.trim(4096, 8192)
h.trim(4096, 8192, nbd.CMD_FLAG_FUA)
h.flush()
h.block_status(65536, 0, extents)
h.block_status(65536, 0, extents, nbd.CMD_FLAG_REQ_ONE)
";

/// A server with these words (filters, device, parameters) and a client that runs `script`.
fn captive(server: &mut Command, python: &Path, script: &str) -> Outcome {
    let temp = TempDir::new();
    let script = temp.file("script.py", script.as_bytes());
    // nbdsh reads no file, so the shell does.
    let client = format!(
        "{} -m nbd --base-allocation -u \"$uri\" -c \"$(cat {})\"",
        python.display(),
        script.display()
    );
    run(server.args(["--run", &client]))
}

fn our_server(words: &[&str]) -> Command {
    let mut command = ours(["serve"]);
    command.args(words);
    command
}

fn nbdkit(path: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(path);
    command.args(["-U", "-"]).args(words);
    command
}

/// Whether this nbdkit's log is that of 1.40 and later (`return=0` with nothing after it).
fn is_new(path: &Path) -> bool {
    let version = run(Command::new(path).arg("--version")).stdout;
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    minor.is_some_and(|minor| minor >= 40)
}

/// The lines of a log for operations, without times. How a disk is made up of extents is its own
/// affair.
fn operations(log: &Path) -> Vec<String> {
    let text = fs::read_to_string(log).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(" connection=1 "));
    let lines = lines.map(|(_, line)| line).filter(|line| !line.starts_with("Connect "));
    let cut = |line: &str| match (line.find(" extents=("), line.find(") return")) {
        (Some(from), Some(to)) => format!("{}{}", &line[..from], &line[to + 1..]),
        _ => line.to_owned(),
    };
    lines.map(cut).collect()
}

#[test]
fn a_log_is_line_by_line_what_nbdkit_writes() {
    let Some(python) = peer("nbdsh") else { return };
    let temp = TempDir::new();
    let (ours, theirs) = (temp.join("ours"), temp.join("theirs"));
    let log = |path: &Path| format!("logfile={}", path.display());
    let words = ["--filter=log", "memory", "1M"];
    captive(our_server(&words).arg(log(&ours)), &python, SCRIPT).succeeded();
    let mine = operations(&ours);
    assert_eq!(mine.len(), 2 * 11 + 1, "{mine:#?}");
    assert_eq!(mine.last().unwrap(), "Disconnect transactions=11");
    let Some(path) = peer("nbdkit").filter(|path| is_new(path)) else { return };
    captive(nbdkit(&path, &words).arg(log(&theirs)), &python, SCRIPT).succeeded();
    assert_eq!(mine, operations(&theirs));
}

#[test]
fn a_pipe_gets_all_of_a_log_and_a_report_before_the_server_ends() {
    let Some(python) = peer("nbdsh") else { return };
    let temp = TempDir::new();
    let script = temp.file("script.py", SCRIPT.as_bytes());
    let (log, report) = (temp.join("log"), temp.join("report"));
    let line = format!(
        "{} serve --filter=log --filter=stats memory 1M \
         logfile=>(sleep 0.1; cat >{log}; echo end >>{log}) \
         statsfile=>(cat >{report}; echo end >>{report}) \
         --run '{} -m nbd --base-allocation -u \"$uri\" -c \"$(cat {})\"'; \
         until [ \"$(tail -qn1 {log} {report} | grep -c end)\" = 2 ]; do sleep 0.01; done",
        diskferry().display(),
        python.display(),
        script.display(),
        log = log.display(),
        report = report.display(),
    );
    run(Command::new("bash").args(["-c", &line])).succeeded();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.ends_with("Disconnect transactions=11\nend\n"), "{log}");
    let report = fs::read_to_string(report).unwrap();
    assert!(report.starts_with("total: 11 ops, "), "{report}");
    assert!(report.contains("\nzero: 3 ops, ") && report.ends_with("end\n"), "{report}");
}

/// A report without times and rates, and without what nbdkit does not have.
fn report_shape(report: &str) -> Vec<String> {
    let report = report.split("\nlatency:\n").next().unwrap();
    let line = |line: &str| {
        let words: Vec<&str> = line.split(", ").collect();
        match words.as_slice() {
            [count, time, size, rates @ ..] if line.contains(" ops, ") => {
                assert!(time.ends_with(" s") && time.contains('.'), "{line}");
                let unit = |rate: &&str| rate.rsplit_once("/s").unwrap().1.to_owned();
                format!("{count}, {size}, {:?}", rates.iter().map(unit).collect::<Vec<_>>())
            }
            _ => line.to_owned(),
        }
    };
    report.lines().map(line).collect()
}

#[test]
fn a_report_is_line_by_line_what_nbdkit_writes() {
    let Some(python) = peer("nbdsh") else { return };
    let script = "
for i in range(100): h.pread(4096, i * 4096)
for i in range(40): h.pread(8192, (i * 3 + 1) * 8192)
for i in range(7): h.pwrite(bytes(65536), i * 65536)
for i in range(3): h.pwrite(bytes(512), 512)
h.zero(1 << 20, 0)
h.zero(1 << 20, 1 << 20)
h.flush()
";
    let temp = TempDir::new();
    let (ours, theirs) = (temp.join("ours"), temp.join("theirs"));
    let file = |path: &Path| format!("statsfile={}", path.display());
    for threshold in ["95", "100", "50", "0"] {
        let threshold = format!("statsthreshold={threshold}");
        let words = ["--filter=stats", "memory", "4M", &threshold];
        captive(our_server(&words).arg(file(&ours)), &python, script).succeeded();
        let mine = fs::read_to_string(&ours).unwrap();
        assert!(mine.contains("\n  read    p50 "), "{mine}");
        let Some(path) = peer("nbdkit").filter(|path| is_new(path)) else { return };
        captive(nbdkit(&path, &words).arg(file(&theirs)), &python, script).succeeded();
        let theirs = fs::read_to_string(&theirs).unwrap();
        let (mine, theirs) = (report_shape(&mine), report_shape(&theirs));
        // For other sizes nbdkit reports the bytes of all.
        let told = |line: &&String| !line.trim_start().starts_with("other sizes");
        assert!(mine.iter().filter(told).eq(theirs.iter().filter(told)), "{mine:#?} {theirs:#?}");
    }
}

#[test]
fn copies_over_a_disk_that_fails_complete_with_retry_nearest_the_client() {
    let Some(nbdcopy) = peer("nbdcopy") else { return };
    let temp = TempDir::new();
    let data = pattern(7, index(8 * MIB));
    let (source, target) = (temp.file("source", &data), temp.sparse_file("target", 8 * MIB));
    let copies = [
        format!("{} '{}' \"$uri\"", nbdcopy.display(), source.display()),
        format!("{} copy '{}' \"$uri\"", diskferry().display(), source.display()),
        format!("{} copy \"$uri\" '{}'", diskferry().display(), temp.join("back").display()),
    ];
    let failing = ["error-rate=20%", "error-seed=3", "retry-delay=1ms", "retries=30"];
    for copy in &copies {
        let mut server = our_server(&["--filter=retry", "--filter=error", "file"]);
        server.arg(&target).args(failing).arg("retry-exponential=no").args(["--run", copy]);
        run(&mut server).succeeded();
        assert!(fs::read(&target).unwrap() == data, "{copy}");
    }
    assert!(fs::read(temp.join("back")).unwrap() == data);
    // The other way about, nothing repairs what is broken.
    let mut server = our_server(&["--filter=error", "--filter=retry", "file"]);
    server.arg(&target).args(failing).args(["--run", &copies[0]]);
    assert!(!run(&mut server).status.success());
}

#[test]
fn a_server_that_comes_back_is_used_again() {
    let temp = TempDir::new();
    let data = pattern(1, index(4 * MIB));
    let disk = temp.file("disk", &data);
    let socket = temp.join("upstream");
    let start = || Serve::file(&disk).start_at(&socket);
    let first = start();
    let filter = "--filter=retry?retry-delay=20ms&retries=1000&retry-exponential=no";
    let proxy = Serve::proxy(&format!("nbd+unix:///?socket={}", socket.display()));
    let proxy = proxy.option(filter).start();
    let mut session = proxy.session(Mode::Structured, "proxy");
    assert_eq!(session.read(0, MIB).unwrap(), data[..index(MIB)]);
    first.kill();
    let asked: Vec<u64> =
        (0..4).map(|i| session.send(&Request::new(cmd::READ, i * MIB, MIB))).collect();
    let written = session.send(&Request::write(512, &[9; 512]));
    std::thread::sleep(Duration::from_millis(100));
    let second = start();
    for (i, cookie) in asked.into_iter().enumerate().skip(1) {
        let answer = session.wait(cookie);
        let from = i * index(MIB);
        assert!(answer.error == 0 && answer.data == data[from..from + index(MIB)], "{i}");
    }
    assert_eq!(session.wait(written).error, 0);
    assert_eq!(session.read(512, 512).unwrap(), [9; 512]);
    assert_eq!(session.error_of(&Request::new(cmd::FLUSH, 0, 0)), 0);
    // A server that was gone may have lost what it had not made durable, and one flush says so.
    assert_eq!(session.error_of(&Request::write(0, &[8; 512])), 0);
    second.kill();
    let _third = start();
    assert_eq!(session.read(512, 512).unwrap(), [9; 512]);
    assert_eq!(session.error_of(&Request::new(cmd::FLUSH, 0, 0)), err::EIO);
    assert_eq!(session.error_of(&Request::new(cmd::FLUSH, 0, 0)), 0);
}
