//! VHDX images that are written where they lie.

use device::model::Model;
use device::{Blocking, Edge, Params, Result};
use runtime::{Context, WorkPool};
use trial::{PowerCut, TestDevice, TestDice};

use super::super::FORMAT;
use super::super::header::{Guid, Header, guid};
use super::super::log::{EntryHead, encode};
use crate::kit::fields::{le16, le32, le64, put};
use crate::scripted::{self, Sample, all};
use crate::{Closed, Files, Findings, Format, Making, Opening, Reference, Role};

/// An image with blocks of 1 MiB, some of which are there.
#[derive(Clone, Debug, Default)]
struct Small {
    #[expect(dead_code, reason = "it is shown when a test fails")]
    options: String,
    /// The disk of its parent, and an image with the identifier of that.
    parent: Option<(PowerCut, PowerCut)>,
}

impl Files for Small {
    fn open(&self, reference: &Reference<'_>) -> Result<Edge> {
        let (disk, image) = self.parent.as_ref().unwrap();
        assert_eq!(reference.name, "p");
        let named = if matches!(reference.role, Role::Backing) { disk } else { image };
        Ok(named.again(false).edge())
    }

    fn create(&self, name: &str) -> Result<Edge> {
        Closed.create(name)
    }

    fn name(&self) -> Option<String> {
        None
    }
}

/// Where our creator puts the metadata, and the table of blocks.
const METADATA: usize = 2 << 20;
const BAT: usize = 3 << 20;

/// A bit for each sector of a block: stretches, and between them single ones. Each change from one
/// to the next is a write of its own, and a test that stops at every write is as slow as there are.
fn any_bits(dice: &mut TestDice) -> Vec<u8> {
    let mut bits = Vec::new();
    while bits.len() < 256 {
        let len = usize::try_from(dice.below(64)).unwrap();
        let end = bits.len() + len;
        bits.resize(end, if dice.below(2) == 0 { 0 } else { 0xff });
        bits.push(u8::try_from(dice.below(256)).unwrap());
    }
    bits.truncate(256);
    bits
}

/// Makes an image one over a parent with this identifier. Of the blocks that are there some have
/// only some of their sectors, of which `is_partly` is told.
fn over_parent(
    image: &mut Vec<u8>,
    id: Guid,
    dice: &mut TestDice,
    mut is_partly: impl FnMut(usize, Vec<u8>),
) {
    image[METADATA + 0x1_0004] |= 2;
    put(image, METADATA + 10, &6_u16.to_le_bytes());
    let (item, locator) = (METADATA + 32 + 5 * 32, 0x1_1000_u32);
    put(
        image,
        item,
        &guid(0xa8d3_5f2d, 0xb30b, 0x454d, [0xab, 0xf7, 0xd3, 0xd8, 0x48, 0x34, 0xab, 0x0c]),
    );
    put(image, item + 16, &locator.to_le_bytes());
    put(image, item + 20, &1024_u32.to_le_bytes());
    put(image, item + 24, &4_u32.to_le_bytes());
    let locator = METADATA + usize::try_from(locator).unwrap();
    put(image, locator + 18, &2_u16.to_le_bytes());
    let [a, b, c] = [le32(&id, 0), le16(&id, 4).into(), le16(&id, 6).into()];
    let rest: String = id[8..].iter().map(|byte| format!("{byte:02x}")).collect();
    let (d, e) = rest.split_at(4);
    let linkage = format!("{{{a:08x}-{b:04x}-{c:04x}-{d}-{e}}}");
    for (i, (key, value)) in
        [("relative_path", "p"), ("parent_linkage", &linkage)].iter().enumerate()
    {
        let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
        let (entry, at) = (locator + 20 + 12 * i, 64 + 256 * i);
        for (n, at, text) in [(0, at, key), (1, at + 64, value)] {
            let text = utf16(text);
            put(image, entry + 4 * n, &u32::try_from(at).unwrap().to_le_bytes());
            put(image, entry + 8 + 2 * n, &u16::try_from(text.len()).unwrap().to_le_bytes());
            put(image, locator + at, &text);
        }
    }
    let bitmap = image.len();
    image.resize(bitmap + 0x10_0000, 0);
    // After a chunk of 4096 blocks.
    put(image, BAT + 4096 * 8, &(bitmap as u64 | 6).to_le_bytes());
    for n in 0..4 {
        if image[BAT + 8 * n] & 7 == 6 && dice.below(2) == 0 {
            image[BAT + 8 * n] |= 7;
            let bits = any_bits(dice);
            put(image, bitmap + n * 256, &bits);
            is_partly(n, bits);
        }
    }
}

/// A new image, in which these bytes are what is not zero.
fn made(options: &str, bytes: &[u8]) -> Vec<u8> {
    let context = Context::new(WorkPool::new(1));
    let options = Params::parse(options.split(',')).unwrap();
    let making = Making {
        size: bytes.len() as u64,
        options: &options,
        compress: false,
        zeroed: true,
        durable: false,
        files: &Closed,
        context: &context,
    };
    let disk = PowerCut::new(vec![0; 16 << 20], false);
    let new = FORMAT.create.unwrap();
    let new = (new.open)(disk.edge(), &making, &mut std::iter::empty()).unwrap();
    let edge = Edge::new(new, context.pool.clone());
    for (at, piece) in (0u64..).step_by(512).zip(bytes.chunks(512)) {
        if piece.iter().any(|byte| *byte != 0) {
            edge.write(piece, at, false).unwrap();
        }
    }
    edge.device().finish().unwrap();
    // The file ends where the last block does.
    let mut image = disk.bytes();
    let entries = image[3 << 20..4 << 20].chunks(8).map(|entry| le64(entry, 0) >> 20);
    let end = entries.max().unwrap() + 1;
    image.truncate(usize::try_from(end.max(4) << 20).unwrap());
    image
}

impl Sample for Small {
    const FORMAT: Format = FORMAT;

    fn any(dice: &mut TestDice) -> (Self, PowerCut, Vec<u8>) {
        let narrow = |n: u64| usize::try_from(n).unwrap();
        let mut bytes =
            vec![0; narrow((1 + dice.below(2)) * 0x10_0000 + 512 * (1 + dice.below(99)))];
        for at in (0..bytes.len()).step_by(0x10_0000).filter(|_| dice.below(3) == 0) {
            bytes[at..at + 512].fill(7);
        }
        let kind = ["dynamic", "dynamic", "fixed"][narrow(dice.below(3))];
        let has_parent = kind == "dynamic" && dice.below(2) == 0;
        let zero = if has_parent { "off" } else { ["on", "off"][narrow(dice.below(2))] };
        let options = format!("block_size=1M,subformat={kind},block_state_zero={zero}");
        let mut image = made(&options, &bytes);
        let parent = has_parent.then(|| {
            let disk: Vec<u8> =
                (0..bytes.len()).map(|at| u8::try_from(at / 700 % 255).unwrap() | 1).collect();
            let parent = PowerCut::new(made("block_size=1M", &[0; 512]), false);
            let id = Header::read(&parent.edge()).unwrap().data;
            let mut there = vec![None; bytes.len().div_ceil(0x10_0000)];
            for (n, there) in there.iter_mut().enumerate() {
                *there = (image[BAT + 8 * n] & 7 == 6).then(|| vec![0xff; 256]);
            }
            over_parent(&mut image, id, dice, |n, bits| there[n] = Some(bits));
            for (n, sector) in bytes.chunks_mut(512).enumerate() {
                let bits = there[n / 2048].as_ref();
                let is_below = bits.is_none_or(|bits| bits[n % 2048 / 8] >> (n % 8) & 1 == 0);
                if is_below {
                    sector.copy_from_slice(&disk[n * 512..n * 512 + sector.len()]);
                }
            }
            (PowerCut::new(disk, false), parent)
        });
        let grows = dice.below(4) != 0;
        if !grows {
            image.resize(image.len() + narrow(dice.below(4)) * 0x10_0000, 0x5a);
        }
        (Self { options, parent }, PowerCut::new(image, grows), bytes)
    }

    fn files(&self) -> Box<dyn Files> {
        Box::new(self.clone())
    }

    /// A log is replayed first, in place: the disk is what it was when it was replayed in memory.
    fn checked(&self, disk: &PowerCut) -> Findings {
        let now = disk.again(true);
        if is_dirty(&now) {
            let before = all(&self.opened(&now, false).0);
            let (edge, context) = self.opened(&now, true);
            assert!(all(&edge) == before, "replayed, it is something else");
            context.control.end();
            assert!(!is_dirty(&now), "the log is still there");
        }
        (FORMAT.check.unwrap())(&now.edge(), &Context::default()).unwrap()
    }
}

fn is_dirty(disk: &PowerCut) -> bool {
    let now = disk.again(true);
    Header::read(&now.edge()).unwrap().log_id.is_some()
}

#[test]
fn an_image_that_is_written_reads_as_the_model_and_has_no_log_when_it_is_closed() {
    scripted::reads_as_the_model::<Small>(6);
}

#[test]
fn whenever_the_power_is_cut_the_image_is_sound_and_holds_what_was_flushed() {
    scripted::survives_power_cuts::<Small>(8);
}

#[test]
fn whichever_write_fails_the_image_is_sound_and_holds_what_was_flushed() {
    scripted::survives_failures::<Small>(6);
}

#[test]
fn a_write_into_a_block_that_is_there_is_one_write_and_no_flush() {
    let bytes = vec![7; 2 << 20];
    let disk = PowerCut::new(made("block_size=1M", &bytes), true);
    let sample = Small::default();
    let (edge, context) = sample.opened(&disk, true);
    assert_eq!(disk.steps(), 0, "it is only opened");
    edge.write(&[1; 4096], 0, false).unwrap();
    // The header says that the disk has changed, durably, before it has.
    assert_eq!(disk.steps(), 3);
    for n in 1..100 {
        edge.write(&[2; 4096], n * 8192, false).unwrap();
        assert_eq!(disk.steps(), 3 + usize::try_from(n).unwrap());
    }
    edge.flush().unwrap();
    assert_eq!(disk.steps(), 103);
    context.control.end();
    assert_eq!(disk.steps(), 104, "no log is left to be closed");
}

#[test]
fn both_identifiers_change_with_the_first_write_and_only_then() {
    let disk = PowerCut::new(made("block_size=1M", &[7; 1 << 20]), true);
    let sample = Small::default();
    let first = Header::read(&disk.edge()).unwrap();
    sample.opened(&disk, true).0.read(&mut [0; 512], 0).unwrap();
    assert_eq!(Header::read(&disk.edge()).unwrap(), first);
    sample.opened(&disk, true).0.write(&[1; 512], 0, false).unwrap();
    let second = Header::read(&disk.edge()).unwrap();
    assert!(first.data != second.data && second.changed(false).data == second.data);
    assert_eq!(second.logged(None), second);
}

#[test]
fn the_power_may_be_cut_while_a_log_is_replayed() {
    let disk = PowerCut::new(made("block_size=1M", &vec![0; 3 << 20]), true);
    let sample = Small::default();
    let (edge, _context) = sample.opened(&disk, true);
    edge.write(&[3; 4096], 1 << 20, false).unwrap();
    edge.flush().unwrap();
    edge.write(&[4; 4096], 2 << 20, false).unwrap();
    edge.flush().unwrap();
    let (mut dice, expected) = (TestDice(3), all(&edge));
    let left = disk.after_cut(disk.steps(), &mut dice);
    assert!(is_dirty(&left));
    let (replayed, context) = sample.opened(&left, true);
    assert!(all(&replayed) == expected);
    context.control.end();
    assert!(left.steps() > 2);
    for step in 0..=left.steps() {
        for _ in 0..4 {
            let again = left.after_cut(step, &mut dice);
            assert!(all(&sample.opened(&again, false).0) == expected, "after step {step}");
            assert_eq!(sample.checked(&again).corruptions, [""; 0], "after step {step}");
        }
    }
}

#[test]
fn many_threads_write_into_the_same_blocks_and_each_finds_what_it_wrote() {
    const THREADS: usize = 4;
    let mut image = made("block_size=1M", &vec![0; 5 << 20]);
    image.resize(12 << 20, 0);
    let model = Model::new(image.len());
    Blocking::write_at(&model, &image, 0, false).unwrap();
    let (device, pool) = (TestDevice::over(model).late(3), WorkPool::new(3));
    let context = Context::new(pool.clone());
    let container = device.shared().edge(&pool);
    let params = Params::default();
    let opening = Opening { params: &params, files: &Closed, context: &context };
    let edge = Edge::new((FORMAT.write.unwrap())(container.clone(), &opening).unwrap(), pool);
    let expected = std::sync::Mutex::new(vec![0; 5 << 20]);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (edge, expected) = (&edge, &expected);
            scope.spawn(move || {
                let mut dice = TestDice(thread as u64);
                for step in 0..80 {
                    let n = usize::try_from(dice.below((5 << 20) / 4096 / 4)).unwrap();
                    let at = (n * THREADS + thread) * 4096;
                    let byte = u8::try_from(1 + dice.below(255)).unwrap();
                    if dice.below(6) == 0 {
                        edge.flush().unwrap();
                    }
                    edge.write(&[byte; 4096], at as u64, false).unwrap();
                    expected.lock().unwrap()[at..at + 4096].fill(byte);
                    let mut now = [0; 4096];
                    edge.read(&mut now, at as u64).unwrap();
                    assert!(now == [byte; 4096], "thread {thread}, step {step}");
                }
            });
        }
    });
    assert!(all(&edge) == *expected.lock().unwrap());
    context.control.end();
    assert!(context.control.take_complaints().is_empty());
    let found = (FORMAT.check.unwrap())(&container, &context).unwrap();
    assert_eq!(found.corruptions, [""; 0]);
    let again = Edge::new((FORMAT.open)(container, &opening).unwrap(), context.pool.clone());
    assert!(all(&again) == *expected.lock().unwrap(), "closed");
}

#[test]
fn a_log_that_changes_the_headers_or_itself_is_not_replayed_in_place() {
    let image = made("block_size=1M", &vec![7; 2 << 20]);
    let header = Header::read(&PowerCut::new(image.clone(), true).edge()).unwrap();
    let sample = Small::default();
    let id = [9; 16];
    let logged = |places: &[(u64, &[u8])]| {
        let len = image.len() as u64;
        let entry = encode(EntryHead { at: 0, sequence: 1, id, flushed: len, len }, places);
        let mut image = image.clone();
        put(&mut image, usize::try_from(header.log.offset).unwrap(), &entry);
        let (at, bytes) = header.next().unwrap().logged(Some(id)).encode();
        put(&mut image, usize::try_from(at).unwrap(), &bytes);
        PowerCut::new(image, true)
    };
    let (any, zero) = ([3; 4096], [0; 4096]);
    for at in [0, 64 << 10, 128 << 10, header.log.offset, header.log.offset + 8192] {
        for new in [&any[..], &zero] {
            let said = sample.refused(&logged(&[(256 << 10, &any), (at, new)]));
            assert!(said.contains("its log changes its headers, or itself"), "{at}: {said}");
        }
    }
    drop(sample.opened(&logged(&[(256 << 10, &any)]), true));
}

#[test]
fn two_headers_with_one_number_are_one_header_or_none() {
    let image = made("block_size=1M", &vec![7; 1 << 20]);
    let header = Header::read(&PowerCut::new(image.clone(), true).edge()).unwrap();
    let other = if header.encode().0 == 64 << 10 { 128 << 10 } else { 64 << 10 };
    let with = |there: Header| {
        let mut image = image.clone();
        put(&mut image, other, &there.encode().1);
        Header::read(&PowerCut::new(image, true).edge()).map(|header| header.data)
    };
    assert_eq!(with(header).unwrap(), header.data);
    let said = with(header.changed(true)).unwrap_err().to_string();
    assert!(said.contains("say different things"), "{said}");
}
