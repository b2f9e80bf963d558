//! `amend`: other options for an image that exists, beside qemu-img.

use std::fs;
use std::path::{Path, PathBuf};

use blackbox::peers::peer;
use blackbox::run::{program, run};
use blackbox::temp::{TempDir, pattern};
use serde_json::Value;

use super::{ferry, text};

/// What qemu-img tells of the image in a file.
fn told(qemu_img: &PathBuf, image: &Path) -> Value {
    let words = ["info", "--output=json", "-f", "qcow2", text(image)];
    let told = run(&mut program(qemu_img, words)).succeeded().to_owned();
    let mut told: Value = serde_json::from_str(&told).unwrap();
    for key in ["filename", "full-backing-filename", "actual-size"] {
        told.as_object_mut().unwrap().remove(key);
    }
    told
}

#[test]
fn an_image_gets_the_options_that_qemu_img_gives_it() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let theirs = |words: &[&str]| run(&mut program(&qemu_img, words.iter().copied()));
    let raw = temp.file("raw", &pattern(0, 1_000_448));
    let long = temp.path().join("b".repeat(200)).join("c".repeat(200));
    fs::create_dir_all(&long).unwrap();
    let base = long.join("base");
    fs::copy(&raw, &base).unwrap();
    for (made, backing) in [
        ("compat=1.1", None),
        ("compat=0.10", None),
        ("compat=0.10", Some(&base)),
        ("compat=1.1", Some(&base)),
        ("refcount_bits=8", None),
        ("extended_l2=on", None),
    ] {
        let images = [temp.path().join("ours"), temp.path().join("theirs")];
        for image in &images {
            match backing {
                None => {
                    let words = ["convert", "-f", "raw", "-O", "qcow2", "-o", made];
                    theirs(&[&words[..], &[text(&raw), text(image)]].concat()).succeeded();
                }
                Some(base) => {
                    let words = ["create", "-q", "-f", "qcow2", "-o", made, "-F", "raw", "-b"];
                    theirs(&[&words[..], &[text(base), text(image)]].concat()).succeeded();
                }
            }
        }
        let mut size = 1_000_448;
        for (options, grown) in [
            ("lazy_refcounts=on", 0),
            ("compat=0.10", 0),
            ("compat=1.1", 0),
            ("compat=1.1,lazy_refcounts=on", 0),
            ("lazy_refcounts=off", 0),
            ("size=2M", 2 << 20),
            ("compat=0.10", 0),
            ("compat=0.9", 0),
            ("data_file=x", 0),
            ("foo=1", 0),
            ("cluster_size=4k", 0),
            ("preallocation=full", 0),
        ] {
            let amend = |image| ["amend", "-f", "qcow2", "-o", options, text(image)];
            let reference = theirs(&amend(&images[1]));
            let allow = ["--allow-external", "chain"];
            let outcome = ferry(amend(&images[0]).into_iter().chain(allow));
            let status = reference.status.code();
            assert_eq!(outcome.status.code(), status, "{made} {options} {outcome:#?}");
            assert_eq!(outcome.stdout, reference.stdout, "{options}");
            let [ours, their] = [0, 1].map(|n| told(&qemu_img, &images[n]));
            assert_eq!(ours, their, "{made} {options}");
            theirs(&["check", "-q", "-f", "qcow2", text(&images[0])]).succeeded();
            size = size.max(grown);
            let out = temp.path().join("out");
            theirs(&["convert", "-f", "qcow2", "-O", "raw", text(&images[0]), text(&out)])
                .succeeded();
            let mut expected = pattern(0, 1_000_448);
            expected.resize(size, 0);
            assert!(fs::read(&out).unwrap() == expected, "{made} {options}");
        }
    }
}

#[test]
fn what_would_be_lost_is_refused_and_the_options_are_listed() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let image = temp.path().join("image");
    let theirs = |words: &[&str]| {
        run(program(&qemu_img, words.iter().copied()).current_dir(temp.path()))
            .succeeded()
            .to_owned()
    };
    theirs(&["create", "-q", "-f", "qcow2", text(&image), "1M"]);
    theirs(&["bitmap", "--add", text(&image), "changes"]);
    for options in ["compat=0.10", "size=512K", "refcount_bits=8", "backing_file=x"] {
        let before = fs::read(&image).unwrap();
        let outcome = ferry(["amend", "-o", options, text(&image)]);
        assert_eq!(outcome.status.code(), Some(1), "{options} {outcome:#?}");
        assert!(fs::read(&image).unwrap() == before, "{options}");
    }
    let listed = ferry(["amend", "-f", "qcow2", "-o", "help"]).succeeded().to_owned();
    assert!(listed.starts_with("Amend options for 'qcow2':\n  compat=<"), "{listed}");
    assert_eq!(ferry(["amend", text(&image)]).status.code(), Some(1));
    // The data file gets another name, and need not stay a raw disk.
    let options = "data_file=data,data_file_raw=on";
    theirs(&["create", "-q", "-f", "qcow2", "-o", options, text(&image), "1M"]);
    fs::copy(temp.path().join("data"), temp.path().join("other")).unwrap();
    let allow = ["--allow-external", text(temp.path())];
    let words = ["amend", "-o", "data_file=other,data_file_raw=off", text(&image)];
    ferry(words.into_iter().chain(allow)).succeeded();
    let told = told(&qemu_img, &image);
    let data = &told["format-specific"]["data"];
    assert_eq!((&data["data-file"], &data["data-file-raw"]), (&"other".into(), &false.into()));
    theirs(&["check", "-q", text(&image)]);
}
