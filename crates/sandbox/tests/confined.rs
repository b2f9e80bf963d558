//! The operations that a confined process can still do. Each check is a process of its own with one
//! thread, because it cannot be set free again; so this is a program without the usual harness.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails here has failed")]

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use device::{Endpoint, Reach, Use};
use programs::names;
use sandbox::{FileConfinement, Sockets, confine_calls, confine_files};

type Check = (&'static str, fn());

/// Checks by their names.
macro_rules! checks {
    ($($name:ident,)*) => { &[$((stringify!($name), $name)),*] };
}

const CHECKS: &[Check] = checks! {
    only_what_was_named_can_be_read,
    an_inherited_file_without_a_name_is_opened_again,
    a_link_beneath_a_directory_leads_nowhere_else,
    a_file_is_made_replaced_and_removed_and_nothing_else_beneath_its_directory,
    a_socket_is_made_and_removed_and_nothing_else_beneath_its_directory,
    a_file_that_was_replaced_is_read_again_and_none_beside_it,
    a_link_on_the_way_that_was_replaced_is_followed_anew,
    a_program_for_which_no_descriptor_is_left_is_ended,
    connections_go_to_the_named_port_alone_and_to_no_abstract_name,
    a_device_is_written_without_a_right_to_its_neighbours,
    no_program_is_started_and_no_socket_made,
    where_the_network_is_named_connections_are_made_and_programs_still_not_started,
    threads_that_run_already_are_no_reason_to_believe_in_a_sandbox,
    calls_are_confined_in_threads_that_run_already,
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

fn directory(name: &str) -> PathBuf {
    let path =
        std::env::temp_dir().join(format!("diskferry-sandbox-{name}-{}", std::process::id()));
    // What another process of this number may have left.
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// False, with a message, where this kernel has no landlock.
fn confined(reach: &Reach) -> bool {
    let held = confine_files(reach).unwrap();
    if held == FileConfinement::Free {
        eprintln!("skipped: this kernel has no landlock");
    }
    held != FileConfinement::Free
}

fn denied<T>(found: std::io::Result<T>) -> bool {
    found.err().is_some_and(|e| e.kind() == ErrorKind::PermissionDenied)
}

fn only_what_was_named_can_be_read() {
    let dir = directory("read");
    let (named, other) = (dir.join("named"), dir.join("other"));
    fs::write(&named, "a").unwrap();
    fs::write(&other, "b").unwrap();
    let mut opened = File::open(&other).unwrap();
    if !confined(&Reach::path(&named, Use::Read)) {
        return;
    }
    assert_eq!(fs::read(&named).unwrap(), b"a");
    assert!(denied(File::open(&other)) && denied(File::open("/etc/passwd")));
    assert!(denied(OpenOptions::new().write(true).open(&named)), "it is only read");
    let mut text = String::new();
    opened.read_to_string(&mut text).unwrap();
    assert_eq!(text, "b", "what is open stays open");
}

fn an_inherited_file_without_a_name_is_opened_again() {
    let dir = directory("nameless");
    fs::write(dir.join("gone"), "a").unwrap();
    let gone = File::open(dir.join("gone")).unwrap();
    fs::remove_file(dir.join("gone")).unwrap();
    let memory = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::empty()).unwrap();
    let (pipe, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"c").unwrap();
    drop(writer);
    let files = [gone, memory.into(), File::from(std::os::fd::OwnedFd::from(pipe))];
    let paths = files.each_ref().map(|file| {
        PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)))
    });
    let reach = paths.iter().map(|path| Reach::path(path, Use::Read));
    if confined(&reach.reduce(Reach::and).unwrap()) {
        assert_eq!(paths.map(|path| fs::read(path).unwrap()), [&b"a"[..], b"", b"c"]);
    }
}

fn a_link_beneath_a_directory_leads_nowhere_else() {
    let dir = directory("link");
    std::os::unix::fs::symlink("/etc/passwd", dir.join("link")).unwrap();
    fs::write(dir.join("file"), "a").unwrap();
    if confined(&Reach::path(&dir, Use::Read)) {
        assert_eq!(fs::read(dir.join("file")).unwrap(), b"a");
        assert!(denied(File::open(dir.join("link"))));
        assert!(denied(File::open(dir.join("../../etc/passwd"))));
    }
}

/// The same with the helper, which is forked before.
fn confined_with_helper(reach: &Reach) -> bool {
    programs::hand_over(reach.programs.clone(), reach.grants()).unwrap();
    confined(reach)
}

fn a_file_is_made_replaced_and_removed_and_nothing_else_beneath_its_directory() {
    let (dir, other) = (directory("make"), directory("make-other"));
    let (new, next) = (dir.join("new"), dir.join("next"));
    let (beside, below) = (dir.join("beside"), dir.join("deep/below"));
    fs::create_dir_all(dir.join("deep")).unwrap();
    for path in [&beside, &below] {
        fs::write(path, "b").unwrap();
    }
    let reach = Reach::path(&new, Use::Make).and(Reach::path(&next, Use::Make));
    if !confined_with_helper(&reach) {
        return;
    }
    let mut file = File::from(names::make(&new, 0o600).unwrap());
    file.write_all(b"a").unwrap();
    assert!(names::make(&new, 0o600).is_err(), "it is there");
    let again = names::reopen(&file, rustix::fs::OFlags::WRONLY).unwrap();
    File::from(again).write_all(b"c").unwrap();
    names::replace(&next, &new).unwrap();
    let numbers = names::numbers(&file).unwrap();
    assert!(names::remove(&next, (0, 0)).is_err());
    names::sync(&next).unwrap();
    names::remove(&next, numbers).unwrap();
    let nameless = names::nameless_for(&new, 0o600).unwrap();
    names::link(&nameless, &new).unwrap();
    assert!(denied(names::link(File::open("/dev/null").unwrap(), &next)), "it was not made here");
    // Neither here nor by the helper.
    for path in [&beside, &below] {
        let numbers = fs::metadata(path).map(|m| std::os::unix::fs::MetadataExt::ino(&m)).unwrap();
        let device = fs::metadata(path).map(|m| std::os::unix::fs::MetadataExt::dev(&m)).unwrap();
        assert!(denied(File::open(path)) && denied(fs::remove_file(path)));
        assert!(denied(OpenOptions::new().write(true).open(path)));
        assert!(denied(names::append(path)) && denied(names::remove(path, (device, numbers))));
        assert!(names::replace(path, &new).is_err() && names::replace(&next, path).is_err());
        let seen = rustix::fs::open(path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
        assert!(denied(names::reopen(seen.unwrap(), rustix::fs::OFlags::RDWR)));
    }
    for path in [dir.join("made"), other.join("made")] {
        assert!(denied(File::create(&path)) && denied(names::make(&path, 0o600)));
        assert!(denied(names::nameless_for(&path, 0o600)));
        assert!(denied(fs::rename(&new, &path)) && denied(names::link(&nameless, &path)));
        assert!(denied(fs::create_dir(&path)));
        assert!(denied(std::os::unix::fs::symlink("a", &path)));
    }
}

fn a_socket_is_made_and_removed_and_nothing_else_beneath_its_directory() {
    let dir = directory("socket");
    let (path, below) = (dir.join("socket"), dir.join("deep/below"));
    fs::create_dir_all(dir.join("deep")).unwrap();
    fs::write(&below, "b").unwrap();
    if !confined_with_helper(&Reach { sockets: vec![path.clone()], ..Reach::default() }) {
        return;
    }
    let locks = || fs::metadata(dir.join(format!(".socket.{}.lock", rustix::process::getuid())));
    let turn = names::take_turn(&path).unwrap();
    assert!(turn.is_some() && locks().is_ok());
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    drop(turn);
    assert!(locks().is_err());
    let own = names::OwnSocket::bound(&path).unwrap();
    for gone in [&below, &dir.join("deep"), &path] {
        assert!(denied(fs::remove_file(gone)) || gone.is_dir());
        assert!(denied(fs::remove_dir(gone)) || !gone.is_dir());
    }
    assert!(denied(File::create(dir.join("made"))));
    own.remove();
    assert!(!path.exists() && below.exists());
    // A file that took the name is not a socket's.
    assert!(names::remove(&path, (0, 0)).is_err());
}

fn a_file_that_was_replaced_is_read_again_and_none_beside_it() {
    let dir = directory("reread");
    let (named, other) = (dir.join("named"), dir.join("other"));
    fs::write(&named, "a").unwrap();
    fs::write(&other, "b").unwrap();
    // Replaces it when it is told to, from outside of the sandbox.
    let script = format!("echo c >'{0}.new' && mv '{0}.new' '{0}'", named.display());
    let program = programs::Program::script(&script, &[]);
    let reach = Reach { rereads: vec![named.clone()], programs: vec![program], ..Reach::default() };
    if !confined_with_helper(&reach) {
        return;
    }
    let started = programs::start(&reach.programs[0], &[], programs::StandardStreams::default());
    assert!(started.unwrap().wait().unwrap().success());
    let read = std::io::read_to_string(File::from(names::read(&named).unwrap())).unwrap();
    assert_eq!(read, "c\n");
    assert!(denied(names::read(&other)) && denied(names::append(&named)));
}

fn a_link_on_the_way_that_was_replaced_is_followed_anew() {
    let dir = directory("link-replaced");
    for name in ["old", "new"] {
        fs::create_dir(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("key"), name).unwrap();
    }
    let link = dir.join("link");
    std::os::unix::fs::symlink("old", &link).unwrap();
    let program = programs::Program::script(&format!("ln -sfn new '{}'", link.display()), &[]);
    let (key, log) = (link.join("key"), link.join("log"));
    let reach = Reach { rereads: vec![key.clone()], programs: vec![program], ..Reach::default() };
    let reach = reach.and(Reach::path(&log, Use::Make));
    if !confined_with_helper(&reach) {
        return;
    }
    let read = || std::io::read_to_string(File::from(names::read(&key).unwrap())).unwrap();
    assert_eq!(read(), "old");
    let started = programs::start(&reach.programs[0], &[], programs::StandardStreams::default());
    assert!(started.unwrap().wait().unwrap().success());
    assert_eq!(read(), "new");
    let mut file = File::from(names::append(&log).unwrap());
    file.write_all(b"a").unwrap();
    assert!(!rustix::fs::fcntl_getfl(&file).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
    assert!(dir.join("new/log").exists() && !dir.join("old/log").exists());
}

fn a_program_for_which_no_descriptor_is_left_is_ended() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let program = programs::Program::script("exec sleep 600", &[]);
    let reach = Reach { programs: vec![program], ..Reach::default() };
    if !confined_with_helper(&reach) {
        return;
    }
    let before = getrlimit(Resource::Nofile);
    let next = rustix::io::dup(std::io::stdin()).unwrap();
    let full = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&next)).unwrap();
    drop(next);
    setrlimit(Resource::Nofile, Rlimit { current: Some(full), ..before }).unwrap();
    let start = || programs::start(&reach.programs[0], &[], programs::StandardStreams::default());
    assert!(start().is_err());
    setrlimit(Resource::Nofile, before).unwrap();
    let children = fs::read_to_string("/proc/thread-self/children").unwrap();
    assert_eq!(children.split_whitespace().count(), 1, "the helper alone is left");
}

fn connections_go_to_the_named_port_alone_and_to_no_abstract_name() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    let [named, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let name = SocketAddr::from_abstract_name(format!("diskferry-{}", std::process::id())).unwrap();
    let _listener = UnixListener::bind_addr(&name).unwrap();
    let reach = Reach::to(Endpoint::Tcp(named.local_addr().unwrap().port()));
    // Kernels before 6.12 do not know both.
    if confine_files(&reach).unwrap() != FileConfinement::Confined {
        return eprintln!("skipped: this kernel knows no ports or no abstract names");
    }
    assert!(TcpStream::connect(named.local_addr().unwrap()).is_ok());
    assert!(denied(TcpStream::connect(other.local_addr().unwrap())));
    assert!(denied(UnixStream::connect_addr(&name)));
}

fn a_device_is_written_without_a_right_to_its_neighbours() {
    if confined(&Reach::path("/dev/full", Use::Make)) {
        assert!(OpenOptions::new().write(true).open("/dev/full").is_ok());
        assert!(
            denied(OpenOptions::new().write(true).open("/dev/tty0"))
                || !PathBuf::from("/dev/tty0").exists()
        );
        assert!(denied(File::create("/dev/shm/diskferry-sandbox")));
    }
}

fn no_program_is_started_and_no_socket_made() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap();
    confine_calls(&Sockets::default()).unwrap();
    assert!(denied(Command::new("/bin/true").status()));
    assert!(denied(TcpStream::connect(place)));
    assert!(denied(std::os::unix::net::UnixStream::connect("/tmp/none")));
    // Threads are.
    assert_eq!(std::thread::spawn(|| 1).join().unwrap(), 1);
}

fn where_the_network_is_named_connections_are_made_and_programs_still_not_started() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap();
    let reach = Reach::network();
    let _ = confine_files(&reach).unwrap();
    confine_calls(&Sockets { connects: reach.network, ..Sockets::default() }).unwrap();
    assert!(TcpStream::connect(place).is_ok());
    assert!(denied(Command::new("/bin/true").status()));
}

fn threads_that_run_already_are_no_reason_to_believe_in_a_sandbox() {
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || ended.recv().is_err());
    assert!(confine_files(&Reach::default()).unwrap_err().to_string().contains("threads"));
    drop(end);
    assert!(other.join().unwrap());
}

fn calls_are_confined_in_threads_that_run_already() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || {
        wait.recv().unwrap();
        denied(TcpListener::bind("127.0.0.1:0"))
    });
    confine_calls(&Sockets::default()).unwrap();
    go.send(()).unwrap();
    assert!(other.join().unwrap());
}
