//! Untrusted images: what they are taken for, and what they may cost.

use std::fs;
use std::path::{Path, PathBuf};

use blackbox::MIB;
use blackbox::launch::Serve;
use blackbox::nbd::{cmd, err, tflag};
use blackbox::peers::peer;
use blackbox::run::{Outcome, measured, ours, program, run};
use blackbox::session::{Mode, Request};
use blackbox::temp::{TempDir, pattern};

use crate::tracing::traced;

const FORMATS: [&str; 5] = ["qcow2", "vmdk", "vdi", "vpc", "vhdx"];

/// An image of this format that holds `bytes`.
fn image(temp: &TempDir, format: &str, bytes: &[u8]) -> PathBuf {
    let (raw, image) = (temp.file("raw", bytes), temp.join(format));
    run(ours(["convert", "-f", "raw", "-O", format]).arg(&raw).arg(&image)).succeeded();
    image
}

/// The files that one of our verbs opens, as strace shows it, and its outcome.
pub(crate) fn opened_by(words: &[&str]) -> Option<(String, Outcome)> {
    let (outcome, opened) = traced(&["-e", "trace=open,openat,openat2"], words)?;
    let code = outcome.status.code();
    assert!(code.is_some_and(|code| code != 101), "{words:?}: {outcome:#?}");
    Some((opened, outcome))
}

#[test]
fn a_guest_that_writes_a_header_into_its_raw_disk_gains_nothing() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let secret = temp.file("secret", &pattern(0, 65_536));
    let header = temp.join("header");
    let words = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b"];
    run(program(&qemu_img, words).arg(&secret).arg(&header).arg("64K")).succeeded();
    let header = fs::read(&header).unwrap();
    let disk = temp.sparse_file("disk", MIB);

    let server = Serve::file(&disk).start();
    let mut guest = server.session(Mode::Structured, "");
    guest.write(0, &header);
    guest.flush();
    guest.disconnect();
    server.stop();
    // The next time it is the same disk, and of the same size.
    let server = Serve::file(&disk).start();
    let mut guest = server.session(Mode::Structured, "");
    assert_eq!(guest.export.size, MIB);
    assert!(guest.read(0, blackbox::length(&header)) == Ok(header));
    guest.disconnect();
    server.stop();
    // So it is where its format is named, and for verbs that never guess.
    let path = disk.to_str().unwrap();
    for words in [&["convert", "-f", "raw", "-O", "raw"][..], &["copy"]] {
        let copy = temp.join("copy");
        run(ours(words).arg(&disk).arg(&copy)).succeeded();
        assert!(fs::read(&copy).unwrap() == fs::read(&disk).unwrap(), "{words:?}");
        fs::remove_file(&copy).unwrap();
    }
    // A guess takes it for what it looks like, and opens nothing else.
    let out = temp.join("out");
    let Some((opened, outcome)) = opened_by(&["convert", path, out.to_str().unwrap()]) else {
        return;
    };
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
    assert!(!opened.contains("secret") && !out.exists(), "{opened}");
}

#[test]
fn an_image_is_served_for_reading_only_and_stays_as_it_is() {
    let temp = TempDir::new();
    let bytes = pattern(0, 1 << 20);
    for format in FORMATS {
        let image = image(&temp, format, &bytes);
        let before = fs::read(&image).unwrap();
        let server = Serve::file(&image).option("-r").option("--format").option(format).start();
        let mut session = server.session(Mode::Structured, "");
        assert!(session.has(tflag::READ_ONLY), "{format}");
        assert!(session.read(0, 65_536).unwrap() == bytes[..65_536], "{format}");
        assert_eq!(session.error_of(&Request::write(0, &[7; 4096])), err::EPERM, "{format}");
        for command in [cmd::WRITE_ZEROES, cmd::TRIM] {
            let error = session.error_of(&Request::new(command, 0, 65_536));
            assert_eq!(error, err::EPERM, "{format}");
        }
        session.assert_alive();
        server.stop();
        assert!(fs::read(&image).unwrap() == before, "{format}");
    }
}

/// A qcow2 image all of whose clusters are one that is compressed: `size` bytes of data in a small
/// file.
fn bomb(qemu_img: &Path, qemu_io: &Path, temp: &TempDir, size: u64) -> PathBuf {
    let image = temp.join("bomb");
    run(program(&qemu_img.into(), ["create", "-q", "-f", "qcow2"])
        .arg(&image)
        .arg(size.to_string()))
    .succeeded();
    let write = ["-f", "qcow2", "-c", "write -c -P 1 0 64k"];
    run(program(&qemu_io.into(), write).arg(&image)).succeeded();
    let mut bytes = fs::read(&image).unwrap();
    let entry = |bytes: &[u8], at: usize| {
        u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap()) & 0x00ff_ffff_ffff_fe00
    };
    let l1 = blackbox::index(entry(&bytes, 40));
    let l2 = blackbox::index(entry(&bytes, l1));
    let packed: [u8; 8] = bytes[l2..l2 + 8].try_into().unwrap();
    assert_ne!(packed[0] & 0x40, 0, "it is compressed");
    for slot in bytes[l2..l2 + 65_536].chunks_exact_mut(8) {
        slot.copy_from_slice(&packed);
    }
    fs::write(&image, bytes).unwrap();
    image
}

#[test]
fn an_image_that_holds_a_thousand_times_its_bytes_costs_no_more_memory() {
    let (Some(qemu_img), Some(qemu_io)) = (peer("qemu-img"), peer("qemu-io")) else { return };
    let temp = TempDir::new();
    let image = bomb(&qemu_img, &qemu_io, &temp, 256 * MIB);
    let length = fs::metadata(&image).unwrap().len();
    assert!(length < MIB, "{length} bytes");
    let copied = measured(ours(["copy", "-f", "qcow2"]).arg(&image).arg("null:"));
    copied.succeeded();
    copied.fits_in(160 * MIB);
    let verdict = measured(ours(["inspect", "--safe"]).arg(&image));
    verdict.fits_in(64 * MIB);
    assert!(verdict.stdout.contains("268435456"), "it tells how much it holds: {verdict:#?}");
}

#[test]
fn a_disk_larger_than_any_that_can_be_is_refused_or_costs_nothing() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let image = temp.join("huge");
    let words = ["create", "-q", "-f", "qcow2", "-o", "cluster_size=2M"];
    run(program(&qemu_img, words).arg(&image).arg("1T")).succeeded();
    let mut bytes = fs::read(&image).unwrap();
    for size in [1_u64 << 63, u64::MAX, (1 << 63) - 512, 1 << 50] {
        bytes[24..32].copy_from_slice(&size.to_be_bytes());
        fs::write(&image, &bytes).unwrap();
        for words in [&["info"][..], &["map", "-f", "qcow2"], &["copy", "-f", "qcow2"]] {
            let target = (words[0] == "copy").then_some("null:");
            let outcome = measured(ours(words).arg(&image).args(target));
            outcome.fits_in(160 * MIB);
            assert!(outcome.status.code().is_some_and(|code| code < 2), "{size}: {outcome:#?}");
        }
    }
}

#[test]
fn a_grain_whose_marker_says_a_few_bytes_too_many_is_refused() {
    let temp = TempDir::new();
    let bytes: Vec<u8> = pattern(0, 65_536);
    let (raw, image) = (temp.file("raw", &bytes), temp.join("stream.vmdk"));
    let words = ["convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=streamOptimized"];
    run(ours(words).arg(&raw).arg(&image)).succeeded();
    let good = fs::read(&image).unwrap();
    // The first grain's marker: its sector, then its length.
    let grain = u64::from_le_bytes(good[64..72].try_into().unwrap()) * 512;
    let at = blackbox::index(grain) + 8;
    let length = u32::from_le_bytes(good[at..at + 4].try_into().unwrap());
    assert!((100..70_000).contains(&length), "{length}");
    for wrong in [length + 12 + 131_072, u32::MAX, u32::MAX - 11, 0, 1] {
        let mut bad = good.clone();
        bad[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
        fs::write(&image, &bad).unwrap();
        let copy = temp.join("copy");
        let outcome = measured(ours(["convert", "-f", "vmdk", "-O", "raw"]).arg(&image).arg(&copy));
        outcome.failed();
        outcome.fits_in(160 * MIB);
        assert!(!copy.exists());
    }
    // And where the file ends before its metadata says: no byte behind it is read.
    for cut in 0..13 {
        let end = at + 4 + blackbox::index(length.into()) - cut;
        if cut > 0 {
            fs::write(&image, &good[..end]).unwrap();
            let outcome = run(ours(["copy", "-f", "vmdk"]).arg(&image).arg("null:"));
            outcome.failed();
        }
    }
}

#[test]
fn temporary_files_have_no_name_under_which_a_link_could_wait() {
    if peer("strace").is_none() {
        return;
    }
    let temp = TempDir::new();
    let (disk, log) = (temp.sparse_file("disk", MIB), temp.join("trace"));
    let room = temp.join("room");
    fs::create_dir(&room).unwrap();
    for filter in ["cow", "cache"] {
        let serve = Serve::file(&disk).option(format!("--filter={filter}"));
        let server = serve.environment("TMPDIR", &room).traced_for(&log, "openat").start();
        let mut session = server.session(Mode::Simple, "");
        session.write(0, &[7; 65_536]);
        assert_eq!(fs::read_dir(&room).unwrap().count(), 0, "{filter}: it has a name");
        server.stop();
        // strace shows no strings here, but flags.
        let trace = fs::read_to_string(&log).unwrap();
        let made: Vec<_> = trace.lines().filter(|line| line.contains("O_TMPFILE")).collect();
        assert_eq!(made.len(), 1, "{filter}: {trace}");
    }
}
