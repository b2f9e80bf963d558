//! Packed streams of other programs are read, at random and in order, alone and with an image in
//! them.

use std::process::Command;

use device::{Edge, Params, Result};
use disk::Image;

use crate::support::{Dice, Place, all, image, make, open, open_image, pattern};

/// Formats, and commands that pack their input.
const PACKERS: &[(&str, &[&str])] = &[
    ("gz", &["gzip", "-1"]),
    ("gz", &["gzip", "-9", "-n"]),
    ("xz", &["xz", "-0", "--block-size=1MiB"]),
    ("xz", &["xz", "-0", "--check=crc32"]),
    ("lz", &["lzip", "-0"]),
    ("lz", &["lzip", "-1", "--member-size=100KiB"]),
    ("zstd", &["zstd", "-1"]),
    ("zstd", &["zstd", "-1", "--check", "--long=24"]),
    ("bz2", &["bzip2", "-1"]),
];

/// The output of `packer` for bytes; `None` if it is not installed and need not be. From a file
/// most of them record its size, from a pipe they cannot.
fn packed_from(packer: &[&str], bytes: &[u8], pipe: bool) -> Option<Vec<u8>> {
    let place = Place::new();
    let file = place.write("plain", bytes);
    let mut command = Command::new(packer[0]);
    command.args(&packer[1..]).arg("-c");
    if pipe {
        command.stdin(std::fs::File::open(&file).unwrap());
    } else {
        command.arg(&file);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(e) if std::env::var_os("REQUIRE_PEERS").is_some() => panic!("{}: {e}", packer[0]),
        Err(_) => return None,
    };
    assert!(output.status.success());
    Some(output.stdout)
}

fn packed(packer: &[&str], bytes: &[u8]) -> Option<Vec<u8>> {
    packed_from(packer, bytes, false)
}

fn with(format: &str, params: &[&str]) -> Image {
    Image { params: Params::parse(params.iter().copied()).unwrap(), ..image(format) }
}

fn read_at_random(disk: &Edge, bytes: &[u8], dice: &mut Dice) {
    for _ in 0..20 {
        let at = dice.below(bytes.len());
        let len = dice.below((bytes.len() - at).min(600_000)) + 1;
        let mut found = vec![0xaa; len];
        disk.read(&mut found, at as u64).unwrap();
        assert!(found == bytes[at..at + len], "{at}+{len}");
    }
}

#[test]
fn streams_of_other_programs_are_read_in_order_and_at_random() {
    let place = Place::new();
    let mut dice = Dice::new(9);
    for size in [16, 300_001, (3 << 20) + 77] {
        let bytes = pattern(size, 5);
        for (format, packer) in PACKERS {
            let pipe = size % 2 == 1;
            let Some(packed) = packed_from(packer, &bytes, pipe) else { continue };
            let path = place.write("packed", &packed);
            for guess in [format, ""] {
                let disk = open(&path, guess).unwrap();
                assert_eq!(disk.info().size, size as u64, "{packer:?}");
                assert!(all(&disk) == bytes, "{packer:?} {size}");
                read_at_random(&disk, &bytes, &mut dice);
            }
            let given = open_image(&path, with(format, &[&format!("size={size}")])).unwrap();
            assert!(all(&given) == bytes, "{packer:?}: with its size");
        }
    }
}

#[test]
fn streams_that_follow_each_other_are_one_disk() {
    let place = Place::new();
    let bytes = pattern(900_000, 6);
    for (format, packer) in PACKERS {
        let mut all_packed = Vec::new();
        for piece in bytes.chunks(100_000) {
            let Some(packed) = packed(packer, piece) else { return };
            all_packed.extend(packed);
        }
        let disk = open(place.write("packed", &all_packed), format).unwrap();
        assert!(all(&disk) == bytes, "{packer:?}");
        read_at_random(&disk, &bytes, &mut Dice::new(1));
    }
}

#[test]
fn the_table_of_the_seekable_format_leads_to_each_frame() {
    let place = Place::new();
    let bytes = pattern(1 << 20, 7);
    let (mut stream, mut table, mut count) = (Vec::new(), Vec::new(), 0_u32);
    for piece in bytes.chunks(100_001) {
        let Some(frame) = packed(&["zstd", "-1"], piece) else { return };
        table.extend(u32::try_from(frame.len()).unwrap().to_le_bytes());
        table.extend(u32::try_from(piece.len()).unwrap().to_le_bytes());
        stream.extend(frame);
        count += 1;
    }
    stream.extend(0x184d_2a5e_u32.to_le_bytes());
    stream.extend(u32::try_from(table.len() + 9).unwrap().to_le_bytes());
    let entries = stream.len();
    stream.extend(&table);
    stream.extend(count.to_le_bytes());
    stream.push(0);
    stream.extend(0x8f92_eab1_u32.to_le_bytes());
    let disk = open(place.write("packed", &stream), "zstd").unwrap();
    assert!(all(&disk) == bytes);
    read_at_random(&disk, &bytes, &mut Dice::new(1));
    // A wrong table is noticed where it is wrong.
    let mut lies = stream;
    lies[entries + 4] -= 1;
    let disk = open(place.write("packed", &lies), "zstd").unwrap();
    assert!(whole(&disk).is_err());
}

/// All of it, or the first error.
fn whole(disk: &Edge) -> Result<()> {
    let mut bytes = vec![0; usize::try_from(disk.info().size).unwrap()];
    disk.read(&mut bytes, 0)
}

#[test]
fn an_image_in_a_stream_is_found_by_a_guess_or_named() {
    let place = Place::new();
    let bytes = pattern((3 << 20) + 512, 8);
    let inner = place.path("inner");
    for (format, packer) in PACKERS {
        make(&inner, "vdi", &[], &bytes);
        let image = std::fs::read(&inner).unwrap();
        std::fs::remove_file(&inner).unwrap();
        let Some(once) = packed(packer, &image) else { return };
        let path = place.write("packed", &once);
        assert!(all(&open(&path, "").unwrap()) == bytes, "{packer:?}: guessed");
        let named = open_image(&path, with(format, &["inside=vdi"])).unwrap();
        assert!(all(&named) == bytes, "{packer:?}: named");
        assert!(all(&open(&path, format).unwrap()) == image, "{packer:?}: the image itself");
        // Only one packing is taken off.
        let twice = place.write("twice", &packed(packer, &once).unwrap());
        assert!(all(&open(&twice, "").unwrap()) == once);
        let again = with(format, &[&format!("inside={format}")]);
        assert!(open_image(&path, again).is_err());
    }
}

#[test]
fn a_stream_that_is_broken_cut_off_or_too_large_is_refused() {
    let place = Place::new();
    let bytes = pattern(400_000, 9);
    let mut dice = Dice::new(77);
    for (format, packer) in PACKERS {
        let Some(good) = packed(packer, &bytes) else { return };
        let result = |bytes: &[u8], params: &[&str]| {
            let path = place.write("packed", bytes);
            let disk = open_image(&path, with(format, params))?;
            let mut read = vec![0; usize::try_from(disk.info().size).unwrap()];
            disk.read(&mut read, 0).map(|()| read)
        };
        assert!(result(&good, &[]).is_ok_and(|read| read == bytes));
        for params in [&["max-size=300000"][..], &["size=399999"], &["size=400001"]] {
            assert!(result(&good, params).is_err(), "{packer:?} {params:?}");
        }
        for _ in 0..40 {
            assert!(result(&good[..dice.below(good.len())], &[]).is_err(), "{packer:?}: cut off");
            let mut bad = good.clone();
            let at = dice.below(bad.len());
            bad[at] ^= 1 << dice.below(8);
            // Some bits mean nothing: a name, a time, what the sum does not cover.
            if let Ok(read) = result(&bad, &[]) {
                assert!(
                    read == bytes || packer.contains(&"-1") && *format == "zstd",
                    "{packer:?} {at}"
                );
            }
        }
        let mut more = good.clone();
        more.extend(b"more");
        assert!(result(&more, &[]).is_err(), "{packer:?}: what follows is no stream");
    }
}
