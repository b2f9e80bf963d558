//! Files, by the verb and as targets of `create`, `convert`, `copy` and clients of `serve`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use blackbox::launch::Serve;
use blackbox::peers::peer;
use blackbox::run::{program, run};
use blackbox::storage::Mounted;
use blackbox::temp::{TempDir, pattern};
use rustix::fs::{FallocateFlags, fallocate};

use super::extents::{Map, all_written, map};
use super::{KINDS, ROOM, ferry, prealloc, text};

const MIB: u64 = 1 << 20;

fn is_zero(path: &Path) -> bool {
    std::fs::read(path).unwrap().iter().all(|b| *b == 0)
}

#[test]
fn a_new_file_is_written_throughout_to_its_last_byte() {
    for kind in KINDS {
        let Some(fs) = Mounted::new(kind, ROOM) else { return };
        let disk = fs.join("disk");
        let size = 40 * MIB + 4097;
        let said = prealloc(&disk, &["--size", &size.to_string()]);
        assert_eq!(
            (&said["size"], &said["zeroed"]),
            (&size.into(), &size.into()),
            "{kind}: {said}"
        );
        assert_eq!((&said["mode"], &said["checked"]), (&"written".into(), &true.into()), "{kind}");
        all_written(&disk);
        assert!(std::fs::metadata(&disk).unwrap().len() == size && is_zero(&disk), "{kind}");
        let again = prealloc(&disk, &[]);
        assert_eq!((&again["zeroed"], &again["way"]), (&0.into(), &"nothing".into()), "{kind}");
    }
}

#[test]
fn unwritten_allocates_and_writes_nothing_and_sparse_not_even_that() {
    for kind in KINDS {
        let Some(fs) = Mounted::new(kind, ROOM) else { return };
        let disk = fs.join("disk");
        prealloc(&disk, &["--size", "30M", "--mode", "sparse"]);
        assert_eq!(map(&disk), Map { holes: 30 * MIB, ..Map::default() }, "{kind}");
        let said = prealloc(&disk, &["--mode", "unwritten"]);
        assert_eq!((&said["way"], &said["zeroed"]), (&"fallocate".into(), &0.into()), "{kind}");
        assert_eq!(map(&disk), Map { unwritten: 30 * MIB, ..Map::default() }, "{kind}");
        prealloc(&disk, &["--mode", "sparse", "--size", "20M"]);
        assert_eq!(map(&disk).unwritten, 30 * MIB, "{kind}: nothing is cut off or let go");
    }
}

/// Data that lies in what the map calls unwritten until it is written back must not be taken for
/// nothing.
#[test]
fn what_a_file_holds_stays_also_where_it_is_only_in_the_page_cache() {
    for kind in KINDS {
        let Some(fs) = Mounted::new(kind, ROOM) else { return };
        let disk = fs.join("disk");
        let file = File::options().read(true).write(true).create_new(true).open(&disk).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 24 * MIB).unwrap();
        file.set_len(36 * MIB + 77).unwrap();
        let mut want = vec![0; usize::try_from(36 * MIB + 77).unwrap()];
        // On the disk, in the cache over unwritten blocks, over a hole, parts of blocks, at the
        // end.
        for (at, len) in [(0, 5), (9000, 1 << 20), (8 * MIB + 511, 2), (20 * MIB, 4096)] {
            file.write_all_at(&pattern(at, len), at).unwrap();
            want[usize::try_from(at).unwrap()..][..len].copy_from_slice(&pattern(at, len));
        }
        file.sync_all().unwrap();
        for (at, len) in [(5 * MIB + 1, 70_000), (30 * MIB + 3, 100), (36 * MIB, 77)] {
            file.write_all_at(&pattern(at, len), at).unwrap();
            want[usize::try_from(at).unwrap()..][..len].copy_from_slice(&pattern(at, len));
        }
        // Read, so that zeroes are cached over blocks that were never written.
        let mut cached = vec![1; 1 << 20];
        file.read_exact_at(&mut cached, 12 * MIB).unwrap();
        let said = prealloc(&disk, &[]);
        assert_eq!(said["checked"], true, "{kind}: {said}");
        assert!(said["kept"].as_u64().unwrap() >= 70_000, "{kind}: {said}");
        all_written(&disk);
        assert!(std::fs::read(&disk).unwrap() == want, "{kind}");
    }
}

#[test]
fn a_range_alone_has_its_room_and_the_rest_stays_as_it_is() {
    for kind in KINDS {
        let Some(fs) = Mounted::new(kind, ROOM) else { return };
        let disk = fs.join("disk");
        prealloc(&disk, &["--size", "30M", "--mode", "sparse"]);
        prealloc(&disk, &["--offset", "5000001", "--length", "3M"]);
        let found = map(&disk);
        let written = 3 * MIB..3 * MIB + 8192 + 1;
        assert!(found.unwritten == 0 && written.contains(&found.written), "{kind}: {found:?}");
        prealloc(&disk, &["-o", "29M", "-l", "4M", "--mode", "unwritten", "--keep-size"]);
        assert_eq!(std::fs::metadata(&disk).unwrap().len(), 30 * MIB, "{kind}");
        prealloc(&disk, &["-o", "29M", "-l", "4M"]);
        assert_eq!(std::fs::metadata(&disk).unwrap().len(), 33 * MIB, "{kind}");
        assert!(is_zero(&disk), "{kind}");
    }
}

#[test]
fn raw_targets_are_created_converted_and_copied_with_the_room_that_is_asked_for() {
    for kind in KINDS {
        let Some(fs) = Mounted::new(kind, ROOM) else { return };
        let source = fs.join("source");
        let file = File::create(&source).unwrap();
        file.set_len(20 * MIB).unwrap();
        file.write_all_at(&pattern(0, 1 << 20), 3 * MIB + 4096).unwrap();
        // Zeroes that are data.
        file.write_all_at(&vec![0; 1 << 20], 9 * MIB).unwrap();
        let target = fs.join("target");
        for (word, ours) in [("full", "written"), ("falloc", "unwritten"), ("off", "sparse")] {
            let option = format!("preallocation={word}");
            let own = format!("preallocation={ours}");
            let (from, to) = (text(&source), text(&target));
            for words in [
                vec!["create", "-q", "-o", &option, to, "20M"],
                vec!["create", "-q", "-o", &own, to, "20M"],
                vec!["convert", "-f", "raw", "-O", "raw", "-o", &option, from, to],
                vec!["copy", "--preallocate", ours, from, to],
            ] {
                ferry(&words).succeeded();
                let found = map(&target);
                let makes = words[0] == "create";
                match ours {
                    "written" => all_written(&target),
                    "unwritten" => assert!(found.holes == 0, "{kind} {words:?}: {found:?}"),
                    _ => assert!(found.holes >= 17 * MIB, "{kind} {words:?}: {found:?}"),
                }
                let want = if makes { vec![0; 20 << 20] } else { std::fs::read(&source).unwrap() };
                assert!(std::fs::read(&target).unwrap() == want, "{kind} {words:?}");
                std::fs::remove_file(&target).unwrap();
            }
        }
        // Over what was there: data where the source has none.
        std::fs::write(&target, pattern(0, 25 << 20)).unwrap();
        ferry(&["copy", "--preallocate", "written", text(&source), text(&target)]).succeeded();
        all_written(&target);
        assert!(std::fs::read(&target).unwrap() == std::fs::read(&source).unwrap(), "{kind}");
    }
}

#[test]
fn zeroes_without_holes_are_written_where_the_file_is_served_so_and_allocated_otherwise() {
    let Some(qemu_io) = peer("qemu-io") else { return };
    for kind in KINDS {
        let Some(fs) = Mounted::new(kind, ROOM) else { return };
        for (word, written) in [("written", true), ("allocated", false)] {
            let disk = fs.join(word);
            File::create(&disk).unwrap().set_len(8 * MIB).unwrap();
            let server = Serve::device([
                "file".into(),
                disk.clone().into_os_string(),
                format!("no-hole={word}").into(),
            ])
            .start();
            // Without -u: no hole.
            let zero = ["-f", "raw", "-c", "write -z 1M 4M", &server.uri("")];
            run(&mut program(&qemu_io, zero)).succeeded();
            drop(server);
            let found = map(&disk);
            let (some, none) = if written {
                (found.written, found.unwritten)
            } else {
                (found.unwritten, found.written)
            };
            assert_eq!((some, none), (4 * MIB, 0), "{kind} {word}: {found:?}");
        }
    }
}

#[test]
fn a_file_system_without_a_map_of_extents_is_filled_by_what_it_has() {
    let Some(fs) = Mounted::new("tmpfs", 64 << 20) else { return };
    let disk = fs.join("disk");
    std::fs::write(&disk, pattern(0, 10_000)).unwrap();
    let said = prealloc(&disk, &["--size", "20M"]);
    assert_eq!(said["checked"], false);
    let bytes = std::fs::read(&disk).unwrap();
    assert!(bytes.len() == 20 << 20 && bytes[..10_000] == pattern(0, 10_000));
    assert!(bytes[10_000..].iter().all(|b| *b == 0));
}

#[test]
fn zero_takes_the_words_of_fallocate() {
    for kind in ["ext4", "xfs"] {
        let Some(fs) = Mounted::new(kind, ROOM) else { return };
        let disk = fs.join("disk");
        ferry(&["zero", "-z", "-l", "8M", text(&disk)]).succeeded();
        assert_eq!(map(&disk), Map { unwritten: 8 * MIB, ..Map::default() }, "{kind}");
        ferry(&["zero", "-Z", "-o", "4M", "-l", "8M", text(&disk)]).succeeded();
        let want = Map { unwritten: 4 * MIB, written: 8 * MIB, holes: 0 };
        assert_eq!(map(&disk), want, "{kind}");
        std::fs::write(&disk, pattern(0, 3 << 20)).unwrap();
        ferry(&["zero", "-z", "-k", "-o", "1M", "-l", "1M", text(&disk)]).succeeded();
        let mut bytes = pattern(0, 3 << 20);
        bytes[1 << 20..2 << 20].fill(0);
        assert!(std::fs::read(&disk).unwrap() == bytes, "{kind}");
        assert_eq!(map(&disk).unwritten, MIB, "{kind}");
        ferry(&["zero", "-Z", text(&disk)]).succeeded();
        all_written(&disk);
        assert!(is_zero(&disk), "{kind}");
        ferry(&["zero", "-z", "-k", "-o", "2M", "-l", "2M", text(&disk)]).failed();
        ferry(&["zero", "-Z", "-k", "-l", "1M", text(&disk)]).refused();
    }
}

#[test]
fn zeroes_are_written_to_a_disk_that_knows_nothing_of_it() {
    let temp = TempDir::new();
    let disk = temp.file("disk", &pattern(0, 2 << 20));
    let server = Serve::file(&disk).start();
    ferry(&["zero", "--written", "-l", "1M", &server.uri("")]).succeeded();
    drop(server);
    let bytes = std::fs::read(&disk).unwrap();
    assert!(
        bytes[..1 << 20].iter().all(|b| *b == 0) && bytes[1 << 20..] == pattern(1 << 20, 1 << 20)
    );
}
