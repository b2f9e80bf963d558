//! What a Tab offers in bash, and what the scripts for zsh and fish hold.

use std::path::Path;
use std::process::Command;

use blackbox::run::{ours, run};
use blackbox::temp::TempDir;

/// What bash is offered when Tab is pressed at the end of `line`, in the directory `at`. Words are
/// cut as bash cuts them.
fn offered(at: &Path, line: &str) -> Vec<String> {
    let script = run(&mut ours(["completions", "bash"])).succeeded().to_owned();
    let mut words = vec![String::new()];
    for c in line.chars() {
        match c {
            ' ' => words.push(String::new()),
            '=' | ':' => words.extend([c.to_string(), String::new()]),
            c => words.last_mut().unwrap().push(c),
        }
    }
    // An empty word between separators is none; at the end it is the one to be completed, save
    // behind a separator, which bash then takes for it.
    let last = words.pop().unwrap();
    words.retain(|word| !word.is_empty());
    if !last.is_empty() || !line.ends_with(['=', ':']) {
        words.push(last);
    }
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let ask = format!(
        "{script}\nCOMP_WORDS=({})\nCOMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))\n_diskferry\n\
         (( ${{#COMPREPLY[@]}} )) && printf '%s\\n' \"${{COMPREPLY[@]}}\"; true",
        quoted.join(" ")
    );
    let outcome = run(Command::new("bash").args(["--norc", "-c", &ask]).current_dir(at));
    outcome.succeeded().lines().map(str::to_owned).collect()
}

#[test]
fn bash_offers_files_devices_filters_and_values() {
    let temp = TempDir::new();
    temp.file("disk.raw", b"");
    temp.file("two words", b"");
    let at = |line: &str| offered(temp.path(), line);
    let has = |line: &str, wanted: &[&str]| {
        let offered = at(line);
        for word in wanted {
            assert!(offered.iter().any(|o| o == word), "{line:?}: {word} not in {offered:?}");
        }
        assert!(!offered.iter().any(|o| o.starts_with('-')), "{line:?}: {offered:?}");
    };
    has("diskferry ", &["serve", "copy", "help"]);
    for line in ["diskferry copy ", "diskferry copy a ", "diskferry info ", "diskferry zero "] {
        has(line, &["disk.raw", "two words", "memory:", "nbd://"]);
    }
    has("diskferry serve ", &["disk.raw", "memory"]);
    assert_eq!(at("diskferry copy me"), ["memory:"]);
    assert_eq!(at("diskferry serve me"), ["memory"]);
    assert_eq!(at("diskferry help del"), ["delay"]);
    for line in ["diskferry serve --filter=de", "diskferry serve --filter de"] {
        assert_eq!(at(line), ["delay"], "{line}");
    }
    has("diskferry copy --source-filter=", &["delay", "retry"]);
    assert_eq!(at("diskferry copy --progress=j"), ["json"]);
    assert_eq!(at("diskferry copy --progress="), ["bar", "json"]);
    assert_eq!(at("diskferry completions z"), ["zsh"]);
    // What can be made, and what can be read.
    assert_eq!(at("diskferry convert -O q"), ["qcow2"]);
    assert_eq!(at("diskferry convert -f q"), ["qcow2", "qed", "qcow"]);
    assert_eq!(at("diskferry info --can fl"), ["flush"]);
    assert_eq!(at("diskferry info --isnt ro"), ["rotational"]);
    assert_eq!(at("diskferry convert -o lazy"), ["lazy_refcounts="]);
    assert_eq!(at("diskferry convert -o lazy_refcounts="), [""; 0]);
    assert_eq!(at("diskferry copy --prog"), ["--progress"]);
    assert!(at("diskferry serve -").contains(&"--filter".to_owned()));
    // We offer nothing: readline then completes the names of files, with its own quoting.
    for line in
        ["diskferry copy di", "diskferry serve two", "diskferry serve -U ", "diskferry man "]
    {
        assert_eq!(at(line), [""; 0], "{line}");
    }
    assert!(offered(temp.path(), "diskferry copy --progress x").iter().all(|o| o != "json"));
}

#[test]
fn zsh_and_fish_offer_devices_and_filters_too() {
    let zsh = run(&mut ours(["completions", "zsh"])).succeeded().to_owned();
    assert_eq!(zsh.matches("_diskferry_disks() {").count(), 1, "{zsh}");
    let disks = zsh.lines().filter(|line| line.contains(":_diskferry_disks'")).count();
    assert!(disks >= 9, "serve, copy twice, convert, info, list, map, zero, trim: {disks}");
    assert!(zsh.contains("memory\\:") && zsh.contains("delay\\:"), "{zsh}");
    let fish = run(&mut ours(["completions", "fish"])).succeeded().to_owned();
    let line = fish.lines().last().unwrap();
    assert!(
        line.contains(
            "using_subcommand serve copy convert create resize rebase commit amend info list attach map"
        ),
        "{line}"
    );
    assert!(line.contains("memory:") && fish.contains("delay\\t"), "{line}");
}
