//! `file dir=DIR`: a directory's files as exports, and nothing else of the system. `file fd=N`: a
//! file that is open already.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};

use blackbox::temp::{TempDir, pattern};

use super::{script, text};

#[test]
fn a_client_gets_the_file_that_it_names_and_writes_reach_it() {
    let temp = TempDir::new();
    fs::create_dir(temp.join("d")).unwrap();
    let a = temp.file("d/a", &pattern(0, 100_000));
    let b = temp.file("d/b b", &vec![9; 100_000]);
    let line = "dir=$1; export dir; \"$ferry\" serve file dir=\"$dir\" --run \
        '\"$ferry\" info --size \"nbd+unix:///a?socket=$unixsocket\"; \
         \"$ferry\" copy \"nbd+unix:///a?socket=$unixsocket\" \"nbd+unix:///b%20b?socket=$unixsocket\"; \
         \"$ferry\" list \"$uri\"'";
    let outcome = script(line, [text(&temp.join("d"))]);
    let printed = outcome.succeeded();
    assert!(printed.starts_with("100000\n"), "{outcome:#?}");
    assert!(printed.contains("export=\"a\"") && printed.contains("export=\"b b\""), "{outcome:#?}");
    assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap());
}

#[test]
fn no_name_leads_out_of_the_directory_or_to_what_is_no_disk() {
    let temp = TempDir::new();
    temp.file("secret", b"secret");
    fs::create_dir_all(temp.join("d/sub")).unwrap();
    temp.file("d/sub/inner", b"inner");
    temp.file("d/disk", &[1; 512]);
    symlink("../secret", temp.join("d/out")).unwrap();
    symlink(temp.join("secret"), temp.join("d/absolute")).unwrap();
    symlink("/proc/self/environ", temp.join("d/proc")).unwrap();
    symlink("disk", temp.join("d/inside")).unwrap();
    symlink("loop", temp.join("d/loop")).unwrap();
    script("mkfifo \"$1\"", [text(&temp.join("d/fifo"))]).succeeded();
    let names = [
        "../secret",
        "sub%2Finner",
        "sub/inner",
        "out",
        "absolute",
        "proc",
        "loop",
        "fifo",
        "sub",
        ".",
        "..",
        "",
        "%2E%2E%2Fsecret",
        "/etc/passwd",
        "disk/",
        "none",
        "disk%00",
    ];
    let line = "dir=$1; shift; words=\"$*\"; export words; \"$ferry\" serve -r file dir=\"$dir\" --run \
        'for name in $words; do \"$ferry\" info --size \"nbd+unix:///$name?socket=$unixsocket\" && echo \"$name\"; done; \
         \"$ferry\" info --size \"nbd+unix:///?socket=$unixsocket\" && echo empty; \
         \"$ferry\" list --json \"$uri\"'";
    let dir = temp.join("d");
    let outcome = script(line, [&[text(&dir)], &names[..]].concat());
    let printed = outcome.succeeded();
    assert!(printed.starts_with('{'), "no name but those of the directory: {outcome:#?}");
    let json: serde_json::Value = serde_json::from_str(printed).unwrap();
    let listed: Vec<_> = json["exports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["export-name"].as_str().unwrap())
        .collect();
    assert_eq!(listed, ["disk", "inside"], "links that stay inside are names");
}

#[test]
fn connections_to_one_file_are_one_disk_with_one_lock() {
    let temp = TempDir::new();
    fs::create_dir(temp.join("d")).unwrap();
    let target = temp.sparse_file("d/target", 8 << 20);
    let source = temp.file("in", &pattern(0, 8 << 20));
    let line = "dir=$1; source=$2; export source; \"$ferry\" serve file dir=\"$dir\" --run \
        '\"$ferry\" copy -C 4 -T 4 \"$source\" \"nbd+unix:///target?socket=$unixsocket\"'";
    let dir = temp.join("d");
    script(line, [text(&dir), text(&source)]).succeeded();
    assert!(fs::read(&target).unwrap() == pattern(0, 8 << 20));
}

#[test]
fn a_descriptor_is_a_disk_written_only_if_it_was_opened_for_that() {
    let temp = TempDir::new();
    let disk = temp.file("disk", &pattern(0, 65_536));
    let line = "\"$ferry\" serve file fd=7 --run '\"$ferry\" info --can write \"$uri\"; echo $?; \
        \"$ferry\" copy \"$uri\" -' 7<\"$1\" | { read status; echo $status; cmp - \"$1\"; }";
    assert_eq!(script(line, [text(&disk)]).succeeded(), "2\n");
    let line = "\"$ferry\" serve file fd=7 --run '\"$ferry\" zero --length 4K \"$uri\"' 7<>\"$1\"";
    script(line, [text(&disk)]).succeeded();
    let mut head = [1; 4096];
    fs::File::open(&disk).unwrap().read_exact_at(&mut head, 0).unwrap();
    assert_eq!(head, [0; 4096]);
    for (line, said) in [
        ("echo | \"$ferry\" serve file fd=0 --run true", "pipe"),
        ("\"$ferry\" serve file fd=7 --run true 7>>\"$1\"", "not opened for reading"),
    ] {
        let outcome = script(line, [text(&disk)]);
        assert!(outcome.failed().contains(said), "{line} {outcome:#?}");
    }
}

#[test]
fn a_directory_by_its_descriptor_is_served_too() {
    let temp = TempDir::new();
    temp.file("a", &[1; 1000]);
    let line = "\"$ferry\" serve file dirfd=7 --run '\"$ferry\" info --size \"nbd+unix:///a?socket=$unixsocket\"' 7<\"$1\"";
    assert_eq!(script(line, [text(temp.path())]).succeeded(), "1000\n");
}
