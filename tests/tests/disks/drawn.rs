//! `compare --picture`: all that differs is drawn and counted, whatever the formats are.

use std::fs;

use blackbox::run::{ferry, ours, run, text};
use blackbox::temp::{TempDir, pattern};

const MIB: usize = 1 << 20;

#[test]
fn all_that_differs_is_drawn_and_what_is_zero_in_both_is_the_same() {
    let temp = TempDir::new();
    let mut bytes = pattern(0, 64 * MIB);
    bytes[20 * MIB..40 * MIB].fill(0);
    let first = temp.file("first", &bytes);
    let second = temp.join("second");
    let pair = ["-f", "raw", "-F", "qcow2", text(&first), text(&second)];
    let draw =
        |how: &str| run(ours([&["compare", how], &pair[..]].concat()).env("LC_ALL", "C.UTF-8"));
    ferry(["convert", "-q", "-f", "raw", "-O", "qcow2", text(&first), text(&second)]).succeeded();
    let same = draw("--picture");
    assert!(same.succeeded().ends_with("Images are identical.\n"), "{same:?}");
    let cells = same.stdout.lines().take(8);
    assert!(cells.clone().all(|row| row.ends_with(&"·".repeat(64))), "{same:?}");
    assert!(same.stdout.lines().all(|line| line.chars().count() <= 80));

    // A byte, a stretch over a step of reading, and one where the other has a hole.
    bytes[5] ^= 1;
    bytes[4 * MIB - 512..4 * MIB + 512].fill(7);
    bytes[30 * MIB..31 * MIB].fill(9);
    fs::write(&first, &bytes).unwrap();
    let differs = draw("--picture");
    assert_eq!(differs.status.code(), Some(1));
    assert!(differs.stdout.ends_with("3 stretches differ, of 1 MiB in all.\n"), "{differs:?}");
    let rows: Vec<_> = differs.stdout.lines().collect();
    // 512 cells of 128 KiB, 64 in a row.
    assert_eq!(
        rows[0].trim_start(),
        format!("0 B  ░{}░{}", "·".repeat(30), "░".to_owned() + &"·".repeat(31)),
        "{differs:?}"
    );
    assert!(rows.iter().filter(|row| row.contains("████████")).count() == 1, "{differs:?}");
    let svg = draw("--svg");
    assert!(svg.stdout.starts_with("<svg ") && svg.stdout.contains("fill-opacity=\"0.99\""));

    // The end of the longer one counts, unless it is zero.
    fs::write(&first, &bytes[..63 * MIB]).unwrap();
    assert!(draw("--picture").stdout.contains("4 stretches differ"));
    let strict = ferry([&["compare", "--picture", "-s"], &pair[..]].concat());
    assert_eq!(strict.status.code(), Some(1));
    assert!(strict.stderr.contains("--strict"), "{strict:?}");
}
