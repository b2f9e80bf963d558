//! Status contexts besides the map: a dirty bitmap and the allocation depth of a qemu-nbd, printed
//! by `map --context` as nbdinfo prints them.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use blackbox::launch::Server;
use blackbox::peers::peer;
use blackbox::run::{ours, program, run};
use blackbox::temp::TempDir;
use serde_json::Value;

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

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
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
