//! nbdkit's command lines, given to `diskferry serve` as they are: the same lines run by both with
//! the same result, every option, parameters of filters, and what is refused with which hint.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use blackbox::haggle::Haggler;
use blackbox::launch::Serve;
use blackbox::peers::{diskferry, find, peer, skip, skip_environment};
use blackbox::run::{Job, Outcome, ours, run};
use blackbox::session::Mode;
use blackbox::socket::Socket;
use blackbox::temp::TempDir;
use blackbox::{GUARD, MIB};
use rustix::process::{Pid, Signal};

/// A shell line in which `SERVER` is the server and `NBDSH` is nbdsh.
fn line(text: &str, server: &str, directory: &Path) -> Outcome {
    let nbdsh = format!("{} -m nbd", peer("nbdsh").unwrap().display());
    let text = text.replace("SERVER", server).replace("NBDSH", &nbdsh);
    let mut command = Command::new("sh");
    run(command.args(["-c", &text]).current_dir(directory))
}

fn our_line(text: &str) -> Outcome {
    let temp = TempDir::new();
    line(text, &format!("{} serve", diskferry().display()), temp.path())
}

fn has_peers() -> bool {
    ["nbdkit", "nbdsh", "nbdinfo", "nbdcopy", "qemu-img"].iter().all(|name| peer(name).is_some())
}

/// The filters that this program has.
fn filters() -> Vec<String> {
    let outcome = run(&mut ours(["serve", "--dump-config"]));
    let lines = outcome.succeeded().lines();
    let line = lines.filter_map(|l| l.strip_prefix("filters=")).next().unwrap();
    line.split(',').map(str::to_owned).collect()
}

/// A TCP port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Lines as people paste them; what both print and how both exit must be the same.
const LINES: &[&str] = &[
    "SERVER -U - memory 1M --run 'nbdinfo --size $uri'",
    "SERVER -U - memory size=1M --run 'nbdinfo --size $nbd'",
    "SERVER -f -U - memory 1M --run 'qemu-img info $uri | grep -c \"1 MiB\"'",
    "SERVER --foreground -U - memory 3M --run 'test -S $unixsocket && nbdinfo --size $uri'",
    "SERVER --no-fork --unix - memory 10M --run 'nbdinfo --size \"$uri\"'",
    "SERVER -v -U - memory 1M --run 'nbdinfo --size \"$uri\"'",
    "SERVER -U - -r memory 1M --run 'nbdinfo --is read-only $uri; echo $?'",
    "SERVER -U - --readonly memory 1M --run 'nbdinfo --can write $uri; echo $?'",
    "SERVER -U - --read-only memory 1M --run 'NBDSH -u $uri -c \"print(h.is_read_only())\"'",
    "SERVER -U - memory 1M -r --run 'nbdinfo --is read-only $uri; echo $?'",
    "SERVER -U - pattern 1M --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - pattern size=12345 --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - ones 1M byte=0x41 --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - ones byte=65 1M --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - data '@0x1fe 0x55 0xaa' --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - data ' @32768 1 ' size=64K --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - data size=64K ' @32768 1 ' --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - data raw=hello=world size=512 --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - data '\"a=b\"*4' size=512 --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - null 1G --run 'nbdinfo --size $uri; nbdinfo --can zero $uri; echo $?'",
    "SERVER -U - full 1M --run 'NBDSH -u $uri -c \"
try:
    h.pwrite(bytes(512), 0)
except nbd.Error as e:
    print(e.errno)
\"'",
    "SERVER -U - zero --run 'nbdinfo --size $uri'",
    "printf '%1000s' x > disk; SERVER -U - file disk --run 'nbdcopy $uri - | sha256sum'",
    "printf '%1000s' x > disk; SERVER -U - file file=./disk --run 'nbdcopy $uri - | sha256sum'",
    "printf '%512s' x > a=b; SERVER -U - file ./a=b --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - random 1M seed=1 --run 'nbdcopy $uri $uri && echo same'",
    "SERVER -U - sparse-random 64M seed=1 --run 'nbdcopy $uri $uri && echo same'",
    "SERVER -U - -e foo memory 1M --run 'echo $exportname; nbdinfo --size $uri'",
    "SERVER -U - --export=foo memory 1M --run 'echo $exportname; nbdinfo --size $uri'",
    "SERVER -U - --export-name foo memory 1M --run 'echo $exportname; nbdinfo --size $uri'",
    "SERVER -U - --exportname 'a b' memory 1M --run 'echo $exportname; nbdinfo --size \"$uri\"'",
    "SERVER -p PORT -i 127.0.0.1 memory 1M --run 'echo $port; nbdinfo --size nbd://127.0.0.1:$port'",
    "SERVER --port=PORT --ipaddr=127.0.0.1 memory 1M --run 'nbdinfo --size nbd://127.0.0.1:PORT'",
    "SERVER --port PORT --ip-addr 127.0.0.1 memory 1M --run 'nbdinfo --size nbd://127.0.0.1:PORT'",
    "SERVER -4 -p PORT memory 1M --run 'nbdinfo --size nbd://127.0.0.1:PORT'",
    "SERVER -6 -4 -p PORT memory 1M --run 'nbdinfo --size nbd://127.0.0.1:PORT'",
    "SERVER --ipv4-only -i localhost -p PORT memory 1M --run 'nbdinfo --size nbd://127.0.0.1:PORT'",
    "SERVER -n -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_protocol())\"'",
    "SERVER --newstyle -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_protocol())\"'",
    "SERVER -o --new-style -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_protocol())\"'",
    "SERVER -o -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_protocol())\"'",
    "SERVER --oldstyle -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_size())\"'",
    "SERVER --old-style -U - pattern 1M --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -o -U - pattern 1M --run 'qemu-img convert -O raw $uri out; sha256sum out'",
    "SERVER --no-sr -U - memory 1M --run \
     'NBDSH -u $uri -c \"print(h.get_structured_replies_negotiated())\"'",
    "SERVER --mask-handshake=0 -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_protocol())\"'",
    "SERVER --mask-handshake=1 -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_protocol())\"'",
    "SERVER --mask-handshake=0x2 -U - memory 1M --run 'NBDSH -u $uri -c \"print(h.get_size())\"'",
    "SERVER -t 1 -U - pattern 8M --run 'nbdcopy $uri - | sha256sum'",
    "SERVER --threads=4 -U - pattern 8M --run 'nbdcopy $uri - | sha256sum'",
    "SERVER --exit-with-parent -U - memory 1M --run 'nbdinfo --size $uri'",
    "SERVER -P pid -U - memory 1M --run 'nbdinfo --size $uri; test -s pid; echo $?'",
    "SERVER --pid-file=pid -U - memory 1M --run 'nbdinfo --size $uri; test -s pid; echo $?'",
    "SERVER --log=stderr -U - memory 1M --run 'nbdinfo --size $uri'",
    "SERVER --log=null -U - memory 1M --run 'nbdinfo --size $uri'",
    "SERVER --tls=off -U - memory 1M --run 'nbdinfo --size $uri'",
    "SERVER -D nbdkit.backend.datapath=0 -U - memory 1M --run 'nbdinfo --size $uri'",
    "SERVER -U - memory 1M --run 'exit 7'",
    "SERVER -U - memory 1M --run 'kill -TERM $$'",
    "SERVER -U - memory 1M --run 'echo \"$uri\" | grep -c socket=$unixsocket; echo \"$port\"'",
    "SERVER -U - --filter=delay memory 1M rdelay=1ms wdelay=1ms --run 'nbdinfo --size $uri'",
    "SERVER -U - --filter=delay memory rdelay=1ms size=1M --run 'nbdinfo --size $uri'",
    "SERVER -U - --filter delay pattern delay-read=1ms 64K --run 'nbdcopy $uri - | sha256sum'",
    "SERVER -U - --filter=nozero memory 1M --run 'nbdinfo --can zero $uri; echo $?'",
    "SERVER -U - --filter=nozero memory 1M zeromode=emulate --run \
     'nbdinfo --can zero $uri; echo $?; nbdinfo --can fast-zero $uri; echo $?'",
    "SERVER -U - --filter=nozero memory 1M zeromode=plugin fastzeromode=slow --run 'NBDSH -u $uri -c \"
try:
    h.zero(65536, 0, nbd.CMD_FLAG_FAST_ZERO)
except nbd.Error as e:
    print(e.errno)
\"'",
    "SERVER -U - --filter=nozero --filter=delay memory 1M zeromode=emulate wdelay=1ms --run \
     'nbdinfo --can fast-zero $uri; echo $?'",
    "SERVER -U - --filter=log --filter=nozero --filter=stats --filter=delay memory 1M \
     logfile=log statsfile=stats delay-write=20ms zeromode=plugin --run \
     'nbdinfo --size $uri; NBDSH -u $uri -c \"h.pwrite(bytes(512), 0)\"'; \
     test -s log && test -s stats && echo written",
    "SERVER -U - --filter=error --filter=delay memory 1M error-rate=100% rdelay=1ms --run 'NBDSH -u $uri -c \"
try:
    h.pread(512, 0)
except nbd.Error as e:
    print(e.errno)
\"'",
    "NBDSH -c 'h.connect_command([*\"SERVER -s memory 1M\".split()]); print(h.get_size())'",
    "NBDSH -c 'h.connect_command([*\"SERVER --single -r memory 1M\".split()]); print(h.is_read_only())'",
    "NBDSH -c 'h.connect_command([*\"SERVER --stdin -o memory 1M\".split()]); print(h.get_protocol())'",
    "NBDSH -c 'h.connect_command([*\"SERVER -s --exit-with-parent pattern 1M\".split()]); print(h.pread(8, 8000))'",
    "nbdinfo --size [ SERVER memory 1M ]",
    "nbdcopy [ SERVER pattern 1M ] - | sha256sum",
];

#[test]
fn lines_for_nbdkit_do_the_same_here() {
    if !has_peers() {
        return;
    }
    let nbdkit = peer("nbdkit").unwrap();
    let ours = format!("{} serve", diskferry().display());
    let filters = filters();
    let mut wrong = Vec::new();
    for text in LINES {
        let named = text.split("--filter=").skip(1).filter_map(|rest| rest.split(' ').next());
        if let Some(missing) = named.into_iter().find(|f| !filters.iter().any(|known| known == f)) {
            skip_environment(&format!("there is no filter `{missing}` yet: {text}"));
            continue;
        }
        let results = [nbdkit.to_str().unwrap(), &ours].map(|server| {
            let temp = TempDir::new();
            let port = free_port().to_string();
            let outcome = line(&text.replace("PORT", &port), server, temp.path());
            let printed = outcome.stdout.replace(&port, "PORT");
            (outcome, printed)
        });
        let [(theirs, they_print), (mine, we_print)] = &results;
        // Not every nbdkit has every plugin, filter and option.
        let lacks = ["cannot open plugin", "cannot open filter", "unrecognized option"];
        if lacks.iter().any(|lack| theirs.stderr.contains(lack)) {
            skip_environment(&format!("this nbdkit cannot: {text}"));
            mine.succeeded();
        } else if we_print != they_print || mine.status.code() != theirs.status.code() {
            wrong.push(format!("{text}\ntheirs: {theirs:#?}\nours: {mine:#?}"));
        }
        assert!(!mine.stderr.contains("panicked"), "{mine:#?}");
    }
    assert!(wrong.is_empty(), "{} lines differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Command lines that make no sense, and what has to be said of each.
#[test]
fn what_is_misspelt_is_refused_with_the_nearest_right_word() {
    for (words, parts) in [
        (&["memory", "sise=1M"][..], &["`sise`", "`size`"][..]),
        (&["memory:1M", "sise=1M"], &["`sise`", "`size`"]),
        (&["--filter=delay", "memory", "1M", "delay-raed=1"], &["`delay-raed`", "`delay-read`"]),
        (&["--filter=delay", "memory", "1M", "delay_read=1"], &["`delay_read`", "`delay-read`"]),
        (&["--filter=delay", "memory", "1M", "sise=1"], &["`sise`", "`size`"]),
        (&["memory", "1M", "delay-read=1"], &["`delay-read`", "filter `delay`", "--filter=delay"]),
        (&["--filter=nozero", "memory", "1M", "rdelay=1"], &["filter `delay`", "--filter=delay"]),
        (&["./disk.raw", "zeromode=none"], &["--filter=nozero"]),
        (&["memry", "1M"], &["`memry`", "`memory`"]),
        (&["memry", "size=1M"], &["`memry`", "`memory`"]),
        (&["--filter=dealy", "memory", "1M"], &["`dealy`", "`delay`"]),
        (&["--filter=delay?delay-raed=1", "memory", "1M"], &["delay", "`delay-read`"]),
        (&["--filter=delay?rdelay=1", "memory", "1M", "rdelay=2"], &["delay", "`rdelay`", "twice"]),
        (&["memory", "1M", "2M"], &["memory", "`size`", "twice"]),
        (&["memory", "1M", "size=2M"], &["memory", "`size`", "twice"]),
        (&["memory", "@./no/such/file"], &["no/such/file", "No such file"]),
        (&["--tls=require", "memory", "1M"], &["--tls=require"]),
        (&["--log=here", "memory", "1M"], &["--log here"]),
        (&["--mask-handshake=x", "memory", "1M"], &["mask-handshake"]),
        (&["--timeout=x", "memory", "1M"], &["timeout"]),
        (&["--timeout=0", "memory", "1M"], &["timeout"]),
        (&["-s", "-p", "0", "memory", "1M"], &["--single"]),
        (&["-s", "--run", "true", "memory", "1M"], &["--single"]),
        (&["-u", "no-such-user", "memory", "1M"], &["no-such-user", "/etc/passwd"]),
        (&["-g", "no-such-group", "memory", "1M"], &["no-such-group", "/etc/group"]),
        (&["--exit-with-parent", "--daemon", "memory", "1M"], &["--exit-with-parent"]),
    ] {
        let outcome = run(ours(["serve"]).args(words));
        let said = outcome.failed();
        for part in parts {
            assert!(said.contains(part), "{words:?}: `{part}` should be in {said:?}");
        }
    }
}

#[test]
fn a_filter_gets_what_it_knows_and_the_device_the_rest_in_any_order() {
    if !has_peers() {
        return;
    }
    // The size of `ones` and its byte, with a filter's parameters between and around them.
    for words in [
        "--filter=delay ones 64K byte=65 rdelay=1us",
        "--filter=delay ones rdelay=1us byte=65 64K",
        "--filter=delay ones byte=65 rdelay=1us size=64K",
        "--filter='delay?rdelay=1us' ones:64K byte=65",
        "--filter='delay?rdelay=1us&wdelay=1us' --filter=delay 'ones:64K?byte=65'",
    ] {
        let text = format!("SERVER {words} --run 'nbdcopy $uri - | tr -d A | wc -c'");
        let outcome = our_line(&text);
        assert_eq!(outcome.succeeded().trim(), "0", "{words}");
    }
}

#[test]
fn filters_stand_before_every_export() {
    if !has_peers() {
        return;
    }
    let text = "SERVER -U - --filter=nozero --export a=memory:1M --export b=memory:1M --run \
                'for e in a b; do nbdinfo --can zero nbd+unix:///$e?socket=$unixsocket; \
                 echo $?; done'";
    assert_eq!(our_line(text).succeeded(), "2\n2\n");
}

#[test]
fn parameters_are_read_from_a_file() {
    if !has_peers() {
        return;
    }
    let text = "printf '# a disk\\n\\nsize=64K\\nbyte=65\\nrdelay=1us\\n' > words; \
                SERVER --filter=delay ones @./words --run 'nbdcopy $uri - | tr -d A | wc -c'";
    assert_eq!(our_line(text).succeeded().trim(), "0");
}

#[test]
fn one_client_on_two_pipes_is_served_to_the_last_byte() {
    // Two pipes cannot be one socket; a large read does not fit into them at once.
    let mut command = ours(["serve", "--single", "pattern", "8M"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the server");
    let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut greeting = [0; 18];
    from.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    let mut ask = vec![0, 0, 0, 3];
    // EXPORT_NAME with the empty name, a read of 8 MiB, the end.
    ask.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
    let request = |kind: u8, length: u32| {
        let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, kind];
        bytes.extend([7; 8]);
        bytes.extend([0; 8]);
        bytes.extend(length.to_be_bytes());
        bytes
    };
    ask.extend(request(0, 8 << 20));
    ask.extend(request(2, 0));
    to.write_all(&ask).unwrap();
    drop(to);
    let mut all = Vec::new();
    from.read_to_end(&mut all).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(all.len(), 10 + 16 + (8 << 20));
    assert_eq!(all[10..14], [0x67, 0x44, 0x66, 0x98]);
    assert_eq!(all[all.len() - 8..], (8u64 * MIB - 8).to_be_bytes());
}

/// A server on one end of a socket pair, as inetd would start it.
fn single(words: &[&str]) -> (Job, Socket) {
    let (here, there) = UnixStream::pair().unwrap();
    // The job collects standard output, so the shell moves the socket there.
    let mut shell = Command::new("sh");
    let quoted: Vec<String> = words.iter().map(|w| format!("'{w}'")).collect();
    let script = format!("exec {} serve -s {} 1>&0", diskferry().display(), quoted.join(" "));
    shell.args(["-c", &script]).stdin(Stdio::from(OwnedFd::from(there)));
    let socket = Socket::Unix(here);
    socket.set_timeout(GUARD);
    (Job::start(&mut shell), socket)
}

#[test]
fn one_client_on_one_socket_is_served_and_then_the_server_ends() {
    let (job, socket) = single(&["memory", "1M"]);
    let mut session = Haggler::new(socket).go("");
    session.assert_alive();
    session.disconnect();
    job.wait().succeeded();
}

#[test]
fn the_only_client_that_hangs_up_ends_the_server() {
    let (job, mut socket) = single(&["memory", "1M"]);
    socket.receive(18, "the greeting");
    drop(socket);
    job.wait().succeeded();
}

#[test]
fn a_signal_ends_a_server_of_one_client() {
    let (job, mut socket) = single(&["memory", "1M"]);
    socket.receive(18, "the greeting");
    job.signal(Signal::TERM);
    socket.drain();
    drop(socket);
    job.wait().succeeded();
}

#[test]
fn an_oldstyle_client_gets_its_export_without_asking() {
    let server = Serve::memory("1M").option("-o").start();
    let mut socket = server.connect();
    let greeting = socket.receive(152, "the oldstyle greeting");
    assert_eq!(&greeting[..8], b"NBDMAGIC");
    assert_eq!(greeting[8..16], 0x0000_4202_8186_1253_u64.to_be_bytes());
    assert_eq!(greeting[16..24], MIB.to_be_bytes());
    assert_eq!(greeting[24..26], [0, 0], "no handshake flags");
    assert!(greeting[28..].iter().all(|byte| *byte == 0));
}

#[test]
fn an_oldstyle_client_waits_for_a_slow_device() {
    // The filter lets it in later; until then nothing may be said.
    let server = Serve::memory("1M").option("-o").option("--filter=delay?delay-open=300ms").start();
    let begun = Instant::now();
    let mut socket = server.connect();
    socket.receive(152, "the oldstyle greeting");
    assert!(begun.elapsed() >= Duration::from_millis(300));
}

#[test]
fn our_client_reads_from_our_oldstyle_server() {
    let server = Serve::device(["random", "8M", "seed=5"]).option("-o").start();
    run(&mut ours(["copy", &server.uri(""), "random:8M?seed=5"])).succeeded();
}

#[test]
fn no_sr_and_no_mc_leave_only_what_older_servers_have() {
    let Some(nbdinfo) = peer("nbdinfo") else { return };
    let told = |option: &str| {
        let run_line = format!("{} \"$uri\"", nbdinfo.display());
        let outcome = run(&mut ours(["serve", option, "memory", "1M", "--run", &run_line]));
        outcome.succeeded().to_owned()
    };
    for option in ["--no-sr", "--no-structured-replies"] {
        let text = told(option);
        assert!(text.contains("using simple packets"), "{text}");
    }
    for option in ["--no-mc", "--no-meta-contexts"] {
        let text = told(option);
        assert!(!text.contains("using simple packets") && !text.contains("base:allocation"));
    }
}

#[test]
fn no_sr_refuses_extended_headers_too() {
    let server = Serve::memory("1M").option("--no-sr").start();
    let mut haggler = Haggler::new(server.connect());
    for option in [8, 11] {
        let replies = haggler.ask(option, &[]);
        assert!(replies.iter().all(|reply| reply.is_error()), "{option}: {replies:?}");
    }
}

#[test]
fn only_one_family_of_addresses_is_listened_on() {
    let listens = |option: &str| {
        let port = free_port().to_string();
        let shell = format!(
            "for h in 127.0.0.1 '[::1]'; do {} info nbd://$h:{port} >/dev/null 2>&1 \
             && echo $h; done; true",
            diskferry().display()
        );
        let outcome =
            run(&mut ours(["serve", option, "-p", &port, "memory", "1M", "--run", &shell]));
        outcome.succeeded().to_owned()
    };
    assert_eq!(listens("-4"), "127.0.0.1\n");
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skip_environment("no IPv6 here");
    }
    assert_eq!(listens("-6"), "[::1]\n");
    assert_eq!(listens("-v"), "127.0.0.1\n[::1]\n");
}

#[test]
fn the_uri_of_an_ipv6_server_leads_to_it() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skip_environment("no IPv6 here");
    }
    let shell = format!("{} info \"$uri\"", diskferry().display());
    let words = ["serve", "-6", "-p", "0", "memory", "1M", "--run", &shell];
    run(&mut ours(words)).succeeded();
}

#[test]
fn errors_go_where_log_says() {
    let temp = TempDir::new();
    let log = temp.join("log");
    fs::write(&log, "before\n").unwrap();
    for (option, in_file) in
        [(format!("--log={}", log.display()), true), ("--log=null".into(), false)]
    {
        let socket = temp.join("s");
        let mut command = ours(["serve", "-v", option.as_str(), "-U"]);
        command.arg(&socket).args(["memory", "1M"]);
        let job = Job::start(&mut command);
        wait_for("the socket", || UnixStream::connect(&socket).is_ok());
        let mut client = Socket::unix(&socket).unwrap();
        client.receive(18, "the greeting");
        client.send(&[0xff; 4]);
        client.drain();
        job.signal(Signal::TERM);
        let outcome = job.wait();
        outcome.succeeded();
        assert_eq!(outcome.stderr, "", "{option}");
        let text = fs::read_to_string(&log).unwrap();
        assert!(text.starts_with("before\n"), "the log is appended to: {text}");
        assert_eq!(text.contains("diskferry: closing a connection"), in_file, "{option}: {text}");
        fs::write(&log, "before\n").unwrap();
    }
}

#[test]
fn a_debug_flag_is_named_as_ignored() {
    let outcome = run(&mut ours(["serve", "-D", "x.y=1", "memory", "1M", "--run", "true"]));
    outcome.succeeded();
    assert!(outcome.stderr.contains("-D x.y=1"), "{outcome:?}");
}

#[test]
fn sigusr1_harms_no_server() {
    let mut server = Serve::memory("1M").start();
    let mut session = server.session(Mode::Simple, "");
    for _ in 0..3 {
        server.signal(Signal::USR1);
        session.assert_alive();
    }
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < GUARD, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a server whose parent is a shell that ends when its standard input does; the server's
/// process id once it listens.
fn child_of_a_shell(temp: &TempDir, options: &str) -> (std::process::Child, Pid) {
    let pid = temp.join("pid");
    let script = format!(
        "{} serve --exit-with-parent {options} -U {} -P {} memory 1M & read line",
        diskferry().display(),
        temp.join("s").display(),
        pid.display(),
    );
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    wait_for("the pid file", || fs::read_to_string(&pid).is_ok_and(|t| t.ends_with('\n')));
    let id = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    (shell, Pid::from_raw(id).unwrap())
}

/// Whether it runs; a process that has ended and whose status nobody took does not.
fn runs(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|s| !s.contains(") Z "))
}

#[test]
fn a_server_ends_with_its_parent_if_it_was_told_to() {
    let mut options = vec![""];
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        // A change of user undoes the wish if it comes too late.
        options.push("-u 65534 -g 65534");
    }
    for options in options {
        let temp = TempDir::new();
        fs::set_permissions(temp.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .unwrap();
        let (mut shell, server) = child_of_a_shell(&temp, options);
        assert!(runs(server));
        drop(shell.stdin.take());
        shell.wait().unwrap();
        wait_for("the server's end", || !runs(server));
    }
}

/// A line of /proc/PID/status of every thread, each once.
fn status(pid: Pid, key: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
    let read = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        text.lines().find_map(|l| l.strip_prefix(key).map(|v| v.trim().to_owned()))
    };
    let mut values: Vec<String> = tasks.flatten().filter_map(read).collect();
    values.sort();
    values.dedup();
    values
}

#[test]
fn every_thread_becomes_the_user_and_group_that_were_named() {
    if !rustix::process::geteuid().is_root() {
        return skip_environment("only root can become somebody else");
    }
    let server = Serve::memory("1M").option("-u").option("12345").option("-g").option("23456");
    let server = server.start();
    server.session(Mode::Simple, "").assert_alive();
    assert_eq!(status(server.pid(), "Uid:"), ["12345\t12345\t12345\t12345"]);
    assert_eq!(status(server.pid(), "Gid:"), ["23456\t23456\t23456\t23456"]);
    assert_eq!(status(server.pid(), "Groups:"), ["23456"]);
    assert_eq!(status(server.pid(), "CapEff:"), ["0000000000000000"]);
}

#[test]
fn a_user_alone_loses_the_other_groups() {
    if !rustix::process::geteuid().is_root() {
        return skip_environment("only root can become somebody else");
    }
    let server = Serve::memory("1M").option("--user=nobody").start();
    server.session(Mode::Simple, "").assert_alive();
    assert_eq!(status(server.pid(), "Groups:"), [""]);
}

#[test]
fn the_private_socket_belongs_to_who_the_server_became_and_goes_with_it() {
    if !rustix::process::geteuid().is_root() {
        return skip_environment("only root can become somebody else");
    }
    let words = ["serve", "-u", "65534", "-g", "65534", "memory", "1M", "--run"];
    let outcome = run(ours(words).arg("id -u; stat -c %u $unixsocket; echo $unixsocket"));
    let lines: Vec<&str> = outcome.succeeded().lines().collect();
    assert_eq!(lines[..2], ["65534", "65534"]);
    assert!(!Path::new(lines[2]).parent().unwrap().exists(), "the directory was left behind");
}

#[test]
fn who_may_not_become_somebody_else_is_told_so() {
    if !rustix::process::geteuid().is_root() {
        return skip_environment("only root can start as somebody else");
    }
    // The copy is where that user may run it.
    let temp = TempDir::new();
    fs::set_permissions(temp.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let copy: PathBuf = temp.join("diskferry");
    fs::copy(diskferry(), &copy).unwrap();
    let Some(setpriv) = find("setpriv") else { return skip("needs setpriv") };
    let mut command = Command::new(setpriv);
    command.args(["--reuid", "65534", "--clear-groups", "--regid", "65534"]).arg(&copy);
    let outcome = run(command.args(["serve", "-u", "root", "memory", "1M", "--run", "true"]));
    let said = outcome.failed();
    assert!(said.contains("--user root") && said.contains("takes root"), "{said}");
}

#[test]
fn swap_locks_the_program_in_memory() {
    if !rustix::process::geteuid().is_root() {
        return skip_environment("locking memory may take root");
    }
    let server = Serve::memory("1M").option("--swap").start();
    server.session(Mode::Simple, "").assert_alive();
    assert_ne!(status(server.pid(), "VmLck:"), ["0 kB"]);
}

#[test]
fn a_label_is_refused_where_there_is_no_selinux() {
    if Path::new("/sys/fs/selinux/enforce").exists() {
        return skip_environment("SELinux is here");
    }
    let outcome = run(&mut ours(["serve", "--selinux-label=x", "memory", "1M", "--run", "true"]));
    assert!(outcome.failed().contains("without SELinux"));
}

#[test]
fn a_client_that_does_not_haggle_in_time_is_cut_off() {
    let server = Serve::memory("1M").option("--timeout=500ms").start();
    let mut socket = server.connect();
    let begun = Instant::now();
    socket.receive(18, "the greeting");
    socket.drain();
    assert!(begun.elapsed() >= Duration::from_millis(400));
}

#[test]
fn config_and_plugin_are_dumped_as_lines_of_keys_and_values() {
    let dump = |words: &[&str]| -> Vec<(String, String)> {
        let outcome = run(ours(["serve"]).args(words));
        let lines = outcome.succeeded().lines();
        lines.map(|l| l.split_once('=').unwrap()).map(|(k, v)| (k.into(), v.into())).collect()
    };
    let get = |pairs: &[(String, String)], key: &str| {
        pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone())
    };
    let config = dump(&["--dump-config"]);
    assert_eq!(get(&config, "name").as_deref(), Some("diskferry"));
    let version = get(&config, "version").unwrap();
    let (major, minor) = (get(&config, "version_major"), get(&config, "version_minor"));
    assert!(version.starts_with(&format!("{}.{}", major.unwrap(), minor.unwrap())));
    for word in get(&config, "devices").unwrap().split(',') {
        let device = dump(&[word, "--dump-plugin"]);
        assert_eq!(get(&device, "name").as_deref(), Some(word));
    }
    for word in get(&config, "filters").unwrap().split(',') {
        let device = dump(&["--dump-device", "--filter", word, "null"]);
        assert_eq!(get(&device, &format!("{word}_name")).as_deref(), Some(word));
    }
    let memory = dump(&["memory", "--dump-plugin"]);
    for (key, value) in [
        ("magic_config_key", "size"),
        ("thread_model", "parallel"),
        ("has_pread", "1"),
        ("has_pwrite", "1"),
        ("has_zero", "1"),
        ("has_trim", "1"),
        ("has_extents", "1"),
    ] {
        assert_eq!(get(&memory, key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(get(&dump(&["pattern", "--dump-plugin"]), "has_pwrite"), None);
    assert!(run(&mut ours(["serve", "--dump-plugin"])).refused().contains("--dump-plugin"));
    assert!(run(&mut ours(["serve", "memry", "--dump-plugin"])).refused().contains("`memory`"));
}

#[test]
fn looking_at_a_device_opens_nothing_outside() {
    // The example of `file` names a file; asking what the device is must not touch it.
    let outcome = run(&mut ours(["serve", "file", "--dump-plugin"]));
    assert!(!outcome.succeeded().contains("has_pread"));
    let temp = TempDir::new();
    let disk = temp.sparse_file("disk", MIB);
    let outcome = run(ours(["serve", "--dump-plugin", "file"]).arg(&disk));
    assert!(outcome.succeeded().contains("has_pread=1\n"));
}

#[test]
fn help_of_a_device_or_filter_has_its_parameters() {
    for words in [
        &["serve", "--help", "memory"][..],
        &["serve", "memory", "--help"],
        &["serve", "--help", "memory:1G"],
        &["help", "memory"],
    ] {
        let outcome = run(&mut ours(words));
        assert!(outcome.succeeded().contains("size=SIZE"), "{words:?}: {outcome:?}");
    }
    for words in [
        &["serve", "--filter=delay", "--help"][..],
        &["serve", "--filter=delay", "--help", "memory"],
        &["serve", "--help", "--filter", "delay", "memory"],
        &["help", "delay"],
    ] {
        let outcome = run(&mut ours(words));
        assert!(outcome.succeeded().contains("delay-read=TIME"), "{words:?}: {outcome:?}");
    }
    let both = run(&mut ours(["serve", "--filter=delay", "--help", "memory"]));
    assert!(both.succeeded().contains("size=SIZE"));
    assert!(run(&mut ours(["serve", "--help"])).succeeded().contains("--exit-with-parent"));
    assert!(run(&mut ours(["help", "serve"])).succeeded().contains("--exit-with-parent"));
    assert!(run(&mut ours(["help", "memroy"])).refused().contains("`memory`"));
    assert!(run(&mut ours(["serve", "--help", "memroy"])).refused().contains("`memory`"));
}

#[test]
fn versions_and_lists_of_options_are_for_scripts() {
    assert!(run(&mut ours(["serve", "-V"])).succeeded().starts_with("diskferry "));
    let outcome = run(&mut ours(["serve", "memory", "--filter=delay", "--version"]));
    assert!(outcome.succeeded().contains("\nmemory ") && outcome.stdout.contains("\ndelay "));
    run(&mut ours(["serve", "foo", "--version"])).refused();
    let short = run(&mut ours(["serve", "--short-options"]));
    for option in "efginopPrstuUvV46D".chars() {
        assert!(short.succeeded().contains(&format!("-{option}\n")), "-{option}");
    }
    let long = run(&mut ours(["serve", "--long-options"]));
    for option in ["--filter", "--mask-handshake", "--export-name", "--dump-plugin", "--no-mc"] {
        assert!(long.succeeded().contains(&format!("{option}\n")), "{option}");
    }
}

#[test]
fn filters_are_completed_and_have_man_pages_as_devices_have() {
    let temp = TempDir::new();
    run(ours(["man"]).arg(temp.path())).succeeded();
    let page = |name: &str| fs::read_to_string(temp.join(name)).unwrap_or_default();
    assert!(page("diskferry-device-memory.1").contains("EXAMPLE"));
    for filter in filters() {
        assert!(page(&format!("diskferry-filter-{filter}.1")).contains("EXAMPLE"), "{filter}");
        for shell in ["bash", "zsh", "fish"] {
            let script = run(&mut ours(["completions", shell]));
            assert!(script.succeeded().contains(&filter), "{shell}: {filter}");
        }
    }
}

#[test]
fn a_copy_goes_through_filters_on_either_side() {
    let temp = TempDir::new();
    let target = temp.join("disk");
    let mut copy = ours(["copy", "--source-filter", "delay?rdelay=1us", "--target-filter=nozero"]);
    run(copy.args(["--target-filter", "delay?wdelay=1us", "sparse-random:8M?seed=3"]).arg(&target))
        .succeeded();
    run(ours(["copy"]).arg(&target).arg("sparse-random:8M?seed=3")).succeeded();
}

#[test]
fn a_file_that_is_there_keeps_what_a_filtered_copy_does_not_write() {
    let temp = TempDir::new();
    let target = temp.file("disk", &[7; 4096]);
    let copy = |filter: &str| {
        let source = temp.file("source", &[0; 1024]);
        let mut command = ours(["copy", "--target-filter", filter]);
        run(command.arg(&source).arg(&target))
    };
    // The value is wrong, which shows when the filter is opened.
    copy("nozero?zeromode=never").failed();
    assert_eq!(fs::read(&target).unwrap(), [7; 4096]);
    copy("nozero").succeeded();
    let content = fs::read(&target).unwrap();
    assert_eq!((&content[..1024], &content[1024..]), (&[0; 1024][..], &[7; 3072][..]));
}

#[test]
fn a_file_made_for_a_copy_whose_filter_refuses_is_removed() {
    let temp = TempDir::new();
    let target = temp.join("disk");
    let mut command = ours(["copy", "--target-filter=nozero?zeromode=never", "memory:1M"]);
    run(command.arg(&target)).failed();
    assert!(!target.exists());
}

/// The blocks of shell in the page for users of nbdkit, each run as it stands.
#[test]
fn the_examples_of_the_page_for_users_of_nbdkit_work() {
    if !has_peers() {
        return;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/nbdkit.md");
    let text = fs::read_to_string(page).unwrap();
    let blocks: Vec<&str> =
        text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 5, "{} examples", blocks.len());
    let program = diskferry().canonicalize().unwrap();
    let path = format!(
        "{}:{}",
        program.parent().unwrap().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    for block in blocks {
        let temp = TempDir::new();
        let mut shell = Command::new("sh");
        shell.args(["-ec", block]).current_dir(temp.path()).env("PATH", &path);
        let outcome = run(&mut shell);
        assert!(outcome.status.success(), "{block}\n{outcome:#?}");
    }
}
