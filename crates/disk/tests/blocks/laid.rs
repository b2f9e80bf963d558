//! Images that no peer here makes, laid out by the test.

use disk::{External, Image};

use crate::blocks_written::write_over_parent;
use crate::support::{Dice, Place, all, image, make, map, open, open_image, pattern, put};

/// VHD's checksum of `range`, but for the four bytes at `at`, which it is put into.
fn vhd_sum(bytes: &mut [u8], (start, len): (usize, usize), at: usize) {
    put(bytes, start + at, &[0; 4]);
    let sum = bytes[start..start + len].iter().fold(0_u32, |sum, b| sum.wrapping_add((*b).into()));
    put(bytes, start + at, &(!sum).to_be_bytes());
}

#[test]
fn a_vhd_that_differs_from_its_parent_has_the_sectors_of_both() {
    let place = Place::new();
    let size = (6 << 20) + 1024;
    let (mut under, over) = (pattern(size, 1), pattern(size, 2));
    make(&place.path("parent.vhd"), "vpc", &["force_size=on"], &under);
    let path = place.path("child.vhd");
    // Only its second block is there.
    let second = 2 << 20..4 << 20;
    let mut mine = vec![0; size];
    mine[second.clone()].copy_from_slice(&over[second.clone()]);
    make(&path, "vpc", &["force_size=on"], &mine);
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 512;
    for at in [0, last] {
        put(&mut bytes, at + 60, &4_u32.to_be_bytes());
        vhd_sum(&mut bytes, (at, 512), 64);
    }
    let name: Vec<_> = "parent.vhd".encode_utf16().flat_map(u16::to_be_bytes).collect();
    put(&mut bytes, 512 + 64, &name);
    let parent = std::fs::read(place.path("parent.vhd")).unwrap();
    put(&mut bytes, 512 + 40, &parent[68..84]);
    vhd_sum(&mut bytes, (512, 1024), 36);
    let entry = 1536 + 4;
    let bitmap = u32::from_be_bytes(bytes[entry..entry + 4].try_into().unwrap()) as usize * 512;
    let mut dice = Dice::new(5);
    for sector in 0..4096 {
        let at = second.start + sector * 512;
        if dice.below(3) == 0 {
            bytes[bitmap + sector / 8] &= !(0x80 >> (sector % 8));
        } else {
            under[at..at + 512].copy_from_slice(&over[at..at + 512]);
        }
    }
    std::fs::write(&path, &bytes).unwrap();
    let refused = open(&path, "vpc").unwrap_err().to_string();
    assert!(refused.contains("parent.vhd") && refused.contains("--allow-external"), "{refused}");
    let allowed = || Image { external: External::Chain, ..image("vpc") };
    let disk = open_image(&path, allowed()).unwrap();
    assert!(all(&disk) == under);
    let found = map(&disk, &under);
    assert!(found.iter().any(|e| e.depth == 1) && found.iter().any(|e| e.depth == 0));
    // Places keep the file open, and locked.
    drop((disk, found));
    write_over_parent(&path, "vpc", &mut under);
    assert!(std::fs::read(place.path("parent.vhd")).unwrap() == parent, "the parent was changed");
    // Another disk of that name has another identifier.
    std::fs::remove_file(place.path("parent.vhd")).unwrap();
    make(&place.path("parent.vhd"), "vpc", &["force_size=on"], &under);
    let error = open_image(&path, allowed()).unwrap_err().to_string();
    assert!(error.contains("parent.vhd") && error.contains("is not the parent"), "{error}");
}

/// What its user wrote to the beginning of a fixed disk is no header of it.
#[test]
fn a_fixed_vhd_with_an_image_in_it_is_the_disk_that_its_footer_says() {
    let place = Place::new();
    for (kind, options) in
        [("dynamic", &["force_size=on"][..]), ("fixed", &["force_size=on", "subformat=fixed"][..])]
    {
        let inner = place.path("inner");
        make(&inner, "vpc", options, &pattern(2 << 20, 1));
        let mut outer = std::fs::read(&inner).unwrap();
        if kind == "fixed" {
            // As a fixed one has it only at its end.
            let footer = outer[outer.len() - 512..].to_vec();
            outer[..512].copy_from_slice(&footer);
        }
        outer.resize(8 << 20, 0);
        let path = place.path("outer");
        make(&path, "vpc", &["force_size=on", "subformat=fixed"], &outer);
        assert!(all(&open(&path, "vpc").unwrap()) == outer, "{kind}");
        assert!(all(&open(&path, "").unwrap()) == outer, "{kind}");
        // Of two that do not agree neither is taken for the other.
        let mut longer = std::fs::read(&path).unwrap();
        let at = longer.len() - 512;
        longer.splice(at..at, [0; 512]);
        let error = open(place.write("longer", &longer), "vpc").unwrap_err().to_string();
        assert!(error.contains("of another length"), "{kind}: {error}");
        std::fs::remove_file(&inner).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn the_size_of_a_vhd_depends_on_the_program_that_made_it() {
    let place = Place::new();
    let (path, size) = (place.path("image"), (5 << 20) + 1536);
    make(&path, "vpc", &["force_size=on"], &pattern(size, 1));
    let mut bytes = std::fs::read(&path).unwrap();
    let geometry = usize::from(u16::from_be_bytes([bytes[56], bytes[57]]))
        * usize::from(bytes[58])
        * usize::from(bytes[59])
        * 512;
    assert_ne!(geometry, size);
    for (creator, by_geometry) in [
        (b"win ", false),
        (b"qem2", false),
        (b"d2v ", false),
        (b"tap\0", false),
        (b"CTXS", false),
        (b"wa\0\0", false),
        (b"vpc ", true),
        (b"qemu", true),
    ] {
        let last = bytes.len() - 512;
        // The table has entries for either.
        put(&mut bytes, 512 + 28, &4_u32.to_be_bytes());
        vhd_sum(&mut bytes, (512, 1024), 36);
        for at in [0, last] {
            put(&mut bytes, at + 28, creator);
            vhd_sum(&mut bytes, (at, 512), 64);
        }
        std::fs::write(&path, &bytes).unwrap();
        let found = usize::try_from(open(&path, "vpc").unwrap().info().size).unwrap();
        assert_eq!(found, if by_geometry { geometry } else { size }, "{creator:?}");
    }
}
