//! VHDX images that no peer here makes: with a log that was not replayed, and with a parent.

use disk::{External, Image};

use crate::blocks_written::{refused, replay, write_over_parent};
use crate::support::{
    Dice, Place, all, image, make, map, must, open, open_image, pattern, peer, put,
};

const OPTIONS: &[&str] = &["block_size=1M", "block_state_zero=off"];
/// Where our creator puts things: the log at 1 MiB, then the metadata, then the table of blocks.
const LOG: usize = 1 << 20;
const METADATA: usize = 2 << 20;
const BAT: usize = 3 << 20;

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 }
        })
    })
}

/// Puts the sum of `len` bytes at `at` into them.
fn sum(bytes: &mut [u8], at: usize, len: usize) {
    put(bytes, at + 4, &[0; 4]);
    let crc = crc32c(&bytes[at..at + len]);
    put(bytes, at + 4, &crc.to_le_bytes());
}

/// An entry of the log that makes the sector at `offset` what it is in `bytes`, and zeroes another.
fn entry(bytes: &[u8], offset: usize, id: [u8; 16], (sequence, tail): (u64, u32)) -> Vec<u8> {
    let mut entry = vec![0; 8192];
    put(&mut entry, 0, b"loge");
    put(&mut entry, 8, &8192_u32.to_le_bytes());
    put(&mut entry, 12, &tail.to_le_bytes());
    put(&mut entry, 16, &sequence.to_le_bytes());
    put(&mut entry, 24, &2_u32.to_le_bytes());
    put(&mut entry, 32, &id);
    let len = bytes.len() as u64;
    put(&mut entry, 48, &len.to_le_bytes());
    put(&mut entry, 56, &len.to_le_bytes());
    let sector = &bytes[offset..offset + 4096];
    put(&mut entry, 64, b"desc");
    put(&mut entry, 68, &sector[4092..]);
    put(&mut entry, 72, &sector[..8]);
    put(&mut entry, 80, &(offset as u64).to_le_bytes());
    put(&mut entry, 88, &sequence.to_le_bytes());
    // Behind the metadata, where nothing is.
    put(&mut entry, 96, b"zero");
    put(&mut entry, 104, &4096_u64.to_le_bytes());
    put(&mut entry, 112, &(METADATA as u64 + (512 << 10)).to_le_bytes());
    put(&mut entry, 120, &sequence.to_le_bytes());
    put(&mut entry, 4096, b"data");
    put(&mut entry, 4100, &u32::try_from(sequence >> 32).unwrap().to_le_bytes());
    put(&mut entry, 4104, &sector[8..4092]);
    put(&mut entry, 8188, &u32::try_from(sequence & 0xffff_ffff).unwrap().to_le_bytes());
    sum(&mut entry, 0, 8192);
    entry
}

/// An image whose table of blocks is in its log only, in an entry that begins at `at` and may go on
/// at the beginning of the log; an older entry says something else.
fn dirty(place: &Place, bytes: &[u8], at: usize) -> Vec<u8> {
    let path = place.path("image");
    make(&path, "vhdx", OPTIONS, bytes);
    let mut image = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let id = [7; 16];
    let new = entry(&image, BAT, id, (9, u32::try_from(at).unwrap()));
    let stale = {
        let mut other = image.clone();
        other[BAT..BAT + 4096].fill(0);
        entry(&other, BAT, id, (8, 65536))
    };
    image[BAT..BAT + 4096].fill(0xff);
    put(&mut image, LOG + 65536, &stale);
    for (i, byte) in new.iter().enumerate() {
        image[LOG + (at + i) % (1 << 20)] = *byte;
    }
    for header in [64 << 10, 128 << 10] {
        put(&mut image, header + 48, &id);
        sum(&mut image, header, 4096);
    }
    image
}

#[test]
fn a_log_that_was_not_replayed_is_part_of_the_image() {
    let place = Place::new();
    let bytes = pattern((5 << 20) + 512, 4);
    let raw = place.write("raw", &bytes);
    for at in [0, 4096, (1 << 20) - 4096] {
        let path = place.write("dirty", &dirty(&place, &bytes, at));
        let before = std::fs::read(&path).unwrap();
        let disk = open(&path, "vhdx").unwrap();
        assert!(all(&disk) == bytes, "the entry at {at}");
        map(&disk, &bytes);
        drop(disk);
        assert!(std::fs::read(&path).unwrap() == before, "the image was changed");
        // Opened to be written, it is replayed in place.
        let copy = place.write("copy", &before);
        assert!(replay(&copy) == bytes, "the entry at {at}");
        assert!(all(&open(&copy, "vhdx").unwrap()) == bytes);
        if must("qemu-img", &["check", "-f", "vhdx", &copy]) {
            must("qemu-img", &["compare", "-f", "raw", "-F", "vhdx", &raw, &copy]);
        }
        // QEMU replays it when it opens the image to write.
        if peer("qemu-io", &["-f", "vhdx", "-c", "quit", &path]).is_some() {
            must("qemu-img", &["compare", "-f", "raw", "-F", "vhdx", &raw, &path]);
        }
    }
}

/// What is cut off is not in the log: its blocks would read as zeroes. Newer bytes behind the end
/// that the log itself knows are not missed, and a file that grew since is whole.
#[test]
fn a_file_that_was_cut_off_behind_its_log_is_refused() {
    let place = Place::new();
    let bytes = pattern(5 << 20, 4);
    let good = dirty(&place, &bytes, 0);
    let error = open(place.write("cut", &good[..good.len() - (1 << 20)]), "vhdx").unwrap_err();
    assert!(error.to_string().contains("cut off"), "{error}");
    let mut longer = good.clone();
    longer.resize(good.len() + (1 << 20), 0);
    assert!(all(&open(place.write("longer", &longer), "vhdx").unwrap()) == bytes);
    // The file may be longer than it was for certain: what the newest entry says counts, and
    // nothing before it.
    let mut grown = good.clone();
    put(&mut grown, LOG + 56, &(good.len() as u64 + (4 << 20)).to_le_bytes());
    sum(&mut grown, LOG, 8192);
    assert!(all(&open(place.write("grown", &grown), "vhdx").unwrap()) == bytes);
    let mut sure = good.clone();
    put(&mut sure, LOG + 48, &(good.len() as u64 + 1).to_le_bytes());
    sum(&mut sure, LOG, 8192);
    assert!(open(place.write("sure", &sure), "vhdx").is_err());
}

#[test]
fn a_block_at_the_end_of_all_numbers_is_refused() {
    let place = Place::new();
    let path = place.path("image");
    make(&path, "vhdx", &["block_size=8M", "block_state_zero=off"], &pattern(32 << 20, 4));
    let mut bytes = std::fs::read(&path).unwrap();
    for place_of in [(1_u64 << 44) - 1, (1 << 44) - 8, (1 << 43) - 1] {
        put(&mut bytes, BAT + 8, &(place_of << 20 | 6).to_le_bytes());
        let disk = open(place.write("bad", &bytes), "vhdx").unwrap();
        let mut sector = [0; 512];
        assert!(disk.read(&mut sector, 9 << 20).is_err(), "{place_of:#x}");
        assert!(disk.resolve(9 << 20, 512, 1, &mut Vec::new()).is_err(), "{place_of:#x}");
    }
}

#[test]
fn a_log_that_is_not_complete_is_refused() {
    let place = Place::new();
    let bytes = pattern(1 << 20, 4);
    let good = dirty(&place, &bytes, 8192);
    let entry = LOG + 8192;
    // The sum, the data, the length, the identifier; the older entry is not whole without its own.
    for at in [entry + 4, entry + 4200, entry + 8, entry + 32] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        bad[LOG + 65536..LOG + 65536 + 8192].fill(0);
        let path = place.write("bad", &bad);
        let error = open(&path, "vhdx").unwrap_err().to_string();
        assert!(error.contains("log"), "{at}: {error}");
    }
    // Where the newest is not whole, the one before counts, and here says that nothing is there.
    let mut older = good;
    older[entry + 4] ^= 1;
    let disk = open(place.write("older", &older), "vhdx").unwrap();
    assert!(all(&disk).iter().all(|b| *b == 0));
}

#[test]
fn an_image_that_cannot_be_written_is_refused_and_stays_as_it_is() {
    let place = Place::new();
    let path = place.path("image");
    make(&path, "vhdx", OPTIONS, &pattern(4 << 20, 4));
    let good = std::fs::read(&path).unwrap();
    let header = |bytes: &mut [u8], at: usize, number: u32| {
        for header in [64 << 10, 128 << 10] {
            put(bytes, header + at, &number.to_le_bytes());
            sum(bytes, header, 4096);
        }
    };
    let entry = |bytes: &mut [u8], to: u64| put(bytes, BAT, &(to << 20 | 6).to_le_bytes());
    type Damage<'a> = &'a dyn Fn(&mut [u8]);
    let cases: [(&str, Damage<'_>); 5] = [
        ("it has no log", &|bytes| header(bytes, 68, 0)),
        ("outside the file", &|bytes| header(bytes, 68, 16 << 20)),
        ("longer than 16 MiB", &|bytes| header(bytes, 68, 17 << 20)),
        ("used twice", &|bytes| entry(bytes, 5)),
        ("overlaps the headers", &|bytes| entry(bytes, 2)),
    ];
    for (why, damage) in cases {
        let mut bad = good.clone();
        damage(&mut bad);
        let error = refused(&place.write("bad", &bad));
        assert!(error.contains("cannot be written") && error.contains(why), "{why}: {error}");
    }
}

fn words(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// The identifier of an image's data, as an image over it writes it.
fn linkage(image: &[u8]) -> String {
    let id = &image[(64 << 10) + 32..(64 << 10) + 48];
    let number = |range: std::ops::Range<usize>, backwards: bool| -> String {
        let mut bytes = id[range].to_vec();
        if backwards {
            bytes.reverse();
        }
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let (a, b, c) = (number(0..4, true), number(4..6, true), number(6..8, true));
    format!("{{{a}-{b}-{c}-{}-{}}}", number(8..10, false), number(10..16, false))
}

#[test]
fn an_image_that_differs_from_its_parent_has_the_sectors_of_both() {
    let place = Place::new();
    let (size, block) = (5 << 20, 1 << 20);
    let (under, over) = (pattern(size, 1), pattern(size, 2));
    make(&place.path("parent.vhdx"), "vhdx", OPTIONS, &under);
    // Its second and third block are there.
    let mut mine = vec![0; size];
    mine[block..3 * block].copy_from_slice(&over[block..3 * block]);
    mine[block] = 1;
    mine[2 * block] = 1;
    let path = place.path("child.vhdx");
    make(&path, "vhdx", OPTIONS, &mine);
    let mut bytes = std::fs::read(&path).unwrap();
    // It has a parent, of this name.
    bytes[METADATA + (64 << 10) + 4] |= 2;
    put(&mut bytes, METADATA + 10, &6_u16.to_le_bytes());
    let item = METADATA + 32 + 5 * 32;
    let id = [
        0x2d, 0x5f, 0xd3, 0xa8, 0x0b, 0xb3, 0x4d, 0x45, 0xab, 0xf7, 0xd3, 0xd8, 0x48, 0x34, 0xab,
        0x0c,
    ];
    put(&mut bytes, item, &id);
    put(&mut bytes, item + 16, &(65536_u32 + 4096).to_le_bytes());
    put(&mut bytes, item + 20, &1024_u32.to_le_bytes());
    put(&mut bytes, item + 24, &4_u32.to_le_bytes());
    let locator = METADATA + 65536 + 4096;
    put(&mut bytes, locator + 18, &2_u16.to_le_bytes());
    let parent = std::fs::read(place.path("parent.vhdx")).unwrap();
    let pairs = [
        ("relative_path".to_owned(), ".\\parent.vhdx".to_owned()),
        ("parent_linkage".to_owned(), linkage(&parent)),
    ];
    for (i, (key, value)) in pairs.into_iter().enumerate() {
        let (entry, at) = (locator + 20 + 12 * i, 64 + 256 * u32::try_from(i).unwrap());
        let (key, value) = (words(&key), words(&value));
        put(&mut bytes, entry, &at.to_le_bytes());
        put(&mut bytes, entry + 4, &(at + 64).to_le_bytes());
        put(&mut bytes, entry + 8, &u16::try_from(key.len()).unwrap().to_le_bytes());
        put(&mut bytes, entry + 10, &u16::try_from(value.len()).unwrap().to_le_bytes());
        let at = locator + usize::try_from(at).unwrap();
        put(&mut bytes, at, &key);
        put(&mut bytes, at + 64, &value);
    }
    // The third block is partly there; the fourth is zeroes; the bitmap lies at the end.
    let bitmap = bytes.len();
    assert_eq!(bytes[BAT + 8] & 7, 6);
    bytes[BAT + 16] |= 7;
    bytes[BAT + 24] = 2;
    put(&mut bytes, BAT + 4096 * 8, &(bitmap as u64 | 6).to_le_bytes());
    bytes.resize(bitmap + (1 << 20), 0);
    let mut expected = under.clone();
    expected[block..2 * block].copy_from_slice(&mine[block..2 * block]);
    expected[3 * block..4 * block].fill(0);
    let mut dice = Dice::new(3);
    for sector in 2 * block / 512..3 * block / 512 {
        if dice.below(2) == 0 {
            bytes[bitmap + sector / 8] |= 1 << (sector % 8);
            let at = sector * 512;
            expected[at..at + 512].copy_from_slice(&mine[at..at + 512]);
        }
    }
    std::fs::write(&path, &bytes).unwrap();
    let refused = open(&path, "vhdx").unwrap_err().to_string();
    assert!(refused.contains("parent.vhdx") && refused.contains("--allow-external"), "{refused}");
    let allowed = Image { external: External::Chain, ..image("vhdx") };
    let disk = open_image(&path, allowed.clone()).unwrap();
    assert!(all(&disk) == expected);
    let found = map(&disk, &expected);
    assert!(found.iter().any(|e| e.depth == 1) && found.iter().any(|e| e.depth == 0));
    // Places keep the file open, and locked.
    drop((disk, found));
    write_over_parent(&path, "vhdx", &mut expected);
    assert!(std::fs::read(place.path("parent.vhdx")).unwrap() == parent, "the parent was changed");
    // Another disk of that name, or the same after a change: both have another identifier.
    std::fs::remove_file(place.path("parent.vhdx")).unwrap();
    make(&place.path("parent.vhdx"), "vhdx", OPTIONS, &under);
    let error = open_image(&path, allowed.clone()).unwrap_err().to_string();
    assert!(error.contains("parent.vhdx") && error.contains("is not the parent"), "{error}");
    // An image that does not say which one its parent is has none that could be known.
    std::fs::write(place.path("parent.vhdx"), &parent).unwrap();
    let mut silent = bytes.clone();
    put(&mut silent, locator + 20 + 12 + 8, &0_u16.to_le_bytes());
    std::fs::write(&path, &silent).unwrap();
    let error = open_image(&path, allowed).unwrap_err().to_string();
    assert!(error.contains("that of the parent none"), "{error}");
}

#[test]
fn a_check_finds_blocks_that_lie_where_they_must_not() {
    let place = Place::new();
    let bytes = pattern((5 << 20) + 512, 4);
    let path = place.path("good");
    make(&path, "vhdx", OPTIONS, &bytes);
    let good = std::fs::read(&path).unwrap();
    let check = |bytes: &[u8]| {
        let path = place.write("checked", bytes);
        let container = open(&path, "raw").unwrap();
        let check = disk::format("vhdx").unwrap().check.unwrap();
        let found = check(&container, &runtime::Context::default());
        let theirs =
            peer("qemu-img", &["check", "-f", "vhdx", &path]).and_then(|o| o.status.code());
        (found.map(|found| found.corruptions), theirs)
    };
    let (found, theirs) = check(&good);
    assert!(found.unwrap().is_empty() && theirs.is_none_or(|code| code == 0));
    let entry = |bytes: &[u8], i: usize| bytes[BAT + 8 * i..BAT + 8 * i + 8].to_owned();
    // Over the headers; behind the end of the file; the room of another, which qemu-img does not
    // look for.
    for (new, said) in [
        (((1_u64 << 20) | 6).to_le_bytes().to_vec(), "headers"),
        (((good.len() as u64 + (1 << 20)) | 6).to_le_bytes().to_vec(), "outside the file"),
        (entry(&good, 0), "used twice"),
    ] {
        let mut bad = good.clone();
        put(&mut bad, BAT + 8, &new);
        let (found, theirs) = check(&bad);
        let found = found.unwrap();
        assert!(found.len() == 1 && found[0].contains(said), "{found:?}");
        assert!(said == "used twice" || theirs.is_none_or(|code| code != 0), "{said}: {theirs:?}");
    }
    // One that was not closed is not looked at by either.
    let (found, theirs) = check(&dirty(&place, &bytes, 0));
    let error = found.unwrap_err().to_string();
    assert!(error.contains("qemu-img check -r all"), "{error}");
    assert!(theirs.is_none_or(|code| code == 1), "{theirs:?}");
}
