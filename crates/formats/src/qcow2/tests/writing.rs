//! Images that are written where they lie: the bytes are right, and whenever the power is cut or
//! something fails, the image is sound and holds all that was flushed.

use std::sync::Arc;

use device::model::Model;
use device::{Blocking, Edge, Params, ZeroFlags};
use runtime::{Context, WorkPool};
use trial::{PowerCut, TestDevice, TestDice};

use super::super::entry::{COPIED, Entry, OFFSET, Parts};
use super::super::refcounts::{refcount, set_refcount};
use super::laid::{Kind, Laid, Layout};
use super::reading::Backing;
use crate::scripted::{
    self, DiskOp, Sample, ScriptedImage, all, any_op, check_allowed, scripts, sectors,
};
use crate::{Closed, Files, Findings, Format, Opening, Reference, Role};

/// A random image.
pub(super) fn any_layout(dice: &mut TestDice) -> Layout {
    let extended = dice.below(4) == 0;
    let version = if !extended && dice.below(4) == 0 { 2 } else { 3 };
    let cluster_bits = if extended { 14 } else { 9 + u32::try_from(dice.below(4)).unwrap() };
    let cluster = 1 << cluster_bits;
    let count = if extended { 3 + dice.below(6) } else { 8 + dice.below(120) };
    let kinds = [Kind::Absent, Kind::Plain, Kind::Zero, Kind::ZeroAt, Kind::Packed];
    let has_packed = dice.below(4) != 0;
    let clusters = (0..count).map(|_| {
        if extended && dice.below(2) == 0 {
            let mut any = || u32::try_from(dice.below(1 << 32)).unwrap();
            let (here, zero) = (any(), any());
            return Kind::Parts(here, zero & !here);
        }
        let kinds = match (version, has_packed) {
            (2, _) => &[Kind::Absent, Kind::Plain, Kind::Packed][..],
            (_, true) => &kinds[..],
            (_, false) => &kinds[..4],
        };
        kinds[usize::try_from(dice.below(kinds.len() as u64)).unwrap()]
    });
    let clusters: Vec<_> = clusters.collect();
    // The last cluster may be cut off, and tables may be missing.
    let size = (count * cluster - 512 * dice.below(2)) * (1 + dice.below(3));
    let backing = (dice.below(2) == 0).then(|| {
        let len = usize::try_from(512 + dice.below(size * 2)).unwrap();
        (0..len).map(|at| u8::try_from(at / 3 % 255).unwrap() | 1).collect()
    });
    // Where one cluster of the container is of several packed ones, it has to be counted.
    let is_packed = clusters.contains(&Kind::Packed);
    let narrowest = if is_packed { 3 } else { 0 };
    let refcount_order = narrowest + u32::try_from(dice.below(7 - u64::from(narrowest))).unwrap();
    let refcount_order = if version == 2 { 4 } else { refcount_order };
    Layout {
        version,
        cluster_bits,
        extended,
        zstd: false,
        refcount_order,
        size,
        clusters,
        mix: dice.below(1000),
        backing,
    }
}

pub(super) fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn number32(bytes: &[u8], at: usize) -> usize {
    usize::try_from(u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())).unwrap()
}

/// Makes an internal snapshot, if there is room for the refcounts: all is shared from then on.
pub(super) fn snapshot(image: &mut Vec<u8>, layout: &Layout) {
    let narrow = |n: u64| usize::try_from(n).unwrap();
    let cluster = 1 << layout.cluster_bits;
    let order = layout.refcount_order;
    if order == 0 {
        return;
    }
    let (table, l1, entries) =
        (narrow(number(image, 48)), narrow(number(image, 40)), number32(image, 36));
    let l1_len = entries * 8;
    let start = image.len().next_multiple_of(cluster);
    let new = l1_len.div_ceil(cluster) + 1;
    let in_block = (cluster * 8) >> order;
    let blocks = (0..).take_while(|i| number(image, table + i * 8) != 0).take(cluster / 8).count();
    if start / cluster + new > blocks * in_block {
        return;
    }
    image.resize(start + new * cluster, 0);
    let count = |image: &mut Vec<u8>, unit: usize, add: u64| {
        let block = narrow(number(image, table + unit / in_block * 8));
        let index = (unit % in_block) as u64;
        let now = refcount(&image[block..block + cluster], index, order);
        set_refcount(&mut image[block..block + cluster], index, order, now + add);
    };
    for i in 0..entries {
        let l2 = narrow(number(image, l1 + i * 8) & OFFSET);
        if l2 == 0 {
            continue;
        }
        image[l1 + i * 8] &= 0x7f;
        count(image, l2 / cluster, 1);
        let geometry = layout.geometry();
        for at in (l2..l2 + cluster).step_by(narrow(geometry.entry_len())) {
            let entry = number(image, at);
            let parts = if geometry.extended { number(image, at + 8) } else { 0 };
            let (from, len) = match Entry::decode(entry, parts, geometry).unwrap() {
                Entry::Plain(at)
                | Entry::ZeroAt(at)
                | Entry::Parts(Parts { offset: Some(at), .. }) => (at, 1),
                Entry::Packed { offset, len } => (offset, len),
                _ => continue,
            };
            if entry & COPIED != 0 {
                image[at] &= 0x7f;
            }
            for unit in narrow(from) / cluster..=narrow(from + len - 1) / cluster {
                count(image, unit, 1);
            }
        }
    }
    let copy = image[l1..l1 + l1_len].to_vec();
    image[start..start + l1_len].copy_from_slice(&copy);
    let list = start + (new - 1) * cluster;
    let mut entry = (start as u64).to_be_bytes().to_vec();
    entry.extend(u32::try_from(entries).unwrap().to_be_bytes());
    entry.extend([0, 1, 0, 1]);
    entry.extend([0; 20]);
    entry.extend(16u32.to_be_bytes());
    entry.extend([0; 8]);
    entry.extend(layout.size.to_be_bytes());
    entry.extend(*b"1s");
    image[list..list + entry.len()].copy_from_slice(&entry);
    (start / cluster..start / cluster + new).for_each(|unit| count(image, unit, 1));
    image[60..64].copy_from_slice(&1u32.to_be_bytes());
    image[64..72].copy_from_slice(&(list as u64).to_be_bytes());
}

/// What a check finds in what is on the disk now.
pub(super) fn checked(disk: &PowerCut) -> Findings {
    let now = disk.again(true);
    (super::super::FORMAT.check.unwrap())(&now.edge(), &Context::default()).unwrap()
}

impl Sample for Layout {
    const FORMAT: Format = super::super::FORMAT;

    fn any(dice: &mut TestDice) -> (Self, PowerCut, Vec<u8>) {
        let layout = any_layout(dice);
        let Laid { container: mut image, bytes } = layout.lay();
        if dice.below(2) == 0 {
            snapshot(&mut image, &layout);
        }
        let grows = dice.below(4) != 0;
        if !grows {
            let room = usize::try_from(dice.below(300_000)).unwrap();
            image.resize((image.len() + room).next_multiple_of(1 << layout.cluster_bits), 0x5a);
        }
        (layout, PowerCut::new(image, grows), bytes)
    }

    fn files(&self) -> Box<dyn Files> {
        Box::new(Backing(self.backing.clone(), false))
    }
}

pub(super) fn opened(disk: &PowerCut, layout: &Layout, write: bool) -> (Edge, Context) {
    layout.opened(disk, write)
}

#[test]
fn an_image_that_is_written_reads_as_the_model_and_is_closed_without_a_leak() {
    scripted::reads_as_the_model::<Layout>(40);
}

#[test]
fn whenever_the_power_is_cut_the_image_is_sound_and_holds_what_was_flushed() {
    scripted::survives_power_cuts::<Layout>(8);
}

#[test]
fn whichever_write_fails_the_image_is_sound_and_holds_what_was_flushed() {
    scripted::survives_failures::<Layout>(4);
}

#[test]
fn a_refcount_table_that_is_full_is_replaced_and_the_power_may_be_cut_meanwhile() {
    let layout = Layout {
        version: 3,
        cluster_bits: 9,
        extended: false,
        zstd: false,
        refcount_order: 6,
        size: 3 << 20,
        clusters: vec![Kind::Plain; 4],
        mix: 0,
        backing: None,
    };
    for grows in [true, false] {
        outgrow(&layout, grows);
    }
}

#[test]
fn what_was_written_in_its_place_is_durable_when_the_image_is_closed() {
    let layout = Layout {
        version: 3,
        cluster_bits: 12,
        extended: false,
        zstd: false,
        refcount_order: 4,
        size: 16 << 10,
        clusters: vec![Kind::Plain; 4],
        mix: 0,
        backing: None,
    };
    let Laid { container, mut bytes } = layout.lay();
    let disk = PowerCut::new(container, true);
    let (edge, _context) = opened(&disk, &layout, true);
    edge.write(&[0x77; 512], 0, false).unwrap();
    edge.device().finish().unwrap();
    bytes[..512].fill(0x77);
    let mut dice = TestDice(1);
    for _ in 0..20 {
        let left = disk.after_cut(disk.steps(), &mut dice);
        assert!(all(&opened(&left, &layout, false).0) == bytes);
    }
}

/// Fills an image until its refcount table has been replaced.
fn outgrow(layout: &Layout, grows: bool) {
    let Laid { mut container, mut bytes } = layout.lay();
    let table = number(&container, 48);
    if !grows {
        container.resize(4 << 20, 0x5a);
    }
    let disk = PowerCut::new(container, grows);
    let (edge, context) = opened(&disk, layout, true);
    let mut dice = TestDice(1);
    for (at, byte) in (1u64..).map(|n| (n * 64) << 10).take_while(|at| *at < layout.size).zip(1..) {
        edge.write(&[byte; 64 << 10], at, false).unwrap();
        let range = usize::try_from(at).unwrap()..usize::try_from(at + (64 << 10)).unwrap();
        bytes[range].fill(byte);
        if byte % 3 == 0 {
            let before = disk.steps();
            edge.flush().unwrap();
            for step in (before..=disk.steps()).step_by(if byte == 30 { 1 } else { 9 }) {
                let left = disk.after_cut(step, &mut dice);
                assert_eq!(checked(&left).corruptions, [""; 0], "after step {step} of {byte}");
            }
            let left = disk.after_cut(disk.steps(), &mut dice);
            assert!(all(&opened(&left, layout, false).0) == bytes, "after {byte}");
        }
    }
    context.control.end();
    let found = checked(&disk);
    assert_eq!((&found.corruptions[..], found.leaks), (&[][..], 0));
    assert!(number(&disk.bytes(), 48) != table, "it is where it was");
}

/// A data file that loses its power with the container.
#[derive(Debug)]
struct DataFile(PowerCut);

impl Files for DataFile {
    fn open(&self, reference: &Reference<'_>) -> device::Result<Edge> {
        assert_eq!((reference.name, reference.role), ("data.raw", Role::DataFile));
        Ok(self.0.edge())
    }

    fn open_to_write(&self, reference: &Reference<'_>) -> device::Result<Edge> {
        self.open(reference)
    }

    fn create(&self, name: &str) -> device::Result<Edge> {
        Closed.create(name)
    }

    fn name(&self) -> Option<String> {
        None
    }
}

fn opened_apart(disk: &PowerCut, data: &PowerCut, write: bool) -> (Edge, Context) {
    let context = Context::new(WorkPool::new(1));
    let (params, files) = (Params::default(), DataFile(data.clone()));
    let opening = Opening { params: &params, files: &files, context: &context };
    let format = super::super::FORMAT;
    let open = if write { format.write.unwrap() } else { format.open };
    let edge = Edge::new(open(disk.edge(), &opening).unwrap(), context.pool.clone());
    (edge, context)
}

#[test]
fn a_data_file_is_durable_before_the_tables_and_one_that_is_a_disk_stays_one() {
    for seed in scripts(16) {
        let mut dice = TestDice(5000 + seed);
        let (extended, is_raw) = (seed % 2 == 1, seed % 4 >= 2);
        let layout = Layout {
            version: 3,
            cluster_bits: if extended { 14 } else { 10 },
            extended,
            zstd: false,
            refcount_order: 4,
            size: 6 << 14,
            clusters: vec![Kind::Absent; 6],
            mix: 0,
            backing: None,
        };
        let Laid { mut container, bytes } = layout.lay();
        container[79] |= 4;
        container[95] |= if is_raw { 2 } else { 0 };
        container[112..128].copy_from_slice(b"DATA\0\0\0\x08data.raw");
        let (disk, data) = (PowerCut::new(container, true), PowerCut::new(Vec::new(), true));
        let (edge, context) = opened_apart(&disk, &data, true);
        let mut image = ScriptedImage { sample: layout, disk, edge, context, bytes };
        let mut allowed = sectors(&image.bytes);
        for step in 0..30 {
            let op = any_op(&mut dice, image.sectors());
            image.run(&op).unwrap();
            image.expect(&op);
            if matches!(op, DiskOp::Flush) {
                allowed = sectors(&image.bytes);
                let mut raw = data.bytes();
                raw.resize(image.bytes.len(), 0);
                assert!(!is_raw || raw == image.bytes, "seed {seed}: not the disk");
            }
            for (allowed, new) in allowed.iter_mut().zip(image.bytes.chunks(512)) {
                if allowed.iter().all(|one| **one != *new) {
                    allowed.push(Arc::from(new));
                }
            }
            assert!(all(&image.edge) == image.bytes, "seed {seed}, step {step}: {op:?}");
            let cut = |disk: &PowerCut, dice: &mut TestDice| disk.after_cut(disk.steps(), dice);
            let (left, data) = (cut(&image.disk, &mut dice), cut(&data, &mut dice));
            let (edge, _) = opened_apart(&left, &data, false);
            check_allowed(&all(&edge), &allowed, &format!("seed {seed}, step {step}: {op:?}"));
        }
        image.close();
        let found = checked(&image.disk);
        assert_eq!((&found.corruptions[..], found.leaks), (&[][..], 0), "seed {seed}");
    }
}

#[test]
fn many_threads_write_into_the_same_clusters_and_each_finds_what_it_wrote() {
    const THREADS: usize = 4;
    for seed in scripts(6) {
        let mut dice = TestDice(3000 + seed);
        let layout = Layout { version: 3, ..any_layout(&mut dice) };
        let Laid { container: mut image, bytes } = layout.lay();
        snapshot(&mut image, &layout);
        let cluster = 1 << layout.cluster_bits;
        let room = bytes.len() * 3 + 64 * cluster;
        image.resize((image.len() + room).next_multiple_of(cluster), 0);
        let model = Model::new(image.len());
        Blocking::write_at(&model, &image, 0, false).unwrap();
        let device = TestDevice::over(model).late(3);
        let pool = WorkPool::new(3);
        let context = Context::new(pool.clone());
        let files = Backing(layout.backing.clone(), true);
        let params = Params::default();
        let opening = Opening { params: &params, files: &files, context: &context };
        let container = device.shared().edge(&pool);
        let disk = (super::super::FORMAT.write.unwrap())(container.clone(), &opening).unwrap();
        let edge = Edge::new(disk, pool);
        let expected = std::sync::Mutex::new(bytes);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (edge, expected) = (&edge, &expected);
                scope.spawn(move || {
                    let mut dice = TestDice(seed * 100 + thread as u64);
                    let size = usize::try_from(edge.info().size).unwrap();
                    for step in 0..60 {
                        // In the first half sectors of one cluster have different writers.
                        let unit = if dice.below(2) == 0 { 512 } else { cluster };
                        let half = size / 2 / cluster * cluster;
                        let (from, to) = if unit == 512 { (0, half) } else { (half, size) };
                        let count = (to - from) / unit / THREADS;
                        if count == 0 {
                            continue;
                        }
                        let n = usize::try_from(dice.below(count as u64)).unwrap();
                        let at = from + (n * THREADS + thread) * unit;
                        let byte = u8::try_from(1 + dice.below(255)).unwrap();
                        let zero = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
                        let left = match dice.below(if unit == 512 { 6 } else { 8 }) {
                            0 => {
                                edge.flush().unwrap();
                                continue;
                            }
                            1 | 2 if unit == 512 => {
                                edge.zero(at as u64, unit as u64, zero).unwrap();
                                0
                            }
                            6 | 7 => {
                                edge.zero(at as u64, unit as u64, zero).unwrap();
                                0
                            }
                            _ => {
                                edge.write(&vec![byte; unit], at as u64, false).unwrap();
                                byte
                            }
                        };
                        expected.lock().unwrap()[at..at + unit].fill(left);
                        let mut now = vec![0; unit];
                        edge.read(&mut now, at as u64).unwrap();
                        assert!(now.iter().all(|byte| *byte == left), "{seed} {thread} {step}");
                    }
                });
            }
        });
        assert!(all(&edge) == *expected.lock().unwrap(), "seed {seed}: {layout:?}");
        context.control.end();
        assert!(context.control.take_complaints().is_empty());
        let found = (super::super::FORMAT.check.unwrap())(&container, &context).unwrap();
        assert_eq!((&found.corruptions[..], found.leaks), (&[][..], 0), "seed {seed}");
    }
}

#[test]
fn what_was_unpacked_is_not_read_after_other_bytes_were_written() {
    let layout = Layout {
        version: 3,
        cluster_bits: 12,
        extended: false,
        zstd: false,
        refcount_order: 4,
        size: 4 << 12,
        clusters: vec![Kind::Packed; 4],
        mix: 5,
        backing: None,
    };
    let Laid { container, mut bytes } = layout.lay();
    let disk = PowerCut::new(container, true);
    let (edge, context) = opened(&disk, &layout, true);
    let zero = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
    for cluster in 0..4 {
        let start = cluster << 12;
        let here = &mut bytes[start..start + (1 << 12)];
        let at = start as u64;
        // The rest of it is kept.
        edge.read(&mut [0; 512], at).unwrap();
        edge.write(&[7; 512], at + 1024, false).unwrap();
        here[1024..1536].fill(7);
        assert!(all(&edge) == bytes, "written");
        edge.zero(at, 1 << 12, zero).unwrap();
        bytes[start..start + (1 << 12)].fill(0);
        assert!(all(&edge) == bytes, "zero");
        edge.flush().unwrap();
        // What it lay in is used again.
        edge.write(&[8; 512], at, false).unwrap();
        bytes[start..start + 512].fill(8);
        assert!(all(&edge) == bytes, "written again");
    }
    context.control.end();
    assert_eq!(checked(&disk).leaks, 0);
}

#[test]
fn of_writes_that_overlap_each_sector_is_that_of_one_and_flushes_do_not_wait_for_the_last() {
    const THREADS: u64 = 4;
    for seed in scripts(4) {
        let mut dice = TestDice(4000 + seed);
        let layout = Layout { version: 3, ..any_layout(&mut dice) };
        let Laid { container: mut image, .. } = layout.lay();
        snapshot(&mut image, &layout);
        image.resize(image.len() + (8 << 20), 0);
        let model = Model::new(image.len());
        Blocking::write_at(&model, &image, 0, false).unwrap();
        let device = TestDevice::over(model).late(3);
        let pool = WorkPool::new(3);
        let context = Context::new(pool.clone());
        let files = Backing(layout.backing.clone(), true);
        let params = Params::default();
        let opening = Opening { params: &params, files: &files, context: &context };
        let container = device.shared().edge(&pool);
        let disk = (super::super::FORMAT.write.unwrap())(container.clone(), &opening).unwrap();
        let edge = Edge::new(disk, pool);
        let cluster = 1u64 << layout.cluster_bits;
        let first = dice.below(layout.size / cluster / 2) * cluster;
        for round in 0..20 {
            // All of them over the same clusters, begun at the same time.
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let edge = &edge;
                    scope.spawn(move || {
                        let from = first + thread * 512;
                        let len = (3 * cluster).min(edge.info().size - from);
                        let len = usize::try_from(len / 512 * 512).unwrap();
                        let byte = u8::try_from(round * THREADS + thread + 1).unwrap();
                        match (round + thread) % 5 {
                            0 => edge.trim(from, len as u64, false).unwrap(),
                            _ => edge.write(&vec![byte; len], from, thread == 1).unwrap(),
                        }
                    });
                }
            });
            for (n, sector) in all(&edge).chunks(512).enumerate() {
                let is_one = sector.iter().all(|byte| *byte == sector[0]);
                let is_met = (n as u64 * 512).wrapping_sub(first) < cluster;
                assert!(is_one || !is_met, "seed {seed}, round {round}, sector {n}");
            }
        }
        context.control.end();
        assert!(context.control.take_complaints().is_empty());
        let found = (super::super::FORMAT.check.unwrap())(&container, &context).unwrap();
        assert_eq!((&found.corruptions[..], found.leaks), (&[][..], 0), "seed {seed}");
    }
}
