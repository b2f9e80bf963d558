//! `diskferry resize` as a program: what it resizes, and what it refuses and leaves as it was.

use super::{Room, complaint, ours};

#[test]
fn an_image_that_is_a_raw_disk_with_a_footer_is_refused_and_left_as_it_was() {
    let room = Room::new("fixed");
    let disk = room.path("disk");
    let bytes = || std::fs::read(&disk).unwrap();
    let made = ours(&["create", "-f", "vpc", "-o", "subformat=fixed", &disk, "1M"]);
    assert!(made.status.success(), "{made:?}");
    let before = bytes();
    assert_eq!(&before[before.len() - 512..][..8], b"conectix");
    for words in [&["+1M"][..], &["--shrink", "512K"], &["--preallocation=full", "2M"]] {
        let refused = ours(&[&["resize", &disk], words].concat());
        let line = complaint(&refused, 1);
        let wanted = format!("{disk}: looks like a VHD image");
        assert!(line.contains(&wanted) && line.contains("-f raw"), "{line}");
        assert_eq!(bytes(), before);
    }
}

#[test]
fn a_file_whose_format_is_named_raw_is_resized_whatever_is_in_it() {
    let room = Room::new("named");
    let disk = room.path("disk");
    let mut bytes = vec![7; 8192];
    bytes[8192 - 512..][..8].copy_from_slice(b"conectix");
    std::fs::write(&disk, &bytes).unwrap();
    let done = ours(&["resize", "-f", "raw", "-q", &disk, "+4K"]);
    assert!(done.status.success(), "{done:?}");
    bytes.resize(12288, 0);
    assert_eq!(std::fs::read(&disk).unwrap(), bytes);
}
