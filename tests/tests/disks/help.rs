//! What help shows works as it is printed: the example of every verb, and what is generated from
//! the same table.

use blackbox::examples::{Confined, shell};
use blackbox::peers::peer;
use blackbox::run::{ours, run};
use blackbox::temp::TempDir;

/// The verbs, as the general help lists them.
fn verbs() -> Vec<String> {
    let outcome = run(&mut ours(["--help"]));
    let help = outcome.succeeded();
    let list = help.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap();
    let words = list.lines().filter_map(|l| l.split_whitespace().next());
    words.map(str::to_owned).collect()
}

/// The example in a verb's help, with its lines joined.
fn example(verb: &str) -> String {
    let outcome = run(&mut ours([verb, "--help"]));
    let help = outcome.succeeded().to_owned();
    let text = help.split("Example:\n").nth(1).expect("every verb has an example");
    text.trim().to_owned()
}

/// Whether Python has our package.
fn has_package() -> bool {
    let found =
        std::process::Command::new("python3").args(["-c", "import diskferry.shell"]).output();
    found.is_ok_and(|found| found.status.success())
}

#[test]
fn the_example_of_every_verb_works_as_printed_and_in_a_sandbox() {
    // The example of `serve` shows what nbdinfo says.
    if peer("nbdinfo").is_none() {
        return;
    }
    let verbs = verbs();
    assert!(verbs.len() >= 7, "{verbs:?}");
    let confined = Confined::default();
    for verb in verbs {
        if verb == "shell" && !has_package() {
            // crates/python tests it where the package is installed.
            continue;
        }
        let line = example(&verb);
        let temp = TempDir::new();
        run(&mut shell(temp.path(), &line)).succeeded();
        let temp = TempDir::new();
        run(&mut confined.shell(temp.path(), &line)).succeeded();
    }
    assert!(confined.count() > 7);
}

#[test]
fn every_verb_has_a_man_page_and_completions_in_three_shells() {
    let temp = TempDir::new();
    run(ours(["man"]).arg(temp.join("man1"))).succeeded();
    for verb in verbs() {
        let page = temp.join("man1").join(format!("diskferry-{verb}.1"));
        let text = std::fs::read_to_string(&page).unwrap();
        for title in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "EXAMPLES", "SEE ALSO"] {
            let is_title =
                |line: &str| line.strip_prefix(".SH ").map(|t| t.trim_matches('"')) == Some(title);
            assert!(text.lines().any(is_title), "{verb}: the page has no {title}");
        }
        let help = run(&mut ours([&verb, "--help"]));
        assert!(help.succeeded().contains("Exit status:"), "{verb}: --help says no exit status");
        for shell in ["bash", "zsh", "fish"] {
            let outcome = run(&mut ours(["completions", shell]));
            assert!(outcome.succeeded().contains(&verb), "{shell}: {verb}");
        }
    }
}
