//! Images over a backing image, and those that are not read.

use crate::support::{Place, all, image, map, must, open, open_image, pattern};

#[test]
fn what_is_not_in_an_image_is_in_its_backing_image() {
    let place = Place::new();
    let (under, over) = (pattern(3 << 20, 1), pattern(3 << 20, 2));
    let (base, top) = (place.write("base", &under), place.path("top"));
    for format in ["qed", "qcow"] {
        let words = ["create", "-q", "-f", format, "-b", &base, "-F", "raw", &top];
        if !must("qemu-img", &words) {
            return;
        }
        let mut expected = under.clone();
        for at in [0, 1 << 20, (2 << 20) + 4096] {
            let piece = place.write("piece", &over[at..at + 8192]);
            let write = format!("write -s {piece} {at} 8192");
            must("qemu-io", &["-f", format, "-c", &write, &top]);
            expected[at..at + 8192].copy_from_slice(&over[at..at + 8192]);
        }
        assert!(open(&top, format).is_err(), "the user has not allowed it");
        let allowed = disk::Image { external: disk::External::Chain, ..image(format) };
        // The older one does not record its backing image's format.
        if let Ok(disk) = open_image(&top, allowed) {
            assert!(all(&disk) == expected, "{format}");
            map(&disk, &expected);
        } else {
            assert_eq!(format, "qcow");
        }
        std::fs::remove_file(&top).unwrap();
    }
}

#[test]
fn a_format_that_is_not_read_names_a_program_that_reads_it() {
    let place = Place::new();
    let mut bytes = vec![0; 4096];
    bytes[3584..3592].copy_from_slice(b"koly\0\0\0\x04");
    let path = place.write("image", &bytes);
    for format in ["dmg", ""] {
        let error = open(&path, format).unwrap_err().to_string();
        assert!(error.contains("qemu-img convert -f dmg"), "{error}");
    }
}
