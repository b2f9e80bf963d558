//! Images broken on purpose: each gives one clear error or a disk, and nothing else.

use device::{Edge, ErrorKind, Result};

use super::layouts::{KINDS, describe, lay, named};
use super::{Bytes, Named, Random, context, open};
use crate::vmdk::FORMAT;

/// Reads all of a disk; of a long one the beginning, the end and some places between.
fn look(disk: &Edge) -> Result<()> {
    let size = disk.info().size;
    let mut all = Vec::new();
    let steps = [0, size / 3, size.saturating_sub(100_000)];
    for at in steps.into_iter().filter(|at| *at < size) {
        let len = (size - at).min(100_000);
        disk.resolve(at, size - at, 50, &mut all)?;
        let mut bytes = vec![0; len as usize];
        disk.read(&mut bytes, at)?;
    }
    Ok(())
}

fn try_out(image: &[u8], files: &Named) -> Result<()> {
    // Describing it opens nothing, and may fail as well.
    let told = (FORMAT.describe)(&Bytes::fixed(image.to_vec()), context());
    drop(told.map_err(|e| assert!(!e.to_string().contains('\n'), "{e}")));
    let disk = open(Bytes::fixed(image.to_vec()), files)?;
    look(&disk)
}

fn judge(tried: Result<()>) -> bool {
    match tried {
        Ok(()) => false,
        Err(e) => {
            let text = e.to_string();
            assert!(!text.is_empty() && !text.contains('\n'), "{text}");
            // Broken, unfit or unknown: never an internal error, nor out of memory.
            let kinds = [ErrorKind::Corrupt, ErrorKind::InvalidInput, ErrorKind::Unsupported];
            assert!(kinds.contains(&e.kind()), "{:?}: {text}", e.kind());
            true
        }
    }
}

fn mutate(image: &mut Vec<u8>, metadata: usize, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let far = if random.below(5) > 0 { metadata.min(image.len()) } else { image.len() };
        let near = if random.below(2) == 0 { far.min(96) } else { far };
        let at = random.below(near.max(1) as u64) as usize;
        let Some(byte) = image.get_mut(at) else { continue };
        *byte = match random.below(5) {
            0 => 0,
            1 => 0xff,
            2 => *byte ^ 1 << random.below(8),
            3 => byte.wrapping_add(1),
            _ => random.below(256) as u8,
        };
    }
    if random.below(12) == 0 {
        image.truncate(random.below(image.len() as u64 + 1) as usize);
    }
}

#[test]
fn thousands_of_broken_images_end_in_one_clear_error_or_in_a_disk() {
    let mut random = Random(3);
    let mut refused = 0;
    for _ in 0..30 {
        for kind in KINDS {
            let laid = lay(kind, &mut random);
            for _ in 0..12 {
                let mut image = laid.image.clone();
                mutate(&mut image, laid.metadata, &mut random);
                refused += usize::from(judge(try_out(&image, &Named::default())));
            }
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn broken_descriptors_and_extents_do_no_more() {
    let mut random = Random(4);
    for _ in 0..400 {
        let (text, mut files, _) = describe(&mut random);
        let mut text = text.into_bytes();
        if random.below(2) == 0 || files.is_empty() {
            let len = text.len();
            mutate(&mut text, len, &mut random);
        } else {
            let which = random.below(files.len() as u64) as usize;
            let (_, bytes) = &mut files[which];
            mutate(bytes, 2048, &mut random);
        }
        judge(try_out(&text, &named(&files)));
    }
}

#[test]
fn numbers_that_are_too_large_are_refused_before_anything_is_allocated() {
    let mut random = Random(5);
    let laid = lay(KINDS[0], &mut random);
    // Capacity, grain, descriptor, its length, entries, directory.
    for (at, len) in [(12, 8), (20, 8), (28, 8), (36, 8), (44, 4), (56, 8)] {
        for fill in [0x7f, 0xff] {
            let mut image = laid.image.clone();
            image[28] = 1;
            image[at..at + len].fill(fill);
            assert!(judge(try_out(&image, &Named::default())), "{at}");
        }
    }
    for text in [
        "RW 99999999999999 FLAT \"x\" 0",
        "RW 18446744073709551615 ZERO",
        "RW 36028797018963967 ZERO\nRW 36028797018963967 ZERO",
    ] {
        let image = format!("version=1\n{text}\n").into_bytes();
        assert!(judge(try_out(&image, &named(&[("x".to_owned(), vec![0; 512])]))), "{text}");
    }
}
