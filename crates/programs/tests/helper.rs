//! The programs that a helper starts, and those that it refuses. Each check is a process of its own
//! with one thread, because it cannot take back what it handed over; so this is a program without
//! the usual harness.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails here has failed")]

use std::fs;
use std::io::{PipeReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use programs::{Grant, Program, Running, StandardStreams, hand_over, names, nothing, start};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Signal, getrlimit, setrlimit};

type Check = (&'static str, fn());

/// Checks by their names.
macro_rules! checks {
    ($($name:ident,)*) => { &[$((stringify!($name), $name)),*] };
}

const CHECKS: &[Check] = checks! {
    only_what_was_named_is_started,
    it_is_a_child_of_ours_and_ends_as_it_ends,
    it_is_told_its_variables_and_no_others,
    it_reads_and_prints_where_it_is_told_to,
    it_is_told_to_end_and_nothing_else_is,
    it_is_killed_with_its_group_and_nothing_else_is,
    what_cannot_be_started_is_an_error_and_leaves_nothing,
    a_socket_that_we_close_is_closed,
    interrupts_are_for_programs_and_not_for_the_helper,
    it_ends_with_us,
    a_program_whose_start_nothing_hears_of_is_ended,
    a_helper_that_is_gone_is_an_error,
    with_threads_there_is_no_helper,
    several_threads_start_programs,
    a_file_that_does_not_arrive_leaves_no_name,
    only_private_directories_made_here_are_removed,
    what_ends_with_a_slash_is_no_file,
    the_same_is_started_without_a_helper,
};

fn main() {
    // cargo-nextest asks for the names, and runs them one by one.
    if std::env::args().any(|word| word == "--list") {
        let ignored = std::env::args().any(|word| word == "--ignored");
        CHECKS.iter().filter(|_| !ignored).for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let words: Vec<_> = std::env::args().skip(1).collect();
    if let Some((_, check)) = CHECKS.iter().find(|(name, _)| words.iter().any(|w| w == name)) {
        return check();
    }
    let failed: Vec<_> = CHECKS.iter().filter(|(name, _)| !alone(name)).collect();
    assert!(failed.is_empty(), "{} of {} failed", failed.len(), CHECKS.len());
}

/// Runs a check in a new process; whether it held.
fn alone(name: &str) -> bool {
    let done = Command::new(std::env::current_exe().unwrap()).arg(name).status().unwrap();
    println!("{name} ... {}", if done.success() { "ok" } else { "FAILED" });
    done.success()
}

/// Starts it, with a pipe to read what it prints.
fn printing(program: &Program, values: &[(&str, &str)]) -> (Running, PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    let streams = StandardStreams { input: Some(nothing().unwrap()), output: Some(writer.into()) };
    (start(program, values, streams).unwrap(), reader)
}

fn printed(program: &Program, values: &[(&str, &str)]) -> String {
    let (running, mut reader) = printing(program, values);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert!(running.wait().unwrap().success());
    text
}

/// The processes whose parent this is, by number.
fn children() -> Vec<i32> {
    let text = fs::read_to_string("/proc/thread-self/children").unwrap();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn only_what_was_named_is_started() {
    let (named, other) =
        (Program::script("echo named", &["a"]), Program::script("echo other", &[]));
    hand_over(vec![Program::script("exit 9", &[]), named.clone()], Vec::new()).unwrap();
    assert_eq!(printed(&named, &[]), "named\n");
    let refused = start(&other, &[], StandardStreams::default()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    // Nor the same with another variable, of which LD_PRELOAD is one.
    let more = Program { variables: vec!["a".into(), "LD_PRELOAD".into()], ..named.clone() };
    assert!(start(&more, &[], StandardStreams::default()).is_err());
    assert!(start(&named, &[("LD_PRELOAD", "x")], StandardStreams::default()).is_err());
    assert!(hand_over(vec![other], Vec::new()).is_err(), "what was handed over stays so");
}

fn it_is_a_child_of_ours_and_ends_as_it_ends() {
    let parent = Program::script("echo $PPID", &[]);
    let (seven, killed) = (Program::script("exit 7", &[]), Program::script("kill -KILL $$", &[]));
    hand_over(vec![parent.clone(), seven.clone(), killed.clone()], Vec::new()).unwrap();
    assert_eq!(printed(&parent, &[]), format!("{}\n", std::process::id()));
    let run = |program| start(program, &[], StandardStreams::default()).unwrap();
    let running = run(&seven);
    assert_eq!(running.wait().unwrap().code(), Some(7));
    assert_eq!(running.try_wait().unwrap().unwrap().code(), Some(7), "and again");
    let status = run(&killed).wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    assert_eq!(children().len(), 1, "the helper alone is left");
}

fn it_is_told_its_variables_and_no_others() {
    let program = Program::script("echo \"$first|${second-none}|$PATH\"", &["first", "second"]);
    hand_over(vec![program.clone()], Vec::new()).unwrap();
    let path = std::env::var("PATH").unwrap();
    let text = printed(&program, &[("first", "a 'b'\n$(c)")]);
    assert_eq!(text, format!("a 'b'\n$(c)|none|{path}\n"));
    let long = "x".repeat(100_000);
    assert_eq!(printed(&program, &[("second", &long)]), format!("|{long}|{path}\n"));
    let longer = "x".repeat(200_000);
    assert!(start(&program, &[("second", &longer)], StandardStreams::default()).is_err());
    assert!(start(&program, &[("second", "a\0b")], StandardStreams::default()).is_err());
    assert_eq!(printed(&program, &[("second", "b")]), format!("|b|{path}\n"), "it goes on");
}

fn it_reads_and_prints_where_it_is_told_to() {
    let cat = Program { words: vec!["cat".into()], variables: Vec::new(), is_apart: true };
    hand_over(vec![cat.clone()], Vec::new()).unwrap();
    let (input, mut into) = std::io::pipe().unwrap();
    let (mut out, output) = std::io::pipe().unwrap();
    let streams = StandardStreams { input: Some(input.into()), output: Some(output.into()) };
    let running = start(&cat, &[], streams).unwrap();
    into.write_all(b"carried").unwrap();
    drop(into);
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    assert_eq!(text, "carried");
    assert!(running.wait().unwrap().success());
}

fn it_is_told_to_end_and_nothing_else_is() {
    let sleep =
        Program::script("trap 'exit 3' TERM; echo up; while :; do read x < /dev/null; done", &[]);
    let deaf = Program::script("trap '' TERM; echo up; while :; do read x < /dev/null; done", &[]);
    hand_over(vec![sleep.clone(), deaf.clone()], Vec::new()).unwrap();
    let mut up = [0; 3];
    let (running, mut reader) = printing(&sleep, &[]);
    reader.read_exact(&mut up).unwrap();
    assert!(running.try_wait().unwrap().is_none());
    assert!(running.signal(Signal::STOP).is_err(), "signals that end it, and no others");
    running.signal(Signal::TERM).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(3));
    assert!(running.signal(Signal::TERM).is_err(), "its number may be another's by now");
    let (running, mut reader) = printing(&deaf, &[]);
    reader.read_exact(&mut up).unwrap();
    running.signal(Signal::KILL).unwrap();
    assert!(!running.wait().unwrap().success());
}

fn it_is_killed_with_its_group_and_nothing_else_is() {
    let apart = |text| Program { is_apart: true, ..Program::script(text, &[]) };
    let (runs, left) = (apart("sleep 600 & echo up; wait"), apart("sleep 600 & echo up"));
    let with_us = Program::script("echo up; exec sleep 600", &[]);
    let check = || {
        for (program, ends) in [(&runs, false), (&left, true)] {
            let (running, mut reader) = printing(program, &[]);
            reader.read_exact(&mut [0; 3]).unwrap();
            let sleeps = PollFd::new(&reader, PollFlags::IN);
            assert_eq!(poll(&mut [sleeps], Some(&Timespec::default())), Ok(0));
            if ends {
                // Ended, and not waited for.
                let stat = format!("/proc/{}/stat", running.pid().as_raw_nonzero());
                while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            running.kill_group().unwrap();
            // The last that has it open is gone.
            assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0);
            running.wait().unwrap();
            assert!(running.kill_group().is_err(), "its number may be another's by now");
        }
    };
    check();
    hand_over(vec![runs.clone(), left.clone(), with_us.clone()], Vec::new()).unwrap();
    check();
    let (running, mut reader) = printing(&with_us, &[]);
    reader.read_exact(&mut [0; 3]).unwrap();
    assert!(running.kill_group().is_err(), "it is in our group");
    running.signal(Signal::KILL).unwrap();
    running.wait().unwrap();
}

fn what_cannot_be_started_is_an_error_and_leaves_nothing() {
    let none =
        Program { words: vec!["/nonexistent".into()], variables: Vec::new(), is_apart: false };
    let one = Program::script("true", &[]);
    hand_over(vec![none.clone(), one.clone()], Vec::new()).unwrap();
    let e = start(&none, &[], StandardStreams::default()).unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::NotFound, "{e}");
    assert_eq!(children().len(), 1);
    assert!(start(&one, &[], StandardStreams::default()).unwrap().wait().unwrap().success());
}

fn a_socket_that_we_close_is_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap();
    let pause = Program::script("echo up; exec sleep 600", &[]);
    hand_over(vec![pause.clone()], Vec::new()).unwrap();
    let (running, mut reader) = printing(&pause, &[]);
    reader.read_exact(&mut [0; 3]).unwrap();
    drop(listener);
    assert!(TcpStream::connect(place).is_err());
    running.signal(Signal::KILL).unwrap();
    running.wait().unwrap();
}

fn interrupts_are_for_programs_and_not_for_the_helper() {
    let up = Program::script("echo up; exec sleep 600", &[]);
    hand_over(vec![up.clone()], Vec::new()).unwrap();
    let [helper] = children()[..] else { panic!("one helper") };
    let helper = rustix::process::Pid::from_raw(helper).unwrap();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::USR1, Signal::QUIT] {
        rustix::process::kill_process(helper, signal).unwrap();
    }
    let (running, mut reader) = printing(&up, &[]);
    reader.read_exact(&mut [0; 3]).unwrap();
    // What was ignored by those who started us, as in the background of a shell, stays ignored.
    let signal = if is_ignored(Signal::INT) { Signal::TERM } else { Signal::INT };
    rustix::process::kill_process(running.pid(), signal).unwrap();
    let status = running.wait().unwrap();
    let ended_by = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(ended_by, Some(signal.as_raw()));
}

fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}

/// Whether this is the process of a check within a check.
fn is_inner() -> bool {
    std::env::args().any(|word| word == "inner")
}

/// A check within a check: a process with a helper that is killed.
fn it_ends_with_us() {
    if is_inner() {
        hand_over(vec![Program::script("true", &[])], Vec::new()).unwrap();
        println!("{}", children()[0]);
        std::thread::sleep(Duration::from_secs(600));
    }
    let mut asked = Command::new(std::env::current_exe().unwrap());
    asked.args(["it_ends_with_us", "inner"]).stdout(std::process::Stdio::piped());
    let mut asked = asked.spawn().unwrap();
    let mut out = std::io::BufReader::new(asked.stdout.take().unwrap());
    let mut helper = String::new();
    std::io::BufRead::read_line(&mut out, &mut helper).unwrap();
    let helper = format!("/proc/{}/stat", helper.trim());
    assert!(fs::exists(&helper).unwrap());
    asked.kill().unwrap();
    asked.wait().unwrap();
    // Gone, or a zombie where orphans are not waited for.
    let ended = || fs::read_to_string(&helper).map_or(true, |stat| stat.contains(") Z "));
    for _ in 0..6000 {
        if ended() {
            // What it printed to was not kept open.
            let mut rest = String::new();
            out.read_to_string(&mut rest).unwrap();
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the helper is still there");
}

/// A check within a check: a process that is gone before its helper can answer.
fn a_program_whose_start_nothing_hears_of_is_ended() {
    if is_inner() {
        let long = Program { is_apart: true, ..Program::script("echo $$; sleep 600", &[]) };
        hand_over(vec![long.clone()], Vec::new()).unwrap();
        let helper = rustix::process::Pid::from_raw(children()[0]).unwrap();
        rustix::process::kill_process(helper, Signal::STOP).unwrap();
        println!("{}", children()[0]);
        let _ = start(&long, &[], StandardStreams::default());
        panic!("it was answered");
    }
    let mut asked = Command::new(std::env::current_exe().unwrap());
    asked.args(["a_program_whose_start_nothing_hears_of_is_ended", "inner"]);
    let mut asked = asked.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut out = std::io::BufReader::new(asked.stdout.take().unwrap());
    let mut helper = String::new();
    std::io::BufRead::read_line(&mut out, &mut helper).unwrap();
    let helper = helper.trim().parse().unwrap();
    // It sleeps once it has asked and waits for the answer.
    let asking = format!("/proc/{}/stat", asked.id());
    for _ in 0..6000 {
        if fs::read_to_string(&asking).unwrap().contains(") S ") {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    asked.kill().unwrap();
    asked.wait().unwrap();
    let helper = rustix::process::Pid::from_raw(helper).unwrap();
    rustix::process::kill_process(helper, Signal::CONT).unwrap();
    // What the program prints to closes when the program ends, and not before.
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(out.read_to_string(&mut String::new())));
    told.recv_timeout(Duration::from_secs(60)).expect("it still runs").unwrap();
}

fn a_helper_that_is_gone_is_an_error() {
    let one = Program::script("true", &[]);
    hand_over(vec![one.clone()], Vec::new()).unwrap();
    let helper = rustix::process::Pid::from_raw(children()[0]).unwrap();
    rustix::process::kill_process(helper, Signal::KILL).unwrap();
    rustix::process::waitpid(Some(helper), rustix::process::WaitOptions::empty()).unwrap();
    let e = start(&one, &[], StandardStreams::default()).unwrap_err().to_string();
    assert!(e.contains("has ended"), "{e}");
}

fn with_threads_there_is_no_helper() {
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || ended.recv().is_err());
    assert!(hand_over(Vec::new(), Vec::new()).unwrap_err().to_string().contains("threads"));
    drop(end);
    assert!(other.join().unwrap());
}

fn several_threads_start_programs() {
    let echo = Program::script("echo $n", &["n"]);
    hand_over(vec![echo.clone()], Vec::new()).unwrap();
    std::thread::scope(|scope| {
        for n in 0..8 {
            let echo = &echo;
            scope.spawn(move || {
                for i in 0..8 {
                    let n = format!("{n}.{i}");
                    assert_eq!(printed(echo, &[("n", &n)]), format!("{n}\n"));
                }
            });
        }
    });
    assert_eq!(children().len(), 1);
}

fn the_same_is_started_without_a_helper() {
    let program = Program::script("echo $PPID $a; exit $b", &["a", "b"]);
    let (running, mut reader) = printing(&program, &[("a", "x"), ("b", "5")]);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, format!("{} x\n", std::process::id()));
    assert_eq!(running.wait().unwrap().code(), Some(5));
    assert!(start(&program, &[("c", "")], StandardStreams::default()).is_err());
    let sleep = Program::script("exec sleep 600", &[]);
    let running = start(&sleep, &[], StandardStreams::default()).unwrap();
    running.signal(Signal::TERM).unwrap();
    assert!(!running.wait().unwrap().success());
}

/// An empty directory of this process.
fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("diskferry-helper-{}-{name}", std::process::id()));
    fs::create_dir(&path).unwrap();
    path
}

fn a_file_that_does_not_arrive_leaves_no_name() {
    let folder = directory("arrive");
    let path = folder.join("new");
    hand_over(Vec::new(), vec![Grant::File(path.clone())]).unwrap();
    let before = getrlimit(Resource::Nofile);
    let next = rustix::io::dup(std::io::stdin()).unwrap();
    let full = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&next)).unwrap();
    drop(next);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(full), ..before }).unwrap();
    assert!(names::make(&path, 0o600).is_err());
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(!path.exists());
    let made = names::make(&path, 0o600).unwrap();
    assert!(names::make(&path, 0o600).is_err() && path.exists(), "one that was there stays");
    names::remove(&path, names::numbers(&made).unwrap()).unwrap();
    fs::remove_dir(folder).unwrap();
}

fn only_private_directories_made_here_are_removed() {
    let folder = directory("private");
    let other = folder.join(names::private_name(7));
    fs::create_dir(&other).unwrap();
    hand_over(Vec::new(), vec![Grant::Private(folder.clone())]).unwrap();
    assert!(names::remove_private(&folder, 7).is_err() && other.exists());
    names::make_private(&folder, 8).unwrap();
    let own = folder.join(names::private_name(8));
    let socket = own.join(names::PRIVATE_SOCKET);
    let _listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    names::remove_private(&folder, 8).unwrap();
    assert!(!own.exists());
    fs::create_dir(&own).unwrap();
    assert!(
        names::remove_private(&folder, 8).is_err() && own.exists(),
        "not the one that was made"
    );
    fs::remove_dir_all(folder).unwrap();
}

fn what_ends_with_a_slash_is_no_file() {
    let folder = directory("slash");
    let path = folder.join("new/");
    hand_over(Vec::new(), vec![Grant::File(path.clone())]).unwrap();
    let is_refused = |e: std::io::Error| e.kind() == std::io::ErrorKind::IsADirectory;
    assert!(names::make(&path, 0o600).is_err_and(is_refused));
    // Removes it only if it is empty.
    fs::remove_dir(folder).unwrap();
}
