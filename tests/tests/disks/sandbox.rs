//! `--sandbox`: the verbs that read untrusted images work in one, and enter it before they open
//! anything.

use blackbox::launch::Serve;
use blackbox::peers::{diskferry, peer};
use blackbox::run::{Job, ours, program, run, text};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, wait_for};

use crate::tracing::traced;

#[test]
fn images_are_converted_looked_at_and_compared_in_a_sandbox() {
    let dir = TempDir::new();
    let raw = dir.join("disk.raw");
    std::fs::write(&raw, pattern(0, 4 << 20)).unwrap();
    for format in ["raw", "qcow2", "vmdk", "vdi", "vpc", "vhdx"] {
        let image = dir.join(&format!("disk.{format}"));
        if format != "raw" {
            run(ours(["convert", "--sandbox=require", "-f", "raw", "-O", format])
                .arg(&raw)
                .arg(&image))
            .succeeded();
        }
        for verb in [&["info"][..], &["map", "--output=json"], &["measure", "-O", "qcow2"]] {
            run(ours(verb.iter().copied()).args(["--sandbox=require", "-f", format]).arg(&image))
                .succeeded();
        }
        let compare = ["compare", "--sandbox=require", "-f", "raw", "-F", format];
        run(ours(compare).arg(&raw).arg(&image)).succeeded();
    }
    let back = dir.join("back.raw");
    run(ours(["copy", "--sandbox=require", "-f", "vmdk"]).arg(dir.join("disk.vmdk")).arg(&back))
        .succeeded();
    assert!(std::fs::read(&back).unwrap() == pattern(0, 4 << 20));
}

#[test]
fn the_sandbox_is_there_before_the_image_is_opened() {
    let dir = TempDir::new();
    let image = dir.join("stranger.qcow2");
    run(ours(["create", "-q", "-f", "qcow2"]).arg(&image).arg("1M")).succeeded();
    let calls = ["-e", "trace=openat,landlock_restrict_self,seccomp"];
    let Some((outcome, log)) = traced(&calls, ["info", "-f", "qcow2", text(&image)]) else {
        return;
    };
    outcome.succeeded();
    let last = ["landlock_restrict_self(", "seccomp("].map(|call| log.find(call).expect(call));
    let before = log[..last.into_iter().max().unwrap()].lines();
    for opened in before.filter(|call| call.contains("openat(") && call.contains("stranger.qcow2"))
    {
        assert!(opened.contains("O_PATH"), "{opened}");
    }
}

#[test]
fn a_connection_that_was_handed_over_is_used_in_a_sandbox() {
    let server = Serve::memory("4M").start();
    for words in
        [&["info"][..], &["map"], &["measure"], &["compare", "null:4M"], &["copy", "null:4M"]]
    {
        let connection = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
        let mut command = ours(words.iter().copied());
        command.args(["--sandbox=require", "nbd:?socket-fd=0"]);
        let connection = std::os::fd::OwnedFd::from(connection);
        Job::start(command.stdin(connection)).wait().succeeded();
    }
}

/// What /proc says of a process, from a command that the server starts: whether it may get new
/// rights, and whether a filter of calls is on it.
const LOOK: &str = "look() { sed -n -e 's/^NoNewPrivs:[^0-9]*/new-privs-off /p' -e 's/^Seccomp:[^0-9]*/filter /p' /proc/$1/status; }";

#[test]
fn the_command_of_run_is_outside_of_the_sandbox_that_the_server_is_in() {
    let (dir, other) = (TempDir::new(), TempDir::new());
    let (disk, secret) = (dir.join("disk.raw"), other.file("not-named", b"read"));
    std::fs::write(&disk, pattern(0, 1 << 20)).unwrap();
    let (made, ours_is) = (other.join("made"), diskferry().canonicalize().unwrap());
    let command = format!(
        "{LOOK}; echo server; look $PPID; echo command; look self; cat '{}'; echo x >'{}'; ulimit -n; \
         '{}' copy --sandbox=require \"$uri\" null: && exit 42",
        secret.display(),
        made.display(),
        ours_is.display()
    );
    for wish in ["require", "auto"] {
        let wish = format!("--sandbox={wish}");
        let mut serve = ours(["serve", &wish, "-v", "file"]);
        let done = run(serve.arg(&disk).args(["--run", &command]));
        assert_eq!(done.status.code(), Some(42), "the status is the command's: {done:?}");
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
        let said = format!(
            "server\nnew-privs-off 1\nfilter 2\ncommand\nnew-privs-off 0\nfilter 0\nread{limit}\n"
        );
        assert!(done.stdout.starts_with(&said), "{done:?}");
        assert!(done.stderr.contains("sandbox: files confined, calls confined"), "{done:?}");
        assert!(made.exists());
        std::fs::remove_file(&made).unwrap();
    }
    let off = run(&mut ours([
        "serve",
        "--sandbox=off",
        "memory",
        "1M",
        "--run",
        &format!("{LOOK}; look $PPID"),
    ]));
    assert_eq!(off.succeeded(), "new-privs-off 0\nfilter 0\n");
}

#[test]
fn what_held_the_server_before_holds_its_command_too() {
    let Some(setpriv) = peer("setpriv") else { return };
    let command = format!("{LOOK}; look self");
    let mut words = program(&setpriv, ["--no-new-privs"]);
    words.arg(diskferry()).args(["serve", "--sandbox=require", "memory", "1M", "--run", &command]);
    assert_eq!(run(&mut words).succeeded(), "new-privs-off 1\nfilter 0\n");
}

#[test]
fn programs_that_a_disk_starts_are_outside_of_the_sandbox_that_it_is_in() {
    let dir = TempDir::new();
    let seen = dir.join("seen");
    let script = format!(
        "echo $act$count {}>>'{}'",
        "$(grep -c 'Seccomp:.0' /proc/self/status) ",
        seen.display()
    );
    let filter = format!("--source-filter=log?logscript={script}");
    run(&mut ours(["copy", "--sandbox=require", &filter, "memory:1M", "null:"])).succeeded();
    let text = std::fs::read_to_string(&seen).unwrap();
    assert!(text.starts_with("Ready 1\n") && text.contains("Extents"), "{text}");
    // A server of its own.
    let binary = diskferry().canonicalize().unwrap();
    let server = format!("nbd:?command={}&arg=serve&arg=pattern&arg=1M", binary.display());
    let (private, copy) = (TempDir::new(), dir.join("copy"));
    let confined = |verb: &[&str], more: &[&str]| {
        let words = [verb, &["--sandbox=require", &server], more].concat();
        run(ours(words).env("TMPDIR", private.path())).succeeded().to_owned()
    };
    for verb in [&["info"][..], &["map"], &["compare", "pattern:1M"]] {
        confined(verb, &[]);
    }
    confined(&["copy"], &[copy.to_str().unwrap()]);
    assert_eq!(std::fs::metadata(&copy).unwrap().len(), MIB);
    assert_eq!(std::fs::read_dir(private.path()).unwrap().count(), 0, "something is left behind");
    let missing = run(&mut ours(["info", "--sandbox=require", "nbd:?command=/nonexistent/server"]));
    assert!(!missing.status.success());
}

#[test]
fn a_server_in_a_sandbox_ends_the_command_of_run() {
    let dir = TempDir::new();
    let up = dir.join("up");
    let command =
        format!("trap 'exit 7' TERM; : >'{}'; while :; do sleep 0.01; done", up.display());
    let server =
        Job::start(&mut ours(["serve", "--sandbox=require", "memory", "1M", "--run", &command]));
    wait_for("the command runs", || up.exists());
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait().status.code(), Some(7));
}

#[test]
fn how_a_command_of_run_ends_is_heard_also_where_our_parent_wants_to_hear_of_none() {
    for wish in ["--sandbox=off", "--sandbox=require"] {
        let mut words = std::process::Command::new("env");
        words.arg("--ignore-signal=CHLD").arg(diskferry()).args(["serve", wish, "memory", "1M"]);
        let done = run(words.args(["--run", "sleep 0.1; exit 7"]));
        assert_eq!(done.status.code(), Some(7), "{done:?}");
    }
}

#[test]
fn a_server_in_a_sandbox_serves_writes_and_tidies_up() {
    let dir = TempDir::new();
    let (disk, socket, pid) = (dir.join("disk.raw"), dir.join("socket"), dir.join("pid"));
    std::fs::write(&disk, pattern(0, 1 << 20)).unwrap();
    let mut words = ours(["serve", "--sandbox=require", "-v", "--filter=cow", "-U"]);
    words.arg(&socket).arg("-P").arg(&pid).arg(&disk);
    let server = Job::start(&mut words);
    wait_for("the server listens", || pid.exists());
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    run(&mut ours(["copy", "null:1M", &uri])).succeeded();
    run(&mut ours(["compare", "null:1M", &uri])).succeeded();
    let done = server.stop();
    assert!(done.stderr.contains("sandbox: files confined, calls confined"), "{done:?}");
    assert!(!socket.exists() && !pid.exists());
    assert!(std::fs::read(&disk).unwrap() == pattern(0, 1 << 20), "the overlay took the writes");
}

#[test]
fn what_a_disk_of_data_reads_and_what_has_no_path_is_no_trouble() {
    let (dir, target) = (TempDir::new(), TempDir::new());
    let file = dir.file("content", b"abc");
    let name = format!("data:<{}", file.display());
    let copy = ["copy", "--sandbox=require", &name];
    run(ours(copy).arg(target.join("target"))).succeeded();
    assert_eq!(std::fs::read(target.join("target")).unwrap(), b"abc");
    // Standard error is a pipe here.
    let filter = "--source-filter=log?logfile=/dev/stderr";
    let logged = run(&mut ours(["copy", "--sandbox=require", filter, "memory:1M", "null:"]));
    logged.succeeded();
    assert!(!logged.stderr.is_empty());
}
