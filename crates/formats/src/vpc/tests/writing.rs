//! VHD images that are written where they lie.

use device::{Edge, Result};
use trial::{PowerCut, TestDice};

use super::super::header::{Dynamic, FOOTER, Footer, Geometry, Kind, checksum};
use crate::kit::fields::put;
use crate::scripted::{self, Sample};
use crate::{Closed, Files, Findings, Format, Reference, Role};

/// An image with small blocks.
#[derive(Clone, Debug)]
struct Small {
    kind: Kind,
    grows: bool,
    /// A fixed image, if this one is over it.
    parent: Option<Vec<u8>>,
}

/// The identifier of a parent.
const PARENT: [u8; 16] = [9; 16];

impl Files for Small {
    fn open(&self, reference: &Reference<'_>) -> Result<Edge> {
        let parent = self.parent.clone().unwrap();
        assert_eq!(reference.name, "p");
        Ok(match reference.role {
            Role::Backing => PowerCut::new(parent[..parent.len() - FOOTER].to_vec(), false).edge(),
            _ => PowerCut::new(parent, false).edge(),
        })
    }

    fn create(&self, name: &str) -> Result<Edge> {
        Closed.create(name)
    }

    fn name(&self) -> Option<String> {
        None
    }
}

/// A dynamic image, and what its bytes are; over a parent, if it has one.
fn dynamic(dice: &mut TestDice, kind: Kind) -> (Footer, Vec<u8>, Vec<u8>, Option<Vec<u8>>) {
    let narrow = |n: u64| usize::try_from(n).unwrap();
    let (block, entries) = (4096 << dice.below(3), 1 + dice.below(40));
    let size = entries * block - 512 * dice.below(8);
    let geometry = Geometry::of(size / 512);
    let footer = Footer { kind, size, next: 512, geometry, id: [7; 16] };
    let dynamic = Dynamic { at: 512, table: 1536, entries, block, bytes: Vec::new() };
    let mut image = footer.encode(*b"qem2", 5);
    image.extend(dynamic.encode());
    image.resize((1536 + narrow(entries) * 4).next_multiple_of(512), 0xff);
    let mut bytes = vec![0; narrow(entries * block)];
    let parent = (kind == Kind::Differencing).then(|| {
        put(&mut image, 512 + 40, &PARENT);
        put(&mut image, 512 + 64, &[0, b'p']);
        let sum = checksum(&image[512..1536], 36);
        put(&mut image, 512 + 36, &sum.to_be_bytes());
        // It may be shorter.
        let len = narrow(512 * (size / 512 - dice.below(size / 512)));
        bytes[..len]
            .iter_mut()
            .zip(0..)
            .for_each(|(byte, at)| *byte = u8::try_from(at / 300_u32 % 255).unwrap() | 1);
        let footer = Footer { kind: Kind::Fixed, next: u64::MAX, id: PARENT, ..footer.clone() };
        [&bytes[..len], &footer.encode(*b"qem2", 5)].concat()
    });
    let first = dice.below(entries);
    for n in (0..entries).map(|n| (n * 7 + first) % entries) {
        let entry = narrow(1536 + n * 4);
        if dice.below(3) > 0 || image[entry..entry + 4] != [0xff; 4] {
            continue;
        }
        let sector = u32::try_from(image.len() / 512).unwrap();
        put(&mut image, entry, &sector.to_be_bytes());
        // Of a disk that stands alone, no program asks the bitmaps.
        let bits = [0xff, 0xa0, 0][narrow(dice.below(3))];
        image.resize(image.len() + narrow(dynamic.bitmap()), bits);
        let content = vec![u8::try_from(n % 255).unwrap() + 1; narrow(block)];
        image.extend(&content);
        for (i, sector) in content.chunks(512).enumerate() {
            if parent.is_none() || bits & (0x80 >> (i % 8)) != 0 {
                put(&mut bytes, narrow(n * block) + i * 512, sector);
            }
        }
    }
    image.extend(footer.encode(*b"qem2", 5));
    bytes.truncate(narrow(size));
    (footer, image, bytes, parent)
}

impl Sample for Small {
    const FORMAT: Format = super::super::FORMAT;

    fn any(dice: &mut TestDice) -> (Self, PowerCut, Vec<u8>) {
        let kinds = [Kind::Dynamic, Kind::Dynamic, Kind::Differencing, Kind::Differencing];
        let kind = kinds[usize::try_from(dice.below(4)).unwrap()];
        let (footer, mut image, bytes, parent) = dynamic(dice, kind);
        let grows = dice.below(4) != 0;
        if kind == Kind::Dynamic && dice.below(3) == 0 {
            let footer = Footer { kind: Kind::Fixed, next: u64::MAX, ..footer };
            let image = [&bytes[..], &footer.encode(*b"qem2", 5)].concat();
            let this = Self { kind: Kind::Fixed, grows, parent };
            return (this, PowerCut::new(image, grows), bytes);
        }
        if !grows {
            image.resize(image.len() + usize::try_from(dice.below(600)).unwrap() * 512, 0x5a);
        }
        (Self { kind: footer.kind, grows, parent }, PowerCut::new(image, grows), bytes)
    }

    fn files(&self) -> Box<dyn Files> {
        Box::new(self.clone())
    }

    /// No two blocks lie over one another, nor over the headers.
    fn checked(&self, disk: &PowerCut) -> Findings {
        let (mut findings, bytes) = (Findings::default(), disk.bytes());
        let container: Edge = disk.edge();
        let footer = Footer::read(&container).unwrap();
        assert_eq!(footer.kind, self.kind);
        if footer.kind == Kind::Fixed {
            return findings;
        }
        let dynamic = Dynamic::read(&container, &footer).unwrap();
        let end = 1536 + usize::try_from(dynamic.entries).unwrap() * 4;
        let entries = bytes[1536..end].chunks(4);
        let entries = entries.map(|entry| u32::from_be_bytes(entry.try_into().unwrap()));
        let mut starts: Vec<_> =
            entries.filter(|entry| *entry != u32::MAX).map(|n| u64::from(n) * 512).collect();
        starts.sort_unstable();
        let len = dynamic.bitmap() + dynamic.block;
        starts.push(bytes.len() as u64);
        let apart = starts.windows(2).all(|pair| pair[1] - pair[0] >= len);
        if !apart || starts[0] < end as u64 {
            findings.wrong(format!("its blocks lie over one another: {starts:?}"));
        }
        findings
    }

    fn check_closed(&self, disk: &PowerCut, what: &str) {
        assert_eq!(self.checked(disk).corruptions, [""; 0], "{what}: {self:?}");
        let bytes = disk.bytes();
        let is_last = self.kind != Kind::Fixed && self.grows;
        assert!(
            !is_last || bytes[..FOOTER] == bytes[bytes.len() - FOOTER..],
            "{what}: it does not end with its footer"
        );
    }
}

#[test]
fn an_image_that_is_written_reads_as_the_model_and_ends_with_its_footer() {
    scripted::reads_as_the_model::<Small>(30);
}

#[test]
fn whenever_the_power_is_cut_the_image_is_sound_and_holds_what_was_flushed() {
    scripted::survives_power_cuts::<Small>(8);
}

#[test]
fn whichever_write_fails_the_image_is_sound_and_holds_what_was_flushed() {
    scripted::survives_failures::<Small>(2);
}

#[test]
fn an_image_of_which_two_parts_are_in_one_place_is_not_written() {
    let (entries, block) = (4_u64, 4096);
    let footer = Footer {
        kind: Kind::Dynamic,
        size: entries * block,
        next: 512,
        geometry: Geometry::of(entries * block / 512),
        id: [7; 16],
    };
    let sample = Small { kind: Kind::Dynamic, grows: true, parent: None };
    for (table, places, why) in [
        (1536, [4, 13], None),
        (1536, [4, 12], Some("two of its blocks overlap")),
        (1536, [13, 13], Some("two of its blocks overlap")),
        (504, [4, 13], Some("its table overlaps a header")),
        (1528, [4, 13], Some("its table overlaps a header")),
    ] {
        let dynamic = Dynamic { at: 512, table, entries, block, bytes: Vec::new() };
        let mut image = footer.encode(*b"qem2", 5);
        image.extend(dynamic.encode());
        image.resize(512 * 22, 0xff);
        // A table in a header breaks it: no more than is needed to say so.
        if table == 1536 {
            for (n, sector) in places.into_iter().enumerate() {
                put(&mut image, 1536 + n * 4, &u32::to_be_bytes(sector));
            }
        }
        image.extend(footer.encode(*b"qem2", 5));
        let disk = PowerCut::new(image, true);
        match why {
            None => drop(sample.opened(&disk, true)),
            Some(why) => {
                let said = sample.refused(&disk);
                assert!(said.contains(why), "{table} {places:?}: {said}");
            }
        }
    }
}
