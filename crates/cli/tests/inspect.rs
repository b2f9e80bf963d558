//! `diskferry info`, `list` and `map` as a program: beside nbdinfo, and alone.
//!
//! Tests that need nbdinfo, nbdkit or qemu-nbd are skipped with a message where those are missing.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::ours;

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_str(&text(output)).unwrap()
}

/// Runs our command and nbdinfo's on the server that `server` starts around a shell command with
/// `$uri`; returns both outputs, ours first. `None` when something is not installed.
fn both(server: &[&str], our_words: &str, their_words: &str) -> Option<(String, String)> {
    for tool in ["nbdinfo", server[0]] {
        if Command::new(tool).arg("--version").output().is_err() {
            println!("skipped: {tool} is not installed");
            return None;
        }
    }
    let ferry = env!("CARGO_BIN_EXE_diskferry");
    let script =
        format!("'{ferry}' {our_words} \"$uri\" && echo =cut= && nbdinfo {their_words} \"$uri\"");
    let output = Command::new(server[0]).args(&server[1..]).args(["--run", &script]).output();
    let all = text(&output.unwrap());
    let (ours, theirs) = all.split_once("=cut=\n").unwrap();
    Some((ours.to_owned(), theirs.to_owned()))
}

// nbdkit walks all of a disk in memory for its map, page by page: a larger one has no data.
const NBDKITS: [&[&str]; 6] = [
    &["nbdkit", "-U", "-", "memory", "100G"],
    &["nbdkit", "-U", "-", "null", "10T"],
    &["nbdkit", "-U", "-", "-r", "-e", "a b", "memory", "1500"],
    &["nbdkit", "-U", "-", "sparse-random", "1G", "seed=3"],
    &["nbdkit", "-U", "-", "null", "0"],
    &["nbdkit", "-U", "-", "data", "data=1 @0x100000 2 @0x500000 3", "size=10M"],
];

#[test]
fn what_nbdinfo_says_is_said_in_the_same_words() {
    for server in NBDKITS {
        for (ours, theirs) in
            [("info", "--no-content"), ("list", "--list --no-content"), ("map", "--map")]
        {
            let Some((ours, theirs)) = both(server, ours, theirs) else { return };
            assert_eq!(ours, theirs, "{server:?}");
        }
        let Some((ours, theirs)) = both(server, "map --totals", "--map --totals") else { return };
        assert_eq!(ours, theirs, "{server:?}");
    }
}

#[test]
fn json_has_nbdinfos_keys_and_values() {
    for server in NBDKITS {
        for (ours, theirs) in [
            ("info --json", "--no-content --json"),
            ("list --json", "--list --no-content --json"),
            ("map --json", "--map --json"),
            ("map --totals --json", "--map --totals --json"),
        ] {
            let Some((ours, theirs)) = both(server, ours, theirs) else { return };
            let mut ours: Value = serde_json::from_str(&ours).unwrap();
            let theirs: Value = serde_json::from_str(&theirs).unwrap();
            // A key that older versions of nbdinfo do not have.
            if let Some(keys) = ours.as_object_mut().filter(|_| theirs.get("extended").is_none()) {
                keys.remove("extended");
            }
            assert_eq!(ours, theirs, "{server:?}");
        }
    }
}

#[test]
fn our_own_server_is_described() {
    let ferry = env!("CARGO_BIN_EXE_diskferry");
    let script = format!("'{ferry}' list --json \"$uri\"");
    let exports = ["--export", "a=memory:1G", "--export", "b=null:1T"];
    let output = ours(&[&["serve"], &exports[..], &["--run", &script]].concat());
    let told = json_of(&output);
    assert_eq!(told["protocol"], "newstyle-fixed");
    assert_eq!(told["extended"], true);
    let names: Vec<_> =
        told["exports"].as_array().unwrap().iter().map(|e| e["export-name"].clone()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(told["exports"][1]["export-size-str"], "1T");
    assert_eq!(told["exports"][0]["can_fast_zero"], true);
}

#[test]
fn what_is_no_server_is_described_by_the_same_keys() {
    let told = json_of(&ours(&["info", "--json", "memory:1536"]));
    assert_eq!(told["device"], "memory");
    assert_eq!(told["exports"][0]["export-size"], 1536);
    assert_eq!(told["exports"][0]["block_size_minimum"], 1);
    let lines = text(&ours(&["info", "memory:1G"]));
    assert!(lines.starts_with("device: memory\ndisk=\"memory"), "{lines}");
    assert!(lines.contains("\texport-size: 1073741824 (1G)\n"), "{lines}");
}

#[test]
fn a_map_has_no_neighbours_of_one_kind_and_covers_everything() {
    let told = json_of(&ours(&["map", "--json", "sparse-random:4G?seed=5&runlength=64K"]));
    let (mut at, mut before) = (0, None);
    for run in told.as_array().unwrap() {
        assert_eq!(run["offset"], at);
        assert_ne!(before, Some(&run["type"]));
        at += run["length"].as_u64().unwrap();
        before = Some(&run["type"]);
    }
    assert_eq!(at, 4 << 30);
    assert!(told.as_array().unwrap().len() > 1000);
    let largest = json_of(&ours(&["map", "--json", "null:9223372036854775807"]));
    let all = json!([{"offset": 0, "length": i64::MAX, "type": 3, "description": "hole,zero"}]);
    assert_eq!(largest, all);
    assert_eq!(json_of(&ours(&["map", "--json", "null:0"])), json!([]));
    assert_eq!(text(&ours(&["map", "null:0"])), "");
}
