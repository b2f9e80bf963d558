//! The errors that clients get when a plugin fails.

use blackbox::temp::TempDir;

use super::{Host, has_peers, python, scene, witness};

/// Each operation that can fail, once.
const OPERATIONS: &str = r#"
h.set_strict_mode(0)
h.connect_uri(uri)
attempt(lambda: h.pread(512, 0))
attempt(lambda: h.pwrite(b"a" * 512, 0))
attempt(lambda: h.pwrite(b"a" * 512, 0, nbd.CMD_FLAG_FUA))
attempt(lambda: h.flush())
attempt(lambda: h.trim(512, 0))
attempt(lambda: h.zero(512, 0))
attempt(lambda: h.zero(512, 0, nbd.CMD_FLAG_FAST_ZERO))
attempt(lambda: h.cache(512, 0))
attempt(lambda: h.block_status(512, 0, lambda *a: None))
h.shutdown()
"#;

#[test]
fn every_number_that_a_plugin_fails_with_reaches_clients_as_by_nbdkit() {
    if !has_peers() {
        return;
    }
    let names = ["pread", "pwrite", "flush", "trim", "zero", "cache", "extents"];
    let errors = [
        libc::EPERM,
        libc::EIO,
        libc::ENOMEM,
        libc::EINVAL,
        libc::ENOSPC,
        libc::ESHUTDOWN,
        libc::EROFS,
        libc::EDQUOT,
        libc::EFBIG,
        libc::ENOENT,
        libc::EBADF,
    ];
    for preserved in ["-DPRESERVED=0", "-DPRESERVED=1"] {
        let temp = TempDir::new();
        witness(&temp, &[preserved]);
        let hows: &[&str] =
            if preserved.ends_with('0') { &["errno", "said"] } else { &["set", "errno"] };
        for (error, how) in errors.iter().flat_map(|e| hows.iter().map(move |how| (e, how))) {
            // One number is enough to see whether errno counts.
            if *how != "set" && *error != libc::ENOSPC {
                continue;
            }
            let words: Vec<_> =
                names.iter().map(|name| format!("fail-{name}={error}:{how}")).collect();
            let words = words.join(" ");
            let [theirs, ours] = Host::BOTH.map(|host| python(host, &temp, &words, OPERATIONS));
            assert_eq!(theirs.outcome.succeeded(), ours.outcome.succeeded(), "{preserved} {words}");
        }
    }
}

/// A disk whose map fails in its second half, and which does not list its exports.
const LATE: &str = r#"#!/bin/sh
case "$1" in
get_size) echo 8M ;;
can_extents) exit 0 ;;
pread) head -c "$3" /dev/zero ;;
extents)
    if [ "$4" -ge 4194304 ]; then echo "EIO the map fails" >&2; exit 1; fi
    echo "$4 1M hole,zero" ;;
list_exports) echo "EIO the list fails" >&2; exit 1 ;;
*) exit 2 ;;
esac
"#;

#[test]
fn a_list_or_a_map_that_fails_late_is_an_error_and_a_copy_that_met_it_fails() {
    if !has_peers() {
        return;
    }
    let temp = TempDir::new();
    let script = temp.file("late", LATE.as_bytes());
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = blackbox::peers::diskferry();
    let ours = program.display();
    for host in Host::BOTH {
        for command in [
            "nbdinfo --list \"$uri\"".to_owned(),
            "nbdinfo --map \"$uri\"".to_owned(),
            "nbdcopy \"$uri\" copy".to_owned(),
            format!("{ours} list \"$uri\""),
            format!("{ours} copy \"$uri\" copy"),
        ] {
            let outcome = host.line(temp.path(), &format!("SERVER sh ./late --run '{command}'"));
            assert!(!outcome.status.success(), "{host:?} {command}: {outcome:?}");
        }
    }
    for disk in ["plugin:sh?script=./late", "plugin:sh?isolate=true&script=./late"] {
        let outcome = Host::Ours.line(temp.path(), &format!("{ours} copy '{disk}' ours"));
        assert!(!outcome.status.success(), "{disk}: {outcome:?}");
        assert!(outcome.stderr.contains("the map fails"), "{disk}: {outcome:?}");
        assert!(!temp.join("ours").exists(), "{disk}");
    }
}

#[test]
fn what_a_plugin_says_of_its_failure_is_logged() {
    let Some(temp) = scene(&[]) else { return };
    let words = "fail-pread=5:set";
    let ours = python(
        Host::Ours,
        &temp,
        words,
        "h.connect_uri(uri)\nattempt(lambda: h.pread(512, 1024))\n",
    );
    ours.outcome.succeeded();
    let said = &ours.outcome.stderr;
    assert!(
        said.contains("pread fails, as it was told to") && said.contains("offset 1024"),
        "{said}"
    );
}

#[test]
fn parameters_that_a_plugin_refuses_stop_the_server_with_its_words() {
    let Some(temp) = scene(&[]) else { return };
    for (words, why) in [
        ("colour=red", "unknown parameter 'colour'"),
        ("size=1KiB", "could not parse size"),
        ("slow=x", "slow: could not parse number"),
        ("fail-config_complete=1:said", "config_complete fails without a number"),
        ("fail-get_ready=1:said", "get_ready fails without a number"),
        ("fail-after_fork=1:said", "after_fork fails without a number"),
        ("say-get_size=-5", "-5 bytes"),
        ("say-minimum=3", "minimum block size to a power of 2"),
        ("say-preferred=100", "preferred block size"),
        ("say-can_flush=-1", "ask for flush"),
    ] {
        let program = blackbox::peers::diskferry();
        let text =
            format!("{} copy 'plugin:./nbdkit-witness-plugin.so?{words}' null:", program.display());
        let outcome = Host::Ours.line(temp.path(), &text);
        assert!(outcome.failed().contains(why), "{words}: {outcome:?}");
        assert_ne!(outcome.status.code(), Some(101));
    }
}

#[test]
fn a_client_that_is_refused_leaves_the_server_as_it_was() {
    let Some(temp) = scene(&[]) else { return };
    for words in [
        "fail-open=1:set",
        "fail-preconnect=1:set",
        "fail-default_export=1:said",
        "say-get_size=-5",
        "say-can_write=-1",
    ] {
        let program = "attempt(lambda: h.connect_uri(uri))\n".repeat(2);
        let ours = python(Host::Ours, &temp, words, &program);
        let said = ours.outcome.succeeded();
        assert!(said.lines().all(|line| line.starts_with("error")), "{words}: {said}");
        let opened = |what| ours.log.iter().filter(|line| line.starts_with(what)).count();
        let refused = if words.starts_with("fail-") { opened("open ") } else { 0 };
        assert_eq!(opened("open "), opened("close") + refused, "{words}: {:#?}", ours.log);
    }
}

#[test]
fn a_plugin_may_end_the_connection_or_the_server() {
    let Some(temp) = scene(&[]) else { return };
    let program = r#"
h.connect_uri(uri)
attempt(lambda: len(h.pread(512, 0)))
attempt(lambda: len(h.pread(512, 4096)))
attempt(lambda: len(h.pread(512, 0)))
g = nbd.NBD()
g.connect_uri(uri)
print(len(g.pread(512, 0)))
"#;
    // Gracefully: what was asked for is answered, and nothing that comes later.
    let ours = python(Host::Ours, &temp, "leave=4096:0", program);
    let said: Vec<_> = ours.outcome.succeeded().lines().collect();
    assert_eq!(said, ["512", "512", "error ESHUTDOWN", "512"]);
    // At once: the client gets no answer.
    let ours = python(Host::Ours, &temp, "leave=4096:1", program);
    let said: Vec<_> = ours.outcome.succeeded().lines().collect();
    assert_eq!((said[0], said[3]), ("512", "512"));
    assert!(said[1].starts_with("error") && said[2].starts_with("error"), "{said:?}");
    // The server: it ends by itself, and the plugin is unloaded.
    let library = temp.join("nbdkit-witness-plugin.so");
    let mut server = blackbox::launch::Serve::device([
        library.into_os_string(),
        format!("log={}", temp.join("log").display()).into(),
        "stop=4096".into(),
    ])
    .start();
    server.may_end();
    let mut session = server.session(blackbox::session::Mode::Structured, "");
    session.read(4096, 512).unwrap();
    drop(session);
    assert!(server.wait().success());
    assert!(std::fs::read_to_string(temp.join("log")).unwrap().contains("\nunload\n"));
}
