//! `serve --check`, and each kind of mistake in a configuration, which is reported with its line.

use std::fs;
use std::path::Path;

use blackbox::run::{Outcome, measured, ours, run};
use blackbox::temp::TempDir;

use super::write_config;

fn check(path: &Path, more: &[&str]) -> Outcome {
    measured(ours(["serve", "--check", "--config"]).arg(path).args(more))
}

/// An export, so that there is something to serve.
const EXPORT: &str = "[[export]]\nname = 'a'\ndisk = 'memory:1M'\n";

#[test]
fn a_configuration_without_mistakes_is_passed_in_silence_and_opens_nothing() {
    let temp = TempDir::new();
    let missing = "[[export]]\nname = 'b'\ndisk = '%D/none.raw'\nfilters = 'cow'\n";
    write_config(&temp, &format!("unix = '%D/s'\nlog = '%D/log'\n{EXPORT}{missing}"));
    let outcome = check(&temp.join("config"), &[]);
    assert_eq!((outcome.succeeded(), outcome.stderr.as_str()), ("", ""));
    assert!(!temp.join("s").exists() && !temp.join("log").exists());
}

#[test]
fn each_mistake_is_reported_with_its_line_and_the_nearest_right_word() {
    let temp = TempDir::new();
    let path = temp.join("config");
    for (text, line, words) in [
        // Options.
        ("\nmax-conections = 3\n", 2, "did you mean `max-connections`?"),
        ("max-connections = 0\n", 1, "max-connections"),
        ("max-connections = 'many'\n", 1, "not a number"),
        ("max-connections = [1, 2]\n", 1, "one value"),
        ("max-connections = true\n", 1, "quotes"),
        ("verbose = 'yes'\n", 1, "true or false"),
        ("\n\nmemory-limit = 'much'\n", 3, "--memory-limit"),
        ("handshake-timeout = 0\n", 1, "--handshake-timeout"),
        ("unix = ['/a', 7.5, 1979-05-27]\n", 1, "a text or a number"),
        ("log = 'relative'\n", 1, "--log"),
        ("log-format = 'xml'\n", 1, "xml"),
        ("socket-mode = 'rw'\nunix = '/s'\n", 1, "octal"),
        ("tls = 'perhaps'\n", 1, "perhaps"),
        ("user = 'no such user'\n", 1, "no such user"),
        ("sandbox = 'maybe'\n", 1, "maybe"),
        ("run = 'true'\n", 1, "command line"),
        ("daemon = true\n", 1, "command line"),
        ("disk = 'memory:1M'\n", 1, "[[export]]"),
        ("filter = 'cow'\n", 1, "[[export]]"),
        ("default-export = 'z'\n", 1, "`z`"),
        ("[limits]\nmax-connections = 3\n", 1, "`limits`"),
        // TOML.
        ("verbose = true\nverbose = true\n", 2, "duplicate key"),
        ("verbose = true\nthis is no TOML\n", 2, ""),
        ("log = \"unended\n", 1, ""),
        // Exports.
        ("[[export]]\nname = 'b'\n", 1, "`disk`"),
        ("[[export]]\ndisk = 'memory:1M'\ndiscription = 'x'\n", 3, "did you mean `description`?"),
        ("[[export]]\ndisk = 'memory:1M'\nname = 7\n", 3, "quotes"),
        ("[[export]]\ndisk = 'memory:1M'\nread-only = 'yes'\n", 3, "true or false"),
        ("[[export]]\ndisk = 'memmory:1M'\n", 1, "memory"),
        ("[[export]]\ndisk = 'memory:1M?sise=1'\n", 1, "sise"),
        ("[[export]]\ndisk = 'memory:1M'\nformat = 'qcow3'\n", 1, "qcow2"),
        ("[[export]]\ndisk = 'memory:1M'\nfilters = [\n 'cow',\n 'coww',\n]\n", 5, "cow"),
        ("[[export]]\ndisk = 'memory:1M'\nfilters = ['delay?rdely=1']\n", 3, "rdelay"),
        ("[[export]]\ndisk = 'memory:1M'\nallow = ['10.0.0.0/99']\n", 3, "10.0.0.0/99"),
        ("[[export]]\nname = 'b'\ndisk = 'memory:1M'\nallow = ['tls']\n", 1, "TLS"),
        ("[[export]]\nname = 'a'\ndisk = 'memory:1M'\n", 1, "two exports are named `a`"),
    ] {
        // Behind a mistake among options there is an export that is right, and before one in an
        // export.
        let whole = if text.contains("export]]") {
            format!("{EXPORT}{text}")
        } else {
            format!("{text}{EXPORT}")
        };
        let line = if text.contains("export]]") { line + EXPORT.lines().count() } else { line };
        fs::write(&path, whole).unwrap();
        let outcome = check(&path, &[]);
        let said = outcome.refused();
        let place = format!("diskferry: {}:{line}: ", path.display());
        assert!(said.starts_with(&place) && said.contains(words), "{text:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        // To serve is refused just so.
        let serve = run(ours(["serve", "--config"]).arg(&path));
        assert_eq!(serve.refused(), said);
    }
}

#[test]
fn exports_that_are_no_tables_are_refused() {
    let temp = TempDir::new();
    for text in
        ["export = 'a=memory:1M'\n", "export = ['memory:1M']\n", "[export]\ndisk = 'memory:1M'\n"]
    {
        let path = temp.file("config", text.as_bytes());
        assert!(check(&path, &[]).refused().contains("[[export]]"), "{text}");
    }
}

#[test]
fn a_file_that_is_none_or_too_long_is_not_read() {
    let temp = TempDir::new();
    assert!(check(&temp.join("missing"), &[]).failed().contains("missing"));
    assert!(check(temp.path(), &[]).failed().contains("not a regular file"));
    let pipe = temp.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(check(&pipe, &[]).failed().contains("not a regular file"));
    let long = temp.file("long", &b"# a comment\n".repeat(100_000));
    let outcome = check(&long, &[]);
    assert!(outcome.refused().contains("more than"), "{outcome:?}");
    outcome.fits_in(64 << 20);
    let bytes = temp.file("bytes", b"\n\nlog = '\xff'\n");
    assert!(check(&bytes, &[]).refused().contains("bytes:3: is not UTF-8"));
    let deep = temp.file("deep", format!("log = {}\n", "[".repeat(10_000)).as_bytes());
    check(&deep, &[]).refused();
}

#[test]
fn what_is_typed_is_checked_with_what_is_written() {
    let temp = TempDir::new();
    let path = temp.file("config", format!("tls-psk = '/keys'\n{EXPORT}").as_bytes());
    let outcome = check(&path, &["--tls-certificates=/certificates"]);
    assert!(outcome.refused().contains("tls-psk"), "{outcome:?}");
}
