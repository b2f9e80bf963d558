//! Images behind servers and filters, and what is sent of them without a copy.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use blackbox::dice::Dice;
use blackbox::launch::Serve;
use blackbox::nbd::{cflag, cmd};
use blackbox::peers::peer;
use blackbox::session::{Mode, Request};
use blackbox::{MIB, index};

use super::disks::differ;
use super::ground::{Ground, ferry, none_failed, sound, text, told};
use super::recipes::{Recipe, SIZE};

const IMAGES: &[(&str, &str, bool)] = &[
    ("qcow2", "", false),
    ("qcow2", "cluster_size=512", false),
    ("qcow2", "cluster_size=4k", true),
    ("qcow2", "compression_type=zstd", true),
    ("vmdk", "", false),
    ("vmdk", "subformat=streamOptimized", false),
    ("vdi", "", false),
    ("vpc", "force_size=on", false),
    ("vhdx", "block_size=1M", false),
];

fn image(ground: &Ground, (format, options, compress): (&'static str, &str, bool)) -> String {
    Recipe { format, options: options.into(), compress, size: SIZE }.make(ground).unwrap()
}

/// The image behind a server, read in both of our ways, one of them with one thread.
fn through(ground: &Ground, format: &str, uri: &str, truth: &Path) -> Result<(), String> {
    let out = ground.temp.join("out");
    for words in [
        &["convert", "-f", format, "-O", "raw", uri, text(&out)][..],
        &["copy", "--threads", "1", "-f", format, uri, text(&out)],
    ] {
        let outcome = ferry(words);
        sound(&outcome)?;
        if !outcome.status.success() {
            return Err(told(&outcome));
        }
        differ(truth, &out, false).map_err(|e| format!("{}: {e}", words[0]))?;
        std::fs::remove_file(&out).unwrap();
    }
    let copy = format!("nbdcopy \"$uri\" {}", text(&out));
    let words = ["serve", "--threads", "1", "--format", format, uri, "--run", &copy];
    let outcome = ferry(words);
    sound(&outcome)?;
    if !outcome.status.success() {
        return Err(told(&outcome));
    }
    let same = differ(truth, &out, false).map_err(|e| format!("served again: {e}"));
    std::fs::remove_file(&out).unwrap();
    same
}

#[test]
fn images_are_read_over_filters_with_one_thread() {
    let Some(ground) = Ground::new() else { return };
    let mut failures = Vec::new();
    for kind in IMAGES {
        let image = image(&ground, *kind);
        let truth = ground.truth(kind.0, &image, "truth");
        for filters in [
            &[][..],
            &["--filter=delay?rdelay=1ms"],
            &["--filter=blocksize?minblock=512&maxdata=64K"],
            &["--filter=blocksize?minblock=512&maxdata=512K", "--filter=delay?delay-extents=1ms"],
        ] {
            let serve = Serve::device(["file", &image]).option("--threads=1").option("-r");
            let server = filters.iter().fold(serve, |serve, filter| serve.option(*filter)).start();
            let wrong = through(&ground, kind.0, &server.uri(""), &truth).err();
            failures.extend(wrong.map(|e| format!("{kind:?} over {filters:?}: {e}")));
        }
        ground.clear();
    }
    none_failed(&failures);
}

#[test]
fn an_image_in_a_partition_is_read() {
    let Some(ground) = Ground::new() else { return };
    for kind in [IMAGES[0], IMAGES[5]] {
        let image = image(&ground, kind);
        let truth = ground.truth(kind.0, &image, "truth");
        let bytes = std::fs::read(&image).unwrap();
        let sectors = u32::try_from(bytes.len().div_ceil(512)).unwrap();
        let mut table = [0; 512];
        // One partition, from sector 100 on.
        table[446 + 4] = 0x83;
        table[446 + 8..446 + 12].copy_from_slice(&100_u32.to_le_bytes());
        table[446 + 12..446 + 16].copy_from_slice(&sectors.to_le_bytes());
        table[510..].copy_from_slice(&[0x55, 0xaa]);
        let mut disk = File::create(ground.temp.join("parts")).unwrap();
        disk.write_all(&table).unwrap();
        disk.seek(SeekFrom::Start(51_200)).unwrap();
        disk.write_all(&bytes).unwrap();
        disk.set_len(51_200 + 512 * u64::from(sectors) + 4096).unwrap();
        let serve = Serve::file(&ground.temp.join("parts")).option("--threads=1");
        let server = serve.option("--filter=partition?partition=1").start();
        through(&ground, kind.0, &server.uri(""), &truth).unwrap();
        ground.clear();
    }
}

#[test]
fn reads_that_fail_below_an_image_fail_and_leave_nothing() {
    let Some(ground) = Ground::new() else { return };
    let mut failures = Vec::new();
    for kind in IMAGES {
        let image = image(&ground, *kind);
        let truth = ground.truth(kind.0, &image, "truth");
        for rate in [
            "error-pread-rate=100%",
            "error-pread-rate=30%",
            "error-pread-rate=5%",
            "error-extents-rate=60%",
        ] {
            let serve = Serve::device(["file", &image]).option("-r");
            let server = serve.option(format!("--filter=error?{rate}")).start();
            let out = ground.temp.join("out");
            let outcome = ferry(["convert", "-f", kind.0, &server.uri(""), text(&out)]);
            let right = sound(&outcome).and_then(|()| match outcome.status.code() {
                Some(0) if rate.contains("100") => Err("nothing can be read, and success".into()),
                Some(0) => differ(&truth, &out, false),
                Some(1) if out.exists() => Err("a target was left".into()),
                Some(1) if outcome.stderr.lines().count() == 1 => Ok(()),
                _ => Err(String::new()),
            });
            failures
                .extend(right.err().map(|e| format!("{kind:?}, {rate}: {e}: {}", told(&outcome))));
            let _ = std::fs::remove_file(&out);
        }
        ground.clear();
    }
    none_failed(&failures);
}

#[test]
fn an_uncompressed_image_is_sent_by_sendfile_also_in_one_piece() {
    let Some(ground) = Ground::new() else { return };
    if peer("strace").is_none() {
        return;
    }
    let raw = ground.temp.file("raw.disk", &blackbox::temp::pattern(0, index(8 * MIB)));
    let image = ground.path("image");
    ground.img(&["convert", "-f", "raw", "-O", "qcow2", text(&raw), &image]);
    let log = ground.temp.join("log");
    let serve = Serve::device(["file", &image]).option("--format").option("qcow2");
    let server = serve.traced_for(&log, "sendfile,sendto,sendmsg,writev").start();
    for flags in [0, cflag::DF] {
        let before = std::fs::read(&log).unwrap().len();
        let mut session = server.session(Mode::Structured, "");
        for at in (0..8 * MIB).step_by(256 << 10) {
            let request = Request::new(cmd::READ, at, 256 << 10).flags(flags);
            let answer = session.ask(&request);
            assert_eq!(answer.error, 0);
        }
        session.disconnect();
        let log = std::fs::read(&log).unwrap();
        let log = String::from_utf8_lossy(&log[before..]);
        let sent = |call: &str| -> u64 {
            let lines = log.lines().filter(|line| line.contains(call));
            lines.filter_map(|line| line.rsplit_once("= ")?.1.trim().parse::<u64>().ok()).sum()
        };
        let (files, copies) = (sent("sendfile"), sent("sendto") + sent("sendmsg") + sent("writev"));
        assert!(
            files >= 8 * MIB - MIB,
            "flags {flags}: {files} bytes by sendfile, {copies} copied"
        );
        assert!(copies < MIB, "flags {flags}: {copies} bytes were copied");
    }
    server.stop();
}

#[test]
fn random_reads_of_a_tebibyte_take_no_more_than_64_mib() {
    let Some(ground) = Ground::new() else { return };
    let image = ground.path("image");
    ground.img(&["create", "-q", "-f", "qcow2", "-o", "preallocation=metadata", &image, "1T"]);
    let server = Serve::device(["file", &image]).option("--format=qcow2").start();
    let mut session = server.session(Mode::Structured, "");
    let mut dice = Dice::new(1);
    for _ in 0..20_000 {
        let at = (dice.below(1 << 28) as u64) << 12;
        assert_eq!(session.read(at, 4096).unwrap().len(), 4096);
    }
    let grown = server.anonymous_memory();
    assert!(grown < 64 * MIB, "{grown} bytes");
}

#[test]
fn random_writes_into_16_tib_take_no_more_than_64_mib() {
    let Some(ground) = Ground::new() else { return };
    let image = ground.path("image");
    ground.img(&["create", "-q", "-f", "qcow2", "-o", "cluster_size=8k", &image, "16T"]);
    let server = Serve::device(["file", &image]).option("--format=qcow2").start();
    let mut session = server.session(Mode::Structured, "");
    let mut dice = Dice::new(2);
    let mut most = 0;
    for n in 0..16_000 {
        let at = (dice.below(1 << 31) as u64) << 13;
        session.write(at, &[7; 4096]);
        if n % 100 == 0 {
            most = most.max(server.anonymous_memory());
        }
    }
    session.flush();
    most = most.max(server.anonymous_memory());
    assert!(most < 64 * MIB, "{most} bytes");
    server.stop();
    ground.img(&["check", "-q", &image]);
}
