//! The toy format against the model.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use device::model::Model;
use device::{Buffer, Edge, Operation, Outcome, Result, Simple, ZeroFlags};
use proptest::prelude::*;
use runtime::WorkPool;
use trial::toy::{Toy, ToySettings};
use trial::{Fate, Op, SIZE, TestDevice, Trims, op};

use crate::below::{Below, KINDS};

/// Room in each file, of which an image never needs half.
const ROOM: u64 = 1 << 20;

fn settings() -> impl Strategy<Value = ToySettings> {
    let cluster = prop::sample::select(&[512, 4096, 65536][..]);
    (cluster, any::<bool>(), prop::sample::select(&[0, 8192, 1 << 20][..])).prop_map(
        |(cluster, packs, bound)| ToySettings { cluster, packs, bound, append_only: false },
    )
}

/// A backing disk of zeroes, which is as long as an image or shorter.
fn backing(below: &Below, kind: usize) -> Option<Edge> {
    match kind {
        0 => None,
        1 => Some(Simple::shared_edge(Arc::new(Model::new(SIZE)), &WorkPool::new(1))),
        2 => Some(below.file("backing", SIZE as u64 / 3)),
        _ => {
            let files = [below.memory(ROOM), below.file("backing", ROOM)];
            Some(Toy::create(files, None, SIZE as u64 / 2, ToySettings::default()).edge())
        }
    }
}

fn config() -> ProptestConfig {
    ProptestConfig::with_cases(64)
}

/// All bytes.
pub(crate) fn all(edge: &Edge) -> Vec<u8> {
    let mut bytes = vec![0xaa; usize::try_from(edge.info().size).unwrap()];
    edge.read(&mut bytes, 0).unwrap();
    bytes
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn an_image_is_what_the_model_is_and_still_is_when_it_is_opened_again(
        ops in prop::collection::vec(op(), 1..24),
        kind in 0..KINDS,
        backed in 0..4usize,
        settings in settings(),
    ) {
        let pool = WorkPool::new(1);
        let mut below = Below::new(&pool);
        let (files, backing) = (below.pair(kind, ROOM), backing(&below, backed));
        let toy = Toy::create(files.clone(), backing.clone(), SIZE as u64, settings);
        trial::run_on(&toy.edge(), &ops, Trims::AsHint)?;
        let bytes = all(&toy.edge());
        toy.edge().flush().unwrap();
        drop(toy);
        let again = Toy::open(files, backing, settings).unwrap();
        prop_assert!(all(&again.edge()) == bytes, "other bytes when it is opened again");
        prop_assert_eq!(again.counts().held, 0);
    }

    /// What is read where nothing was written is what the backing disk has, and that stays as it
    /// is.
    #[test]
    fn the_backing_disk_shows_through_until_it_is_written_over(
        under in prop::collection::vec((0..SIZE, 1..SIZE / 4, 1u8..), 1..6),
        over in prop::collection::vec((0..SIZE, 1..SIZE / 8, 0u8..3), 1..6),
        kind in 0..KINDS,
        backed in 1..4usize,
        settings in settings(),
    ) {
        let pool = WorkPool::new(1);
        let mut below = Below::new(&pool);
        let backing = backing(&below, backed).unwrap();
        let size = usize::try_from(backing.info().size).unwrap();
        for (at, len, byte) in under {
            let at = at % size;
            backing.write(&vec![byte; len.min(size - at)], at as u64, false).unwrap();
        }
        let before = all(&backing);
        let mut expected = before.clone();
        expected.resize(SIZE, 0);
        let files = below.pair(kind, ROOM);
        let toy = Toy::create(files, Some(backing.clone()), SIZE as u64, settings).edge();
        for (at, len, byte) in over {
            let len = len.min(SIZE - at);
            if byte == 0 {
                let flags = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
                toy.zero(at as u64, len as u64, flags).unwrap();
            } else {
                toy.write(&vec![byte; len], at as u64, false).unwrap();
            }
            expected[at..at + len].fill(byte);
            prop_assert!(all(&toy) == expected);
        }
        let mut map = Vec::new();
        toy.resolve(0, SIZE as u64, usize::MAX, &mut map).unwrap();
        for extent in map.iter().filter(|extent| extent.depth > 0) {
            let range = usize::try_from(extent.start).unwrap()..usize::try_from(extent.end()).unwrap();
            prop_assert!(range.end <= size && expected[range.clone()] == before[range]);
        }
        prop_assert!(all(&backing) == before, "the backing disk was changed");
    }

    /// In every block of a few, several neighbours; and each of them once, so that the end is
    /// known.
    #[test]
    fn many_operations_in_flight_at_a_time_do_not_harm_each_other(
        steps in prop::collection::vec((1..3000usize, 0..4u8), 8..64),
        kind in 0..KINDS,
        backed in 0..4usize,
        settings in settings(),
    ) {
        let pool = WorkPool::new(1);
        let mut below = Below::new(&pool);
        let (files, backing) = (below.pair(kind, ROOM), backing(&below, backed));
        let toy = Toy::create(files, backing, SIZE as u64, settings);
        let edge = toy.edge();
        edge.write(&vec![9; SIZE], 0, false).unwrap();
        let (tx, rx) = mpsc::channel::<Result<Outcome>>();
        let (mut at, mut expected, mut started) = (0, vec![9; SIZE], 0);
        for (i, (len, byte)) in steps.into_iter().enumerate() {
            let (offset, len) = (at as u64, len.min(SIZE - at));
            let (change, meanwhile) = operations(i, offset, len, byte);
            for operation in [change, meanwhile] {
                let tx = tx.clone();
                edge.submit(operation, Box::new(move |result| drop(tx.send(result))));
                started += 1;
            }
            expected[at..at + len].fill(byte);
            at += len;
        }
        for _ in 0..started {
            let result = rx.recv_timeout(Duration::from_secs(60));
            let result = result.map_err(|_| TestCaseError::fail("an operation never ended"))?;
            prop_assert!(result.is_ok(), "{:?}", result.err());
        }
        let bytes = all(&edge);
        let differs = (0..SIZE).find(|i| bytes[*i] != expected[*i]);
        prop_assert!(differs.is_none(), "byte {:?}", differs);
        prop_assert_eq!(toy.counts().held, 0, "a lease was kept");
    }
}

/// A change, and what is done with the same range meanwhile.
fn operations(i: usize, offset: u64, len: usize, byte: u8) -> (Operation, Operation) {
    let flags = ZeroFlags { may_unmap: !i.is_multiple_of(3), ..ZeroFlags::default() };
    let change = match byte {
        0 => Operation::Zero { offset, len: len as u64, flags },
        _ => {
            let data = Buffer::copy_of(&vec![byte; len]).into();
            Operation::Write { offset, data, fua: i.is_multiple_of(5) }
        }
    };
    let meanwhile = match i % 4 {
        0 => Operation::Flush,
        1 => Operation::Resolve { offset, len: len as u64, max: 4 },
        2 => Operation::Prefetch { offset, len: len as u64 },
        _ => Operation::Read { offset, buffer: Buffer::zeroed(len) },
    };
    (change, meanwhile)
}

#[test]
fn a_place_keeps_what_is_freed_and_beyond_a_bound_no_more_are_given() {
    let below = Below::new(&WorkPool::new(1));
    let files = [below.memory(ROOM), below.memory(ROOM)];
    let settings = ToySettings { packs: false, bound: 8192, ..ToySettings::default() };
    let toy = Toy::create(files, None, SIZE as u64, settings);
    let edge = toy.edge();
    let places = || {
        let mut map = Vec::new();
        edge.resolve(0, SIZE as u64, usize::MAX, &mut map).unwrap();
        map.into_iter().filter_map(|extent| extent.place).collect::<Vec<_>>()
    };
    let ops = [Op::Write(0, SIZE, 1, false)];
    trial::run_on(&edge, &ops, Trims::AsHint).unwrap();
    let held = places();
    let zero = |at| {
        let flags = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
        edge.zero(at, 8192, flags).unwrap();
    };
    zero(0);
    assert_eq!(toy.counts().held, 8192);
    let between = places();
    assert!(!between.is_empty());
    zero(8192);
    assert!(places().is_empty(), "there is enough in quarantine");
    edge.write(&[2; 16384], 0, false).unwrap();
    assert_eq!((toy.counts().reused, toy.counts().held), (0, 16384));
    // What came into use after a lease was given is not held by it.
    zero(0);
    edge.write(&[2; 8192], 0, false).unwrap();
    assert_eq!((toy.counts().reused, toy.counts().held), (2, 16384));
    // A lease that was given after something was freed does not hold it.
    drop(held);
    assert_eq!(toy.counts().held, 8192);
    drop(between);
    assert_eq!(toy.counts().held, 0);
    let later = places();
    assert!(!later.is_empty());
    edge.write(&[3; 4096], 65536, false).unwrap();
    zero(32768);
    drop(later);
    edge.write(&[2; 8192], 32768, false).unwrap();
    assert_eq!(toy.counts().reused, 4);
}

#[test]
fn clusters_freed_while_they_are_read_or_written_are_not_reused() {
    for byte in [0, 1] {
        let held = [(); 2].map(|()| TestDevice::new(usize::try_from(ROOM).unwrap()));
        let files = held.each_ref().map(|held| held.edge(&WorkPool::new(1)));
        let settings = ToySettings { packs: false, ..ToySettings::default() };
        let toy = Toy::create(files, None, SIZE as u64, settings);
        let edge = toy.edge();
        edge.write(&[9; 8192], 0, false).unwrap();
        held.iter().for_each(|held| held.on(Fate::Hold));
        let operation = match byte {
            0 => Operation::Read { offset: 0, buffer: Buffer::zeroed(8192) },
            _ => operations(1, 0, 8192, byte).0,
        };
        let (tx, rx) = mpsc::channel();
        edge.submit(operation, Box::new(move |outcome| tx.send(outcome).unwrap()));
        held.iter().for_each(|held| held.on(Fate::Pass));
        edge.trim(0, 8192, false).unwrap();
        edge.write(&[2; 8192], 16384, false).unwrap();
        assert_eq!((toy.counts().reused, toy.counts().held), (0, 8192));
        assert!(held.iter().any(|held| !held.held().is_empty()));
        held.iter().for_each(|held| held.release());
        match rx.recv().unwrap().unwrap() {
            Outcome::Read(read) => assert!(*read == [9; 8192], "bytes of another cluster"),
            _ => assert_eq!(all(&edge)[16384..24576], [2; 8192]),
        }
        assert_eq!(toy.counts().held, 0);
    }
}

#[test]
fn a_place_in_an_image_in_an_image_keeps_what_either_frees() {
    let below = Below::new(&WorkPool::new(1));
    let settings = ToySettings { packs: false, ..ToySettings::default() };
    let image = |files, size| Toy::create(files, None, size, settings);
    let inner = image([below.memory(ROOM), below.memory(ROOM)], ROOM);
    let outer = image([inner.edge(), below.memory(ROOM)], SIZE as u64);
    let (edge, mut map) = (outer.edge(), Vec::new());
    edge.write(&vec![1; SIZE], 0, false).unwrap();
    edge.resolve(0, SIZE as u64, usize::MAX, &mut map).unwrap();
    let home = map.iter().find_map(|extent| extent.home.filter(|home| home.file == 0)).unwrap();
    edge.trim(0, SIZE as u64, false).unwrap();
    inner.edge().trim(home.offset / 4096 * 4096 + 4096, 4096, false).unwrap();
    assert_eq!((outer.counts().held, inner.counts().held), (SIZE as u64, 4096));
    drop(map);
    assert_eq!((outer.counts().held, inner.counts().held), (0, 0));
}

#[test]
fn what_is_broken_is_refused() {
    let below = Below::new(&WorkPool::new(1));
    let files = [below.memory(65536), below.memory(65536)];
    let open = || Toy::open(files.clone(), None, ToySettings::default());
    assert!(open().is_err(), "there is no image");
    let toy = Toy::create(files.clone(), None, 65536, ToySettings::default());
    toy.edge().write(&[7; 16384], 0, true).unwrap();
    assert!(open().is_ok());
    let mut good = [0; 512];
    files[0].read(&mut good, 0).unwrap();
    // Magic, cluster size, size; of the first entry: its kind, file, length, offset.
    for (at, byte) in [(0, 0), (16, 1), (13, 1), (32, 9), (33, 2), (38, 1), (46, 1)] {
        let mut bad = good;
        bad[at] = byte;
        files[0].write(&bad, 0, false).unwrap();
        assert!(open().is_err(), "byte {at} is {byte}");
    }
}
