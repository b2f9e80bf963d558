//! A secret is on no command line unless the user puts it there, and in no log even then: keys of
//! TLS, and what lets us in at an HTTP server, by files, descriptors and variables of the
//! environment.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use blackbox::peers::diskferry;
use blackbox::run::{Job, ours, run};
use blackbox::temp::TempDir;
use rustix::process::Signal;

/// What no command line has: another test looks at those of all processes meanwhile.
const SECRET: &str = "5ec2e75ec2e75ec2e75ec2e75ec2e7ab";
/// What the user puts on the command line.
const SAID: &str = "5a1d5a1d5a1d5a1d5a1d5a1d5a1d5a1d";

/// A server that reports each head that it got, and refuses requests without the secret.
fn http() -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut head) = (stream.unwrap(), Vec::new());
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).unwrap();
            let answer = if [SECRET, SAID].iter().any(|word| head.contains(word)) {
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-511/512\r\nContent-Length: 512\r\nETag: \"a\"\r\nConnection: close\r\n\r\n".to_owned()
                    + &"x".repeat(512)
            } else {
                "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    .to_owned()
            };
            // The client that was refused may have gone.
            let _ = stream.write_all(answer.as_bytes());
            let _ = tell.send(head);
        }
    });
    (port, told)
}

/// The command lines of all processes of this system.
fn command_lines() -> String {
    let all = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path().join("cmdline"));
    all.filter_map(|path| fs::read(path).ok())
        .map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " ") + "\n")
        .collect()
}

/// Serves in these words, with `-v`, until it listens; returns its command lines and all its
/// output.
fn serve(words: &[&str], directory: &Path) -> String {
    let (socket, metrics) = (directory.join("socket"), directory.join("metrics"));
    let mut command = Command::new("bash");
    let script = "exec \"$0\" serve -v --sandbox=require --metrics \"$METRICS\" -U \"$SOCKET\" \"$@\" 7<secret";
    command.args(["-c", script]).arg(diskferry().canonicalize().unwrap()).args(words);
    command
        .current_dir(directory)
        .env("SOCKET", &socket)
        .env("METRICS", &metrics)
        .env("WORD", SECRET);
    command.env("KEYS", format!("alice:{SECRET}")).env("HEADER", format!("X-Token: {SECRET}"));
    let job = Job::start(&mut command);
    blackbox::wait_for("the socket", || socket.exists());
    let lines = command_lines();
    assert!(lines.contains(socket.to_str().unwrap()) || lines.contains("serve -v"), "{lines}");
    job.signal(Signal::USR1);
    blackbox::wait_for("its report", || job.said().contains("--max-connections: "));
    job.signal(Signal::TERM);
    let done = job.wait();
    assert!(done.status.success(), "{words:?}: {done:#?}");
    assert!(done.stderr.contains("sandbox: files confined"), "{done:#?}");
    assert!(!lines.contains(SECRET), "{words:?}: {lines}");
    done.stdout + &done.stderr
}

#[test]
fn what_names_a_secret_works_in_a_sandbox_and_shows_nothing() {
    let dir = TempDir::new();
    dir.file("secret", format!("{SECRET}\n").as_bytes());
    dir.file("keys", format!("alice:{SECRET}\n").as_bytes());
    let (port, told) = http();
    let url = format!("url=http://127.0.0.1:{port}/disk");
    for secret in ["-env:WORD", "+secret", "-7"] {
        for (key, also) in [("bearer", None), ("cookie", None), ("password", Some("user=me"))] {
            let word = format!("{key}={secret}");
            let words: Vec<_> = ["http", &*url, &*word].into_iter().chain(also).collect();
            // A login is encoded: then a header admits it.
            let encoded = key == "password";
            let words =
                if encoded { [&words[..], &["header=-env:HEADER"]].concat() } else { words };
            let said = serve(&words, dir.path());
            assert!(!said.contains(SECRET), "{said}");
            let head = told.recv().unwrap();
            assert!(head.contains(SECRET) && (!encoded || head.contains("Basic ")), "{head}");
            while told.try_recv().is_ok() {}
        }
    }
    for keys in ["-env:KEYS", "keys"] {
        let said = serve(&[&format!("--tls-psk={keys}"), "memory", "1M"], dir.path());
        assert!(!said.contains(SECRET), "{said}");
    }
}

#[test]
fn keys_of_a_variable_let_clients_in() {
    let line = "diskferry serve --sandbox=require --tls-psk=-env:KEYS memory 1M --run '\
                diskferry info --sandbox=require \"$uri\" && \
                diskferry info \"nbd:?socket=$unixsocket&tls=require&tls-psk=-env:KEYS&tls-username=alice\" && \
                ! KEYS=alice:00112233445566778899aabbccddeeff diskferry info \"$uri\"'";
    let dir = TempDir::new();
    let mut shell = blackbox::examples::shell(dir.path(), line);
    run(shell.env("KEYS", format!("alice:{SECRET}"))).succeeded();
    let missing = run(&mut ours([
        "serve",
        "--tls-psk=-env:NO_SUCH_VARIABLE",
        "memory",
        "1M",
        "--run",
        "true",
    ]));
    assert!(missing.failed().contains("NO_SUCH_VARIABLE"));
}

/// A secret on the command line is found in no log, message or description.
#[test]
fn words_of_the_command_line_are_not_repeated() {
    let (port, told) = http();
    let url = format!("http://127.0.0.1:{port}/disk?token={SAID}");
    for (name, works) in [
        (format!("http:?bearer={SAID}&url={url}"), true),
        (format!("http:?header=X-Token: {SAID}&url=http://127.0.0.1:{port}/disk"), true),
        (format!("http:?cookie={SAID}&retry=1&url=http://127.0.0.1:1/disk?token={SAID}"), false),
        (format!("http:?header={SAID}&url={url}"), false),
        (format!("http:?user=me&password={SAID}&url=http://127.0.0.1:{port}/disk"), false),
    ] {
        for verb in
            [&["info"][..], &["info", "--json"], &["map"], &["serve", "-v", "--run", "true"]]
        {
            let done = run(ours(verb.iter().copied()).arg(&name));
            assert_eq!(done.status.success(), works, "{done:#?}");
            assert!(!format!("{}{}", done.stdout, done.stderr).contains(SAID), "{done:#?}");
        }
    }
    drop(told);
}
