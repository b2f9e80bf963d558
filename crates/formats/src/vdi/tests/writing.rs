//! VDI images that are written where they lie.

use trial::{PowerCut, TestDice};

use super::super::header::{Header, Kind};
use super::super::map::{ABSENT, GIVEN_UP};
use crate::kit::fields::put;
use crate::scripted::{self, Sample};
use crate::{Closed, Files, Format};

/// An image with small blocks.
#[derive(Clone, Debug)]
struct Small {
    #[expect(dead_code, reason = "it is shown when a test fails")]
    header: Header,
}

impl Sample for Small {
    const FORMAT: Format = super::super::FORMAT;

    fn any(dice: &mut TestDice) -> (Self, PowerCut, Vec<u8>) {
        let narrow = |n: u64| usize::try_from(n).unwrap();
        let (block, blocks) = (4096 << dice.below(3), 1 + dice.below(40));
        let map = 512 * (1 + dice.below(9));
        let data = map + (blocks * 4).next_multiple_of(512) + 512 * dice.below(9);
        let size = blocks * block - 512 * dice.below(8);
        // Those that are there, in any order.
        let mut there: Vec<u64> = (0..blocks).filter(|_| dice.below(3) == 0).collect();
        for n in (1..there.len()).rev() {
            there.swap(n, narrow(dice.below(n as u64 + 1)));
        }
        let allocated = there.len() as u64;
        let header = Header { kind: Kind::Dynamic, map, data, size, block, blocks, allocated };
        let mut image = header.encode();
        image.resize(narrow(data + allocated * block), 0);
        let mut bytes = vec![0; narrow(blocks * block)];
        for n in 0..blocks {
            let room = there.iter().position(|other| *other == n);
            let gone = if dice.below(9) == 0 { GIVEN_UP } else { ABSENT };
            let entry = room.map_or(gone, |room| room as u64);
            let entry = u32::try_from(entry).unwrap().to_le_bytes();
            put(&mut image, narrow(map + n * 4), &entry);
            if let Some(room) = room {
                let content = vec![u8::try_from(n % 255).unwrap() + 1; narrow(block)];
                put(&mut image, narrow(data) + room * narrow(block), &content);
                put(&mut bytes, narrow(n * block), &content);
            }
        }
        bytes.truncate(narrow(size));
        let grows = dice.below(4) != 0;
        let room = if grows { dice.below(2) * 700 } else { dice.below(blocks * block) };
        image.resize(image.len().next_multiple_of(512) + narrow(room) / 512 * 512, 0x5a);
        (Self { header }, PowerCut::new(image, grows), bytes)
    }

    fn files(&self) -> Box<dyn Files> {
        Box::new(Closed)
    }
}

#[test]
fn an_image_that_is_written_reads_as_the_model_and_is_closed_without_a_leak() {
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
