//! Which callbacks are called, with what, and in which order: as nbdkit does it.

use std::collections::BTreeSet;

use super::{Host, data, python, scene};

/// One of each operation, by a client that asks for one thing at a time.
const OPERATIONS: &str = r#"
h.connect_uri(uri)
print(h.get_size(), h.is_read_only(), h.is_rotational(), h.can_flush(), h.can_fua(), h.can_trim(), h.can_zero())
print(h.can_fast_zero(), h.can_multi_conn(), h.can_cache(), h.get_block_size(nbd.SIZE_MINIMUM))
print(h.get_block_size(nbd.SIZE_PREFERRED), h.get_block_size(nbd.SIZE_MAXIMUM))
h.pwrite(b"a" * 8192, 4096)
h.pwrite(b"b" * 512, 16384, nbd.CMD_FLAG_FUA)
h.pwrite(b"c" * 4096, 65536)
h.zero(4096, 4096)
h.zero(512, 16384, nbd.CMD_FLAG_FUA | nbd.CMD_FLAG_NO_HOLE)
h.trim(4096, 65536, nbd.CMD_FLAG_FUA)
h.flush()
attempt(lambda: h.cache(8192, 0)) if h.can_cache() else None
print(h.pread(1024, 8192 - 512))
found = []
def extent(context, offset, entries, error):
    found.append((offset, entries))
h.block_status(1 << 20, 0, extent)
h.block_status(4096, 8192, extent, nbd.CMD_FLAG_REQ_ONE)
print(found)
attempt(lambda: h.zero(4096, 8192, nbd.CMD_FLAG_FAST_ZERO))
h.shutdown()
"#;

/// A difference on purpose: the device has a handle of its own before the first client comes.
fn lives(log: &[String]) -> Vec<&str> {
    let names = [
        "load",
        "config",
        "config_complete",
        "thread_model",
        "get_ready",
        "after_fork",
        "cleanup",
        "unload",
    ];
    let first = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    log.iter().map(String::as_str).filter(|line| names.contains(&first(line).as_str())).collect()
}

fn names(log: &[String]) -> BTreeSet<&str> {
    // nbdkit asks for the description only where a client asks.
    let aside = ["most", "export_description"];
    let names = log.iter().filter_map(|line| line.split(' ').next());
    names.filter(|name| !aside.contains(name)).collect()
}

#[test]
fn every_callback_of_version_2_is_called_as_by_nbdkit() {
    compare(&["-DV=2"], 30);
}

#[test]
fn every_callback_of_version_1_is_called_as_by_nbdkit() {
    compare(&["-DV=1"], 25);
}

fn compare(flags: &[&str], least: usize) {
    let Some(temp) = scene(flags) else { return };
    let [theirs, ours] =
        Host::BOTH.map(|host| python(host, &temp, "1M -D witness.level=3", OPERATIONS));
    assert_eq!(theirs.outcome.succeeded(), ours.outcome.succeeded());
    assert_eq!(data(&theirs.log), data(&ours.log));
    assert_eq!(lives(&theirs.log), lives(&ours.log), "{:#?}", ours.log);
    assert!(ours.log.iter().any(|line| line == "config_complete level=3"));
    assert_eq!(names(&theirs.log), names(&ours.log));
    assert!(names(&ours.log).len() >= least, "{:?}", names(&ours.log));
    let opened = |log: &[String], what| log.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!(opened(&ours.log, "open "), opened(&ours.log, "close"));
}

#[test]
fn a_read_is_one_call_and_the_map_is_only_looked_up_for_clients_that_ask() {
    let Some(temp) = scene(&[]) else { return };
    let program = "h.connect_uri(uri)\nfor count in (512, 32768, 65536, 262144, 1048576):\n    h.pread(count, 0)\n";
    let asked = format!("{program}h.block_status(1 << 20, 0, lambda *a: 0)\n");
    for program in [program, &asked] {
        let theirs = python(Host::Nbdkit, &temp, "", program);
        for words in ["", "isolate=true"] {
            let ours = python(Host::Ours, &temp, words, program);
            assert_eq!(theirs.outcome.succeeded(), ours.outcome.succeeded());
            assert_eq!(data(&theirs.log), data(&ours.log), "{words}");
        }
        let reads = data(&theirs.log).iter().filter(|line| line.starts_with("pread ")).count();
        assert_eq!(reads, 5, "{:#?}", theirs.log);
    }
}

#[test]
fn a_plugin_learns_that_it_is_read_only_and_is_never_written() {
    let Some(temp) = scene(&[]) else { return };
    let program =
        "h.connect_uri(uri)\nprint(h.is_read_only())\nattempt(lambda: h.pwrite(b'a', 0))\n";
    let program = format!("h.set_strict_mode(0)\n{program}");
    let [theirs, ours] = Host::BOTH.map(|host| python(host, &temp, "-r", &program));
    assert_eq!(theirs.outcome.succeeded(), ours.outcome.succeeded());
    for log in [&theirs.log, &ours.log] {
        assert!(log.iter().any(|line| line == "preconnect 1"), "{log:#?}");
        assert!(log.iter().any(|line| line.starts_with("open 1")), "{log:#?}");
        assert!(data(log).is_empty(), "{log:#?}");
    }
}

#[test]
fn a_client_may_ask_for_any_name_and_the_plugin_lists_its_own() {
    let Some(temp) = scene(&[]) else { return };
    let program = r#"
def look(name):
    h = nbd.NBD()
    h.set_export_name(name)
    h.set_opt_mode(True)
    h.connect_uri(uri)
    h.set_export_name(name)
    attempt(lambda: h.opt_go())
    if h.aio_is_ready():
        print(name, h.pread(3, 0))
        h.shutdown()
for name in ["", "one", "two", "three"]:
    look(name)
h.set_opt_mode(True)
h.connect_uri(uri)
listed = []
h.opt_list(lambda name, description: listed.append((name, description)))
print(listed)
h.opt_abort()
"#;
    let [theirs, ours] = Host::BOTH.map(|host| python(host, &temp, "", program));
    let ours_said = ours.outcome.succeeded();
    assert!(ours_said.contains("('two', 'the second')"), "{ours_said}");
    assert_eq!(theirs.outcome.succeeded(), ours_said);
}

#[test]
fn what_a_plugin_asks_of_its_host_is_answered_as_by_nbdkit() {
    let Some(temp) = scene(&[]) else { return };
    temp.file("password", b"from a file\nand more\n");
    let program = "h.connect_uri(uri)\nh.shutdown()\n";
    let [theirs, ours] = Host::BOTH.map(|host| python(host, &temp, "asks=true", program));
    let asked = |run: &super::Run, what: &str| -> Vec<String> {
        run.outcome.succeeded();
        run.log.iter().filter(|line| line.starts_with(what)).cloned().collect()
    };
    assert!(asked(&ours, "host").len() > 100);
    for (theirs, ours) in asked(&theirs, "host").iter().zip(&asked(&ours, "host")) {
        assert_eq!(theirs, ours);
    }
    // The device's own handle is for no client; the last one is for this one.
    assert_eq!(asked(&theirs, "peer").last(), asked(&ours, "peer").last());
    let peer = |run: &super::Run| asked(run, "peer 0 ").first().cloned();
    assert_eq!(peer(&theirs), peer(&ours));
}
