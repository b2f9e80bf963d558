//! Block devices: what they hold stays, and what the kernel uses is left alone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use blackbox::storage::{Loop, Mounted};
use blackbox::temp::{TempDir, pattern};

use super::{ROOM, ferry, prealloc, text};

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

#[test]
fn a_mounted_device_is_left_alone() {
    let Some(fs) = Mounted::new("ext4", ROOM) else { return };
    let outcome = ferry(&["prealloc", text(fs.device())]);
    assert!(outcome.failed().contains("mounted"), "{outcome:?}");
    let status = Command::new("touch").arg(fs.join("x")).status().unwrap();
    assert!(status.success());
}
