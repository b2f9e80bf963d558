//! Block devices as targets: with a request that zeroes, without one, and with one that lies.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use blackbox::index;
use blackbox::run::{ours, run};
use blackbox::storage::{Loop, Mounted};
use blackbox::temp::TempDir;

use super::{DATA, SIZE, answers, source, text};
use crate::tracing::traced;

/// A loop device over a file, and what keeps it.
struct Disk {
    device: Loop,
    _mounted: Option<Mounted>,
    temp: TempDir,
}

/// With a request that makes holes, or without one.
fn disk(discards: bool, byte: u8) -> Option<Disk> {
    let mounted = if discards { None } else { Some(Mounted::new("ramfs", 0)?) };
    let below = mounted.as_ref().map_or_else(std::env::temp_dir, |m| m.path().to_owned());
    let temp = TempDir::below(&below);
    let file = if byte == 0 {
        temp.sparse_file("disk", SIZE)
    } else {
        temp.file("disk", &vec![byte; index(SIZE)])
    };
    let device = Loop::over(&file, &[])?;
    let name = device.path().file_name().unwrap().to_str().unwrap();
    let queue = format!("/sys/block/{name}/queue/write_zeroes_max_bytes");
    let longest = fs::read_to_string(queue).unwrap_or_default();
    if (longest.trim() != "0") != discards {
        blackbox::peers::skip_environment("this kernel's loop devices have other requests");
        return None;
    }
    Some(Disk { device, _mounted: mounted, temp })
}

/// Its bytes, past the page cache of the device.
fn bytes(disk: &Disk) -> Vec<u8> {
    let path = disk.device.path();
    assert!(std::process::Command::new("blockdev").arg("--flushbufs").arg(path).status().is_ok());
    fs::read(path).unwrap()
}

fn same(disk: &Disk, source: &Path) -> bool {
    bytes(disk) == fs::read(source).unwrap()
}

#[test]
fn a_clean_device_is_written_its_data_and_no_more_whatever_it_can_do() {
    let temp = TempDir::new();
    let source = source(&temp);
    // One hole, which is so long that it is tried first whether it can be zeroed without writing.
    let long = temp.sparse_file("long", SIZE);
    let start = fs::OpenOptions::new().write(true).open(&long).unwrap();
    start.write_all_at(&[7; 4096], 0).unwrap();
    for (discards, source) in [(true, &source), (false, &source), (false, &long)] {
        let Some(disk) = disk(discards, 0) else { continue };
        let device = text(disk.device.path());
        let Some((outcome, trace)) = traced(&[], ["copy", text(source), device]) else { return };
        outcome.succeeded();
        let (_, written) = answers(&trace, "pwrite64");
        assert!(written <= DATA + DATA / 100, "{discards}: {written} of {DATA}");
        // What the kernel may write for us counts as well.
        let zero_out = trace.lines().filter(|l| l.contains("ZERO_RANGE") && l.contains(" = 0"));
        let asked = zero_out.count() + trace.matches("BLKZEROOUT").count();
        let short_holes_of_a_slow_device = !discards && *source != long;
        assert!(asked == 0 || short_holes_of_a_slow_device, "{discards}: {asked}");
        assert!(same(&disk, source), "{discards}");
    }
}

#[test]
fn no_old_byte_of_a_full_device_is_left_whatever_it_can_do() {
    let temp = TempDir::new();
    let source = source(&temp);
    for discards in [true, false] {
        for options in [&[][..], &["--sparse=0"], &["--allocated"], &["--no-extents"], &["--wipe"]]
        {
            let Some(disk) = disk(discards, 0xaa) else { continue };
            run(ours(["copy"]).args(options).arg(&source).arg(disk.device.path())).succeeded();
            assert!(same(&disk, &source), "{discards} {options:?}");
        }
    }
}

#[test]
fn a_device_that_only_says_that_it_zeroed_is_found_out_and_written() {
    let temp = TempDir::new();
    let source = source(&temp);
    let Some(disk) = disk(true, 0xaa) else { return };
    // Every fallocate is answered with success, and none is done.
    let lies = ["-e", "trace=fallocate,pwrite64", "-e", "inject=fallocate:retval=0"];
    let words = ["copy", text(&source), text(disk.device.path())];
    let Some((outcome, trace)) = traced(&lies, words) else { return };
    outcome.succeeded();
    assert!(trace.contains("(INJECTED)"), "{trace}");
    assert!(same(&disk, &source));
}

#[test]
fn zeroing_a_device_through_a_server_is_checked_too() {
    let Some(disk) = disk(true, 0xaa) else { return };
    let lies = ["-e", "trace=fallocate", "-e", "inject=fallocate:retval=0"];
    let run = format!("{} zero --length 8M \"$uri\"", blackbox::peers::diskferry().display());
    let words = ["serve", "file", text(disk.device.path()), "--run", &run];
    let Some((outcome, _)) = traced(&lies, words) else { return };
    outcome.succeeded();
    let bytes = bytes(&disk);
    let (zeroed, rest) = bytes.split_at(8 << 20);
    assert!(zeroed.iter().all(|b| *b == 0) && rest.iter().all(|b| *b == 0xaa));
}

#[test]
fn a_few_old_bytes_on_a_clean_device_are_found() {
    let temp = TempDir::new();
    let source = source(&temp);
    let Some(disk) = disk(false, 0) else { return };
    let file = fs::OpenOptions::new().write(true).open(disk.temp.join("disk")).unwrap();
    for at in [300_000, SIZE / 2 - 1, SIZE - 1, 5 << 20] {
        file.write_all_at(&[0xaa], at).unwrap();
    }
    drop(file);
    bytes(&disk);
    run(ours(["copy"]).arg(&source).arg(disk.device.path())).succeeded();
    assert!(same(&disk, &source));
}

#[test]
fn a_wipe_writes_every_byte_of_a_clean_device_and_asks_for_nothing_else() {
    let temp = TempDir::new();
    let source = source(&temp);
    let Some(disk) = disk(true, 0) else { return };
    let device = text(disk.device.path());
    let Some((outcome, trace)) = traced(&[], ["copy", "--wipe", text(&source), device]) else {
        return;
    };
    outcome.succeeded();
    assert_eq!(answers(&trace, "pwrite64").1, SIZE);
    assert_eq!(answers(&trace, "fallocate").0, 0, "{trace}");
    assert!(same(&disk, &source));
}
