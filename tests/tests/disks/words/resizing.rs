//! `resize`: another length for a raw file, and another size for the disk in a qcow2, beside
//! qemu-img.

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

#[test]
fn the_disk_in_an_image_gets_the_size_that_qemu_img_gives_it() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let theirs = |words: &[&str]| run(&mut program(&qemu_img, words.iter().copied()));
    let raw = temp.file("raw", &pattern(0, 1_000_448));
    for options in ["compat=1.1", "compat=0.10", "extended_l2=on", "cluster_size=512"] {
        let images = [temp.path().join("ours"), temp.path().join("theirs")];
        for image in &images {
            let words = ["convert", "-f", "raw", "-O", "qcow2", "-o", options];
            theirs(&[&words[..], &[text(&raw), text(image)]].concat()).succeeded();
        }
        let mut model = pattern(0, 1_000_448);
        for (words, size, status) in [
            (&["+512"][..], 1_000_960, 0),
            (&["300K"], 1_000_960, 1),
            (&["--shrink", "300K"], 307_200, 0),
            (&["--shrink", "--preallocation=full", "200K"], 307_200, 1),
            (&["--shrink", "-4M"], 307_200, 1),
            (&["0"], 307_200, 1),
            (&["1000P"], 307_200, 1),
            (&["40M"], 40 << 20, 0),
            (&["--preallocation=metadata", "+2M"], 42 << 20, 0),
            (&["--preallocation=falloc", "+2M"], 44 << 20, 0),
            (&["--preallocation=full", "+2M"], 46 << 20, 0),
        ] {
            let (before, bytes) = words.split_at(words.len() - 1);
            let all = |file| [&["resize", "-f", "qcow2"], before, &[text(file)], bytes].concat();
            let outcome = ferry(all(&images[0]));
            assert_eq!(outcome.status.code(), Some(status), "{options} {words:?} {outcome:#?}");
            let reference = match words {
                // qemu-img takes what begins like an option for one.
                ["--shrink", "-4M"] => {
                    theirs(&["resize", "--shrink", text(&images[1]), "--", "-4M"])
                }
                _ => theirs(&all(&images[1])),
            };
            assert_eq!(reference.status.code(), Some(status), "{words:?} {reference:#?}");
            assert_eq!(outcome.stdout, reference.stdout, "{words:?}");
            theirs(&["check", "-q", "-f", "qcow2", text(&images[0])]).succeeded();
            model.resize(size, 0);
            let out = temp.path().join("out");
            theirs(&["convert", "-f", "qcow2", "-O", "raw", text(&images[0]), text(&out)])
                .succeeded();
            assert!(fs::read(&out).unwrap() == model, "{options} {words:?}");
        }
    }
}

#[test]
fn what_is_below_a_disk_and_longer_is_not_seen_when_it_grows() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let below = temp.file("below", &pattern(0, 2 << 20));
    let theirs = |words: &[&str]| run(&mut program(&qemu_img, words.iter().copied()));
    for options in ["compat=1.1", "compat=0.10", "extended_l2=on"] {
        let image = temp.path().join("image");
        let words = ["create", "-q", "-f", "qcow2", "-o", options, "-F", "raw", "-b"];
        theirs(&[&words[..], &[text(&below), text(&image), "1000K"]].concat()).succeeded();
        let words = ["resize", "-q", "-f", "qcow2", text(&image), "3M"];
        assert_eq!(ferry(words).status.code(), Some(1), "its backing image is not allowed");
        ferry(words.into_iter().chain(["--allow-external", "chain"])).succeeded();
        theirs(&["check", "-q", "-f", "qcow2", text(&image)]).succeeded();
        let out = temp.path().join("out");
        theirs(&["convert", "-f", "qcow2", "-O", "raw", text(&image), text(&out)]).succeeded();
        let mut expected = pattern(0, 1000 << 10);
        expected.resize(3 << 20, 0);
        assert!(fs::read(&out).unwrap() == expected, "{options}");
    }
}

#[test]
fn what_goes_with_a_disk_follows_its_size() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let image = temp.path().join("image");
    let theirs = |words: &[&str]| {
        run(program(&qemu_img, words.iter().copied()).current_dir(temp.path()))
            .succeeded()
            .to_owned()
    };
    // Bitmaps, whose tables QEMU wants to be as long as they have to be.
    theirs(&["create", "-q", "-f", "qcow2", text(&image), "1M"]);
    theirs(&["bitmap", "--add", text(&image), "changes"]);
    for size in ["100G", "1M", "40G"] {
        ferry(["resize", "-q", "--shrink", "-f", "qcow2", text(&image), size]).succeeded();
        theirs(&["check", "-q", text(&image)]);
        theirs(&["bitmap", "--disable", "--enable", text(&image), "changes"]);
    }
    // Snapshots, which keep their size; QEMU makes none of version 2 that say it.
    theirs(&["snapshot", "-c", "before", text(&image)]);
    ferry(["resize", "-q", "-f", "qcow2", text(&image), "50G"]).succeeded();
    theirs(&["check", "-q", text(&image)]);
    theirs(&["create", "-q", "-f", "qcow2", "-o", "compat=0.10", text(&image), "1M"]);
    theirs(&["snapshot", "-c", "before", text(&image)]);
    let outcome = ferry(["resize", "-f", "qcow2", text(&image), "2M"]);
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
    // Data files.
    let disk = temp.file("disk", &pattern(0, 1000 << 10));
    for raw in ["off", "on"] {
        let options = format!("data_file=data.{raw},data_file_raw={raw},cluster_size=4k");
        let made = ["-f", "raw", "-O", "qcow2", "-o", &options, text(&disk), text(&image)];
        theirs(&[&["convert"][..], &made].concat());
        let words = ["resize", "-q", "-f", "qcow2", "--allow-external", text(temp.path())];
        ferry(words.into_iter().chain([text(&image), "64M"])).succeeded();
        // Where the old L1 table was in the image is data in the data file.
        let out = temp.path().join("out");
        theirs(&["convert", "-f", "qcow2", "-O", "raw", text(&image), text(&out)]);
        let bytes = fs::read(&out).unwrap();
        assert!(bytes[..1000 << 10] == pattern(0, 1000 << 10) && bytes.len() == 64 << 20);
        assert!(bytes[1000 << 10..].iter().all(|byte| *byte == 0));
        theirs(&["check", "-q", text(&image)]);
        let length = fs::metadata(temp.path().join(format!("data.{raw}"))).unwrap().len();
        assert!(raw == "off" || length == 64 << 20, "{length}");
    }
}
