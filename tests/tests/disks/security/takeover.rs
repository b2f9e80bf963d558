//! What a verb can still do once it has been broken into: its sandbox is shut, and then calls are
//! made in its place (`taken`). What succeeds is the table in docs/security.md, "In a sandbox".

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;

use blackbox::launch::Serve;
use blackbox::listed::repository;
use blackbox::peers::{diskferry, skip_environment};
use blackbox::run::{beside, run};
use blackbox::temp::{TempDir, pattern};

/// What stands before the table in the page.
const HEAD: &str = "| verb | what succeeds |";

/// A folder with what a verb is given, and what it is not.
struct Scene {
    dir: TempDir,
    /// Another program's.
    socket: UnixListener,
    tcp: std::net::TcpListener,
    other: std::process::Child,
}

impl Scene {
    fn new() -> Self {
        let dir = TempDir::new();
        for folder in ["in/deep", "out/deep", "run/deep", "home/.ssh"] {
            std::fs::create_dir_all(dir.join(folder)).unwrap();
        }
        for folder in ["in", "out", "run", "home"] {
            std::fs::write(dir.join(folder).join("beside"), "b").unwrap();
        }
        for folder in ["in/deep", "out/deep", "run/deep", "home/.ssh"] {
            std::fs::write(dir.join(folder).join("below"), "b").unwrap();
        }
        std::fs::write(dir.join("in/disk"), pattern(0, 1 << 20)).unwrap();
        std::fs::write(dir.join("out/there"), "").unwrap();
        let socket = UnixListener::bind(dir.join("home/socket")).unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let other = Command::new("sleep").arg("1000").spawn().unwrap();
        Self { dir, socket, tcp, other }
    }

    fn path(&self, name: &str) -> PathBuf {
        if name.starts_with('/') { name.into() } else { self.dir.join(name) }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.other.kill();
        let _ = self.other.wait();
        let _ = &self.socket;
    }
}

/// Paths on which everything is tried; those of the system are only opened.
const PATHS: [&str; 17] = [
    "in/disk",
    "in/beside",
    "in/deep/below",
    "out/new",
    "out/there",
    "out/beside",
    "out/deep/below",
    "run/log",
    "run/beside",
    "run/deep/below",
    "home/beside",
    "home/.ssh/below",
    "/etc/passwd",
    "/usr/lib/os-release",
    "/dev/null",
    "/proc/1/environ",
    "/proc/1/cmdline",
];

/// The lines for `taken`: what is tried, in one word of the table and one for what it is tried on.
struct Calls(String);

impl Calls {
    fn add(&mut self, name: &str, call: libc::c_long, arguments: &[&str]) {
        let _ = writeln!(self.0, "{name}\t{call}\t{}", arguments.join("\t"));
    }

    /// `then` closes what was opened, if it was.
    fn opened(&mut self, name: &str, call: libc::c_long, arguments: &[&str]) {
        self.add(name, call, arguments);
        self.add("-", libc::SYS_close, &["r"]);
    }

    fn on(&mut self, scene: &Scene, name: &str) {
        let path = scene.path(name);
        let folder = path.parent().unwrap();
        let here = format!("s:{}", path.display());
        let new = format!("s:{}/made", folder.display());
        let named = |what: &str| format!("{what} {name}");
        let at = |flags: i32| flags.to_string();
        let (here, new) = (here.as_str(), new.as_str());
        self.opened(&named("read"), libc::SYS_openat, &["-100", here, "0"]);
        self.opened(&named("write"), libc::SYS_openat, &["-100", here, &at(libc::O_WRONLY)]);
        self.opened(
            &named("list folder of"),
            libc::SYS_openat,
            &["-100", &format!("s:{}", folder.display()), "65536"],
        );
        if name.starts_with('/') {
            // Where there is no sandbox, nothing of the system is changed.
            return;
        }
        self.add(&named("truncate"), libc::SYS_truncate, &[here, "1048576"]);
        self.add(&named("mode of"), libc::SYS_fchmodat, &["-100", here, "511"]);
        self.add(&named("mode of"), 452, &["-100", here, "511", "0"]);
        self.add(&named("owner of"), libc::SYS_fchownat, &["-100", here, "0", "0", "0"]);
        let attribute = [here, "s:user.taken", "s:x", "1", "0"];
        self.add(&named("attribute of"), libc::SYS_setxattr, &attribute);
        self.add(&named("attribute of"), libc::SYS_removexattr, &[here, "s:user.taken"]);
        self.add(&named("time of"), libc::SYS_utimensat, &["-100", here, "0", "0"]);
        let make = at(libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL);
        self.opened(&named("make beside"), libc::SYS_openat, &["-100", new, &make, "384"]);
        let directory = format!("s:{}", folder.display());
        let nameless = at(libc::O_RDWR | libc::O_TMPFILE);
        let nameless = ["-100", &directory, nameless.as_str(), "384"];
        self.opened(&named("nameless beside"), libc::SYS_openat, &nameless);
        self.add(&named("folder beside"), libc::SYS_mkdirat, &["-100", new, "448"]);
        self.add(&named("pipe beside"), libc::SYS_mknodat, &["-100", new, "4480", "0"]);
        self.add(&named("link beside"), libc::SYS_symlinkat, &["s:x", "-100", new]);
        self.add(&named("name for"), libc::SYS_linkat, &["-100", here, "-100", new, "0"]);
        self.add(&named("rename"), libc::SYS_renameat2, &["-100", here, "-100", new, "0"]);
        self.add(&named("remove"), libc::SYS_unlinkat, &["-100", here, "0"]);
    }

    /// Sockets of all families, and connections to other programs' sockets.
    fn sockets(&mut self, scene: &Scene) {
        let families = [
            ("unix", libc::AF_UNIX),
            ("ipv4", libc::AF_INET),
            ("ipv6", libc::AF_INET6),
            ("netlink", libc::AF_NETLINK),
            ("packet", libc::AF_PACKET),
            ("vsock", libc::AF_VSOCK),
            ("alg", libc::AF_ALG),
            ("bluetooth", libc::AF_BLUETOOTH),
            ("xdp", libc::AF_XDP),
        ];
        let kinds = [
            ("stream", libc::SOCK_STREAM),
            ("datagram", libc::SOCK_DGRAM),
            ("raw", libc::SOCK_RAW),
            ("seqpacket", libc::SOCK_SEQPACKET),
        ];
        for (family, number) in families {
            for (kind, of) in kinds {
                let name = format!("socket {family}/{kind}");
                self.opened(&name, libc::SYS_socket, &[&number.to_string(), &of.to_string(), "0"]);
            }
        }
        for (kind, of) in [("datagram", libc::SOCK_DGRAM), ("raw", libc::SOCK_RAW)] {
            let arguments = ["1", &of.to_string(), "0", "b:0000000000000000"];
            self.add(&format!("pair unix/{kind}"), libc::SYS_socketpair, &arguments);
        }
        let mut unix = vec![1, 0];
        unix.extend(scene.path("home/socket").to_str().unwrap().bytes().chain([0]));
        let port = scene.tcp.local_addr().unwrap().port().to_be_bytes();
        let tcp = [&[2, 0][..], &port, &[127, 0, 0, 1], &[0; 8]].concat();
        for (name, family, address) in [("unix socket", "1", unix), ("TCP port", "2", tcp)] {
            let bytes = address.iter().fold(String::from("b:"), |all, b| all + &format!("{b:02x}"));
            let len = address.len().to_string();
            self.add("-", libc::SYS_socket, &[family, "1", "0"]);
            // The number of the socket is not known here; an error as a number is none.
            self.add(
                &format!("connect to another {name}"),
                libc::SYS_connect,
                &["r", &bytes, &len],
            );
        }
        for (name, call) in [("bind", libc::SYS_bind), ("listen", libc::SYS_listen)] {
            self.add(name, call, &["-1", "0", "0"]);
        }
        self.add("accept", libc::SYS_accept4, &["-1", "0", "0", "0"]);
    }

    /// Calls with arguments that do nothing where they are not refused.
    fn others(&mut self, scene: &Scene) {
        let pid = scene.other.id().to_string();
        let pid = pid.as_str();
        let all = [
            ("signal", libc::SYS_kill, vec![pid, "0"]),
            ("signal", libc::SYS_kill, vec!["0", "0"]),
            ("signal", libc::SYS_tkill, vec![pid, "0"]),
            ("signal", libc::SYS_tgkill, vec![pid, pid, "0"]),
            ("signal", libc::SYS_pidfd_send_signal, vec!["-1", "0", "0", "0"]),
            ("signal", libc::SYS_rt_sigqueueinfo, vec![pid, "0", "0"]),
            ("signal", libc::SYS_fcntl, vec!["0", "8", pid]),
            ("watch files", libc::SYS_inotify_init1, vec!["0"]),
            ("limit another process", libc::SYS_prlimit64, vec![pid, "0", "0", "0"]),
            ("schedule another process", libc::SYS_setpriority, vec!["0", pid, "0"]),
            ("trace", libc::SYS_ptrace, vec!["16902", pid, "0", "0"]),
            ("read memory", libc::SYS_process_vm_readv, vec![pid, "0", "0", "0", "0", "0"]),
            ("write memory", libc::SYS_process_vm_writev, vec![pid, "0", "0", "0", "0", "0"]),
            ("take a descriptor", libc::SYS_pidfd_getfd, vec!["-1", "0", "0"]),
            ("start", libc::SYS_execve, vec!["0", "0", "0"]),
            ("start", libc::SYS_execveat, vec!["-1", "0", "0", "0", "0"]),
            ("shared memory", libc::SYS_shmget, vec!["0", "4096", "384"]),
            ("shared memory", libc::SYS_shmat, vec!["-1", "0", "0"]),
            ("shared memory", libc::SYS_shmctl, vec!["-1", "0", "0"]),
            ("queues", libc::SYS_msgget, vec!["0", "384"]),
            ("queues", libc::SYS_msgsnd, vec!["-1", "0", "0", "0"]),
            ("queues", libc::SYS_mq_open, vec!["s:taken", "66", "384", "0"]),
            ("queues", libc::SYS_mq_unlink, vec!["s:taken"]),
            ("semaphores", libc::SYS_semget, vec!["0", "1", "384"]),
            ("semaphores", libc::SYS_semop, vec!["-1", "0", "0"]),
            ("mount", libc::SYS_mount, vec!["0", "0", "0", "0", "0"]),
            ("mount", libc::SYS_umount2, vec!["0", "0"]),
            ("mount", libc::SYS_fsopen, vec!["s:none", "0"]),
            ("mount", libc::SYS_open_tree, vec!["-1", "0", "0"]),
            ("mount", 467, vec!["-1", "0", "0", "0", "0"]),
            ("namespaces", libc::SYS_unshare, vec!["0"]),
            ("namespaces", libc::SYS_setns, vec!["-1", "0"]),
            ("root directory", libc::SYS_chroot, vec!["0"]),
            ("keys", libc::SYS_keyctl, vec!["-1", "0", "0", "0", "0"]),
            ("keys", libc::SYS_add_key, vec!["0", "0", "0", "0", "0"]),
            ("programs in the kernel", libc::SYS_bpf, vec!["-1", "0", "0"]),
            ("programs in the kernel", libc::SYS_init_module, vec!["0", "0", "0"]),
            ("rings", libc::SYS_io_uring_setup, vec!["0", "0"]),
            ("events", libc::SYS_perf_event_open, vec!["0", "-1", "-1", "-1", "0"]),
            ("faults", libc::SYS_userfaultfd, vec!["-1"]),
            ("clock", libc::SYS_clock_settime, vec!["-1", "0"]),
            ("host name", libc::SYS_sethostname, vec!["0", "-1"]),
            ("restart", libc::SYS_reboot, vec!["0", "0", "0", "0"]),
            ("swap", libc::SYS_swapon, vec!["0", "0"]),
            ("file by its handle", libc::SYS_open_by_handle_at, vec!["-1", "0", "0"]),
            ("type into the terminal", libc::SYS_ioctl, vec!["-1", "21522", "0"]),
            ("flags of files", libc::SYS_ioctl, vec!["-1", "1074292226", "0"]),
            ("flags of files", libc::SYS_ioctl, vec!["-1", "1075599392", "0"]),
            ("halt a file system", libc::SYS_ioctl, vec!["-1", "3221510263", "0"]),
        ];
        for (name, call, arguments) in all {
            self.add(name, call, &arguments);
        }
    }
}

/// All that is tried.
fn calls(scene: &Scene) -> Calls {
    let mut calls = Calls(String::new());
    PATHS.iter().for_each(|path| calls.on(scene, path));
    calls.sockets(scene);
    calls.others(scene);
    calls
}

/// Whether the sandbox has let a call through: it succeeded, or failed for another reason than
/// rights.
fn succeeded(name: &str, result: i64) -> bool {
    if name.starts_with("connect ") {
        // There may be no socket to connect.
        return result >= 0;
    }
    ![libc::EPERM, libc::EACCES, libc::EXDEV].map(|errno| -i64::from(errno)).contains(&result)
}

/// What succeeds in a verb, as words of the table; `None` where this system has no such sandbox.
fn of(verb: &[&str], scene: &Scene) -> Option<String> {
    let script = scene.dir.file("calls", calls(scene).0.as_bytes());
    let folder = scene.dir.path().to_str().unwrap();
    let words: Vec<_> = verb.iter().map(|word| word.replace("DIR", folder)).collect();
    let done = run(Command::new(beside("taken")).arg(&script).arg(diskferry()).args(words));
    if done.status.code() == Some(77) {
        return None;
    }
    assert!(done.status.success(), "{verb:?}: {done:?}");
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut tried = 0;
    for line in done.stdout.lines() {
        let (name, result) = line.split_once('\t').unwrap();
        let result: i64 = result.parse().unwrap();
        tried += usize::from(name != "-");
        let place = PATHS.iter().find(|path| name.ends_with(&format!(" {path}")));
        // What is not there is not found: neither refused nor done.
        if name == "-" || result == -i64::from(libc::ENOENT) && place.is_some() {
            continue;
        }
        if succeeded(name, result) {
            let what = place.map_or(name, |path| name.strip_suffix(path).unwrap().trim_end());
            let on = found.entry(what.to_owned()).or_default();
            on.extend(place.map(|path| format!("`{path}`")));
        }
    }
    assert!(tried > 200, "{tried}");
    let cell = found.into_iter().map(|(what, mut on)| {
        on.dedup();
        if on.is_empty() { what } else { format!("{what} {}", on.join(", ")) }
    });
    Some(cell.collect::<Vec<_>>().join("; "))
}

/// The rows of the table, each with a command line for it.
fn rows(server: &str) -> Vec<(&'static str, Vec<String>)> {
    let verbs: [(&str, &str); 12] = [
        (
            "`serve` of a file",
            "serve --sandbox=require -U DIR/run/socket --log DIR/run/log -P DIR/run/pid file DIR/in/disk",
        ),
        ("`serve -r` of a file", "serve --sandbox=require -r -U DIR/run/socket file DIR/in/disk"),
        (
            "`serve` of another server on a Unix socket",
            "serve --sandbox=require -U DIR/run/socket SERVER",
        ),
        (
            "`convert` into a new file",
            "convert --sandbox=require -f raw -O qcow2 DIR/in/disk DIR/out/new",
        ),
        ("`copy` into a file that is there", "copy --sandbox=require DIR/in/disk DIR/out/there"),
        (
            "`dd` into a new file",
            "dd --sandbox=require -f raw -O raw if=DIR/in/disk of=DIR/out/new",
        ),
        ("`info`", "info --sandbox=require -f raw DIR/in/disk"),
        ("`map`", "map --sandbox=require -f raw DIR/in/disk"),
        ("`check`", "check --sandbox=require -f qcow2 DIR/in/disk"),
        ("`measure`", "measure --sandbox=require -O qcow2 -f raw DIR/in/disk"),
        ("`compare`", "compare --sandbox=require DIR/in/disk DIR/in/disk"),
        ("`inspect --safe`", "inspect --safe --confined --sandbox=require DIR/in/disk"),
    ];
    let words = |line: &str| line.split(' ').map(|word| word.replace("SERVER", server)).collect();
    verbs.into_iter().map(|(row, line)| (row, words(line))).collect()
}

#[test]
fn what_a_verb_can_still_do_once_it_was_broken_into_is_what_the_page_says() {
    let server = Serve::memory("1M").start();
    let page = std::fs::read_to_string(repository().join("docs/security.md")).unwrap();
    let (mut expected, mut of_page) = (Vec::new(), Vec::new());
    for (row, words) in rows(&server.uri("")) {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let Some(cell) = of(&words, &Scene::new()) else {
            return skip_environment(
                "no program is taken over here, or the kernel has no sandbox as it is since Linux 6.12",
            );
        };
        expected.push(format!("| {row} | {cell} |"));
        of_page.extend(page.lines().find(|line| line.starts_with(&format!("| {row} | "))));
    }
    assert!(page.contains(HEAD));
    assert!(expected == of_page, "docs/security.md should have\n{HEAD}\n{}", expected.join("\n"));
}
