//! Status contexts besides the map: a dirty bitmap and the allocation depth of a qemu-nbd, printed
//! by `map --context` as nbdinfo prints them, and passed on by our proxy.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use blackbox::MIB;
use blackbox::launch::{Serve, Server};
use blackbox::peers::peer;
use blackbox::run::{json, ours, program, run};
use blackbox::temp::TempDir;

const BITMAP: &str = "qemu:dirty-bitmap:b0";
const DEPTH: &str = "qemu:allocation-depth";
const ALLOCATION: &str = "base:allocation";

/// An image over another, with a bitmap; both have been written since.
fn image(temp: &TempDir) -> Option<PathBuf> {
    let (qemu_img, qemu_io) = (peer("qemu-img")?, peer("qemu-io")?);
    let (base, top) = (temp.join("base"), temp.join("top"));
    let (base, image) = (base.to_str().unwrap(), top.to_str().unwrap());
    let made = |words: &[&str]| {
        run(&mut program(&qemu_img, words)).succeeded();
    };
    let wrote = |image: &str, commands: &[&str]| {
        let words = commands.iter().flat_map(|command| ["-c", *command]);
        run(&mut program(&qemu_io, ["-f", "qcow2"].into_iter().chain(words).chain([image])))
            .succeeded();
    };
    made(&["create", "-q", "-f", "qcow2", base, "8M"]);
    wrote(base, &["write -P 1 0 1M", "write -P 2 3M 64k"]);
    made(&["create", "-q", "-f", "qcow2", "-b", base, "-F", "qcow2", image]);
    made(&["bitmap", "--add", "-g", "64k", "-f", "qcow2", image, "b0"]);
    wrote(image, &["write -P 3 2M 192k", "write -P 3 5M 100"]);
    Some(top)
}

fn qemu(image: &Path, words: &[&str]) -> Option<Server> {
    let qemu_nbd = peer("qemu-nbd")?;
    Some(Server::peer(&qemu_nbd, |socket| {
        let fixed = ["-t", "-e", "8", "-f", "qcow2", "-B", "b0", "-A"];
        let words = fixed.iter().chain(words).map(OsString::from);
        words.chain(["-k".into(), socket.into(), image.into()]).collect()
    }))
}

/// What nbdinfo prints.
fn nbdinfo(nbdinfo: &PathBuf, context: &str, uri: &str, option: Option<&str>) -> String {
    let map = format!("--map={context}");
    let words = [map.as_str()].into_iter().chain(option).chain([uri]);
    run(&mut program(nbdinfo, words)).succeeded().to_owned()
}

/// What we print.
fn map(context: &str, uri: &str, option: Option<&str>) -> String {
    let words = ["map", "--context", context].into_iter().chain(option).chain([uri]);
    run(&mut ours(words)).succeeded().to_owned()
}

#[test]
fn the_contexts_of_qemu_are_printed_as_nbdinfo_prints_them() {
    let Some(theirs) = peer("nbdinfo") else { return };
    let temp = TempDir::new();
    let Some(image) = image(&temp) else { return };
    let Some(server) = qemu(&image, &["-r"]) else { return };
    let uri = server.uri("");
    for context in [BITMAP, DEPTH, ALLOCATION] {
        for option in [None, Some("--totals")] {
            assert_eq!(map(context, &uri, option), nbdinfo(&theirs, context, &uri, option));
        }
        let option = Some("--json");
        let (left, right) = (map(context, &uri, option), nbdinfo(&theirs, context, &uri, option));
        assert_eq!(json(&left), json(&right), "{context}");
    }
    assert!(map(BITMAP, &uri, None).contains("dirty"), "the test needs something dirty");
    let unknown = run(&mut ours(["map", "--context=x:y", &uri]));
    assert!(unknown.failed().contains(DEPTH), "{}", unknown.stderr);
}

fn proxy(server: &Server, filters: &[&str]) -> Server {
    let uri = format!("uri={}", server.uri(""));
    let (names, words): (Vec<&str>, Vec<&str>) = filters.iter().partition(|w| w.starts_with("--"));
    Serve::device([&names[..], &["nbd", &uri], &words].concat()).start()
}

#[test]
fn a_proxy_passes_the_contexts_of_qemu_on() {
    let Some(theirs) = peer("nbdinfo") else { return };
    let temp = TempDir::new();
    let Some(image) = image(&temp) else { return };
    let Some(server) = qemu(&image, &["-r"]) else { return };
    let first = proxy(&server, &["--filter=limit", "limit=0"]);
    // The second one reaches the first with extended headers, which qemu-nbd may not have.
    let second = proxy(&first, &["--filter=log", "logfile=/dev/null", "shared=false"]);
    for context in [BITMAP, DEPTH, ALLOCATION] {
        let at_qemu = nbdinfo(&theirs, context, &server.uri(""), None);
        for proxy in [&first, &second] {
            assert_eq!(nbdinfo(&theirs, context, &proxy.uri(""), None), at_qemu);
            assert_eq!(map(context, &proxy.uri(""), None), at_qemu);
        }
    }
    // Several at a time.
    let script = "
h.add_meta_context('qemu:dirty-bitmap:b0')
h.add_meta_context('base:allocation')
h.add_meta_context('qemu:allocation-depth')
h.connect_uri(uri)
def told(context, offset, entries, error):
    print(context, offset, entries)
h.block_status(4 << 20, 1 << 20, told)
h.block_status(4 << 20, 1 << 20, told, nbd.CMD_FLAG_REQ_ONE)
";
    let Some(nbdsh) = peer("nbdsh") else { return };
    let told = |server: &Server| {
        let script = format!("uri = '{}'{script}", server.uri(""));
        run(&mut program(&nbdsh, ["-m", "nbd", "-c", &script])).succeeded().to_owned()
    };
    let lines = |text: String| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(told(&first)), lines(told(&server)));
}

/// The bytes of each type.
fn totals(uri: &str) -> String {
    map(BITMAP, uri, Some("--totals"))
}

#[test]
fn a_part_of_a_disk_has_that_part_of_its_contexts() {
    let temp = TempDir::new();
    let Some(image) = image(&temp) else { return };
    let Some(server) = qemu(&image, &["-r"]) else { return };
    let part = proxy(&server, &["--filter=offset", "offset=2097152", "range=1M"]);
    let dirty = format!(
        "         0      196608    1  dirty\n    196608  {:10}  {:3}  clean\n",
        MIB - 196_608,
        0
    );
    assert_eq!(map(BITMAP, &part.uri(""), None), dirty);
    // What an overlay shows is in no context of what lies below, and what is shown beyond is in
    // none.
    for filters in
        [&["--filter=cow"][..], &["--filter=truncate", "truncate=9M"], &["--filter=noextents"]]
    {
        let over = proxy(&server, filters);
        let none = run(&mut ours(["map", "--context", BITMAP, &over.uri("")]));
        assert!(none.failed().contains("there is no context"), "{filters:?}: {}", none.stderr);
    }
}

#[test]
fn what_a_cache_has_not_written_yet_is_dirty_all_the_same() {
    let temp = TempDir::new();
    let Some(image) = image(&temp) else { return };
    let Some(server) = qemu(&image, &[]) else { return };
    let cache = proxy(&server, &["--filter=cache"]);
    let before = totals(&cache.uri(""));
    assert_eq!(before, totals(&server.uri("")));
    let Some(nbdsh) = peer("nbdsh") else { return };
    // Written, and not flushed.
    let script = "h.pwrite(b'9' * 65536, 7 << 20)";
    run(&mut program(&nbdsh, ["-m", "nbd", "-u", &cache.uri(""), "-c", script])).succeeded();
    assert_ne!(totals(&cache.uri("")), before);
    assert_eq!(totals(&cache.uri("")), totals(&server.uri("")));
}
