//! Names that are not UTF-8.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use blackbox::run::{ours, run};
use blackbox::temp::{TempDir, pattern};

/// `name` with bytes in it that belong to no character.
fn odd(name: &str) -> OsString {
    OsStr::from_bytes(&[b"d\xff\xe4-", name.as_bytes()].concat()).to_owned()
}

/// The words, with `prefix` before a path.
fn joined(prefix: &str, path: &std::path::Path) -> OsString {
    let mut word = OsString::from(prefix);
    word.push(path);
    word
}

#[test]
fn every_verb_takes_a_path_of_any_bytes() {
    let temp = TempDir::new();
    let path = temp.path().join(odd("disk"));
    let content = pattern(0, 1 << 20);
    std::fs::write(&path, &content).unwrap();
    let spelled = joined("file:", &path);
    for verb in ["info", "map"] {
        run(ours([verb]).arg(&path)).succeeded();
        run(ours([verb]).arg(&spelled)).succeeded();
    }
    let size = r#"test "$(diskferry info --json "$uri" | grep -c 1048576)" = 1"#;
    let size = size.replace("diskferry", blackbox::peers::diskferry().to_str().unwrap());
    run(ours(["serve"]).arg(&path).args(["--run", &size])).succeeded();
    run(ours(["serve", "file"]).arg(&path).args(["--run", &size])).succeeded();
    run(ours(["serve", "file"]).arg(joined("file=", &path)).args(["--run", &size])).succeeded();
    run(ours(["serve", "--export"]).arg(joined("a=", &path)).args(["--run", &size])).succeeded();
    let copy = temp.path().join(odd("copy"));
    run(ours(["copy"]).arg(&path).arg(&copy)).succeeded();
    assert!(std::fs::read(&copy).unwrap() == content);
    run(ours(["zero", "--length", "4K"]).arg(&copy)).succeeded();
    run(ours(["trim", "--length", "4K"]).arg(&copy)).succeeded();
    assert!(std::fs::read(&copy).unwrap()[..8192] == [&[0; 4096], &content[4096..8192]].concat());
    let new = temp.path().join(odd("new"));
    run(ours(["create", "-q"]).arg(&new).arg("1M")).succeeded();
    run(ours(["resize"]).arg(&new).arg("+1M")).succeeded();
    assert_eq!(std::fs::metadata(&new).unwrap().len(), 2 << 20);
    // Through a pipe as well.
    let line = "cat \"$1\" | \"$0\" copy - \"$2\" && cmp \"$1\" \"$2\"";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", line]).arg(blackbox::peers::diskferry());
    run(shell.args([&path, &copy])).succeeded();
    let mut names: Vec<_> =
        std::fs::read_dir(temp.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [odd("copy"), odd("disk"), odd("new")], "under another name");
}
