//! SIGHUP: what is reloaded is in force, what is not is named, and a mistake changes nothing.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use blackbox::run::{ours, run};
use blackbox::session::{Mode, Request};
use blackbox::temp::pattern;
use blackbox::{eventually, wait_for};

use super::Service;

/// Reloads of the long form, as for changes by `ctl`.
const ROUNDS: &str = "HOT_ROUNDS";

const BEFORE: &str = "unix = '%D/s'\n\
    [[export]]\nname = 'a'\ndisk = 'memory:1M'\n\
    [[export]]\nname = 'b'\ndisk = 'memory:1M'\nallow = 'anyunix'\n";

#[test]
fn rules_are_in_force_for_the_next_client() {
    let service = Service::start(BEFORE, &[]);
    assert_eq!(service.names(), ["a", "b"]);
    let mut there_already = service.haggle().go("b");
    service.configure(&BEFORE.replace("'anyunix'", "'10.0.0.0/8'"));
    service.reload("reloaded");
    assert_eq!(service.names(), ["a"]);
    there_already.write(0, &[1; 512]);
    service.configure(&BEFORE.replace("allow = 'anyunix'\n", ""));
    service.reload("reloaded");
    eventually("both are there", || (service.names() == ["a", "b"]).then_some(()));
    service.stop();
}

#[test]
fn limits_are_in_force_for_clients_that_are_there_and_for_those_that_come() {
    let service = Service::start(BEFORE, &[]);
    let mut idle = service.haggle().go("a");
    idle.write(0, &[1; 512]);
    service.configure(&format!("idle-timeout = 1\nmax-connections = 2\n{BEFORE}"));
    service.reload("reloaded");
    service.job.signal(rustix::process::Signal::USR1);
    assert!(service.line("--max-connections: ").ends_with(": 2"));
    // It asks for nothing.
    idle.socket.drain();
    service.line("ended: ");
    let all: Vec<_> = (0..3).map(|_| service.connect().unwrap()).collect();
    service.line("2 connections are open already");
    drop(all);
    service.stop();
}

#[test]
fn a_limit_of_requests_slows_a_client_down_that_is_there() {
    let service = Service::start(BEFORE, &[]);
    let mut client = service.haggle().go("a");
    let hundred = |client: &mut blackbox::session::Session| {
        let begun = std::time::Instant::now();
        for _ in 0..100 {
            assert_eq!(client.error_of(&Request::write(0, &[1; 512])), 0);
        }
        begun.elapsed()
    };
    hundred(&mut client);
    service.configure(&format!("max-requests = 50\n{BEFORE}"));
    service.reload("reloaded");
    // Within about a second it counts; from then on 100 take nearly two.
    eventually("the limit counts", || (hundred(&mut client).as_secs_f64() > 1.5).then_some(()));
    service.stop();
}

#[test]
fn a_mistake_changes_nothing_and_is_reported_with_its_line() {
    let service = Service::start(BEFORE, &[]);
    let wrong = BEFORE
        .replace("'anyunix'", "'10.0.0.0/8'")
        .replace("unix = '%D/s'\n", "unix = '%D/s'\nlogg = ''\n");
    service.configure(&wrong);
    let line = service.reload("not reloaded: ");
    assert!(
        line.contains(" error ") && line.contains("/config:2: ") && line.contains("`log`"),
        "{line}"
    );
    assert_eq!(service.names(), ["a", "b"]);
    // A missing file is one, too.
    fs::remove_file(service.temp.join("config")).unwrap();
    service.reload("No such file");
    assert_eq!(service.names(), ["a", "b"]);
    service.stop();
}

#[test]
fn what_takes_a_restart_is_named() {
    let service = Service::start(BEFORE, &[]);
    let other = BEFORE.replace("unix = '%D/s'", "unix = '%D/t'\nthreads = 3\nmax-requests = 7");
    service.configure(
        &(other.replace("name = 'a'\n", "name = 'a'\nread-only = true\n")
            + "[[export]]\nname = 'c'\ndisk = 'memory:1M'\n"),
    );
    let line = service.reload("takes effect only after a restart");
    assert!(line.ends_with(": export `a`, export `c`, threads, unix"), "{line}");
    assert_eq!(service.names(), ["a", "b"]);
    service.stop();
}

#[test]
fn exports_come_and_go_by_a_reload_and_nobody_is_disconnected() {
    let config = |exports: &[(&str, &str)]| {
        let one =
            |(name, disk): &(&str, &str)| format!("[[export]]\nname = '{name}'\ndisk = '{disk}'\n");
        "unix = '%D/s'\n".to_owned() + &exports.iter().map(one).collect::<String>()
    };
    let (a, b, c) = (("a", "memory:1M"), ("b", "memory:1M"), ("c", "memory:2M"));
    let service = Service::start(&config(&[a, b]), &[]);
    let mut session = service.haggle().session(Mode::Structured, "");
    session.write(0, &[7; 512]);
    // The first one goes, with a client; the default is the first of those that stay.
    service.configure(&config(&[b, c]));
    service.reload("export `c`: added: memory:2M");
    service.line("reloaded");
    eventually("they are there", || (service.names() == ["b", "c"]).then_some(()));
    assert_eq!(service.haggle().session(Mode::Structured, "").export.size, 1 << 20);
    assert_eq!(session.read(0, 512).unwrap(), [7; 512]);
    session.write(512, &[8; 512]);
    // What is served as the file says does not wait.
    let log = fs::read_to_string(service.temp.join("log")).unwrap();
    assert!(!log.contains("only after a restart"), "{log}");
    drop(session);
    service.line("export `a`: closed");
    // The sandbox does not know a file that was not there at the start.
    let file = service.temp.sparse_file("later", 1 << 20);
    let file = ("d", file.to_str().unwrap());
    service.configure(&config(&[b, c, file]));
    let line = service.reload("export `d`: not added");
    assert!(line.contains("Permission denied") && line.contains("sandbox"), "{line}");
    service.line("only after a restart: export `d`");
    // With an option that waits nothing comes or goes: the file was written for another server.
    service.configure(&config(&[b]).replace("%D/s'", "%D/t'"));
    service.reload("only after a restart: export `c`, unix");
    assert_eq!(service.names(), ["b", "c"]);
    service.configure(&config(&[b]));
    service.reload("export `c`: removed");
    eventually("it is gone", || (service.names() == ["b"]).then_some(()));
    service.stop();
}

#[test]
fn clients_read_and_write_what_they_have_while_reloads_change_what_is_served() {
    let rounds = std::env::var(ROUNDS).ok().and_then(|n| n.parse().ok()).unwrap_or(20u64);
    let config = |name: &str| {
        format!(
            "unix = '%D/s'\n[[export]]\nname = 'stays'\ndisk = 'memory:1M'\n\
             [[export]]\nname = '{name}'\ndisk = 'memory:1M'\n"
        )
    };
    let service = Service::start(&config("hot 0"), &[]);
    let (is_over, requests) = (AtomicBool::new(false), AtomicU64::new(0));
    // Each has a block of its own, whose bytes say when they were written.
    let verify = |export: &str, block: u64| {
        service.haggle().session(Mode::Structured, export).verify(block, &is_over, &requests);
    };
    std::thread::scope(|scope| {
        for block in 0..2 {
            scope.spawn(move || verify("stays", block));
        }
        let mut hot = service.haggle().session(Mode::Structured, "hot 0");
        for round in 1..=rounds {
            let before = requests.load(SeqCst);
            hot.write(0, &pattern(round * 512, 512));
            let name = format!("hot {round}");
            service.configure(&config(&name));
            service.job.signal(rustix::process::Signal::HUP);
            wait_for("the new one is there", || service.names() == ["stays", name.as_str()]);
            // The one that is gone is there for the client that has it.
            assert_eq!(hot.read(0, 512).unwrap(), pattern(round * 512, 512));
            hot = service.haggle().session(Mode::Structured, &name);
            wait_for("the others go on", || requests.load(SeqCst) > before + 10);
        }
        is_over.store(true, SeqCst);
    });
    let log = fs::read_to_string(service.temp.join("log")).unwrap();
    assert!(!log.contains(" error "), "{log}");
    service.stop();
}

#[test]
fn rules_for_another_disk_do_not_open_the_one_that_is_served() {
    let disks = |a: &str, b: &str| {
        format!("unix = '%D/s'\n[[export]]\nname = 'a'\n{a}\n[[export]]\nname = 'b'\n{b}\n")
    };
    let (secret, public) = ("disk = 'memory:2M'\nallow = '10.0.0.0/8'", "disk = 'memory:1M'");
    let service = Service::start(&disks(secret, public), &[]);
    assert_eq!(service.names(), ["b"]);
    // They change places. Until a restart `a` is the secret one.
    service.configure(&disks(public, secret));
    service.reload("reloaded");
    assert!(service.names().is_empty());
    service.line("both the old and the new rules of `a`, `b` ");
    // An option that waits counts for all exports.
    let open = disks("disk = 'memory:2M'", public);
    service.configure(&open.replace("%D/s'", "%D/t'"));
    service.reload(": unix");
    eventually("`b` is open again", || (service.names() == ["b"]).then_some(()));
    service.configure(&open);
    service.job.signal(rustix::process::Signal::HUP);
    eventually("nothing waits", || (service.names() == ["a", "b"]).then_some(()));
    service.stop();
}

#[test]
fn the_log_is_opened_again_whatever_the_configuration_says() {
    let service = Service::start(BEFORE, &[]);
    service.configure("nonsense");
    fs::rename(service.temp.join("log"), service.temp.join("old")).unwrap();
    service.reload("not reloaded");
    assert!(!fs::read_to_string(service.temp.join("old")).unwrap().contains("not reloaded"));
    service.stop();
}

#[test]
fn keys_of_tls_are_read_again() {
    let (old, new) = ("11".repeat(32), "22".repeat(32));
    let config = format!("tls-psk = '%D/keys'\nsandbox = 'require'\n{BEFORE}");
    let keys = |service: &Service, name: &str, key: &str| {
        service.temp.file(name, format!("alice:{key}\n").as_bytes())
    };
    let temp = blackbox::temp::TempDir::new();
    let config = config.replace("%D/keys", &temp.join("keys").display().to_string());
    temp.file("keys", format!("alice:{old}\n").as_bytes());
    let service = Service::start(&config, &[]);
    let has = |key: &str| {
        let file = keys(&service, "client-keys", key);
        let uri = format!(
            "nbds+unix://alice@/a?socket={}&tls-psk-file={}",
            service.socket().display(),
            file.display()
        );
        run(&mut ours(["info", &uri])).status.success()
    };
    assert!(has(&old) && !has(&new));
    // As editors do: another file gets the name.
    let next = temp.file("keys.new", format!("alice:{new}\n").as_bytes());
    fs::rename(next, temp.join("keys")).unwrap();
    service.reload("reloaded");
    assert!(has(&new) && !has(&old));
    // Keys that cannot be read leave the others in force.
    temp.file("keys", b"nonsense\n");
    service.reload("TLS is unchanged");
    assert!(has(&new));
    service.stop();
}

#[test]
fn bitmaps_of_the_control_socket_go_on_recording() {
    let service = Service::start(&format!("control = '%D/control'\n{BEFORE}"), &[]);
    let control = service.temp.join("control");
    let ctl = |words: &[&str]| {
        let words = [&["ctl", "--json", blackbox::run::text(&control)], words].concat();
        blackbox::run::json(run(&mut ours(words)).succeeded())
    };
    ctl(&["bitmap", "add", "x", "b"]);
    let mut client = service.haggle().go("b");
    client.write(0, &[1; 512]);
    service.configure(&format!("max-connections = 9\ncontrol = '%D/control'\n{BEFORE}"));
    service.reload("reloaded");
    client.write(512 << 10, &[1; 512]);
    assert_eq!(ctl(&["list"])["exports"][1]["bitmaps"][0]["dirty-bytes"], 2 * 65_536);
    service.stop();
}
