//! The device `s3`, a real store (versitygw), and between them what fails at random: connections
//! that are dropped before or after a request was carried out, throttling, failures, answers that
//! are slow or cut off, and bodies that are damaged on their way to the store.
//!
//! A body that is damaged on its way from the store is
//! not tried: nothing but TLS shows that of a range.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blackbox::dice::{Dice, seeds};
use blackbox::run::{Outcome, run};
use blackbox::temp::pattern;

use crate::s3::Gateway;
use crate::s3_fleet::StoredFleet;

/// What happens to a request.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Fate {
    Dropped,
    SlowDown,
    Failed,
    /// Carried out, and answered as if it had failed.
    DoneAndFailed,
    /// Carried out, and its answer ends early.
    CutOff,
    Slow,
    Damaged,
}

impl Fate {
    fn of(dice: &mut Dice) -> Option<Self> {
        use Fate::{CutOff, Damaged, DoneAndFailed, Dropped, Failed, Slow, SlowDown};
        let all = [Dropped, SlowDown, Failed, DoneAndFailed, CutOff, Slow, Damaged];
        all.get(dice.below(18)).copied()
    }
}

/// What is between the program and the store.
struct Between {
    port: u16,
    round: Arc<AtomicU64>,
    happened: Arc<Mutex<BTreeMap<Fate, u64>>>,
}

impl Between {
    fn start(store: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (round, happened) = (Arc::<AtomicU64>::default(), Arc::default());
        let between = Self { port, round: round.clone(), happened: Arc::clone(&happened) };
        let number = Arc::new(AtomicU64::new(0));
        // The thread ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (round, happened) = (round.clone(), Arc::clone(&happened));
                let number = number.clone();
                std::thread::spawn(move || {
                    let dice = || Dice::new(round.load(SeqCst)).with(number.fetch_add(1, SeqCst));
                    pass(stream, store, &dice, &happened);
                });
            }
        });
        between
    }
}

/// A head, with its body.
struct Message {
    lines: Vec<String>,
    body: Vec<u8>,
}

impl Message {
    fn length(lines: &[String]) -> Option<usize> {
        let is_it = |line: &&String| line.to_ascii_lowercase().starts_with("content-length:");
        lines.iter().find(is_it)?.split_once(':')?.1.trim().parse().ok()
    }

    fn bytes(&self) -> Vec<u8> {
        [(self.lines.join("\r\n") + "\r\n\r\n").as_bytes(), &self.body].concat()
    }
}

fn head(from: &mut impl BufRead) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line).ok().filter(|n| *n > 0)?;
        match line.trim_end() {
            "" => return Some(lines),
            line => lines.push(line.to_owned()),
        }
    }
}

/// Hands requests of one connection on, each over a connection of its own.
fn pass(
    stream: TcpStream,
    store: u16,
    dice: &dyn Fn() -> Dice,
    happened: &Mutex<BTreeMap<Fate, u64>>,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let lines = head(&mut reader)?;
        let mut asked = Message { body: vec![0; Message::length(&lines).unwrap_or(0)], lines };
        reader.read_exact(&mut asked.body).ok()?;
        let mut dice = dice();
        let fate =
            Fate::of(&mut dice).filter(|fate| *fate != Fate::Damaged || asked.body.len() > 1 << 20);
        if let Some(fate) = fate {
            *happened.lock().unwrap().entry(fate).or_default() += 1;
        }
        match fate {
            Some(Fate::Dropped) => return None,
            Some(Fate::SlowDown) => refuse(&mut stream, "503 Slow Down", "SlowDown")?,
            Some(Fate::Failed) => {
                refuse(&mut stream, "500 Internal Server Error", "InternalError")?
            }
            Some(Fate::DoneAndFailed) => {
                ask(store, asked)?;
                refuse(&mut stream, "500 Internal Server Error", "InternalError")?;
            }
            Some(Fate::CutOff) => {
                let mut answer = ask(store, asked)?.bytes();
                answer.truncate(dice.below(answer.len()));
                stream.write_all(&answer).ok()?;
                return None;
            }
            Some(Fate::Slow) => {
                std::thread::sleep(Duration::from_millis(100));
                for piece in ask(store, asked)?.bytes().chunks(256 << 10) {
                    std::thread::sleep(Duration::from_millis(5));
                    stream.write_all(piece).ok()?;
                }
            }
            Some(Fate::Damaged) => {
                let at = dice.below(asked.body.len());
                asked.body[at] ^= 4;
                stream.write_all(&ask(store, asked)?.bytes()).ok()?;
            }
            None => stream.write_all(&ask(store, asked)?.bytes()).ok()?,
        }
    }
}

fn refuse(stream: &mut TcpStream, status: &str, code: &str) -> Option<()> {
    let body = format!("<Error><Code>{code}</Code></Error>");
    let length = body.len();
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(answer.as_bytes()).ok()
}

/// What the store answers.
fn ask(store: u16, mut asked: Message) -> Option<Message> {
    let is_head = asked.lines[0].starts_with("HEAD ");
    asked.lines.push("Connection: close".into());
    let mut stream = TcpStream::connect(("127.0.0.1", store)).ok()?;
    // The store may refuse it before all of it has come.
    let _ = stream.write_all(&asked.bytes());
    let mut reader = BufReader::new(stream);
    let mut lines = head(&mut reader)?;
    lines.retain(|line| !line.eq_ignore_ascii_case("connection: close"));
    let mut body = Vec::new();
    if !is_head {
        reader.read_to_end(&mut body).ok()?;
        assert!(Message::length(&lines).unwrap_or(0) == body.len(), "{lines:?}");
    }
    Some(Message { lines, body })
}

/// Runs a copy through what is between.
fn copy(store: &Gateway, between: &Between, round: u64, words: [&str; 2]) -> Outcome {
    between.round.store(round, SeqCst);
    let endpoint = format!("http://127.0.0.1:{}", between.port);
    run(store.ours(["copy", "-q", words[0], words[1]]).env("AWS_ENDPOINT_URL_S3", endpoint))
}

#[test]
fn whatever_fails_before_a_real_store_what_goes_up_is_right_or_not_there() {
    let Some(store) = Gateway::start() else { return };
    let between = Between::start(store.port());
    let (mut made, mut failed, mut left, mut not_ended) = (0, 0, 0, 0);
    for round in seeds() {
        let size = (8 << 20) + Dice::new(round).below(12 << 20);
        let content = pattern(round, size);
        let source = store.temp().file("disk", &content);
        let is_exclusive = round % 2 == 1;
        let name = format!("s3://disks/k?retry=2&exclusive={is_exclusive}");
        let done = copy(&store, &between, round, [source.to_str().unwrap(), &name]);
        let found = fs::read(store.object("k"));
        match (done.status.success(), found) {
            (true, Ok(found)) => assert!(found == content, "round {round}: other bytes"),
            (false, Err(_)) => failed += 1,
            // It can be there when the store could not be asked whether it is.
            (false, Ok(found)) => {
                assert!(done.stderr.contains("has created the object"), "{}", done.stderr);
                assert!(found == content, "round {round}: other bytes");
            }
            (true, Err(e)) => panic!("round {round}: it is not there: {e}"),
        }
        made += u64::from(done.status.success());
        // An upload whose name did not arrive, or that could not be ended.
        for id in store.uploads() {
            let said = if is_exclusive { format!("keeps the upload {id}") } else { id };
            assert!(done.stderr.contains(&said), "round {round}: {said}: {}", done.stderr);
            *(if is_exclusive { &mut not_ended } else { &mut left }) += 1;
        }
        store.clear();
    }
    let happened = between.happened.lock().unwrap();
    println!(
        "up: {made} made, {failed} failed, {left} uploads left and named, and {not_ended} \
         of objects that no other program writes; {happened:?}"
    );
    assert!(made > 0);
}

#[test]
fn whatever_fails_before_a_real_store_what_comes_down_is_right_or_an_error() {
    let Some(store) = Gateway::start() else { return };
    let between = Between::start(store.port());
    let content = pattern(7, 20_000_001);
    fs::write(store.object("k"), &content).unwrap();
    let copied = store.temp().join("copy");
    let (mut right, mut failed) = (0, 0);
    for round in seeds() {
        let name = "s3://disks/k?retry=2";
        let done = copy(&store, &between, round, [name, copied.to_str().unwrap()]);
        if done.status.success() {
            assert!(fs::read(&copied).unwrap() == content, "round {round}: other bytes");
            fs::remove_file(&copied).unwrap();
            right += 1;
        } else {
            assert!(!copied.exists(), "round {round}: {}", done.stderr);
            failed += 1;
        }
    }
    println!("down: {right} right, {failed} failed; {:?}", between.happened.lock().unwrap());
    assert!(right > 0);
}

#[test]
fn whatever_fails_before_a_real_store_that_has_the_state_of_a_plan_its_disks_are_right() {
    let Some(store) = Gateway::start() else { return };
    let between = Between::start(store.port());
    between.round.store(seeds().next().unwrap(), SeqCst);
    let fleet = StoredFleet::new(&store, ("fleet", between.port), "readers = 2");
    // What fails may be tried again.
    let again = |what: &str, verb: &dyn Fn() -> Outcome| {
        for tries in 0..30 {
            let done = verb();
            if done.status.success() {
                return tries;
            }
            assert!(!done.stderr.contains("does not hold"), "{what}: {}", done.stderr);
        }
        panic!("{what}: it never succeeded");
    };
    let tries = [
        again("plan", &|| fleet.plan()),
        again("run", &|| fleet.verb("run", &["--all", "--workers", "3"])),
        again("finish", &|| fleet.verb("finish", &["-q"])),
    ];
    fleet.all_is_right();
    println!("failures: {tries:?}; {:?}", between.happened.lock().unwrap());
}
