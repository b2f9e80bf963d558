//! Writes in any order, at once, and over what was there.

use std::sync::mpsc;

use device::{Buffer, Operation, ZeroFlags};
use disk::Holds;
use proptest::prelude::*;

use crate::support::{Place, all, create, make, map, open};

const KINDS: &[(&str, &[&str])] = &[
    ("vdi", &[]),
    ("vdi", &["static=on"]),
    ("vpc", &[]),
    ("vpc", &["subformat=fixed"]),
    ("vhdx", &["block_size=1M"]),
    ("vhdx", &["subformat=fixed", "block_size=1M"]),
    ("vmdk", &[]),
    ("vmdk", &["zeroed_grain=on"]),
];

const SIZE: usize = (4 << 20) + 1024;

fn config() -> ProptestConfig {
    ProptestConfig::with_cases(12)
}

proptest! {
    #![proptest_config(config())]

    /// Neighbours of a block are in flight together; the image is then what was written.
    #[test]
    fn writes_and_zeroes_in_any_order_are_what_is_read(
        kind in 0..KINDS.len(),
        steps in prop::collection::vec((0..SIZE / 512, 1..600usize, 0..4u8), 1..40),
    ) {
        let place = Place::new();
        let (path, (format, options)) = (place.path("image"), KINDS[kind]);
        let created = create(&path, format, options, SIZE as u64).unwrap();
        let mut expected = vec![0; SIZE];
        for pieces in steps.chunks(5) {
            let (tx, rx) = mpsc::channel();
            let mut used = Vec::<std::ops::Range<usize>>::new();
            for (at, len, byte) in pieces {
                let at = at * 512;
                let end = (at + len * 512).min(SIZE);
                // What overlaps has no order.
                if used.iter().any(|range| range.start < end && at < range.end) {
                    continue;
                }
                used.push(at..end);
                expected[at..end].fill(*byte);
                let (offset, tx) = (at as u64, tx.clone());
                let operation = match byte {
                    0 => {
                        let flags = ZeroFlags { may_unmap: len % 2 == 0, ..ZeroFlags::default() };
                        Operation::Zero { offset, len: (end - at) as u64, flags }
                    }
                    _ => {
                        let data = Buffer::copy_of(&expected[at..end]).into();
                        Operation::Write { offset, data, fua: false }
                    }
                };
                created.edge.submit(operation, Box::new(move |end| tx.send(end.map(drop)).unwrap()));
            }
            drop(tx);
            for end in rx {
                end.unwrap();
            }
            expected.resize(usize::try_from(created.edge.info().size).unwrap(), 0);
            prop_assert!(all(&created.edge) == expected);
            if created.edge.info().abilities.extents {
                map(&created.edge, &expected);
            }
            expected.truncate(SIZE);
        }
        created.edge.device().finish().unwrap();
        drop(created);
        let disk = open(&path, format).unwrap();
        expected.resize(usize::try_from(disk.info().size).unwrap(), 0);
        prop_assert!(all(&disk) == expected, "other bytes when it is opened again");
        map(&disk, &expected);
    }
}

#[test]
fn an_image_over_an_old_one_has_nothing_of_it_and_is_none_until_it_is_finished() {
    let place = Place::new();
    for (format, options) in KINDS {
        let path = place.path("image");
        make(&path, format, options, &vec![9; SIZE]);
        let created = create(&path, format, options, SIZE as u64).unwrap();
        assert_eq!(created.holds, Holds::Zeroes);
        // The file itself is locked.
        let seen = || open(place.write("seen", &std::fs::read(&path).unwrap()), format);
        assert!(seen().is_err(), "{format}: the old image is still there");
        created.edge.write(&[5; 512], 1 << 20, false).unwrap();
        assert!(seen().is_err(), "{format}: it is not complete");
        created.edge.device().finish().unwrap();
        drop(created);
        let bytes = all(&open(&path, format).unwrap());
        assert!(
            bytes.iter().enumerate().all(|(i, b)| {
                *b == if (1 << 20..(1 << 20) + 512).contains(&i) { 5 } else { 0 }
            })
        );
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn neighbours_are_one_extent_and_lie_where_the_file_has_them() {
    let place = Place::new();
    for (format, options) in KINDS {
        let (path, bytes) = (place.path("image"), vec![3; SIZE]);
        make(&path, format, options, &bytes);
        let disk = open(&path, format).unwrap();
        let found = map(&disk, &all(&disk));
        assert!(found[0].place.is_some() && found[0].home.is_some(), "{format}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_fixed_vhd_is_not_put_where_its_footer_cannot_be_found() {
    let create = |target| create(target, "vpc", &["subformat=fixed", "force_size=on"], 1 << 20);
    let refused = create("memory:2M").unwrap_err().to_string();
    assert!(refused.contains("ends with its container"), "{refused}");
    assert!(create(&format!("memory:{}", (1 << 20) + 512)).is_ok());
}
