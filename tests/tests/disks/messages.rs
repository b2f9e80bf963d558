//! What wrong words are answered, and what is said where there is nothing to do: `messages.txt` has
//! each command with all that it prints and ends with, and nothing that it names is changed by it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use blackbox::peers::{diskferry, peer};
use blackbox::run::{Outcome, ours, run};
use blackbox::temp::{TempDir, pattern};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/disks/messages.txt");

/// A directory with a raw disk, an image, and another of each; and a link that leads nowhere.
fn ground() -> TempDir {
    let temp = TempDir::new();
    temp.file("RAW", &pattern(0, 1 << 20));
    temp.file("OLD", &pattern(7, 1 << 20));
    symlink("nowhere", temp.join("LINK")).unwrap();
    for image in ["IMG", "SRC"] {
        let words = ["convert", "-f", "raw", "-O", "qcow2", "RAW", image];
        run(ours(words).current_dir(temp.path())).succeeded();
    }
    temp
}

/// Every file in it.
fn content(path: &Path) -> BTreeMap<OsString, Option<Vec<u8>>> {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).ok())).collect()
}

/// Makes them what they were. What is no file is left.
fn restore(path: &Path, before: &BTreeMap<OsString, Option<Vec<u8>>>) {
    for name in content(path).keys().filter(|name| !before.contains_key(*name)) {
        std::fs::remove_file(path.join(name)).unwrap();
    }
    for (name, bytes) in before {
        bytes.iter().for_each(|bytes| std::fs::write(path.join(name), bytes).unwrap());
    }
}

/// A line of the shell behind the name of a program.
fn shell(program: &Path, line: &str, place: &Path) -> Outcome {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$0\" {line}")]).arg(program);
    command.env("ferry", diskferry()).env_remove("COLUMNS").env("LC_ALL", "C");
    run(command.current_dir(place))
}

/// An outcome as the page has it, wherever the program lies.
fn written(outcome: &Outcome) -> String {
    let mut text: String = outcome.stdout.lines().map(|line| format!("  | {line}\n")).collect();
    let code = outcome.status.code().unwrap_or_else(|| panic!("ended by a signal: {outcome:#?}"));
    text += &format!("  {code} {}", outcome.stderr.trim_end().replace('\n', "\n  . "));
    let text = text.replace(diskferry().to_str().unwrap(), "$0");
    let lines = text.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

#[test]
fn every_message_is_the_one_that_is_written_down_and_nothing_is_changed() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (temp, qemu_img) = (ground(), peer("qemu-img"));
    let before = content(temp.path());
    let mut found = String::new();
    let mut wrong = Vec::new();
    for line in page.lines().filter(|line| !line.starts_with("  ")) {
        found += &format!("{line}\n");
        let mark = line.split_at_checked(1).filter(|(mark, _)| ["$", "="].contains(mark));
        let Some((mark, words)) = mark else { continue };
        let outcome = shell(&diskferry(), words, temp.path());
        found += &written(&outcome);
        if content(temp.path()) != before {
            wrong.push(format!("{line}: something was changed or left"));
            restore(temp.path(), &before);
        }
        if let ("=", Some(qemu_img)) = (mark, &qemu_img) {
            // It may leave what it began.
            let theirs = shell(qemu_img, words, temp.path());
            restore(temp.path(), &before);
            if theirs.status.code() != outcome.status.code() {
                wrong.push(format!("{line}: qemu-img ends otherwise: {theirs:#?}"));
            }
        }
    }
    if std::env::var_os("BLACKBOX_BLESS").is_some() {
        std::fs::write(PAGE, &found).unwrap();
    } else {
        let lines = page.lines().zip(found.lines()).filter(|(wanted, found)| wanted != found);
        wrong.extend(lines.map(|(wanted, found)| format!("wanted: {wanted}\n found: {found}")));
        assert!(page == found, "{}", wrong.join("\n"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
