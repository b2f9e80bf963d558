use device::Blocking as _;
use runtime::WorkPool;
use std::sync::Arc;

use device::model::Model;
use device::{Edge, Params};

use super::gpt::crc32;
use crate::kit::tested::{put, simple};

const SECTOR: usize = 512;

/// A disk of so many sectors, to be filled in.
struct Image(Vec<u8>);

impl Image {
    fn new(sectors: usize) -> Self {
        Self(vec![0; sectors * SECTOR])
    }

    fn put(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// An entry of the table in the sector `table`.
    fn entry(&mut self, table: usize, slot: usize, kind: u8, start: u32, count: u32) -> &mut Self {
        let at = table * SECTOR;
        self.put(at + 510, &[0x55, 0xaa]);
        let at = at + 446 + slot * 16;
        self.put(at + 4, &[kind])
            .put(at + 8, &start.to_le_bytes())
            .put(at + 12, &count.to_le_bytes())
    }

    fn disk(&self) -> Arc<Model> {
        let model = Arc::new(Model::new(self.0.len()));
        model.write_at(&self.0, 0, false).unwrap();
        model
    }

    /// The sectors of the partition `number`, or the error.
    fn find(&self, number: u64) -> Result<(u64, u64), String> {
        let below = Edge::new(simple(self.disk()), WorkPool::new(1));
        let word = format!("partition={number}");
        let found = super::find(&Params::parse([&*word]).unwrap(), &below);
        let (start, len) = found.map_err(|e| e.to_string())?;
        Ok((start / SECTOR as u64, len / SECTOR as u64))
    }

    /// A GPT with these partitions: number, first and last sector.
    fn gpt(sectors: usize, parts: &[(usize, u64, u64)]) -> Self {
        let mut image = Self::new(sectors);
        image.entry(0, 0, 0xee, 1, u32::try_from(sectors - 1).unwrap());
        let last = sectors as u64 - 1;
        for (at, list) in [(1, 2), (last, last - 32)] {
            for (number, first, last) in parts {
                let entry = usize::try_from(list).unwrap() * SECTOR + (number - 1) * 128;
                image.put(entry, &[1; 16]);
                image.put(entry + 32, &first.to_le_bytes()).put(entry + 40, &last.to_le_bytes());
            }
            image.header(at, list, 34, last - 33, 128, 128);
        }
        image
    }

    fn header(&mut self, at: u64, list: u64, first: u64, last: u64, count: u32, entry: u32) {
        let list_at = usize::try_from(list).unwrap() * SECTOR;
        let len = (count as usize).saturating_mul(entry as usize).min(16384);
        let list_crc = crc32(&self.0[list_at..list_at + len]);
        let h = usize::try_from(at).unwrap() * SECTOR;
        self.put(h, b"EFI PART")
            .put(h + 8, &[0, 0, 1, 0, 92, 0, 0, 0])
            .put(h + 24, &at.to_le_bytes());
        self.put(h + 40, &first.to_le_bytes()).put(h + 48, &last.to_le_bytes());
        self.put(h + 72, &list.to_le_bytes()).put(h + 80, &count.to_le_bytes());
        self.put(h + 84, &entry.to_le_bytes()).put(h + 88, &list_crc.to_le_bytes());
        self.put(h + 16, &[0; 4]);
        let crc = crc32(&self.0[h..h + 92]);
        self.put(h + 16, &crc.to_le_bytes());
    }
}

fn complains(found: Result<(u64, u64), String>, about: &str) {
    let e = found.unwrap_err();
    assert!(e.contains(about), "{e}");
}

/// Two primary partitions, and two logical ones in the sectors 100 to 199.
fn mbr() -> Image {
    let mut image = Image::new(300);
    image.entry(0, 0, 0x83, 1, 50).entry(0, 2, 0x07, 51, 49).entry(0, 3, 0x05, 100, 100);
    image.entry(100, 0, 0x83, 2, 10).entry(100, 1, 0x05, 40, 60);
    image.entry(140, 0, 0x83, 1, 59);
    image
}

#[test]
fn primary_and_logical_partitions_are_found() {
    let image = mbr();
    assert_eq!(image.find(1), Ok((1, 50)));
    assert_eq!(image.find(3), Ok((51, 49)));
    assert_eq!(image.find(5), Ok((102, 10)));
    assert_eq!(image.find(6), Ok((141, 59)));
    complains(image.find(2), "there is no partition 2; there are 1, 3, 4, 5, 6");
    complains(image.find(4), "is extended");
    complains(image.find(7), "there is no partition 7");
    complains(image.find(u64::MAX), "there is no partition");
    complains(image.find(0), "counted from 1");
}

#[test]
fn a_partition_outside_the_disk_is_refused() {
    for (start, count) in [(300, 1), (299, 2), (1, 300), (u32::MAX, 1), (1, u32::MAX)] {
        let mut image = Image::new(300);
        complains(image.entry(0, 0, 0x83, start, count).find(1), "does not lie in the disk");
    }
    let mut image = Image::new(300);
    assert_eq!(image.entry(0, 0, 0x83, 299, 1).find(1), Ok((299, 1)));
}

#[test]
fn a_chain_that_loops_or_leads_outside_ends() {
    let mut image = mbr();
    complains(image.entry(140, 1, 0x05, 0, 100).find(7), "does not end");
    let mut image = mbr();
    complains(image.entry(140, 1, 0x05, 40, 60).find(7), "does not end");
    let mut image = mbr();
    complains(image.entry(140, 1, 0x05, 100, 10).find(7), "leads outside");
    let mut image = mbr();
    complains(image.entry(140, 1, 0x05, u32::MAX, 10).find(7), "leads outside");
    let mut image = mbr();
    complains(image.entry(140, 1, 0x05, 90, 10).find(7), "is broken");
    let mut image = mbr();
    complains(image.entry(140, 0, 0x83, 1, 60).find(6), "lies outside");
    // A long chain, each link in a sector of its own.
    let mut image = Image::new(2000);
    image.entry(0, 0, 0x05, 1, 1999);
    for at in 1..1000 {
        image.entry(at, 1, 0x05, u32::try_from(at).unwrap(), 1);
    }
    complains(image.find(5), "does not end");
}

#[test]
fn partitions_may_overlap() {
    let mut image = Image::new(300);
    image.entry(0, 0, 0x17, 0, 300).entry(0, 1, 0xef, 100, 20);
    assert_eq!((image.find(1), image.find(2)), (Ok((0, 300)), Ok((100, 20))));
}

#[test]
fn a_boot_sector_is_not_taken_for_a_table() {
    let mut image = Image::new(300);
    image.entry(0, 0, 0x83, 1, 50).put(446, b"boot");
    complains(image.find(1), "there is no partition table");
    complains(Image::new(300).find(1), "there is no partition table");
    complains(Image::new(0).find(1), "there is no partition table");
    complains(Image(vec![0; 100]).find(1), "there is no partition table");
}

const PARTS: &[(usize, u64, u64)] = &[(1, 34, 99), (3, 100, 100), (128, 101, 150)];

#[test]
fn partitions_of_a_gpt_are_found_and_missing_ones_are_missed() {
    let image = Image::gpt(300, PARTS);
    assert_eq!(image.find(1), Ok((34, 66)));
    assert_eq!(image.find(3), Ok((100, 1)));
    assert_eq!(image.find(128), Ok((101, 50)));
    complains(image.find(2), "there is no partition 2; there are 1, 3, 128");
    complains(image.find(129), "there is no partition 129");
    complains(image.find(u64::MAX), "there is no partition");
}

#[test]
fn a_damaged_gpt_is_found_in_its_copy_and_only_there() {
    for at in [SECTOR, SECTOR + 16, SECTOR + 40, 2 * SECTOR + 32, 2 * SECTOR + 10_000] {
        let mut image = Image::gpt(300, PARTS);
        let byte = image.0[at] ^ 0x40;
        image.put(at, &[byte]);
        assert_eq!(image.find(3), Ok((100, 1)), "{at}");
        let byte = image.0[299 * SECTOR + 48] ^ 1;
        image.put(299 * SECTOR + 48, &[byte]);
        assert!(image.find(3).is_err(), "{at}");
    }
}

#[test]
fn a_gpt_that_lies_with_right_checksums_is_refused() {
    let with = |parts, first, last, count, entry| {
        let mut image = Image::gpt(300, parts);
        image.put(299 * SECTOR, &[0; 8]);
        image.header(1, 2, first, last, count, entry);
        image.find(1)
    };
    assert_eq!(with(PARTS, 34, 266, 128, 128), Ok((34, 66)));
    complains(with(PARTS, 34, 300, 128, 128), "larger disk");
    complains(with(PARTS, 35, 266, 128, 128), "outside what the table allows");
    complains(with(PARTS, 34, 98, 128, 128), "outside what the table allows");
    complains(with(&[(1, 99, 34)], 34, 266, 128, 128), "outside what the table allows");
    complains(with(&[(1, 34, u64::MAX)], 34, 266, 128, 128), "outside what the table allows");
    for (count, entry) in [(128, 0), (128, 127), (128, 64), (1, 8192), (u32::MAX, 128), (9000, 128)]
    {
        complains(with(PARTS, 34, 266, count, entry), "implausible");
    }
    complains(with(PARTS, 34, 266, 0, 128), "there is no partition 1; there are none");
    // A table records its own place.
    let mut image = Image::gpt(300, PARTS);
    let header = image.0[SECTOR..2 * SECTOR].to_vec();
    image.put(299 * SECTOR, &header).put(SECTOR, &[0; 8]);
    assert!(image.find(1).is_err());
    // A header longer than its sector.
    let mut image = Image::gpt(300, PARTS);
    image.put(299 * SECTOR, &[0; 8]).put(SECTOR + 12, &u32::MAX.to_le_bytes());
    complains(image.find(1), "wrong length");
}

#[test]
fn sectors_of_4096_bytes_are_known_by_the_disk_or_said() {
    let mut image = Image::new(800);
    image.entry(0, 0, 0x83, 10, 20);
    let open = |word: &str| put("partition", simple(image.disk()), &["partition=1", word]);
    assert_eq!(open("partition-sectorsize=512").unwrap().info().size, 20 * 512);
    assert_eq!(open("partition-sectorsize=4k").unwrap().info().size, 20 * 4096);
    assert!(open("partition-sectorsize=1024").is_err());
    let all = Model::new(1).info().abilities;
    let blocks = device::BlockSizes { minimum: 4096, ..device::BlockSizes::ANY };
    let model = Arc::new(Model::with(image.0.len(), all, blocks));
    model.write_at(&image.0, 0, false).unwrap();
    assert_eq!(put("partition", simple(model), &["partition=1"]).unwrap().info().size, 20 * 4096);
    assert!(put("partition", simple(image.disk()), &[]).is_err());
}
