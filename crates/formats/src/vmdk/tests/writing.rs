//! Sparse extents that are written where they lie.

use device::{Edge, Result};
use trial::{PowerCut, TestDice};

use super::super::header::{HEADER, KDMV};
use crate::kit::fields::{le32, put};
use crate::scripted::{self, Sample};
use crate::{Closed, Files, Findings, Format, Reference, Role};

/// An image with small grains.
#[derive(Clone, Debug)]
struct Small {
    size: u64,
    grain: u64,
    entries: u64,
    /// Where the directories are, and the first grain can be.
    directories: [usize; 2],
    first: usize,
    parent: Option<PowerCut>,
}

const PARENT: &str =
    "version=1\nCID=12345678\nparentCID=ffffffff\ncreateType=\"vmfs\"\nRW 1 ZERO\n";

impl Files for Small {
    fn open(&self, reference: &Reference<'_>) -> Result<Edge> {
        let disk = match reference.role {
            Role::Part => PowerCut::new(PARENT.as_bytes().to_vec(), false),
            _ => self.parent.as_ref().unwrap().again(false),
        };
        Ok(disk.edge())
    }

    fn create(&self, name: &str) -> Result<Edge> {
        Closed.create(name)
    }

    fn name(&self) -> Option<String> {
        None
    }
}

fn narrow(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

impl Small {
    fn any(dice: &mut TestDice) -> Self {
        let (grain, entries) = (512 << dice.below(4), 1 << (4 + dice.below(6)));
        let size = 512 * (1 + dice.below(1200));
        let tables = narrow(size.div_ceil(grain * entries));
        let gts = tables * narrow(entries * 4).next_multiple_of(512);
        let directory = (tables * 4).next_multiple_of(512);
        let other = 2048 + directory + gts;
        let first = (other + directory + gts).next_multiple_of(narrow(grain));
        let parent = (dice.below(2) == 0).then(|| {
            let bytes = (0..size).map(|at| u8::try_from(at / 3 % 255).unwrap() | 1);
            PowerCut::new(bytes.collect(), false)
        });
        Self { size, grain, entries, directories: [2048, other], first, parent }
    }

    /// Where the entry of a grain is, in both tables.
    fn places(&self, grain: u64) -> [usize; 2] {
        let tables = self.size.div_ceil(self.grain * self.entries);
        let (table, within) = (narrow(grain / self.entries), narrow(grain % self.entries));
        let directory = narrow(tables * 4).next_multiple_of(512);
        let len = narrow(self.entries * 4).next_multiple_of(512);
        self.directories.map(|at| at + directory + table * len + within * 4)
    }

    fn count(&self) -> u64 {
        self.size.div_ceil(self.grain)
    }

    fn lay(&self, dice: &mut TestDice) -> (Vec<u8>, Vec<u8>) {
        let mut image = vec![0; self.first];
        let sectors = |n: usize| (n as u64 / 512).to_le_bytes();
        put(&mut image, 0, KDMV);
        put(&mut image, 4, &1_u32.to_le_bytes());
        put(&mut image, 8, &3_u32.to_le_bytes());
        let numbers = [(12, narrow(self.size)), (20, narrow(self.grain)), (28, HEADER), (36, 1024)];
        let rest = [(48, self.directories[1]), (56, self.directories[0]), (64, self.first)];
        for (at, n) in numbers.into_iter().chain(rest) {
            put(&mut image, at, &sectors(n));
        }
        put(&mut image, 44, &u32::try_from(self.entries).unwrap().to_le_bytes());
        put(&mut image, 73, b"\n \r\n");
        let parent = match &self.parent {
            Some(_) => "parentCID=12345678\nparentFileNameHint=\"p\"\n",
            None => "parentCID=ffffffff\n",
        };
        let text =
            format!("# x\nversion=1\nCID=aaaaaaaa\n{parent}createType=\"monolithicSparse\"\n");
        put(&mut image, HEADER, text.as_bytes());
        let tables = self.size.div_ceil(self.grain * self.entries);
        for table in 0..tables {
            let first = self.places(table * self.entries);
            for (directory, at) in self.directories.into_iter().zip(first) {
                let sector = u32::try_from(at / 512).unwrap().to_le_bytes();
                put(&mut image, directory + narrow(table) * 4, &sector);
            }
        }
        let below = self.parent.as_ref().map(PowerCut::bytes);
        let mut bytes = below.unwrap_or_else(|| vec![0; narrow(self.size)]);
        bytes.resize(narrow(self.count() * self.grain), 0);
        for grain in (0..self.count()).rev() {
            if dice.below(3) > 0 {
                continue;
            }
            let sector = u32::try_from(image.len() / 512).unwrap().to_le_bytes();
            self.places(grain).iter().for_each(|at| put(&mut image, *at, &sector));
            let content = vec![u8::try_from(grain % 255).unwrap() + 1; narrow(self.grain)];
            image.extend(&content);
            put(&mut bytes, narrow(grain * self.grain), &content);
        }
        bytes.truncate(narrow(self.size));
        (image, bytes)
    }
}

impl Sample for Small {
    const FORMAT: Format = super::super::FORMAT;

    fn any(dice: &mut TestDice) -> (Self, PowerCut, Vec<u8>) {
        let this = Self::any(dice);
        let (mut image, bytes) = this.lay(dice);
        image.resize(image.len() + narrow(dice.below(2) * 700), 0x5a);
        (this, PowerCut::new(image, true), bytes)
    }

    fn files(&self) -> Box<dyn Files> {
        Box::new(self.clone())
    }

    /// No two grains lie over one another, or over the tables, and all are in the file.
    fn checked(&self, disk: &PowerCut) -> Findings {
        let (mut findings, bytes) = (Findings::default(), disk.bytes());
        let entries = (0..self.count()).map(|grain| le32(&bytes, self.places(grain)[0]));
        let starts = entries.filter(|entry| *entry > 0).map(|entry| u64::from(entry) * 512);
        let mut starts: Vec<_> = starts.collect();
        starts.sort_unstable();
        starts.push(bytes.len() as u64);
        let apart = starts.windows(2).all(|pair| pair[1] - pair[0] >= self.grain);
        if !apart || starts[0] < self.first as u64 {
            findings.wrong(format!("its grains lie over one another: {starts:?}"));
        }
        findings
    }

    fn check_closed(&self, disk: &PowerCut, what: &str) {
        assert_eq!(self.checked(disk).corruptions, [""; 0], "{what}: {self:?}");
        let bytes = disk.bytes();
        assert_eq!(bytes[72], 0, "{what}: it is not closed");
        for grain in 0..self.count() {
            let [one, other] = self.places(grain).map(|at| le32(&bytes, at));
            assert_eq!(one, other, "{what}: the tables differ at grain {grain}");
        }
    }
}

#[test]
fn an_image_that_is_written_reads_as_the_model_and_its_tables_are_alike() {
    scripted::reads_as_the_model::<Small>(30);
}

#[test]
fn whenever_the_power_is_cut_the_image_is_sound_and_holds_what_was_flushed() {
    scripted::survives_power_cuts::<Small>(12);
}

#[test]
fn whichever_write_fails_the_image_is_sound_and_holds_what_was_flushed() {
    scripted::survives_failures::<Small>(2);
}

#[test]
fn an_image_that_is_written_says_so_first_and_is_no_longer_the_parent_that_it_was() {
    let mut dice = TestDice(1);
    let (image, disk, _) = <Small as Sample>::any(&mut dice);
    let (edge, context) = image.opened(&disk, true);
    let before = disk.bytes();
    edge.read(&mut [0; 512], 0).unwrap();
    assert!(disk.bytes() == before, "it was only read");
    edge.write(&[7; 512], 0, false).unwrap();
    let now = disk.bytes();
    let at = now.windows(4).position(|four| four == b"CID=").unwrap() + 4;
    assert!(now[72] == 1 && now[at..at + 8] != before[at..at + 8]);
    edge.write(&[8; 512], 0, false).unwrap();
    assert_eq!(disk.bytes()[at..at + 8], now[at..at + 8], "once");
    context.control.end();
    assert_eq!(disk.bytes()[72], 0);
}

#[test]
fn an_image_of_which_two_tables_are_in_one_place_is_not_written() {
    let mut dice = TestDice(3);
    let image = loop {
        let image = Small::any(&mut dice);
        if image.size.div_ceil(image.grain * image.entries) > 2 {
            break image;
        }
    };
    let (good, _) = image.lay(&mut dice);
    let sector = |at: usize| u32::try_from(at / 512).unwrap().to_le_bytes();
    let [directory, other] = image.directories;
    // The header, the descriptor, both directories, another table, and grains.
    for to in [0, HEADER, directory, other, image.places(0)[0], image.places(0)[1], image.first] {
        for entry in [directory + 4, other + 8] {
            let mut bad = good.clone();
            put(&mut bad, entry, &sector(to));
            let said = image.refused(&PowerCut::new(bad, true));
            assert!(said.contains("overlap") || said.contains("in front"), "{to}: {said}");
        }
    }
    let mut bad = good.clone();
    put(&mut bad, 28, &(image.first as u64 / 512).to_le_bytes());
    bad.resize(bad.len() + 4096, 0);
    let text = good[HEADER..HEADER + 1024].to_vec();
    put(&mut bad, image.first, &text);
    let said = image.refused(&PowerCut::new(bad, true));
    assert!(said.contains("in front of its grains"), "{said}");
}
