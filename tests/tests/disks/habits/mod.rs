//! Command lines as people and programs have them (lines.txt), of qemu-img, nbdcopy, nbdinfo,
//! nbdkit and qemu-nbd: what each ends with here, what it says, and, where qemu-img is installed,
//! that it ends with the same.

use std::path::Path;
use std::process::Command;

use blackbox::peers::{diskferry, peer};
use blackbox::run::{Outcome, run};
use blackbox::temp::{TempDir, pattern};

const LINES: &str = include_str!("lines.txt");

/// A line of the table.
struct Habit {
    status: i32,
    /// qemu-img ends with the same status.
    is_same: bool,
    /// What is on standard error: nothing if empty, anything if `~`.
    said: &'static str,
    tool: &'static str,
    words: &'static str,
}

fn habits() -> impl Iterator<Item = Habit> {
    let lines = LINES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let mut fields = line.splitn(4, '|').map(str::trim);
        let mut next = || fields.next().unwrap_or_else(|| panic!("{line}: has four fields"));
        let (status, same, said) = (next().parse().unwrap(), next() == "same", next());
        let (tool, words) = next().split_once(' ').unwrap();
        Habit { status, is_same: same, said, tool, words }
    })
}

/// What it is called here.
fn verb(tool: &str) -> &'static str {
    match tool {
        "qemu-img" | "diskferry" => "",
        "nbdcopy" => "copy",
        "nbdinfo" => "info",
        "nbdkit" | "qemu-nbd" => "serve",
        other => panic!("no tool is called {other}"),
    }
}

/// The files that the lines name.
fn ground(here: &Path) {
    std::fs::write(here.join("disk.raw"), pattern(3, 1 << 20)).unwrap();
    std::fs::write(here.join("zero.raw"), vec![0; 1 << 20]).unwrap();
    std::fs::create_dir(here.join("dir")).unwrap();
    let ours = diskferry();
    shell(
        here,
        &format!(
            "set -e; F='{}'; $F convert -q -f raw -O qcow2 disk.raw disk.qcow2
             $F create -q -f qcow2 -b disk.qcow2 -F qcow2 over.qcow2
             cp disk.qcow2 image; cp disk.qcow2 image.qcow2
             cp disk.qcow2 vm-disk1.vmdk; echo machine > vm.ovf; tar -cf vm.ova vm.ovf vm-disk1.vmdk
             rm vm.ovf vm-disk1.vmdk",
            ours.display()
        ),
    )
    .succeeded();
}

fn shell(here: &Path, line: &str) -> Outcome {
    run(Command::new("sh").args(["-c", line]).current_dir(here))
}

/// Runs a line in a copy of the ground.
fn on_a_copy(ground: &Path, line: &str) -> Outcome {
    let copy = TempDir::new();
    shell(copy.path(), &format!("cp -a '{}/.' .", ground.display())).succeeded();
    shell(copy.path(), line)
}

#[test]
fn command_lines_that_people_have_end_as_the_table_says_and_as_with_qemu_img() {
    let temp = TempDir::new();
    ground(temp.path());
    let ours = diskferry();
    let (mut failures, mut count) = (Vec::new(), 0);
    let qemu_img = peer("qemu-img");
    for Habit { status, is_same, said, tool, words } in habits() {
        count += 1;
        let line = format!("'{}' {} {words}", ours.display(), verb(tool));
        let outcome = on_a_copy(temp.path(), &line);
        let stderr = &outcome.stderr;
        let is_right = match said {
            "~" => true,
            "" => stderr.is_empty(),
            part => stderr.contains(part) && stderr.lines().count() == 1,
        };
        if outcome.status.code() != Some(status) || !is_right {
            failures.push(format!(
                "{tool} {words}\n    {status} and {said:?}, not {:?}: {stderr}",
                outcome.status.code()
            ));
        }
        if let (true, Some(qemu_img)) = (is_same, &qemu_img) {
            assert_eq!(tool, "qemu-img");
            let theirs = on_a_copy(temp.path(), &format!("'{}' {words}", qemu_img.display()));
            if theirs.status.code() != Some(status) {
                failures.push(format!(
                    "{tool} {words}\n    {status}, and qemu-img ends with {:?}: {}",
                    theirs.status.code(),
                    theirs.stderr
                ));
            }
        }
    }
    assert!(count >= 100, "{count} lines");
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

/// What a refused copy was about to write over is as it was.
#[test]
fn an_image_that_would_become_raw_bytes_is_not_touched() {
    let temp = TempDir::new();
    ground(temp.path());
    let before = std::fs::read(temp.join("image")).unwrap();
    for target in ["image", "image.qcow2"] {
        let line = format!("'{}' copy -f qcow2 disk.qcow2 {target}", diskferry().display());
        shell(temp.path(), &line).failed();
        assert!(std::fs::read(temp.join(target)).unwrap() == before, "{target} was changed");
    }
}
