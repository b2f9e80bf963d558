//! `info` with one question: nbdinfo's answers, beside nbdinfo.

use blackbox::peers::{diskferry, peer};
use blackbox::run::Outcome;
use blackbox::temp::TempDir;

use super::{script, text};

const ABILITIES: &[&str] = &[
    "connect",
    "read",
    "write",
    "read-only",
    "readonly",
    "rotational",
    "tls",
    "structured-reply",
    "sr",
    "cache",
    "df",
    "fast-zero",
    "flush",
    "fua",
    "multi-conn",
    "trim",
    "zero",
];

/// Servers that can different things, as commands behind which a URI is to be found in `$uri`.
fn servers(temp: &TempDir) -> Vec<Vec<String>> {
    let file = temp.sparse_file("disk", 3 << 20);
    let (file, ours) = (text(&file).to_owned(), diskferry());
    let ours = text(&ours);
    let mut all = vec![
        vec![ours, "serve", "memory", "1M", "--run"],
        vec![ours, "serve", "-r", file.as_str(), "--run"],
        vec![ours, "serve", "--no-sr", "--filter=nozero", "null", "7", "--run"],
    ];
    if peer("nbdkit").is_some() {
        all.push(vec!["nbdkit", "-U", "-", "memory", "1M", "--run"]);
        all.push(vec!["nbdkit", "-U", "-", "--filter=nozero", "file", &file, "--run"]);
        all.push(vec!["nbdkit", "-U", "-", "--no-sr", "-r", "pattern", "1G", "--run"]);
    }
    all.into_iter().map(|words| words.into_iter().map(str::to_owned).collect()).collect()
}

/// What both print to `words`, a line of statuses behind it.
fn both(server: &[String], words: &str) -> (Outcome, Outcome) {
    let line = |program: &str| {
        let inner = format!(
            "for question in {words}; do {program} $question \"$uri\"; echo \"$question $?\"; done"
        );
        let words: Vec<_> =
            server.iter().map(String::as_str).chain([inner.as_str()]).map(str::to_owned).collect();
        script("\"$@\"", words)
    };
    (line("\"$ferry\" info"), line("nbdinfo"))
}

#[test]
fn abilities_end_with_the_status_that_nbdinfo_has() {
    if peer("nbdinfo").is_none() {
        return;
    }
    let temp = TempDir::new();
    let words: Vec<_> = ABILITIES
        .iter()
        .flat_map(|word| ["--can", "--is"].map(|o| format!("{o}={word}")))
        .collect();
    for server in servers(&temp) {
        let (ours, theirs) = both(&server, &words.join(" "));
        assert!(!theirs.stdout.is_empty(), "{theirs:#?}");
        assert_eq!(ours.stdout, theirs.stdout, "{server:?}");
        assert_eq!(ours.stderr, theirs.stderr, "{server:?}");
    }
}

#[test]
fn sizes_and_maps_are_printed_as_nbdinfo_prints_them() {
    if peer("nbdinfo").is_none() {
        return;
    }
    let temp = TempDir::new();
    for server in servers(&temp).iter().filter(|words| !words.contains(&"--no-sr".to_owned())) {
        let (ours, theirs) = both(server, "--size --map=base:allocation");
        let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(plain(&ours.stdout), plain(&theirs.stdout), "{server:?}");
    }
}
