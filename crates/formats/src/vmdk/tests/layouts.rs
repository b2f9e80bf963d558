//! Extents of every kind, laid out at random.

use super::{Bytes, Named, Random, check, open};
use crate::vmdk::codec;

const SECTOR: usize = 512;

/// An image of one extent, the disk in it, and where its metadata end.
pub(super) struct Laid {
    pub(super) image: Vec<u8>,
    pub(super) disk: Vec<u8>,
    pub(super) metadata: usize,
}

/// The kind of a grain of the disk.
#[derive(Clone, Copy, PartialEq)]
enum Grain {
    Absent,
    Zero,
    Data,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Hosted,
    /// With markers, and the directory at the end.
    Stream(bool, bool),
    Cowd,
    SeSparse,
}

pub(super) const KINDS: [Kind; 6] = [
    Kind::Hosted,
    Kind::Stream(true, true),
    Kind::Stream(true, false),
    Kind::Stream(false, false),
    Kind::Cowd,
    Kind::SeSparse,
];

struct Shape {
    kind: Kind,
    capacity: usize,
    /// In sectors.
    grain: usize,
    entries: usize,
    zeroes: bool,
}

impl Shape {
    fn random(kind: Kind, random: &mut Random) -> Self {
        let (grain, entries, zeroes) = match kind {
            Kind::Hosted | Kind::Stream(..) => {
                (1 << random.below(6), 1 + random.below(40) as usize, random.below(2) == 0)
            }
            Kind::Cowd => (1 << random.below(3), 4096, false),
            Kind::SeSparse => (8, 4096, true),
        };
        Self { kind, capacity: 1 + random.below(700) as usize, grain, entries, zeroes }
    }

    fn width(&self) -> usize {
        if self.kind == Kind::SeSparse { 8 } else { 4 }
    }

    fn tables(&self) -> usize {
        self.capacity.div_ceil(self.grain * self.entries)
    }

    /// Sectors of a table.
    fn table(&self) -> usize {
        (self.entries * self.width()).div_ceil(SECTOR)
    }
}

fn put(image: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if image.len() < at + bytes.len() {
        image.resize(at + bytes.len(), 0);
    }
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

fn hosted(shape: &Shape, directory: u64) -> Vec<u8> {
    let Kind::Stream(markers, _) = shape.kind else { return kdmv(shape, 1, 0, 0, directory) };
    let flags = 1 << 16 | if markers { 1 << 17 } else { 0 };
    kdmv(shape, 3, flags, 1, directory)
}

fn kdmv(shape: &Shape, version: u32, flags: u32, compress: u16, directory: u64) -> Vec<u8> {
    let mut header = b"KDMV".to_vec();
    header.extend(version.to_le_bytes());
    header.extend((flags | 1 | u32::from(shape.zeroes) << 2).to_le_bytes());
    header.extend((shape.capacity as u64).to_le_bytes());
    header.extend((shape.grain as u64).to_le_bytes());
    header.extend([0; 16]);
    header.extend((shape.entries as u32).to_le_bytes());
    header.extend([0; 8]);
    header.extend(directory.to_le_bytes());
    header.extend([0; 8]);
    header.extend(b"\0\n \r\n");
    header.extend(compress.to_le_bytes());
    header.resize(SECTOR, 0);
    header
}

fn cowd(shape: &Shape) -> Vec<u8> {
    let mut header = b"COWD".to_vec();
    for field in [1, 3, shape.capacity, shape.grain, 1, shape.tables()] {
        header.extend((field as u32).to_le_bytes());
    }
    header.resize(SECTOR, 0);
    header
}

/// The volatile header is in the second sector, the directory after it.
fn sesparse(shape: &Shape, tables: usize, grains: usize) -> Vec<u8> {
    let directory = (shape.tables() * 8).div_ceil(SECTOR);
    let mut header = 0xcafe_babeu64.to_le_bytes().to_vec();
    let fields = [0x2_0000_0001, shape.capacity as u64, 8, 64, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0];
    let (tables_len, grains) = ((shape.tables() * shape.table()) as u64, grains as u64);
    let more = [2, directory as u64, tables as u64, tables_len, 0, 0, 0, 0, grains, 0];
    for field in fields.into_iter().chain(more) {
        header.extend(field.to_le_bytes());
    }
    header.resize(SECTOR, 0);
    header.extend(0xcafe_cafeu64.to_le_bytes());
    header.resize(2 * SECTOR, 0);
    header
}

pub(super) fn lay(kind: Kind, random: &mut Random) -> Laid {
    let shape = Shape::random(kind, random);
    let (grain, width) = (shape.grain * SECTOR, shape.width());
    let count = shape.capacity.div_ceil(shape.grain);
    let mut disk = vec![0; shape.capacity * SECTOR];
    let directory = if kind == Kind::SeSparse { 2 } else { 1 };
    let tables = directory + (shape.tables() * width).div_ceil(SECTOR);
    let mut free = tables + shape.tables() * shape.table();
    let (metadata, begin) = (free * SECTOR, free);
    let mut image = vec![0; metadata];
    let mut entries = vec![0u64; shape.tables() * shape.entries];
    // Grains of a stream are in order; others are anywhere.
    let mut order: Vec<usize> = (0..count).collect();
    if !matches!(kind, Kind::Stream(..)) {
        (1..count).rev().for_each(|i| order.swap(i, random.below(i as u64 + 1) as usize));
    }
    let mut before = Grain::Absent;
    for number in order {
        if random.below(3) == 0 {
            before = [Grain::Absent, Grain::Zero, Grain::Data][random.below(3) as usize];
        }
        let at = number * grain;
        let n = grain.min(disk.len() - at);
        match before {
            Grain::Zero if shape.zeroes => {
                entries[number] = if width == 8 { (1 + random.below(2)) << 60 } else { 1 };
            }
            Grain::Absent | Grain::Zero => {}
            Grain::Data => {
                let mut bytes = random.bytes(grain);
                disk[at..at + n].copy_from_slice(&bytes[..n]);
                free += if width == 4 { random.below(3) as usize } else { 0 };
                entries[number] = match kind {
                    Kind::SeSparse => {
                        let place = ((free - begin) / shape.grain) as u64;
                        3 << 60 | (place & 0xfff) << 48 | place >> 12
                    }
                    _ => free as u64,
                };
                if let Kind::Stream(markers, _) = kind {
                    bytes.truncate(if random.below(2) == 0 { n } else { grain });
                    let mut packed = Vec::new();
                    codec::pack(&bytes, 1, &mut packed).unwrap();
                    let mut marker = ((number * shape.grain) as u64).to_le_bytes().to_vec();
                    marker.extend((packed.len() as u32).to_le_bytes());
                    let front = if markers { marker } else { Vec::new() };
                    bytes = [front, packed].concat();
                }
                put(&mut image, free * SECTOR, &bytes);
                free += bytes.len().div_ceil(SECTOR);
            }
        }
    }
    image.resize((free * SECTOR).max(image.len()), 0);
    for table in 0..shape.tables() {
        let own = &entries[table * shape.entries..(table + 1) * shape.entries];
        if own.iter().all(|entry| *entry == 0) && random.below(2) == 0 {
            continue;
        }
        let sector = tables + table * shape.table();
        let entry = if width == 8 { 1 << 60 | table as u64 } else { sector as u64 };
        put(&mut image, directory * SECTOR + table * width, &entry.to_le_bytes()[..width]);
        let bytes: Vec<u8> =
            own.iter().flat_map(|entry| entry.to_le_bytes()[..width].to_vec()).collect();
        put(&mut image, sector * SECTOR, &bytes);
    }
    let header = match kind {
        Kind::Hosted => hosted(&shape, directory as u64),
        Kind::Stream(_, at_end) => {
            if at_end {
                let mut marker = [0; SECTOR];
                marker[12] = 3;
                image.extend(marker);
                image.extend(hosted(&shape, directory as u64));
                image.extend([0; SECTOR]);
            }
            hosted(&shape, if at_end { u64::MAX } else { directory as u64 })
        }
        Kind::Cowd => cowd(&shape),
        Kind::SeSparse => sesparse(&shape, tables, begin),
    };
    put(&mut image, 0, &header);
    Laid { image, disk, metadata }
}

#[test]
fn whatever_is_laid_out_by_the_rules_is_read() {
    let mut random = Random(1);
    for _ in 0..40 {
        for kind in KINDS {
            let laid = lay(kind, &mut random);
            let disk = open(Bytes::fixed(laid.image), &Named::default());
            check(&disk.unwrap_or_else(|e| panic!("{kind:?}: {e}")), &laid.disk, &mut random);
        }
    }
}

/// A file by its name.
pub(super) type FileOf = (String, Vec<u8>);

/// A descriptor of random extents, the files that it names, and the disk.
pub(super) fn describe(random: &mut Random) -> (String, Vec<FileOf>, Vec<u8>) {
    let mut text = "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\n\
                    createType=\"custom\"\n"
        .to_owned();
    let (mut files, mut disk) = (Vec::new(), Vec::new());
    for number in 0..=random.below(5) {
        let name = format!("extent {number}.vmdk");
        let len = 1 + random.below(300) as usize;
        match random.below(4) {
            0 => {
                text += &format!("RW {len} ZERO\n");
                disk.resize(disk.len() + len * SECTOR, 0);
            }
            1 => {
                let front = random.below(9) as usize;
                let bytes = random.bytes((front + len) * SECTOR);
                disk.extend(&bytes[front * SECTOR..]);
                text += &format!("RW {len} FLAT \"{name}\" {front}\n");
                files.push((name, bytes));
            }
            2 => {
                let bytes = random.bytes(len * SECTOR + 7);
                disk.extend(&bytes[..len * SECTOR]);
                text += &format!("RDONLY {len} VMFS \"{name}\"\n");
                files.push((name, bytes));
            }
            _ => {
                let kind = KINDS[random.below(6) as usize];
                let laid = lay(kind, random);
                let word = match kind {
                    Kind::Hosted | Kind::Stream(..) => "SPARSE",
                    Kind::Cowd => "VMFSSPARSE",
                    Kind::SeSparse => "SESPARSE",
                };
                text += &format!("RW {} {word} \"{name}\"\n", laid.disk.len() / SECTOR);
                disk.extend(laid.disk);
                files.push((name, laid.image));
            }
        }
    }
    (text, files, disk)
}

pub(super) fn named(files: &[FileOf]) -> Named {
    let edges = files.iter().map(|(name, bytes)| (name.clone(), Bytes::fixed(bytes.clone())));
    Named(edges.collect())
}

#[test]
fn extents_that_a_descriptor_names_are_one_disk() {
    let mut random = Random(2);
    for _ in 0..60 {
        let (text, files, disk) = describe(&mut random);
        let opened = open(Bytes::fixed(text.clone().into_bytes()), &named(&files));
        check(&opened.unwrap_or_else(|e| panic!("{e}\n{text}")), &disk, &mut random);
    }
}

#[test]
fn an_extent_that_is_shorter_than_the_descriptor_says_is_refused() {
    let text = "version=1\nCID=1\nparentCID=ffffffff\ncreateType=\"vmfs\"\nRW 10 VMFS \"x\"\n";
    for (len, good) in [(10 * SECTOR, true), (10 * SECTOR - 1, false)] {
        let files = named(&[("x".to_owned(), vec![1; len])]);
        let opened = open(Bytes::fixed(text.as_bytes().to_vec()), &files);
        assert_eq!(opened.is_ok(), good, "{len}");
    }
}
