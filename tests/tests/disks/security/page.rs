//! docs/security.md names tests that there are.

use blackbox::listed::{repository, tests_of};

/// The lines of a table of the page, without its head.
fn rows(page: &str) -> Vec<&str> {
    // The last table has other columns, and a test of its own.
    let page = page.split("## In a sandbox").next().unwrap();
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let heads = ["|---", "| attack |", "| called as |"];
    rows.filter(|line| !heads.iter().any(|head| line.starts_with(head))).collect()
}

#[test]
fn every_test_that_the_page_on_security_names_is_there() {
    let page = std::fs::read_to_string(repository().join("docs/security.md")).unwrap();
    let (mut wrong, mut named) = (Vec::new(), 0);
    for row in rows(&page) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 4, "attack, defence, bound, tests: {row}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{row}");
        // Every other piece between backticks is in them; several tests of a file are named with
        // commas.
        let mut file = String::new();
        let mut of_row = 0;
        for word in cells[3].split('`').skip(1).step_by(2) {
            let test = word.rsplit_once("::").map_or(word, |(path, test)| {
                path.clone_into(&mut file);
                test
            });
            let path = repository().join(&file);
            if !path.is_file() || !tests_of(&path).iter().any(|name| name == test) {
                wrong.push(format!("{file}::{test}"));
            }
            of_row += 1;
        }
        assert!(of_row > 0, "no test: {row}");
        named += of_row;
    }
    assert!(wrong.is_empty(), "there are no such tests: {wrong:#?}");
    assert!(named > 80, "{named}");
}
