//! `resize`: another length for a raw file, beside qemu-img.

use std::fs;
use std::os::unix::fs::MetadataExt;

use blackbox::peers::peer;
use blackbox::run::{program, run};
use blackbox::temp::{TempDir, pattern};

use super::{ferry, script, text};

#[test]
fn a_raw_file_gets_the_length_that_qemu_img_gives_it() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    for (words, status) in [
        (&["1M"][..], 0),
        (&["+512"], 0),
        (&["+1.5k"], 0),
        (&["64K"], 0),
        (&["32K"], 1),
        (&["--shrink", "32K"], 0),
        (&["--shrink", "-32K"], 0),
        (&["--shrink", "-1M"], 1),
        (&["--preallocation=falloc", "+64K"], 0),
        (&["--preallocation=full", "+64K"], 0),
        (&["--preallocation=full", "--shrink", "-512"], 1),
        (&["x"], 1),
    ] {
        let (ours, theirs) =
            (temp.file("ours", &pattern(0, 65_536)), temp.file("theirs", &pattern(0, 65_536)));
        let (options, size) = words.split_at(words.len() - 1);
        let all = |file| [&["resize", "-f", "raw"], options, &[file], size].concat();
        let outcome = ferry(all(text(&ours)));
        assert_eq!(outcome.status.code(), Some(status), "{words:?} {outcome:#?}");
        let reference = run(&mut program(&qemu_img, all(text(&theirs))));
        assert_eq!(reference.status.code(), Some(status), "{words:?} {reference:#?}");
        assert_eq!(outcome.stdout, reference.stdout, "{words:?}");
        assert!(fs::read(&ours).unwrap() == fs::read(&theirs).unwrap(), "{words:?}");
    }
}

#[test]
fn what_is_new_is_a_hole_or_has_its_room() {
    let temp = TempDir::new();
    for (words, room) in
        [(&[][..], false), (&["--preallocation=falloc"], true), (&["--preallocation=full"], true)]
    {
        let file = temp.file("disk", &pattern(0, 4096));
        ferry([&["resize", "-q"], words, &[text(&file), "8M"]].concat()).succeeded();
        let found = fs::metadata(&file).unwrap();
        assert_eq!(found.len(), 8 << 20);
        assert_eq!(found.blocks() * 512 >= 8 << 20, room, "{words:?}");
        let bytes = fs::read(&file).unwrap();
        assert!(bytes[..4096] == pattern(0, 4096) && bytes[4096..].iter().all(|b| *b == 0));
    }
}

#[test]
fn a_file_that_is_served_is_not_resized_under_its_clients() {
    let temp = TempDir::new();
    let file = temp.sparse_file("disk", 1 << 20);
    let line = "file=$1; export file; \"$ferry\" serve \"$file\" --run '\"$ferry\" resize --shrink \"$file\" 4K; echo $?'";
    let outcome = script(line, [text(&file)]);
    assert!(outcome.succeeded().ends_with("1\n"), "{outcome:#?}");
    assert_eq!(fs::metadata(&file).unwrap().len(), 1 << 20);
}
