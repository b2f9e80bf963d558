//! Servers that we start ourselves: they serve, and end with us.

use std::fs;
use std::path::Path;

use blackbox::haggle::Haggler;
use blackbox::launch::Serve;
use blackbox::nbd::cmd;
use blackbox::peers::peer;
use blackbox::run::{Job, json, ours, pid_in, run, runs};
use blackbox::session::{Mode, Request};
use blackbox::socket::Socket;
use blackbox::temp::TempDir;
use blackbox::wait_for;
use rustix::process::{Pid, Signal};

fn command_words(program: &Path, arguments: &[&str]) -> Vec<String> {
    let arguments = arguments.iter().map(|a| format!("arg={a}"));
    let command = format!("command={}", program.display());
    ["nbd".to_owned(), command].into_iter().chain(arguments).collect()
}

#[test]
fn a_server_started_by_a_command_serves_several_and_ends_with_ours() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    let temp = TempDir::new();
    let pidfile = temp.join("pid");
    let arguments = ["-f", "-P", pidfile.to_str().unwrap(), "memory", "1M"];
    for more in [&[][..], &["shared=false"], &["connections=3"]] {
        let mut words = command_words(&nbdkit, &arguments);
        words.extend(more.iter().map(|w| (*w).to_owned()));
        let server = Serve::device(words).start();
        let mut sessions: Vec<_> = (0..3).map(|_| server.session(Mode::Structured, "")).collect();
        sessions[0].write(0, b"shared");
        for session in &mut sessions {
            assert_eq!(session.read(0, 6).unwrap(), b"shared", "{more:?}");
        }
        let command = pid_in(&pidfile);
        assert!(runs(command));
        assert!(server.stop().success());
        assert!(!runs(command), "it outlives us: {more:?}");
    }
}

#[test]
fn qemu_nbd_is_started_by_a_command() {
    let Some(qemu_nbd) = peer("qemu-nbd") else { return };
    let temp = TempDir::new();
    let image = temp.file("image", &[9; 8192]);
    let words = command_words(&qemu_nbd, &["-f", "raw", image.to_str().unwrap()]);
    // It admits one client at a time: that is what sharing is for.
    let server = Serve::device(words).start();
    for client in 0..2 {
        let mut session = server.session(Mode::Structured, "");
        assert!(session.read(512, 7680).unwrap() == [9; 7680]);
        session.write(0, &[client; 512]);
        session.flush();
        session.disconnect();
    }
    assert!(server.stop().success());
    assert!(fs::read(&image).unwrap() == [&[1; 512][..], &[9; 7680]].concat());
}

#[test]
fn a_command_is_copied_from_and_what_it_prints_is_not_taken_for_data() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    let temp = TempDir::new();
    let target = temp.join("target");
    let talkative = "echo hello; exec \"$0\" \"$@\"";
    let source = format!(
        "nbd:?command=/bin/sh&arg=-c&arg={talkative}&arg={}&arg=pattern&arg=1M",
        nbdkit.display()
    );
    run(ours(["copy", &source]).arg(&target)).succeeded();
    let wanted = temp.join("wanted");
    run(ours(["copy", "pattern:1M"]).arg(&wanted)).succeeded();
    assert!(fs::read(&target).unwrap() == fs::read(&wanted).unwrap());
    let outcome = run(&mut ours(["map", "--json", &source]));
    assert!(!outcome.succeeded().contains("hello"), "{outcome:?}");
    let told = json(run(&mut ours(["info", "--json", &source])).succeeded());
    assert_eq!(told["exports"][0]["export-size"], 1_048_576, "{told}");
    // As of any other server, and by a name that leads there again.
    assert_eq!(told["protocol"], "newstyle-fixed", "{told}");
    assert_eq!(told["exports"][0]["uri"], source.as_str(), "{told}");
    let list = run(&mut ours(["list", &source]));
    assert!(list.succeeded().contains("export-size: 1048576 (1M)"), "{list:?}");
}

/// A copy from a server that it starts, and that does not answer; and the server's pid.
fn stuck_copy(temp: &TempDir, sandbox: &str) -> Option<(Job, Pid)> {
    let (nbdkit, pidfile) = (peer("nbdkit")?, temp.join("pid"));
    let source = format!(
        "nbd:?command={}&arg=-f&arg=-P&arg={}&arg=--filter=delay&arg=memory&arg=1M&arg=delay-read=600",
        nbdkit.display(),
        pidfile.display()
    );
    let words = ["copy", sandbox, "--source-filter=noextents", &source];
    let job = Job::start(ours(words).arg(temp.join("target")));
    Some((job, pid_in(&pidfile)))
}

#[test]
fn a_command_ends_also_with_a_copy_that_is_interrupted_twice() {
    let temp = TempDir::new();
    // It waits for an answer, and does not end when it is first asked to.
    let Some((job, pid)) = stuck_copy(&temp, "--sandbox=auto") else { return };
    // The signals before the copy has begun are the first; then there is a second.
    job.signal_until_it_ends(Signal::INT);
    wait_for("the server ends", || !runs(pid));
}

/// The helper that started it sees that we are gone.
#[test]
fn a_command_ends_also_with_a_copy_that_is_killed() {
    let temp = TempDir::new();
    let Some((job, pid)) = stuck_copy(&temp, "--sandbox=require") else { return };
    job.signal(Signal::KILL);
    job.wait();
    wait_for("the server ends", || !runs(pid));
}

#[test]
fn a_command_ends_also_with_a_server_that_is_stopped_at_once() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    let temp = TempDir::new();
    let (pidfile, socket) = (temp.join("pid"), temp.join("s"));
    let arguments = ["-f", "-P", pidfile.to_str().unwrap(), "--filter=delay", "memory", "1M"];
    let mut words = command_words(&nbdkit, &arguments);
    words.push("arg=delay-read=600".into());
    let job = Job::start(ours(["serve", "-U"]).arg(&socket).args(&words));
    wait_for("the server listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    let command = pid_in(&pidfile);
    // A client that waits for an answer, so that no stop is a quick one.
    let mut client = Haggler::new(Socket::unix(&socket).unwrap()).go("");
    client.send(&Request::new(cmd::READ, 0, 512));
    job.signal_until_it_ends(Signal::TERM);
    wait_for("the command ends", || !runs(command));
}
