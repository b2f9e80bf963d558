//! `copy --max-errors`: what cannot be read becomes zeroes, no more of it than was allowed, and a
//! mapfile of ddrescue's says where, by which the next copy brings over the rest.

use std::fs;
use std::path::{Path, PathBuf};

use blackbox::MIB;
use blackbox::launch::Serve;
use blackbox::run::{ferry, json, text};
use blackbox::temp::{TempDir, pattern};

/// What cannot be read, by first byte and length: three places of a sector.
const BAD: [(u64, u64); 2] = [(MIB, 1024), (5 * MIB + 512, 512)];

/// A disk, the filter under which a part of it cannot be read, and what a copy of it is to hold.
struct Damaged {
    temp: TempDir,
    disk: PathBuf,
    filter: String,
    wanted: Vec<u8>,
}

fn damaged() -> Damaged {
    let temp = TempDir::new();
    let mut wanted = pattern(0, 8 << 20);
    let disk = temp.file("disk", &wanted);
    let (mut lines, mut at) = (String::new(), 0);
    for (start, len) in BAD {
        lines += &format!("{at} {} +\n{start} {len} -\n", start - at);
        at = start + len;
        wanted[usize::try_from(start).unwrap()..usize::try_from(at).unwrap()].fill(0);
    }
    lines += &format!("{at} {} +\n", 8 * MIB - at);
    let damage = temp.file("damage", format!("# damage\n0 + 1\n{lines}").as_bytes());
    let filter = format!("--source-filter=ddrescue?ddrescue-mapfile={}", text(&damage));
    Damaged { temp, disk, filter, wanted }
}

/// The areas of a mapfile that are not finished.
fn unfinished(map: &Path) -> Vec<(String, String, String)> {
    let map = fs::read_to_string(map).unwrap();
    assert!(map.starts_with("# Mapfile. Created by "), "{map}");
    let lines = map.lines().filter(|line| !line.starts_with('#')).skip(1);
    let words = lines.map(|line| {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        <[String; 3]>::try_from(words).unwrap().into()
    });
    words.filter(|(_, _, status)| status != "+").collect()
}

#[test]
fn what_cannot_be_read_is_zeroes_and_the_next_copy_brings_over_no_more_than_that() {
    let Damaged { temp, disk, filter, wanted } = damaged();
    let (copy, map, stats) = (temp.join("copy"), temp.join("map"), temp.join("stats"));
    let limits = ["--max-errors=3", "--mapfile", text(&map)];
    let copied =
        ferry(["copy", &filter, limits[0], limits[1], limits[2], text(&disk), text(&copy)]);
    let said = &copied.stderr;
    assert_eq!(copied.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("warning: error while reading offset").count(), 3, "{said}");
    assert!(said.contains("3 places of the source (1.50 KiB) could not be read"), "{said}");
    assert!(fs::read(&copy).unwrap() == wanted);
    let area = |at: &str, len: &str| (at.into(), len.into(), "-".into());
    let bad = [area("0x00100000", "0x00000400"), area("0x00500200", "0x00000200")];
    assert_eq!(unfinished(&map), bad);
    // Not among the peers that the gate installs.
    match std::process::Command::new("ddrescuelog").args(["--list-blocks=-", text(&map)]).output() {
        Ok(shown) => {
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            assert_eq!(shown, "2048\n2049\n10241\n");
        }
        Err(e) => println!("skipped: ddrescuelog reads the mapfile: {e}"),
    }
    // The same places still cannot be read; then they can.
    let again = ["copy", "--changes", text(&map)];
    let args = |rest: &[&str]| {
        let all = again.iter().chain(&limits).chain(rest).map(|word| (*word).to_owned());
        all.collect::<Vec<_>>()
    };
    let copied = ferry(args(&[&filter, text(&disk), text(&copy)]));
    assert_eq!(copied.status.code(), Some(1), "{copied:#?}");
    assert_eq!(unfinished(&map), bad);
    assert!(fs::read(&copy).unwrap() == wanted);
    let counting = format!("--filter=stats?statsformat=json&statsfile={}", text(&stats));
    let server = Serve::file(&disk).option(counting).option("-r").start();
    ferry(args(&[&server.uri(""), text(&copy)])).succeeded();
    assert!(server.stop().success());
    let report = json(&fs::read_to_string(&stats).unwrap());
    assert_eq!(report["operations"]["read"]["bytes"].as_u64(), Some(1536), "{report}");
    assert_eq!(unfinished(&map), []);
    assert!(fs::read(&copy).unwrap() == fs::read(&disk).unwrap());
}

#[test]
fn more_than_was_allowed_ends_the_copy_and_the_map_says_what_the_target_lacks() {
    for keeps in [false, true] {
        let Damaged { temp, disk, filter, .. } = damaged();
        let (copy, map) = (temp.join("copy"), temp.join("map"));
        let words = ["copy", "--max-errors=2", "--mapfile", text(&map), "--synchronous", &filter];
        let kept = ["--keep-partial"].into_iter().filter(|_| keeps);
        let words = words.into_iter().chain(kept).chain([text(&disk), text(&copy)]);
        let failed = ferry(words);
        assert_eq!(failed.status.code(), Some(1), "{failed:?}");
        assert!(failed.stderr.contains("more than 2 places cannot be read"), "{failed:?}");
        assert_eq!(copy.exists(), keeps);
        let left = unfinished(&map);
        if !keeps {
            // Nothing is there any more.
            let area = |at: &str, len: &str, status: &str| (at.into(), len.into(), status.into());
            let (bad, rest) = (area("0x00100000", "0x00000400", "-"), "0x006FFC00");
            let all = [area("0x00000000", "0x00100000", "?"), bad, area("0x00100400", rest, "?")];
            assert_eq!(left, all);
            continue;
        }
        assert!(left.iter().any(|(_, _, status)| status == "-"), "{left:?}");
        // Brings over the rest, of a disk that is whole.
        ferry(["copy", "--changes", text(&map), text(&disk), text(&copy)]).succeeded();
        assert!(fs::read(&copy).unwrap() == fs::read(&disk).unwrap());
    }
}

#[test]
fn a_range_has_its_places_in_the_source_and_another_file_is_no_mapfile() {
    let Damaged { temp, disk, filter, wanted } = damaged();
    let (copy, map) = (temp.join("copy"), temp.join("map"));
    let range = ["--offset=4M", "--length=2M", "--target-offset=0"];
    let words = ["copy", "--max-errors=1", "--mapfile", text(&map), "--progress=json", &filter];
    let failed = ferry(words.into_iter().chain(range).chain([text(&disk), text(&copy)]));
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let lines: Vec<_> = failed.stderr.lines().map(json).collect();
    let types: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert!(types.contains(&"warning"), "{lines:?}");
    assert_eq!(types.last(), Some(&"error"), "{lines:?}");
    assert!(fs::read(&copy).unwrap() == wanted[4 << 20..6 << 20]);
    let area = |at: &str, len: &str, status: &str| (at.into(), len.into(), status.into());
    let wanted = [area("0x00000000", "0x00400000", "?"), area("0x00500200", "0x00000200", "-")];
    assert_eq!(unfinished(&map), wanted);
    let other = temp.file("other", b"something");
    let words = ["copy", "--max-errors=1", "--mapfile", text(&other), text(&disk), text(&copy)];
    let failed = ferry(words);
    assert!(failed.failed().contains("is not an old mapfile"), "{failed:?}");
    assert_eq!(fs::read(&other).unwrap(), b"something");
}
