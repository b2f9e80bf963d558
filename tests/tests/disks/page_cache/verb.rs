//! `diskferry cache`.

use super::*;

fn cache(words: &[&str], path: &Path) -> Outcome {
    run(ours(["cache"]).args(words).arg(path))
}

/// The value of a number in the JSON of one file.
fn number(outcome: &Outcome, key: &str) -> u64 {
    let text = outcome.succeeded();
    let rest = text.split(&format!("\"{key}\":")).nth(1).unwrap_or_else(|| panic!("{key}: {text}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|e| panic!("{key}: {e}: {text}"))
}

/// So many pages, but for a few that the system may have taken back for others.
fn near(pages: u64, wanted: u64) -> bool {
    (wanted - 64..=wanted).contains(&pages)
}

#[test]
fn pages_are_counted_brought_and_let_go_as_others_count_them() {
    if !has_tools() {
        return;
    }
    let temp = TempDir::new();
    let path = cold(temp.path(), "disk", 8 * MIB + 5);
    let total = 8 * PAGES + 1;
    let line = cache(&["stat"], &path).succeeded().to_owned();
    let begin = format!("pages in cache: {}/{total} (", resident(&path));
    assert!(line.starts_with(&begin), "{line}");
    assert!(line.contains("[filesize=8192.0K, pagesize=4K]"), "{line}");
    assert!(line.contains("dirty: 0, writeback: 0, evicted: "), "{line}");

    let range = ["--offset", "1M", "--length", "2M"];
    let warm = cache(&[&["warm", "--json"], &range[..]].concat(), &path);
    assert_eq!(number(&warm, "pages"), 2 * PAGES);
    assert!(near(number(&warm, "cached"), 2 * PAGES));
    let line = cache(&["warm"], &path).succeeded().to_owned();
    assert!(line.contains(&format!("/{total} (")), "{line}");
    assert!(near(resident(&path), total));

    let evict = cache(&[&["evict", "--json"], &range[..]].concat(), &path);
    assert_eq!(number(&evict, "cached"), 0);
    assert!(near(number(&evict, "cached-before"), 2 * PAGES));
    assert!(near(resident(&path), total - 2 * PAGES));
    let line = cache(&["evict"], &path).succeeded().to_owned();
    assert!(line.contains("evicted: ") && resident(&path) == 0, "{line}");
    let stat = cache(&["stat", "--json"], &path);
    assert_eq!(number(&stat, "filesize"), 8 * MIB + 5);
    assert_eq!(number(&stat, "length"), 8 * MIB + 5);
}

#[test]
fn dirty_pages_are_made_durable_before_they_are_dropped_and_reported() {
    if !has_tools() {
        return;
    }
    let temp = TempDir::new();
    let path = temp.file("disk", &vec![7; 4 << 20]);
    let line = cache(&["evict"], &path).succeeded().to_owned();
    assert!(line.contains("made durable first: "), "{line}");
    assert_eq!(resident(&path), 0);
    assert!(std::fs::read(&path).unwrap().iter().all(|b| *b == 7));
}

#[test]
fn holes_are_not_warmed_and_several_files_have_their_names() {
    let temp = TempDir::new();
    let sparse = temp.sparse_file("sparse", 64 * MIB);
    let line = cache(&["warm"], &sparse).succeeded().to_owned();
    assert!(line.starts_with("pages in cache: 0/"), "{line}");
    let other = temp.file("other", b"some bytes");
    let outcome = run(ours(["cache", "stat"]).arg(&sparse).arg(&other));
    let text = outcome.succeeded();
    assert!(text.lines().count() == 2 && text.contains(&format!("{}: pages", other.display())));
    let empty = temp.file("empty", b"");
    assert!(cache(&["stat"], &empty).succeeded().contains("0/0 (0.0%)"));
}
