//! Files are found in archives of all kinds, and damaged ones are refused.

use std::sync::Arc;

use device::model::Model;
use device::{Blocking as _, Edge, Result};

use crate::kit::tested::{put, simple};

/// A header with its sum.
fn header(name: &[u8], size: &str, kind: u8) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name);
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..124 + size.len()].copy_from_slice(size.as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    summed(block)
}

fn summed(mut block: Vec<u8>) -> Vec<u8> {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn entry(name: &[u8], kind: u8, contents: &[u8]) -> Vec<u8> {
    let mut all = header(name, &format!("{:011o}", contents.len()), kind);
    all.extend(contents);
    all.resize(all.len().next_multiple_of(512), 0);
    all
}

fn over(archive: &[u8], words: &[&str]) -> Result<(Edge, Arc<Model>)> {
    let model = Arc::new(Model::new(archive.len()));
    model.write_at(archive, 0, false).unwrap();
    Ok((put("tar", simple(model.clone()), words)?, model))
}

fn found(archive: &[u8], name: &str) -> Result<Vec<u8>> {
    let (disk, _) = over(archive, &[&format!("tar-entry={name}")])?;
    let mut all = vec![0; usize::try_from(disk.info().size).unwrap()];
    disk.read(&mut all, 0).unwrap();
    Ok(all)
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut all = entries.concat();
    all.extend([0; 1024]);
    all
}

#[test]
fn a_file_is_found_by_its_name_as_each_kind_of_archive_writes_it() {
    let long = "d".repeat(200) + "/disk";
    let record = |key: &str, value: &str| {
        let len = key.len() + value.len() + 3;
        let len = (len + 1..len + 9).find(|n| len + n.to_string().len() == *n).unwrap();
        format!("{len} {key}={value}\n")
    };
    let mut split = header(b"disk", "00000000005 ", b'0');
    split[345..350].copy_from_slice(b"a/b/c");
    let mut large = header(b"large", "", b'0');
    large[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
    let padded = |mut block: Vec<u8>, contents: &[u8]| {
        block = summed(block);
        block.extend(contents);
        block.resize(1024, 0);
        block
    };
    let all = archive(&[
        entry(b"dir/", b'5', b""),
        entry(b"other", b'0', &[9; 700]),
        entry(b"link", b'2', b""),
        entry(b"././@LongLink", b'L', &[long.as_bytes(), b"\0"].concat()),
        entry(b"dddd", b'0', b"gnu"),
        entry(b"PaxHeaders/x", b'x', record("path", "p\u{e4}x").as_bytes()),
        entry(b"pax", b'0', b"pax here"),
        entry(b"g", b'g', record("comment", "of all").as_bytes()),
        padded(split, b"split"),
        padded(large, b"256"),
        entry(b"old", 0, b"from before POSIX"),
        entry(b"other", b'0', b"again"),
        entry(b"empty", b'0', b""),
    ]);
    assert_eq!(found(&all, &long).unwrap(), b"gnu");
    assert_eq!(found(&all, "p\u{e4}x").unwrap(), b"pax here");
    assert_eq!(found(&all, "a/b/c/disk").unwrap(), b"split");
    assert_eq!(found(&all, "large").unwrap(), b"256");
    assert_eq!(found(&all, "old").unwrap(), b"from before POSIX");
    assert_eq!(found(&all, "other").unwrap(), [9; 700], "the first of that name");
    assert_eq!(found(&all, "empty").unwrap(), b"");
    for (name, why) in [
        ("dddd", "no file `dddd`"),
        ("disk", "no file `disk`"),
        ("dir/", "no file `dir/`"),
        ("link", "a link to another file"),
    ] {
        let e = found(&all, name).unwrap_err().to_string();
        assert!(e.contains(why), "{name}: {e}");
    }
}

#[test]
fn a_file_behind_one_that_is_stored_sparse_in_many_pieces_is_found() {
    let mut sparse = header(b"sparse", "00000001000", b'S');
    sparse[482] = 1;
    let mut sparse = summed(sparse);
    let list = |more: u8| [vec![b'0'; 504], vec![more; 1], vec![0; 7]].concat();
    sparse.extend([list(1), list(0), vec![1; 512]].concat());
    let all = archive(&[sparse.clone(), entry(b"disk", b'0', b"behind it")]);
    assert_eq!(found(&all, "disk").unwrap(), b"behind it");
    assert!(found(&all, "sparse").unwrap_err().to_string().contains("stored sparse"));
    let e = found(&sparse[..1024], "disk").unwrap_err().to_string();
    assert!(e.contains("ends early"), "{e}");
}

#[test]
fn a_size_that_pax_says_goes_before_that_of_the_header() {
    let mut long = header(b"disk", "00000000001", b'0');
    long.extend([7; 512]);
    let all = archive(&[entry(b"x", b'x', b"12 size=500\n"), long, entry(b"next", b'0', b"n")]);
    assert_eq!(found(&all, "disk").unwrap(), [7; 500]);
    assert_eq!(found(&all, "next").unwrap(), b"n");
}

#[test]
fn what_is_damaged_or_stored_in_another_way_is_refused() {
    let disk = |contents: &[u8]| entry(b"disk", b'0', contents);
    let mut wrong_sum = disk(b"x");
    wrong_sum[0] = b'D';
    let mut too_long = header(b"disk", "77777777777", b'0');
    too_long.extend([0; 512]);
    let mut negative = header(b"disk", "", b'0');
    negative[124..136].fill(0xff);
    let described = |text: &[u8]| archive(&[entry(b"x", b'x', text), disk(b"x")]);
    for (all, why) in [
        (wrong_sum, "wrong checksum"),
        (b"\x1f\x8b\x08".repeat(400), "is it compressed?"),
        (too_long, "where 512 are left"),
        (summed(negative), "without a size"),
        (archive(&[entry(b"disk", b'S', b"x")]), "stored sparse"),
        (described(b"22 GNU.sparse.major=1\n"), "stored sparse"),
        (described(b"99 path=x\n"), "make no sense"),
        (described(b"0 path=x\n"), "make no sense"),
        (described(b"11 size=-1\n"), "make no sense"),
        (described(b"no number"), "make no sense"),
        (vec![0; 4096], "no file `disk`"),
        (Vec::new(), "no file `disk`"),
        (vec![1; 100], "no file `disk`"),
    ] {
        let e = found(&all, "disk").unwrap_err().to_string();
        assert!(e.contains(why), "{why}: {e}");
    }
    let far = archive(&[entry(b"other", b'0', &[1; 100_000]), disk(b"x")]);
    found(&far, "disk").unwrap();
    let e = over(&far, &["tar-entry=disk", "tar-limit=64K"]).unwrap_err().to_string();
    assert!(e.contains("tar-limit"), "{e}");
    over(&far, &["tar-entry=disk", "tar-limit=200K", "tar=gtar"]).unwrap();
    let unnamed = over(&far, &[]).unwrap_err().to_string();
    assert!(unnamed.contains("tar-entry= names one"), "{unnamed}");
}

#[test]
fn without_a_name_the_only_disk_is_shown_and_several_are_named() {
    let ovf = entry(b"vm.ovf", b'0', b"<x/>");
    let disk = |name: &[u8]| entry(name, b'0', name);
    let shown = |archive: &[u8]| {
        let (disk, _) = over(archive, &[])?;
        let mut all = vec![0; usize::try_from(disk.info().size).unwrap()];
        disk.read(&mut all, 0).unwrap();
        Ok::<_, device::Error>(all)
    };
    let sum = entry(b"vm.mf", b'0', b"SHA256");
    let ova = archive(&[ovf.clone(), disk(b"vm-1.VMDK"), sum.clone()]);
    assert_eq!(shown(&ova).unwrap(), b"vm-1.VMDK");
    // The first of a name counts, as for one that is named.
    let twice = archive(&[disk(b"a/disk.img"), entry(b"a/disk.img", b'0', b"later")]);
    assert_eq!(shown(&twice).unwrap(), b"a/disk.img");
    let none = shown(&archive(&[ovf, sum, entry(b"disk.img", b'5', b"")])).unwrap_err();
    assert!(none.to_string().contains("no file that is a disk"), "{none}");
    let many: Vec<_> = (0..12).map(|n| disk(format!("d{n}.raw").as_bytes())).collect();
    let several = shown(&archive(&many)).unwrap_err().to_string();
    assert!(several.contains("`d0.raw`, `d1.raw`") && several.ends_with("and others"), "{several}");
    assert!(!several.contains("d8.raw"), "{several}");
    let two = shown(&archive(&many[..2])).unwrap_err().to_string();
    assert!(two.ends_with("`d0.raw`, `d1.raw`"), "{two}");
}
