//! `copy --changes`: what changed is copied, and nothing else is touched; and `--verify`: what was
//! written is read back.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use blackbox::MIB;
use blackbox::launch::Serve;
use blackbox::peers::peer;
use blackbox::run::{ferry, json, program, run, text};
use blackbox::temp::{TempDir, pattern};

fn write(disk: &Path, bytes: &[u8], at: u64) {
    fs::File::options().write(true).open(disk).unwrap().write_all_at(bytes, at).unwrap();
}

/// A disk, its copy, and what of the disk was changed since: in the copy there are other bytes in
/// between, which are to stay.
struct Backup {
    temp: TempDir,
    disk: std::path::PathBuf,
    copy: std::path::PathBuf,
    wanted: Vec<u8>,
}

/// Bytes that differ, in stretches of 4 MiB at most, by first byte and length.
const CHANGED: [(u64, u64); 3] = [(0, 512), (5 * MIB + 4096, 65536), (15 * MIB, MIB)];

fn backup() -> Backup {
    let temp = TempDir::new();
    let disk = temp.file("disk", &pattern(0, 16 << 20));
    let copy = temp.join("copy");
    fs::copy(&disk, &copy).unwrap();
    // Nothing of the source, and not to be touched.
    write(&copy, &[0xee; 4096], 9 * MIB);
    let mut wanted = fs::read(&copy).unwrap();
    for (n, (at, len)) in CHANGED.into_iter().enumerate() {
        let bytes = vec![if n == 1 { 0 } else { 7 }; usize::try_from(len).unwrap()];
        write(&disk, &bytes, at);
        wanted[usize::try_from(at).unwrap()..][..bytes.len()].copy_from_slice(&bytes);
    }
    Backup { temp, disk, copy, wanted }
}

#[test]
fn lists_of_all_kinds_bring_over_what_they_name_and_leave_the_rest_alone() {
    let all = |entry: &dyn Fn(u64, u64) -> String| {
        CHANGED.iter().map(|(at, len)| entry(*at, *len)).collect::<Vec<_>>().join(",")
    };
    let rbd = all(&|at, len| format!(r#"{{"offset":{at},"length":{len},"exists":"true"}}"#));
    let map = all(&|at, len| {
        format!(r#"{{"offset":{at},"length":{len},"type":1,"description":"dirty"}}"#)
    });
    let vmware = all(&|at, len| format!(r#"{{"start":{at},"length":{len}}}"#));
    for list in [format!("[{rbd}]"), format!("[{map}]"), format!(r#"{{"changedArea":[{vmware}]}}"#)]
    {
        let Backup { temp, disk, copy, wanted } = backup();
        let list = temp.file("list", list.as_bytes());
        ferry(["copy", "--changes", text(&list), text(&disk), text(&copy)]).succeeded();
        assert!(fs::read(&copy).unwrap() == wanted);
    }
}

#[test]
fn a_manifest_of_the_last_copy_says_what_changed_and_no_more_is_written() {
    let Backup { temp, disk, copy, .. } = backup();
    let (manifest, target) = (temp.join("manifest"), temp.join("target"));
    let stats = temp.join("stats");
    for (at, len) in CHANGED {
        let old = pattern(at, usize::try_from(len).unwrap());
        write(&disk, &old, at);
    }
    ferry(["copy", "--manifest", text(&manifest), text(&disk), text(&target)]).succeeded();
    drop(copy);
    write(&disk, &[9; 4096], 13 * MIB);
    let filter = format!("--filter=stats?statsformat=json&statsfile={}", text(&stats));
    let server = Serve::file(&target).option(filter).start();
    ferry(["copy", "--changes", text(&manifest), text(&disk), &server.uri("")]).succeeded();
    assert!(server.stop().success());
    let report = json(&fs::read_to_string(&stats).unwrap());
    assert_eq!(report["operations"]["write"]["bytes"].as_u64(), Some(4 * MIB), "{report}");
    assert!(fs::read(&target).unwrap() == fs::read(&disk).unwrap());
    // A disk of another size is another disk.
    fs::File::options().write(true).open(&disk).unwrap().set_len(20 * MIB).unwrap();
    let refused = ferry(["copy", "--changes", text(&manifest), text(&disk), text(&target)]);
    assert!(refused.failed().contains("is of a disk of 16777216 bytes"), "{refused:?}");
}

#[test]
fn a_dirty_bitmap_of_ours_or_of_qemu_is_followed_into_raw_and_into_an_image() {
    let (Some(qemu_img), Some(qemu_io)) = (peer("qemu-img"), peer("qemu-io")) else { return };
    let Some(qemu_nbd) = peer("qemu-nbd") else { return };
    let does = |path, words: &[&str]| {
        assert!(run(&mut program(path, words)).status.success(), "{words:?}")
    };
    for served in ["by us", "by qemu-nbd", "not"] {
        for format in ["raw", "qcow2"] {
            let temp = TempDir::new();
            let raw = temp.file("raw", &pattern(0, 16 << 20));
            let (disk, copy) = (temp.join("disk"), temp.join("copy"));
            ferry(["convert", "-f", "raw", "-O", "qcow2", text(&raw), text(&disk)]).succeeded();
            does(&qemu_img, &["bitmap", "--add", "-g", "64k", text(&disk), "day"]);
            ferry(["copy", "-f", "qcow2", "-O", format, text(&disk), text(&copy)]).succeeded();
            // What is not in the bitmap stays as it is, even where it differs.
            does(&qemu_io, &["-f", format, "-c", "write -P 0xee 9M 64k", text(&copy)]);
            does(
                &qemu_io,
                &["-f", "qcow2", "-c", "write -P 7 1M 128k", "-c", "discard 5M 64k", text(&disk)],
            );
            let bitmap = "bitmap:day";
            let uri;
            let mut server = None;
            let from: &[&str] = match served {
                "not" => &["-f", "qcow2", text(&disk)],
                by => {
                    let started = match by {
                        "by us" => Serve::file(&disk).option("--format=qcow2").option("-r").start(),
                        _ => blackbox::launch::Server::peer(&qemu_nbd, |socket| {
                            let words = ["--persistent", "-r", "-f", "qcow2", "-B", "day", "-k"];
                            let rest = [socket.as_os_str(), disk.as_os_str()];
                            words.iter().map(Into::into).chain(rest.map(Into::into)).collect()
                        }),
                    };
                    uri = started.uri("");
                    server = Some(started);
                    &[&*uri]
                }
            };
            let wrong =
                [&["copy", "--changes", "bitmap:other", "-O", format], from, &[text(&copy)]]
                    .concat();
            assert!(ferry(wrong).failed().contains("there is no bitmap"));
            let words =
                [&["copy", "--changes", bitmap, "-O", format], from, &[text(&copy)]].concat();
            ferry(words).succeeded();
            drop(server);
            let mut wanted = pattern(0, 16 << 20);
            wanted[1 << 20..(1 << 20) + (128 << 10)].fill(7);
            wanted[5 << 20..(5 << 20) + (64 << 10)].fill(0);
            wanted[9 << 20..(9 << 20) + (64 << 10)].fill(0xee);
            let plain = temp.join("plain");
            ferry(["copy", "-f", format, "-O", "raw", text(&copy), text(&plain)]).succeeded();
            assert!(fs::read(&plain).unwrap() == wanted, "served {served}, {format}");
        }
    }
}

#[test]
fn without_a_target_that_holds_the_rest_only_what_changed_is_not_copied() {
    let Backup { temp, disk, copy, .. } = backup();
    let list = temp.file("list", br#"[{"offset":0,"length":4096}]"#);
    let missing = temp.join("missing");
    let named = |list: &Path, to: &Path| {
        let refused = ferry(["copy", "--changes", text(list), text(&disk), text(to)]);
        refused.failed();
        refused.stderr
    };
    named(&list, &missing);
    assert!(!missing.exists());
    let short = temp.file("short", &[1; 4096]);
    assert!(named(&list, &short).contains("too small"));
    assert_eq!(fs::read(&short).unwrap(), [1; 4096]);
    let before = fs::read(&copy).unwrap();
    let far = temp.file("far", br#"[{"offset":16777216,"length":1}]"#);
    assert!(named(&far, &copy).contains("belongs to another disk"));
    assert!(named(&temp.file("no-list", b"hello"), &copy).contains("unknown form"));
    named(&temp.join("no-such-list"), &copy);
    assert!(fs::read(&copy).unwrap() == before);
}

#[test]
fn what_was_written_is_read_back_and_another_byte_is_found() {
    let temp = TempDir::new();
    let disk = temp.file("disk", &pattern(0, 8 << 20));
    for format in ["raw", "qcow2", "vmdk"] {
        let copy = temp.join(format);
        let words = ["copy", "-v", "--verify", "-O", format, text(&disk), text(&copy)];
        let told = ferry(words);
        told.succeeded();
        assert!(told.stderr.contains("verified"), "{told:?}");
    }
    // A server that keeps something else than what it is sent.
    let target = temp.file("target", &[0; 8 << 20]);
    let server =
        Serve::file(&target).option("--filter=evil?evil-probability=1e-5&evil-seed=1").start();
    let refused = ferry(["copy", "--verify", text(&disk), &server.uri("")]);
    assert!(
        refused.failed().contains("verify: its contents differ from the copied data"),
        "{refused:?}"
    );
}
