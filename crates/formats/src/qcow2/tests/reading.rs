//! Every image reads as it was laid out.

use device::{Edge, Extent, ExtentKind, OperationKind, Params, Result, Simple, Stored};
use proptest::prelude::*;
use runtime::{Context, WorkPool};

use super::laid::{Kind, Laid, Layout, edge};
use crate::{Closed, Files, Opening, Reference};

/// Gives these bytes for any backing image.
#[derive(Debug)]
pub(super) struct Backing(pub(super) Option<Vec<u8>>, pub(super) bool);

impl Files for Backing {
    fn open(&self, reference: &Reference<'_>) -> Result<Edge> {
        assert_eq!((reference.name, reference.format), ("backing", None));
        Ok(edge(self.0.clone().unwrap(), self.1, &WorkPool::new(1)))
    }

    fn create(&self, name: &str) -> Result<Edge> {
        Closed.create(name)
    }

    fn name(&self) -> Option<String> {
        None
    }
}

fn open(laid: &Laid, layout: &Layout, waits: bool) -> Edge {
    // One thread must suffice.
    let context = Context::new(WorkPool::new(1));
    let files = Backing(layout.backing.clone(), waits);
    let params = Params::default();
    let opening = Opening { params: &params, files: &files, context: &context };
    let container = edge(laid.container.clone(), waits, &context.pool);
    let disk = (super::super::FORMAT.open)(container, &opening).unwrap();
    Edge::new(disk, context.pool.clone())
}

fn kind(extended: bool, version: u32) -> BoxedStrategy<Kind> {
    let parts = (any::<u32>(), any::<u32>(), any::<u32>())
        .prop_map(|(here, zero, mask)| Kind::Parts(here & mask, zero & !here));
    match (extended, version) {
        (true, _) => prop_oneof![
            Just(Kind::Absent),
            Just(Kind::Zero),
            Just(Kind::ZeroAt),
            Just(Kind::Plain),
            Just(Kind::Packed),
            parts
        ]
        .boxed(),
        (false, 2) => {
            prop_oneof![Just(Kind::Absent), Just(Kind::Plain), Just(Kind::Packed)].boxed()
        }
        _ => prop_oneof![
            Just(Kind::Absent),
            Just(Kind::Zero),
            Just(Kind::ZeroAt),
            Just(Kind::Plain),
            Just(Kind::Packed)
        ]
        .boxed(),
    }
}

/// Runs of clusters of one kind.
fn clusters(extended: bool, version: u32) -> impl Strategy<Value = Vec<Kind>> {
    prop::collection::vec((kind(extended, version), 1..20usize), 1..12)
        .prop_map(|runs| runs.iter().flat_map(|(kind, n)| vec![*kind; *n]).collect())
}

fn layout() -> impl Strategy<Value = Layout> {
    let shape = prop_oneof![
        (Just(2u32), 9..15u32, Just(false)),
        (Just(3u32), 9..15u32, Just(false)),
        (Just(3u32), 14..15u32, Just(true)),
    ];
    shape.prop_flat_map(|(version, cluster_bits, extended)| {
        let refcount_order = if version == 2 { 4..5 } else { 3..7u32 };
        let zstd = any::<bool>().prop_map(move |zstd| zstd && version == 3);
        let backing = prop::option::of(0..3u64);
        let all = (clusters(extended, version), zstd, refcount_order, backing, 0..3u64, 0..512u64);
        all.prop_map(move |(clusters, zstd, refcount_order, backing, mix, less)| {
            let size = ((clusters.len() as u64) << cluster_bits) - less / 512 * 512;
            let backing = backing.map(|how| {
                let len = usize::try_from(size * (how + 1) / 2).unwrap();
                (0..len).map(|at| u8::try_from(at / 600 % 256).unwrap()).collect()
            });
            let mix = mix * 0x1234_5679;
            Layout {
                version,
                cluster_bits,
                extended,
                zstd,
                refcount_order,
                size,
                clusters,
                mix,
                backing,
            }
        })
    })
}

fn whole_map(edge: &Edge, max: usize) -> Vec<Extent> {
    let (mut all, mut at) = (Vec::<Extent>::new(), 0);
    while at < edge.info().size {
        edge.resolve(at, edge.info().size - at, max, &mut all).unwrap();
        at = all.last().unwrap().end();
    }
    all
}

fn range(extent: &Extent) -> std::ops::Range<usize> {
    usize::try_from(extent.start).unwrap()..usize::try_from(extent.end()).unwrap()
}

fn check_map(edge: &Edge, laid: &Laid, max: usize) -> std::result::Result<(), TestCaseError> {
    for extent in whole_map(edge, max) {
        let bytes = &laid.bytes[range(&extent)];
        prop_assert!(!extent.kind.reads_zero() || device::is_zero(bytes), "{:?}", extent);
        match extent.home {
            Some(home) if home.stored == Stored::Plain && extent.kind == ExtentKind::Data => {
                let at = usize::try_from(home.offset).unwrap();
                prop_assert!(laid.container[at..at + bytes.len()] == *bytes, "{:?}", extent);
            }
            Some(home) if extent.kind == ExtentKind::Data => {
                let is_packed = matches!(home.stored, Stored::Packed { .. });
                prop_assert!(is_packed, "{:?}", extent);
            }
            // No other kind has bytes of its own.
            _ => prop_assert!(extent.kind.reads_zero() || extent.depth == 1, "{:?}", extent),
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_image_is_read_as_it_was_laid_out(
        layout in layout(),
        reads in prop::collection::vec((any::<u32>(), 0..60_000usize), 12),
        waits: bool,
    ) {
        let laid = layout.lay();
        let edge = open(&laid, &layout, waits);
        prop_assert_eq!(edge.info().size, layout.size);
        let mut all = vec![0xee; laid.bytes.len()];
        edge.read(&mut all, 0).unwrap();
        prop_assert!(all == laid.bytes);
        for (at, len) in reads {
            let at = usize::try_from(at).unwrap() % laid.bytes.len();
            let len = len.min(laid.bytes.len() - at);
            let mut read = vec![0xee; len];
            edge.read(&mut read, at as u64).unwrap();
            prop_assert!(read == laid.bytes[at..at + len], "{} bytes at {}", len, at);
        }
        for max in [1, 3, 1000] {
            check_map(&edge, &laid, max)?;
        }
        let check = super::super::FORMAT.check.unwrap();
        let context = Context::default();
        let container = super::laid::edge(laid.container.clone(), waits, &context.pool);
        let found = check(&container, &context).unwrap();
        prop_assert!(found.corruption_count == 0 && found.leaks == 0, "{:?}", found);
    }
}

fn simple(clusters: Vec<Kind>) -> Layout {
    Layout {
        version: 3,
        cluster_bits: 12,
        extended: false,
        zstd: false,
        refcount_order: 4,
        size: (clusters.len() as u64) << 12,
        clusters,
        mix: 0,
        backing: None,
    }
}

#[test]
fn clusters_that_lie_together_are_one_extent_however_many_tables_tell_of_them() {
    let layout = simple(vec![Kind::Plain; 512]);
    let edge = open(&layout.lay(), &layout, false);
    // The table's own cluster lies between the first and the second.
    assert_eq!(whole_map(&edge, 100).len(), 2);
    let layout = Layout { cluster_bits: 9, size: 512 << 9, ..layout };
    let edge = open(&layout.lay(), &layout, false);
    let map = whole_map(&edge, 100);
    assert!(map.len() <= 9, "eight tables: {map:?}");
    let layout = simple(vec![Kind::Absent; 5000]);
    let edge = open(&layout.lay(), &layout, false);
    assert_eq!(whole_map(&edge, 100).len(), 1);
}

#[test]
fn what_is_there_is_read_at_once_and_what_is_packed_only_when_it_was_unpacked() {
    let layout = simple(vec![Kind::Plain, Kind::Packed, Kind::Zero, Kind::Plain]);
    let edge = open(&layout.lay(), &layout, false);
    let mut bytes = [0; 4096];
    for (cluster, at_once) in [(0, true), (1, false), (2, true), (3, true)] {
        assert_eq!(edge.read_now(&mut bytes, cluster << 12).unwrap(), at_once, "{cluster}");
    }
    edge.read(&mut bytes[..100], (1 << 12) + 50).unwrap();
    assert!(edge.read_now(&mut bytes, 1 << 12).unwrap(), "the rest was kept");
    let waits = open(&layout.lay(), &layout, true);
    assert!(!waits.read_now(&mut bytes, 0).unwrap());
    waits.read(&mut bytes, 0).unwrap();
    assert!(waits.read_now(&mut bytes, 2 << 12).unwrap(), "its table is known by now");
}

#[test]
fn the_map_below_is_asked_for_where_much_lies_together_and_not_for_each_cluster() {
    let asked_for = |clusters: Vec<Kind>| {
        let layout = Layout { cluster_bits: 14, size: 512 << 14, ..simple(clusters) };
        let context = Context::new(WorkPool::new(1));
        let container = layout.lay().container;
        let below = super::laid::disk(container, true);
        let container = Simple::edge(below.clone(), &context.pool);
        let params = Params::default();
        let opening = Opening { params: &params, files: &Closed, context: &context };
        let disk = (super::super::FORMAT.open)(container, &opening).unwrap();
        whole_map(&Edge::new(disk, context.pool.clone()), 1000);
        below.count(OperationKind::Resolve)
    };
    let asked = asked_for(vec![Kind::Plain; 512]);
    assert!((1..=2).contains(&asked), "{asked}: the first cluster lies apart");
    let scattered = (0..512).map(|i| if i % 2 == 0 { Kind::Plain } else { Kind::Zero });
    assert_eq!(asked_for(scattered.collect()), 0);
    assert_eq!(asked_for(vec![Kind::Packed; 512]), 0);
}
