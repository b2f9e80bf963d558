//! `--target-is-zero`: honoured, and looked at before anything is changed.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use blackbox::index;
use blackbox::launch::Serve;
use blackbox::peers::peer;
use blackbox::run::{ours, program, run};
use blackbox::storage::Loop;
use blackbox::temp::TempDir;

use super::{SIZE, source, text};

fn change(path: &Path, at: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[7], at).unwrap();
}

/// The places that are always looked at: both ends, and beside the source's data.
const PLACES: [u64; 4] = [0, SIZE - 1, 256 << 10, (4 << 20) - 1];

#[test]
fn a_true_claim_is_honoured_and_a_false_one_names_the_offset() {
    let temp = TempDir::new();
    let source = source(&temp);
    let file = temp.sparse_file("target", SIZE);
    let Some(device) = Loop::over(&file, &[]) else { return };
    let words = ["copy", "--target-is-zero", text(&source), text(device.path())];
    run(&mut ours(words)).succeeded();
    assert!(fs::read(device.path()).unwrap() == fs::read(&source).unwrap());
    drop(device);
    for at in PLACES {
        let file = temp.sparse_file("target", SIZE);
        change(&file, at);
        let before = fs::read(&file).unwrap();
        let Some(device) = Loop::over(&file, &[]) else { return };
        let words = ["copy", "--target-is-zero", text(&source), text(device.path())];
        let outcome = run(&mut ours(words));
        let line = outcome.failed();
        assert_eq!(outcome.status.code(), Some(1), "{line}");
        assert!(line.contains("does not read as zeroes"), "{line}");
        assert!(line.contains(&format!("offset {at}")), "{at}: {line}");
        assert!(line.contains("was not written"), "{line}");
        drop(device);
        assert!(fs::read(&file).unwrap() == before, "{at}");
    }
}

#[test]
fn a_false_claim_about_a_server_is_found_and_nbdcopys_name_of_the_option_is_ours_too() {
    let temp = TempDir::new();
    let source = source(&temp);
    let target = temp.sparse_file("target", SIZE);
    let server = Serve::file(&target).start();
    let uri = server.uri("");
    run(&mut ours(["copy", "--destination-is-zero", text(&source), &uri])).succeeded();
    assert!(fs::read(&target).unwrap() == fs::read(&source).unwrap());
    // It holds data now.
    let outcome = run(&mut ours(["copy", "--destination-is-zero", text(&source), &uri]));
    assert!(outcome.failed().contains("offset 0"), "{}", outcome.stderr);
}

#[test]
fn convert_takes_the_claim_as_qemu_img_does_and_ends_with_1_where_it_is_false() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let source = source(&temp);
    for (name, ours_is_one) in [("ours", true), ("theirs", false)] {
        let file = temp.sparse_file(name, SIZE);
        let Some(device) = Loop::over(&file, &[]) else { return };
        let words = ["convert", "-n", "--target-is-zero", "-f", "raw", "-O", "raw"];
        let ends = [text(&source), text(device.path())];
        if ours_is_one {
            run(ours(words).args(ends)).succeeded();
        } else {
            run(program(&qemu_img, words).args(ends)).succeeded();
        }
        assert!(fs::read(device.path()).unwrap() == fs::read(&source).unwrap(), "{name}");
    }
    let file = temp.sparse_file("false", SIZE);
    change(&file, SIZE - 1);
    let Some(device) = Loop::over(&file, &[]) else { return };
    let words = ["convert", "-n", "--target-is-zero", "-f", "raw", "-O", "raw"];
    let outcome = run(ours(words).args([text(&source), text(device.path())]));
    assert_eq!(outcome.status.code(), Some(1));
    assert!(outcome.failed().contains(&format!("offset {}", SIZE - 1)), "{}", outcome.stderr);
}

#[test]
fn a_true_claim_saves_the_zeroing() {
    let temp = TempDir::new();
    let source = source(&temp);
    let target = temp.sparse_file("target", SIZE);
    let log = temp.join("log");
    let server = Serve::file(&target)
        .option(format!("--filter=log?logfile={}", log.display()))
        .option("--filter=noextents")
        .start();
    run(&mut ours(["copy", "--target-is-zero", text(&source), &server.uri("")])).succeeded();
    drop(server);
    let log = fs::read_to_string(log).unwrap();
    let count = |word: &str| log.lines().filter(|line| line.contains(word)).count();
    assert_eq!((count(" Zero "), count(" Trim ")), (0, 0), "{log}");
    assert!(count(" Write ") > 0 && count(" Read ") <= 2 * 64, "{log}");
    assert_eq!(fs::read(&target).unwrap().len(), index(SIZE));
}
