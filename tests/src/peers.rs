//! Finding the peers: programs of other projects that the tests talk to.
//!
//! Without a peer the test that needs it is skipped, with a message; with
//! `REQUIRE_PEERS=1` it fails the test.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The path of a peer, or `None` after saying that this test is skipped.
///
/// `nbdsh` is answered with the Python that can import `nbd`: run it as `PYTHON -m nbd`.
pub fn peer(name: &str) -> Option<PathBuf> {
    let found = if name == "nbdsh" { python_with_nbd() } else { find(name) };
    if found.is_none() {
        skip(&format!("needs {name}"));
    }
    found
}

/// strace, if it may trace here.
pub fn strace() -> Option<PathBuf> {
    let strace = peer("strace")?;
    if !succeeds(&strace, &["-f", "-o", "/dev/null", "true"]) {
        skip_environment("strace may not trace here");
        return None;
    }
    Some(strace)
}

/// Says that this test is skipped, or fails it when nothing may be skipped.
pub fn skip(why: &str) {
    skip_environment(why);
    assert!(!peers_required(), "REQUIRE_PEERS is set, and this test {why}");
}

/// Says that this test is skipped for a reason that no installation changes (no vsock in this
/// kernel, not root).
pub fn skip_environment(why: &str) {
    let thread = std::thread::current();
    println!("SKIPPED: {}: {why}", thread.name().unwrap_or("?"));
}

fn peers_required() -> bool {
    env::var("REQUIRE_PEERS").is_ok_and(|value| value == "1")
}

/// Looks a program up in PATH, then where root's programs are.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

fn python_with_nbd() -> Option<PathBuf> {
    let candidates = [find("python3"), Some(PathBuf::from("/usr/bin/python3"))];
    candidates.into_iter().flatten().find(|python| succeeds(python, &["-c", "import nbd"]))
}

/// Whether a command exists and exits with 0.
pub fn succeeds(program: &Path, args: &[&str]) -> bool {
    Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The first line that a program prints for `--version`, to distinguish old peers from new ones.
pub fn version_line(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned()
}

/// The first dotted version number in a program's version line, as (major, minor).
pub fn version(program: &Path) -> (u32, u32) {
    let line = version_line(program);
    line.split(|c: char| !c.is_ascii_digit() && c != '.')
        .find_map(|word| {
            let mut parts = word.split('.');
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        })
        .unwrap_or((0, 0))
}

/// The binary under test.
pub fn diskferry() -> PathBuf {
    if let Some(path) = env::var_os("DISKFERRY") {
        return PathBuf::from(path);
    }
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let built = ["debug", "release"].map(|profile| target.join(profile).join("diskferry"));
    built
        .into_iter()
        .find(|path| path.is_file())
        .expect("no diskferry in ../target: build it first, or set DISKFERRY")
}

/// What `info` prints, ours or of another version of qemu-img, without what version 11 prints and
/// the distribution's does not: the file below, and wider columns. JSON, if it is that.
pub fn info_as_before(text: &str) -> serde_json::Value {
    let mut value: serde_json::Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(_) => {
            let text = text.split("Child node '/file':").next().unwrap();
            let narrow = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
            let text: String = text.lines().map(narrow).collect();
            let text = text.replace("VM_SIZE", "VM SIZE").replace("VM_CLOCK", "VM CLOCK");
            return text.replace(" 0000:", " 00:").into();
        }
    };
    let images = match &mut value {
        serde_json::Value::Array(each) => each.iter_mut().collect(),
        one => vec![one],
    };
    for image in images.into_iter().filter_map(serde_json::Value::as_object_mut) {
        if let Some(below) = image.remove("children") {
            assert_eq!(below[0]["name"], "file", "{below}");
            assert!(below[0]["info"]["virtual-size"].as_u64().unwrap().is_multiple_of(512));
        }
    }
    value
}
