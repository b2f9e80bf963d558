//! Images of known formats that are about to be taken for raw bytes.

use blackbox::temp::TempDir;

use super::ferry;

/// The first bytes of an image, and what it is called.
const IMAGES: &[(&str, usize, &[u8])] = &[
    ("qcow2", 0, b"QFI\xfb\0\0\0\x03"),
    ("QED", 0, b"QED\0"),
    ("VMDK", 0, b"KDMV"),
    ("VHDX", 0, b"vhdxfile"),
    ("VHD", 0, b"conectix"),
    ("VDI", 0x40, b"\x7f\x10\xda\xbe"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
];

#[test]
fn an_image_of_a_known_format_is_warned_of_and_taken_as_it_is() {
    let temp = TempDir::new();
    for (format, at, bytes) in IMAGES {
        let mut content = vec![0; 4096];
        content[*at..at + bytes.len()].copy_from_slice(bytes);
        let path = temp.file(format, &content);
        let (path, copy) = (path.to_str().unwrap(), temp.join("copy"));
        let copy = copy.to_str().unwrap();
        for words in [
            &["copy", path, copy][..],
            &["serve", path, "--run", "true"],
            &["serve", "--export", &format!("a={path}"), "--run", "true"],
        ] {
            let outcome = ferry(words);
            outcome.succeeded();
            let warning = format!("{path}: looks like a {format} image");
            assert!(outcome.stderr.contains(&warning), "{words:?}: {outcome:#?}");
            assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
        }
        assert!(std::fs::read(copy).unwrap() == content);
        for words in [
            &["copy", &format!("file:{path}"), "null:"][..],
            &["copy", "-f", "raw", path, "null:"],
            &["info", "-f", "raw", path],
            &["map", "-f", "raw", path],
            &["convert", "-f", "raw", path, copy],
            &["copy", "--progress=json", path, "null:"],
            &["serve", "file", path, "--run", "true"],
        ] {
            let outcome = ferry(words);
            outcome.succeeded();
            assert!(!outcome.stderr.contains("looks like"), "{words:?}: {outcome:#?}");
        }
    }
}

#[test]
fn other_files_and_short_ones_are_not_warned_of() {
    let temp = TempDir::new();
    for content in
        [&b""[..], b"Q", b"QFI", b"QFI\xfb\0\0\0\x09", &[0; 4096], b"\x55QFI\xfb\0\0\0\x03"]
    {
        let path = temp.file("disk", content);
        let outcome = ferry(["copy", path.to_str().unwrap(), "null:"]);
        outcome.succeeded();
        assert_eq!(outcome.stderr, "", "{content:?}");
    }
}

/// Verbs that guess report what is wrong with it, and never take it for the bytes of a disk.
#[test]
fn what_looks_like_an_image_and_is_none_is_refused_by_verbs_that_guess() {
    let temp = TempDir::new();
    for (format, at, bytes) in IMAGES {
        let mut content = vec![0; 4096];
        content[*at..at + bytes.len()].copy_from_slice(bytes);
        let path = temp.file(format, &content);
        let (path, copy) = (path.to_str().unwrap(), temp.join("copy"));
        for words in [
            &["info", path][..],
            &["map", path],
            &["convert", path, copy.to_str().unwrap()],
            &["compare", path, path],
            &["measure", path],
        ] {
            let outcome = ferry(words);
            assert!(!outcome.status.success(), "{words:?}: {outcome:#?}");
            assert!(outcome.stderr.contains(path), "{words:?}: {outcome:#?}");
        }
        assert!(!copy.exists());
    }
}
