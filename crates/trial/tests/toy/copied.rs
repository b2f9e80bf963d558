//! Images that `copy` makes, in order and not, and images that it reads.

use std::time::Duration;

use copy::{Cancel, CopyPlan, Options, Progress, Report};
use device::{Edge, Extent, ExtentKind, Operation, Stored, ZeroFlags};
use runtime::WorkPool;
use trial::toy::{Toy, ToySettings};
use trial::{Fate, TestDevice};

use crate::below::Below;
use crate::model::all;

/// Not a whole number of clusters.
const SIZE: u64 = (6 << 20) + 5120;
/// Room in each file of an image.
const ROOM: u64 = 8 << 20;
const CLUSTER: u64 = 64 << 10;

/// Stretches of random bytes, of runs, and holes.
fn fill(disk: &Edge, seed: u64) {
    let mut dice = seed;
    let mut below = move |n: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % n
    };
    let (mut at, size) = (0, disk.info().size);
    while at < size {
        let len = (1 + below(300_000)).min(size - at);
        let count = usize::try_from(len).unwrap();
        let bytes = match below(3) {
            0 => None,
            1 => Some(vec![u8::try_from(1 + below(255)).unwrap(); count]),
            _ => Some((0..count).map(|_| u8::try_from(below(256)).unwrap()).collect()),
        };
        bytes.into_iter().for_each(|bytes| disk.write(&bytes, at, false).unwrap());
        at += len;
    }
}

fn run(source: &Edge, target: &Edge, options: Options) -> Report {
    let options = Options { apart: true, ..options };
    let (progress, cancel) = (Progress::default(), Cancel::default());
    copy::run(source, target, &CopyPlan::Map, &options, &progress, &cancel).unwrap()
}

fn map(edge: &Edge) -> Vec<Extent> {
    let (mut found, mut at, size) = (Vec::new(), 0, edge.info().size);
    while at < size {
        edge.resolve(at, size - at, 100, &mut found).unwrap();
        at = found.last().unwrap().end();
    }
    found
}

/// The same disk, of which every other read takes longer.
fn disorder(disk: Edge, pool: &WorkPool) -> Edge {
    let device = TestDevice::blank(disk.info().clone()).late(8).hooked(move |operation| {
        let late = matches!(operation, Operation::Read { offset, .. } if (offset / CLUSTER).is_multiple_of(2));
        if late {
            std::thread::sleep(Duration::from_millis(5));
        }
        Fate::Answer(disk.run(operation))
    });
    device.shared().edge(pool)
}

/// Whether clusters lie in each file in the order in which they are in the image.
fn in_order(map: &[Extent]) -> bool {
    let mut ends = [0; 2];
    map.iter().filter_map(|extent| extent.home).all(|home| {
        let end = &mut ends[usize::from(home.file)];
        std::mem::replace(end, home.offset) <= home.offset
    })
}

#[test]
fn an_append_only_image_can_be_made_in_order_and_out_of_order() {
    for (kind, ordered) in (0..crate::below::KINDS).flat_map(|kind| [(kind, true), (kind, false)]) {
        let pool = WorkPool::undivided(4);
        let mut below = Below::new(&pool);
        let source = below.memory(SIZE);
        fill(&source, kind as u64);
        let bytes = all(&source);
        let files = below.pair(kind, ROOM);
        let cluster = u32::try_from(CLUSTER).unwrap();
        let settings = ToySettings { cluster, append_only: true, ..ToySettings::default() };
        let toy = Toy::create(files.clone(), None, SIZE, settings);
        let options = Options { request_size: CLUSTER, ..Options::default() };
        if ordered {
            run(&source, &toy.edge(), Options { threads: Some(1), requests: Some(1), ..options });
        } else {
            let source = disorder(source, &pool);
            run(&source, &toy.edge(), Options { threads: Some(4), requests: Some(16), ..options });
        }
        drop(toy);
        let again = Toy::open(files, None, settings).unwrap().edge();
        assert!(all(&again) == bytes, "kind {kind}, in order: {ordered}");
        let map = map(&again);
        assert_eq!(in_order(&map), ordered, "kind {kind}");
        let holes = map.iter().filter(|extent| extent.kind == ExtentKind::Hole);
        assert!(holes.map(|extent| extent.len).sum::<u64>() > 0, "no holes are left");
    }
}

/// An image over a shorter one, with all that there can be in them.
fn chain(below: &Below) -> (Toy, [Edge; 2]) {
    let cluster = u32::try_from(CLUSTER).unwrap();
    let settings = ToySettings { cluster, ..ToySettings::default() };
    let lower = [below.file("c", ROOM), below.file("d", ROOM)];
    let lower = Toy::create(lower, None, SIZE / 2, settings).edge();
    fill(&lower, 1);
    let files = [below.file("a", ROOM), below.file("b", ROOM)];
    let upper = Toy::create(files.clone(), Some(lower), SIZE, settings);
    let edge = upper.edge();
    let whole = below.memory(SIZE);
    fill(&whole, 2);
    let bytes = all(&whole);
    for at in (0..SIZE).step_by(300_000) {
        let len = 100_000.min(usize::try_from(SIZE - at).unwrap());
        let start = usize::try_from(at).unwrap();
        edge.write(&bytes[start..start + len], at, false).unwrap();
    }
    let flags = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
    edge.zero(2 << 20, 200_000, flags).unwrap();
    (upper, files)
}

#[test]
fn a_map_says_of_each_byte_in_which_layer_it_is_and_where() {
    let below = Below::new(&WorkPool::new(1));
    let (toy, files) = chain(&below);
    let (edge, mut kinds) = (toy.edge(), [0; 5]);
    let bytes = all(&edge);
    for extent in map(&edge) {
        let range = usize::try_from(extent.start).unwrap()..usize::try_from(extent.end()).unwrap();
        let mut found = vec![0; range.len()];
        let kind = match (extent.depth, extent.home.map(|home| home.stored)) {
            (_, None) => 0,
            (0, Some(Stored::Plain)) => 1,
            (0, Some(_)) => 2,
            (_, Some(Stored::Plain)) => 3,
            _ => 4,
        };
        kinds[kind] += 1;
        assert_eq!(extent.place.is_some(), kind == 1 || kind == 3, "{extent:?}");
        if let Some(place) = &extent.place {
            let n = rustix::io::pread(place.fd(), &mut found, place.offset()).unwrap();
            assert!(n == range.len() && found == bytes[range.clone()], "{extent:?}");
        }
        if let (1, Some(home)) = (kind, extent.home) {
            files[usize::from(home.file)].read(&mut found, home.offset).unwrap();
            assert!(found == bytes[range], "{extent:?}");
        }
    }
    assert!(kinds.iter().all(|n| *n > 0), "not all of them are there: {kinds:?}");
}

#[test]
fn a_copy_of_an_image_is_equal_and_what_has_a_place_is_taken_from_there() {
    for (no_extents, sparse) in [(false, None), (false, Some(4096)), (true, None)] {
        let below = Below::new(&WorkPool::undivided(4));
        let (toy, _) = chain(&below);
        let source = toy.edge();
        let before = toy.counts().reads;
        let target = below.file("target", SIZE);
        let options = Options { threads: Some(4), request_size: CLUSTER, ..Options::default() };
        run(&source, &target, Options { no_extents, sparse, ..options });
        let read = toy.counts().reads - before;
        assert!(all(&target) == all(&source), "no map: {no_extents}");
        let missing = |extent: &&Extent| !extent.kind.reads_zero() && extent.place.is_none();
        let bytes = map(&source).iter().filter(missing).map(|extent| extent.len).sum::<u64>();
        let clusters = usize::try_from(bytes.div_ceil(CLUSTER)).unwrap();
        // The system copies only where zeroes are not looked for.
        let taken = !no_extents && sparse.is_none();
        assert_eq!(taken, read <= clusters + 4, "{read} reads, {clusters} clusters");
        assert_eq!(toy.counts().held, 0);
    }
}
