//! What is printed instead of serving: help, versions, abilities, manuals, completions.

use blackbox::MIB;
use blackbox::run::{ours, run};
use blackbox::temp::TempDir;

#[test]
fn config_and_plugin_are_dumped_as_lines_of_keys_and_values() {
    let dump = |words: &[&str]| -> Vec<(String, String)> {
        let outcome = run(ours(["serve"]).args(words));
        let lines = outcome.succeeded().lines();
        lines.map(|l| l.split_once('=').unwrap()).map(|(k, v)| (k.into(), v.into())).collect()
    };
    let get = |pairs: &[(String, String)], key: &str| {
        pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone())
    };
    let config = dump(&["--dump-config"]);
    assert_eq!(get(&config, "name").as_deref(), Some("diskferry"));
    let version = get(&config, "version").unwrap();
    let (major, minor) = (get(&config, "version_major"), get(&config, "version_minor"));
    assert!(version.starts_with(&format!("{}.{}", major.unwrap(), minor.unwrap())));
    for word in get(&config, "devices").unwrap().split(',') {
        let device = dump(&[word, "--dump-plugin"]);
        assert_eq!(get(&device, "name").as_deref(), Some(word));
    }
    for word in get(&config, "filters").unwrap().split(',') {
        let device = dump(&["--dump-device", "--filter", word, "null"]);
        assert_eq!(get(&device, &format!("{word}_name")).as_deref(), Some(word));
    }
    let memory = dump(&["memory", "--dump-plugin"]);
    for (key, value) in [
        ("magic_config_key", "size"),
        ("thread_model", "parallel"),
        ("has_pread", "1"),
        ("has_pwrite", "1"),
        ("has_zero", "1"),
        ("has_trim", "1"),
        ("has_extents", "1"),
    ] {
        assert_eq!(get(&memory, key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(get(&dump(&["pattern", "--dump-plugin"]), "has_pwrite"), None);
    assert!(run(&mut ours(["serve", "--dump-plugin"])).refused().contains("--dump-plugin"));
    assert!(run(&mut ours(["serve", "memry", "--dump-plugin"])).refused().contains("`memory`"));
}

#[test]
fn looking_at_a_device_opens_nothing_outside() {
    // The example of `file` names a file; asking what the device is must not touch it.
    let outcome = run(&mut ours(["serve", "file", "--dump-plugin"]));
    assert!(!outcome.succeeded().contains("has_pread"));
    let temp = TempDir::new();
    let disk = temp.sparse_file("disk", MIB);
    let outcome = run(ours(["serve", "--dump-plugin", "file"]).arg(&disk));
    assert!(outcome.succeeded().contains("has_pread=1\n"));
}

#[test]
fn help_of_a_device_or_filter_has_its_parameters() {
    for words in [
        &["serve", "--help", "memory"][..],
        &["serve", "memory", "--help"],
        &["serve", "--help", "memory:1G"],
        &["help", "memory"],
    ] {
        let outcome = run(&mut ours(words));
        assert!(outcome.succeeded().contains("size=SIZE"), "{words:?}: {outcome:?}");
    }
    for words in [
        &["serve", "--filter=delay", "--help"][..],
        &["serve", "--filter=delay", "--help", "memory"],
        &["serve", "--help", "--filter", "delay", "memory"],
        &["help", "delay"],
    ] {
        let outcome = run(&mut ours(words));
        assert!(outcome.succeeded().contains("delay-read=TIME"), "{words:?}: {outcome:?}");
    }
    let both = run(&mut ours(["serve", "--filter=delay", "--help", "memory"]));
    assert!(both.succeeded().contains("size=SIZE"));
    assert!(run(&mut ours(["serve", "--help"])).succeeded().contains("--exit-with-parent"));
    assert!(run(&mut ours(["help", "serve"])).succeeded().contains("--exit-with-parent"));
    assert!(run(&mut ours(["help", "memroy"])).refused().contains("`memory`"));
    assert!(run(&mut ours(["serve", "--help", "memroy"])).refused().contains("`memory`"));
}

#[test]
fn versions_and_lists_of_options_are_for_scripts() {
    assert!(run(&mut ours(["serve", "-V"])).succeeded().starts_with("diskferry "));
    let outcome = run(&mut ours(["serve", "memory", "--filter=delay", "--version"]));
    assert!(outcome.succeeded().contains("\nmemory ") && outcome.stdout.contains("\ndelay "));
    run(&mut ours(["serve", "foo", "--version"])).refused();
    let short = run(&mut ours(["serve", "--short-options"]));
    for option in "efginopPrstuUvV46D".chars() {
        assert!(short.succeeded().contains(&format!("-{option}\n")), "-{option}");
    }
    let long = run(&mut ours(["serve", "--long-options"]));
    for option in ["--filter", "--mask-handshake", "--export-name", "--dump-plugin", "--no-mc"] {
        assert!(long.succeeded().contains(&format!("{option}\n")), "{option}");
    }
}
