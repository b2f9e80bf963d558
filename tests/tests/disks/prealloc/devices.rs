//! Block devices: what they hold stays, and what the kernel uses is left alone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use blackbox::peers::{peer, skip_environment};
use blackbox::storage::Loop;
use blackbox::temp::{TempDir, pattern};

use super::{ferry, prealloc, text};

const MIB: u64 = 1 << 20;

#[test]
fn a_block_device_keeps_its_data_and_is_given_room_where_it_reads_as_zeroes() {
    let temp = TempDir::new();
    for sector in ["512", "4096"] {
        let file = temp.sparse_file(sector, 20 * MIB);
        let Some(device) = Loop::over(&file, &["--sector-size", sector]) else { return };
        let disk = File::options().write(true).open(device.path()).unwrap();
        let mut want = vec![0; 20 << 20];
        for (at, len) in [(0, 100), (3 * MIB + 5, 300_000), (20 * MIB - 1, 1)] {
            disk.write_all_at(&pattern(at, len), at).unwrap();
            want[usize::try_from(at).unwrap()..][..len].copy_from_slice(&pattern(at, len));
        }
        disk.sync_all().unwrap();
        drop(disk);
        let said = prealloc(device.path(), &[]);
        assert_eq!((&said["size"], &said["checked"]), (&(20 * MIB).into(), &false.into()));
        assert_eq!(said["way"], "zero-out", "{said}");
        let all = said["kept"].as_u64().unwrap() + said["zeroed"].as_u64().unwrap();
        assert!(all == 20 * MIB && said["kept"].as_u64().unwrap() < MIB, "{said}");
        assert!(std::fs::read(device.path()).unwrap() == want, "{sector}");
        let outcome = ferry(&["prealloc", "--mode", "unwritten", text(device.path())]);
        assert!(outcome.failed().contains("--mode written"), "{outcome:?}");
        let outcome = ferry(&["prealloc", "--size", "21M", text(device.path())]);
        assert!(outcome.failed().contains("22020096 are needed"), "{outcome:?}");
        ferry(&["zero", "-Z", "-o", "3M", "-l", "1000001", text(device.path())]).succeeded();
        want[3 << 20..][..1_000_001].fill(0);
        assert!(std::fs::read(device.path()).unwrap() == want, "{sector}");
    }
}

/// Verbs that would write to a device refuse it while the system uses it, and name its use.
#[test]
fn a_device_in_use_is_refused_with_its_use_and_written_by_force() {
    let temp = TempDir::new();
    let file = temp.sparse_file("disk", 64 * MIB);
    let Some(device) = Loop::over(&file, &["-P"]) else { return };
    let disk = text(device.path());
    let part = format!("{disk}p1");
    // Without a table: not every kernel reads one.
    let (first, second) = (add_partition(disk, "1", "2048"), add_partition(disk, "2", "40960"));
    if !(first && second && std::path::Path::new(&part).exists()) {
        return skip_environment(
            "partitions of a loop device need addpart, and their nodes in /dev",
        );
    }
    assert!(Command::new("mkfs.ext4").args(["-q", &part]).status().unwrap().success());
    let mount = temp.join("a b");
    std::fs::create_dir(&mount).unwrap();
    assert!(Command::new("mount").arg(&part).arg(&mount).status().unwrap().success());
    let _mounted = Unmounted(mount.clone());
    std::fs::write(mount.join("x"), "hello").unwrap();
    // What the file system itself has to write is written.
    let remount = Command::new("mount").args(["-o", "remount,ro"]).arg(&mount).status();
    assert!(remount.unwrap().success());
    let on = format!("mounted on {}", text(&mount));
    let before = std::fs::read(&file).unwrap();
    for target in [disk, &part] {
        for words in [
            vec!["copy", "pattern:1M", target],
            vec!["convert", "-f", "raw", "pattern:1M", target],
            vec!["create", "-f", "raw", target, "1M"],
            vec!["zero", target],
            vec!["zero", "-Z", "-l", "1M", target],
            vec!["trim", target],
            vec!["prealloc", target],
        ] {
            let outcome = ferry(&words);
            let line = outcome.failed();
            assert!(line.contains(&on) && line.contains("--force"), "{line}");
            let says_part = line.contains("its partition");
            assert_eq!(says_part, target == disk, "{line}");
        }
    }
    assert!(std::fs::read(&file).unwrap() == before, "something was written");
    // The other partition is not used.
    let other = format!("{disk}p2");
    ferry(&["copy", "pattern:1M", &other]).succeeded();
    ferry(&["zero", "--force", "-o", "12M", "-l", "4096", &part]).succeeded();
    let facts = ferry(&["info", disk]);
    assert!(facts.succeeded().contains(&on), "{facts:?}");
    assert_eq!(std::fs::read(mount.join("x")).unwrap(), b"hello");
}

/// A partition of 16 MiB.
fn add_partition(disk: &str, number: &str, start: &str) -> bool {
    let Some(addpart) = peer("addpart") else { return false };
    Command::new(addpart).args([disk, number, start, "32768"]).status().unwrap().success()
}

fn partition(sfdisk: &std::path::Path, file: &std::path::Path, table: &str) {
    use std::io::Write;
    let mut child = Command::new(sfdisk)
        .arg("-q")
        .arg(file)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(table.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

struct Unmounted(std::path::PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_device_below_another_is_in_use_although_the_kernel_lets_it_be_written() {
    let temp = TempDir::new();
    let file = temp.sparse_file("disk", 8 * MIB);
    let Some(lower) = Loop::over(&file, &[]) else { return };
    let Some(upper) = Loop::over(lower.path(), &[]) else { return };
    let name = upper.path().file_name().unwrap().to_str().unwrap().to_owned();
    let outcome = ferry(&["zero", text(lower.path())]);
    assert!(outcome.failed().contains(&format!("below {name}")), "{outcome:?}");
    ferry(&["zero", "--force", text(lower.path())]).succeeded();
    drop(upper);
    ferry(&["zero", text(lower.path())]).succeeded();
}

#[test]
fn a_device_held_by_the_device_mapper_is_in_use() {
    let temp = TempDir::new();
    let file = temp.sparse_file("disk", 8 * MIB);
    let Some(device) = Loop::over(&file, &[]) else { return };
    let Some(dmsetup) = peer("dmsetup") else { return };
    let name = format!("diskferry-{}", std::process::id());
    let table = format!("0 8192 linear {} 0", text(device.path()));
    let made = Command::new(&dmsetup).args(["create", &name, "--table", &table]).output().unwrap();
    if !made.status.success() {
        return skip_environment("this kernel has no device mapper");
    }
    let outcome = ferry(&["zero", text(device.path())]);
    let _ = Command::new(&dmsetup).args(["remove", &name]).status();
    assert!(outcome.failed().contains("held by dm-"), "{outcome:?}");
}

#[test]
fn partitions_are_there_after_a_disk_with_a_table_was_copied_onto_a_device() {
    let temp = TempDir::new();
    let (source, file) = (temp.sparse_file("source", 64 * MIB), temp.sparse_file("disk", 64 * MIB));
    let Some(sfdisk) = peer("sfdisk") else { return };
    partition(&sfdisk, &source, "label: gpt\n2048,32768\n40960,32768\n");
    let Some(device) = Loop::over(&file, &["-P"]) else { return };
    let name = device.path().file_name().unwrap().to_str().unwrap().to_owned();
    let exists =
        |part: u32| std::path::Path::new(&format!("/sys/block/{name}/{name}p{part}")).exists();
    if !add_partition(text(device.path()), "9", "2048") {
        return skip_environment("a stale partition needs addpart");
    }
    assert!(exists(9));
    ferry(&["copy", text(&source), text(device.path())]).succeeded();
    assert!(!exists(9), "the table was not read again");
    // Where the kernel knows such tables at all.
    let knows = reads_tables();
    assert!(exists(1) == knows && exists(2) == knows, "{knows}");
    assert!(add_partition(text(device.path()), "9", "90112"));
    let words = ["convert", "-n", "-O", "raw", "-f", "raw", "pattern:64M", text(device.path())];
    ferry(&words).succeeded();
    assert!(!exists(1) && !exists(9), "nor that it is gone");
}

/// Whether this kernel reads GPT: its own words, where it has them.
fn reads_tables() -> bool {
    let config = Command::new("zcat").arg("/proc/config.gz").output().unwrap();
    !String::from_utf8_lossy(&config.stdout).contains("# CONFIG_EFI_PARTITION is not set")
}

#[test]
fn info_describes_a_block_device() {
    let temp = TempDir::new();
    for sector in ["512", "4096"] {
        let file = temp.sparse_file(sector, 8 * MIB);
        let Some(device) = Loop::over(&file, &["--sector-size", sector]) else { return };
        let name = text(device.path());
        let json = ferry(&["info", "--output=json", name]);
        let said: serde_json::Value = serde_json::from_str(json.succeeded()).unwrap();
        let about = &said["block-device"];
        let number: u64 = sector.parse().unwrap();
        assert_eq!(about["logical-block-size"], number, "{said}");
        assert_eq!(about["device-size"], 8 * MIB, "{said}");
        for key in ["physical-block-size", "discard-granularity", "is-rotational", "is-read-only"] {
            assert!(!about[key].is_null(), "{key}: {said}");
        }
        assert!(about["in-use"].is_null(), "{said}");
        let human = ferry(&["info", name]);
        let line = format!("logical block size: {sector}");
        assert!(human.succeeded().contains(&line), "{human:?}");
        let list = ferry(&["info", "--json", name]);
        assert!(list.succeeded().contains("discard-granularity"), "{list:?}");
        let plain = ferry(&["info", text(&file)]);
        assert!(!plain.succeeded().contains("Block device"), "{plain:?}");
    }
}
