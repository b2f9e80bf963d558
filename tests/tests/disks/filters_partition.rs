//! Tables that another program made: each partition is found where that program put it.

use std::process::Command;

use blackbox::peers::peer;
use blackbox::run::{ours, run};
use blackbox::temp::TempDir;

/// A disk of `count` partitions, made by nbdkit; false if it cannot.
fn make(temp: &TempDir, kind: &str, count: u8) -> bool {
    let (Some(nbdkit), Some(_)) = (peer("nbdkit"), peer("nbdcopy")) else { return false };
    let mut words = vec![format!("partition-type={kind}")];
    for number in 1..=count {
        let file = temp.join(&format!("part{number}"));
        let len = 512 * (usize::from(number) * 100 + 7);
        std::fs::write(&file, vec![number; len]).unwrap();
        words.push(file.display().to_string());
    }
    let mut command = Command::new(nbdkit);
    command.args(["-U", "-", "partitioning"]).args(&words).current_dir(temp.path());
    command.args(["--run", "nbdcopy \"$uri\" disk.img"]);
    run(&mut command).succeeded();
    true
}

fn read_partition(temp: &TempDir, words: &[&str], number: u8) -> Vec<u8> {
    let disk = temp.join("disk.img").display().to_string();
    let out = temp.join("out").display().to_string();
    let which = format!("partition={number}");
    let mut command = ours(["serve", "--filter=partition", "file", &disk, &which]);
    let copy = format!("rm -f {out}; nbdcopy \"$uri\" {out}");
    command.args(words).args(["--run", &copy]);
    run(&mut command).succeeded();
    std::fs::read(out).unwrap()
}

#[test]
fn partitions_are_found_where_nbdkit_put_them() {
    // Of an MBR with more than four, the fourth is extended and the others are in a chain.
    for (kind, count) in [("mbr", 3), ("mbr", 9), ("gpt", 1), ("gpt", 9)] {
        let temp = TempDir::new();
        if !make(&temp, kind, count) {
            return;
        }
        let has_chain = kind == "mbr" && count > 4;
        for number in 1..=count {
            // nbdkit's fourth file is then the first logical one.
            let shown = if has_chain && number >= 4 { number + 1 } else { number };
            let bytes = read_partition(&temp, &[], shown);
            let file = std::fs::read(temp.join(&format!("part{number}"))).unwrap();
            assert!(bytes == file, "{kind}, {count} partitions: {number}");
        }
    }
}

#[test]
fn a_gpt_that_lost_its_start_is_read_from_its_end() {
    let temp = TempDir::new();
    if !make(&temp, "gpt", 3) {
        return;
    }
    let path = temp.join("disk.img");
    let mut disk = std::fs::read(&path).unwrap();
    disk[512..600].fill(0);
    std::fs::write(&path, disk).unwrap();
    let file = std::fs::read(temp.join("part2")).unwrap();
    assert!(read_partition(&temp, &[], 2) == file);
}
