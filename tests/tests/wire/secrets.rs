//! A secret is on no command line unless the user puts it there, and in no log even then: keys of
//! TLS, and what lets us in at an HTTP server, by files, descriptors and variables of the
//! environment.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};

use blackbox::peers::diskferry;
use blackbox::run::{Job, ours, run};
use blackbox::temp::TempDir;
use rustix::process::Signal;

/// What no command line has: another test looks at those of all processes meanwhile.
const SECRET: &str = "5ec2e75ec2e75ec2e75ec2e75ec2e7ab";
/// A session of S3, which only the environment has.
const TOKEN: &str = "70ce70ce70ce70ce70ce70ce70ce70ce";
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
    command
        .env("SESSION", TOKEN)
        .env("KEYS", format!("alice:{SECRET}"))
        .env("HEADER", format!("X-Token: {SECRET}"));
    let job = Job::start(&mut command);
    blackbox::wait_for("the socket", || socket.exists());
    let lines = command_lines();
    let mut scrape = UnixStream::connect(&metrics).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut measured = String::new();
    scrape.read_to_string(&mut measured).unwrap();
    assert!(measured.contains("diskferry_build_info"), "{measured}");
    assert!(lines.contains(socket.to_str().unwrap()) || lines.contains("serve -v"), "{lines}");
    job.signal(Signal::USR1);
    blackbox::wait_for("its report", || job.said().contains("--max-connections: "));
    job.signal(Signal::TERM);
    let done = job.wait();
    assert!(done.status.success(), "{words:?}: {done:#?}");
    assert!(done.stderr.contains("sandbox: files confined"), "{done:#?}");
    assert!(!lines.contains(SECRET), "{words:?}: {lines}");
    done.stdout + &done.stderr + &measured
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

/// Bytes of each object of [`store`].
const OBJECT: usize = 3 << 20;

/// A store of objects, each of which has the same bytes, but for those that are called `denied`.
/// It reports each head that it got, and asks no questions.
fn store() -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (tell, stream) = (tell.clone(), stream.unwrap());
            std::thread::spawn(move || while answer(&stream, &tell) {});
        }
    });
    (port, told)
}

/// Answers one request; whether another may follow.
fn answer(mut stream: &TcpStream, tell: &Sender<String>) -> bool {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_exact(&mut byte).is_err() {
            return false;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let lower = head.to_ascii_lowercase();
    let range = lower.lines().find_map(|line| line.strip_prefix("range: bytes="));
    let (from, to) = range.and_then(|range| range.split_once('-')).unwrap_or(("0", ""));
    let from: usize = from.parse().unwrap();
    let to = to.parse().map_or(OBJECT, |last: usize| last + 1).min(OBJECT);
    let content = vec![b'x'; to - from];
    let (status, also, content) = if lower.contains("/denied") {
        // A store may repeat what it was sent.
        (403, String::new(), head.clone().into_bytes())
    } else if range.is_some() {
        (206, format!("Content-Range: bytes {from}-{}/{OBJECT}\r\n", to - 1), content)
    } else {
        (200, String::new(), content)
    };
    let length = content.len();
    let answer = format!(
        "HTTP/1.1 {status} x\r\nETag: \"a\"\r\nAccept-Ranges: bytes\r\n{also}Content-Length: {length}\r\n\r\n"
    );
    let content = if head.starts_with("HEAD ") { &[][..] } else { &content };
    let _ = tell.send(head);
    stream.write_all(answer.as_bytes()).is_ok() && stream.write_all(content).is_ok()
}

/// The contents of all files beneath a directory.
fn all_files(directory: &Path) -> String {
    let all = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    all.map(|path| match path.is_dir() {
        true => all_files(&path),
        false => String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned(),
    })
    .collect()
}

/// Neither keys of S3, a session, a password in a URL nor the signature of a presigned one are in
/// what a copy or a plan leaves and says, whether it succeeds or not.
#[test]
fn what_lets_us_in_at_a_store_is_in_nothing_that_is_left_or_said() {
    let (dir, (port, told)) = (TempDir::new(), store());
    let mut said = String::new();
    let mut run_ours = |words: &[&str], works: bool| {
        let mut command = ours(words);
        command
            .current_dir(dir.path())
            .env("AWS_ACCESS_KEY_ID", "AKIDOFATEST")
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .env("AWS_SESSION_TOKEN", TOKEN)
            .env("AWS_ENDPOINT_URL_S3", format!("http://127.0.0.1:{port}"));
        let done = run(&mut command);
        assert_eq!(done.status.success(), works, "{words:?}: {done:#?}");
        said += &(done.stdout + &done.stderr);
    };
    let signed = |name: &str| format!("http://127.0.0.1:{port}/{name}?X-Amz-Signature={SAID}");
    let with_password = |name: &str| format!("http://me:{SAID}@127.0.0.1:{port}/{name}");
    let of_s3 = |name: &str| format!("s3://disks/{name}");
    for (n, source) in
        [&of_s3 as &dyn Fn(&str) -> String, &signed, &with_password].iter().enumerate()
    {
        let (journal, target) = (format!("{n}.journal"), format!("{n}.raw"));
        let words = ["copy", "-v", "--journal", &journal, "--manifest", &format!("{n}.manifest")];
        run_ours(&[&words[..], &[&source("disk"), &target]].concat(), true);
        run_ours(&["info", "--json", &source("disk")], true);
        run_ours(&["copy", "-v", "--keep-partial", &source("denied"), "denied.raw"], false);
        run_ours(&["copy", "--plan", &source("disk"), "planned.raw"], true);
    }
    for (name, works) in [("disk", true), ("denied", false)] {
        dir.file(
            "job",
            format!("[[disk]]\nsource = \"s3://disks/{name}\"\ntarget = \"{name}.out\"").as_bytes(),
        );
        run_ours(&["plan", "job", "-o", name], works);
    }
    run_ours(&["run", "--all", "disk"], true);
    run_ours(&["status", "--json", "--html", "status.html", "disk"], true);
    run_ours(&["finish", "disk"], true);
    for source in [signed("disk"), with_password("disk")] {
        dir.file("job", format!("[[disk]]\nsource = {source:?}\ntarget = \"x\"").as_bytes());
        run_ours(&["plan", "job", "-o", "refused"], false);
    }
    fs::remove_file(dir.join("job")).unwrap();
    let left = all_files(dir.path());
    let heads: Vec<String> = told.try_iter().collect();
    let signature = |head: &String| Some(head.split_once("Signature=")?.1.get(..64)?.to_owned());
    let signatures: Vec<_> = heads.iter().filter_map(signature).collect();
    assert!(heads.iter().any(|head| head.contains(TOKEN)) && signatures.len() > 3, "{heads:#?}");
    let own = signatures.iter().map(String::as_str);
    // The login as it is sent.
    let login = heads.iter().find_map(|head| head.split_once("Basic ")).unwrap();
    let login = login.1.split_whitespace().next().unwrap();
    for secret in own.chain([SECRET, TOKEN, SAID, login]) {
        assert!(!said.contains(secret), "{secret} in {said}");
        assert!(!left.contains(secret), "{secret} in {left}");
    }
    assert!(left.contains("s3://disks/disk"), "{left}");
    dir.file("secret", b"");
    let endpoint = format!("endpoint=http://127.0.0.1:{port}");
    let words = ["s3", "bucket=disks", "key=disk", "access-key=AKIDOFATEST", "region=x", &endpoint];
    let keys = ["secret-key=-env:WORD", "session-token=-env:SESSION"];
    let said = serve(&[&words[..], &keys].concat(), dir.path());
    assert!(![SECRET, TOKEN].iter().any(|secret| said.contains(secret)), "{said}");
}
