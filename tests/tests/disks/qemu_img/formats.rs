//! The verbs over images of other formats than raw, beside qemu-img.

use blackbox::peers::peer;
use blackbox::run::{program, run, text};
use blackbox::temp::{TempDir, pattern};

use super::{ferry, theirs};

/// A raw disk of 4 MiB with 1 MiB of data.
fn disk(temp: &TempDir) -> String {
    let mut bytes = vec![0; 4 << 20];
    bytes[1 << 20..2 << 20].copy_from_slice(&pattern(0, 1 << 20));
    text(&temp.file("disk.raw", &bytes)).to_owned()
}

#[test]
fn there_and_back_is_the_same_disk() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let raw = disk(&temp);
    for (format, words) in
        [("qcow2", &[][..]), ("qcow2", &["-S", "0"]), ("vdi", &[]), ("vhdx", &[])]
    {
        let (image, back) = (temp.join("image"), temp.join("back"));
        let _ = std::fs::remove_file(&image);
        let words =
            [&["convert", "-f", "raw", "-O", format], words, &[&raw, text(&image)]].concat();
        assert_eq!(ferry(&words).succeeded(), "");
        theirs(&qemu_img, &["compare", "-f", "raw", "-F", format, &raw, text(&image)]).succeeded();
        ferry(["compare", &raw, text(&image)]).succeeded();
        // Without -f it is guessed, with a note.
        let guessed = ferry(["convert", text(&image), text(&back)]);
        guessed.succeeded();
        assert!(guessed.stderr.contains(&format!("detected format {format}")), "{guessed:#?}");
        assert!(std::fs::read(&back).unwrap() == std::fs::read(&raw).unwrap(), "{words:?}");
        assert_eq!(ferry(["convert", "-q", text(&image), text(&back)]).stderr, "");
        // A copy never guesses.
        let copied = ferry(["copy", text(&image), text(&back)]);
        copied.succeeded();
        assert!(std::fs::read(&back).unwrap() == std::fs::read(&image).unwrap());
        // What it makes of an image that is there has to be named.
        ferry(["copy", "-f", format, text(&image), text(&back)]).refused();
        ferry(["copy", "-f", format, "-O", "raw", text(&image), text(&back)]).succeeded();
        assert!(std::fs::read(&back).unwrap() == std::fs::read(&raw).unwrap(), "{words:?}");
    }
}

/// The map below a format is slow: what it costs is noticed, and counted below us.
#[test]
fn a_slow_map_below_an_image_is_not_asked_for_ever() {
    let (Some(qemu_img), Some(nbdkit)) = (peer("qemu-img"), peer("nbdkit")) else { return };
    let temp = TempDir::new();
    let raw = temp.file("disk.raw", &pattern(0, 64 << 20));
    let (image, back, log) = (temp.join("image.qcow2"), temp.join("back"), temp.join("log"));
    // All is there, in runs that are long enough to be looked up.
    let words = ["convert", "-f", "raw", "-O", "qcow2", text(&raw), text(&image)];
    theirs(&qemu_img, &words).succeeded();
    let binary = blackbox::peers::diskferry();
    let command = format!("{} convert -f qcow2 \"$uri\" {}", binary.display(), text(&back));
    let log_word = format!("logfile={}", text(&log));
    let outcome = run(&mut program(
        &nbdkit,
        ["-U", "-", "--filter=log", "--filter=delay", "file", text(&image), "delay-extents=30ms"]
            .into_iter()
            .chain([&*log_word, "--run", &command]),
    ));
    outcome.succeeded();
    assert!(std::fs::read(&back).unwrap() == std::fs::read(&raw).unwrap());
    let asked = std::fs::read_to_string(&log).unwrap();
    let asked = asked.lines().filter(|line| line.contains(" Extents ")).count();
    assert!(asked < 40, "{asked}");
    // -S 0 asks for none.
    std::fs::remove_file(&log).unwrap();
    let command = format!("{} convert -S 0 -f raw \"$uri\" {}", binary.display(), text(&back));
    run(&mut program(
        &nbdkit,
        ["-U", "-", "--filter=log", "file", text(&raw), &log_word, "--run", &command],
    ))
    .succeeded();
    assert!(!std::fs::read_to_string(&log).unwrap().contains(" Extents "));
}
