//! Devices whose content is computed: the same bytes whatever the request sizes, maps that agree
//! with the bytes, writes accepted if and only if they match.

use device::{Edge, ErrorKind, Extent, ExtentKind, ZeroFlags};
use devices::OpenOptions;
use proptest::prelude::*;

fn open(name: &str) -> Edge {
    let context = runtime::Context::default();
    let device = devices::Named::parse(name)
        .and_then(|disk| disk.open(&OpenOptions::read_write(), &context))
        .unwrap();
    Edge::new(device, context.pool)
}

fn map(device: &Edge) -> Vec<Extent> {
    let (mut all, mut at) = (Vec::new(), 0);
    while at < device.info().size {
        device.resolve(at, device.info().size - at, 1000, &mut all).unwrap();
        at = all.last().unwrap().end();
    }
    all
}

fn density(device: &Edge) -> f64 {
    let data: u64 = map(device).iter().filter(|e| e.kind == ExtentKind::Data).map(|e| e.len).sum();
    data as f64 * 100.0 / device.info().size as f64
}

const SIZE: usize = (2 << 20) + 777;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn sparse_random_is_the_same_however_it_is_read(
        seed: u64,
        percent in 0u8..=100,
        runlength in prop_oneof![Just(1u64), Just(4096), Just(50_000), Just(500_000)],
        random_content: bool,
        ranges in prop::collection::vec((0..SIZE, 0..300_000usize), 1..30),
        max in 1..5usize,
    ) {
        let device = open(&format!(
            "sparse-random:{SIZE}?seed={seed}&percent={percent}&runlength={runlength}&random-content={random_content}"
        ));
        let mut all = vec![0xaa; SIZE];
        device.read(&mut all, 0).unwrap();
        for (start, len) in ranges {
            let len = len.min(SIZE - start);
            let mut some = vec![0x55; len];
            device.read(&mut some, start as u64).unwrap();
            prop_assert!(some == all[start..start + len], "{start}+{len}");
            device.write(&some, start as u64, false).unwrap();
            if len == 0 {
                continue;
            }
            // One changed byte is refused, at its own offset.
            let at = len / 3;
            some[at] ^= 1;
            let error = device.write(&some, start as u64, false).unwrap_err();
            prop_assert_eq!(error.kind(), ErrorKind::Mismatch);
            prop_assert_eq!(error.offset(), Some((start + at) as u64));
            // Zeroes are accepted exactly where there are zeroes.
            let range = &all[start..start + len];
            let zero = device.zero(start as u64, len as u64, ZeroFlags::default());
            prop_assert_eq!(zero.is_ok(), range.iter().all(|b| *b == 0));
            if let Err(e) = zero {
                let first = range.iter().position(|b| *b != 0).unwrap();
                prop_assert_eq!(e.offset(), Some((start + first) as u64));
            }
            // The map says exactly which blocks have data.
            let mut extents = Vec::new();
            device.resolve(start as u64, len as u64, max, &mut extents).unwrap();
            prop_assert!(extents.len() <= max);
            for pair in extents.windows(2) {
                prop_assert_ne!(pair[0].kind, pair[1].kind);
            }
            for e in extents {
                let range = usize::try_from(e.start).unwrap()..usize::try_from(e.end()).unwrap();
                let hole = e.kind == ExtentKind::Hole;
                for block in all[range].chunks(4096).filter(|c| hole || c.len() >= 64) {
                    prop_assert_eq!(block.iter().all(|b| *b == 0), hole);
                }
            }
        }
    }
}

#[test]
fn the_density_of_sparse_random_is_what_was_asked() {
    for percent in [0.0f64, 0.5, 10.0, 33.0, 50.0, 66.0, 90.0, 99.5, 100.0] {
        for runlength in ["4K", "64K", "1M"] {
            let mut sum = 0.0;
            for seed in 0..4 {
                let name =
                    format!("sparse-random:4G?seed={seed}&percent={percent}&runlength={runlength}");
                sum += density(&open(&name));
            }
            let got = sum / 4.0;
            let near = (0.1 + percent * 0.02).min(0.1 + (100.0 - percent) * 0.02 + 0.3);
            assert!((got - percent).abs() <= near, "{percent}% asked, {got}% given, {runlength}");
        }
    }
}

#[test]
fn runs_of_sparse_random_are_as_long_as_asked() {
    for percent in [10, 50, 80] {
        let device = open(&format!("sparse-random:64G?seed=5&percent={percent}&runlength=1M"));
        let runs: Vec<_> = map(&device)
            .into_iter()
            .filter(|e| e.kind == ExtentKind::Data)
            .map(|e| e.len)
            .collect();
        let mean = runs.iter().sum::<u64>() / runs.len() as u64;
        assert!((900 << 10..1200 << 10).contains(&mean), "{percent}: {mean}");
    }
}

#[test]
fn a_small_disk_has_data_too() {
    for seed in 0..20 {
        let device = open(&format!("sparse-random:1M?seed={seed}"));
        let got = density(&device);
        assert!((2.0..30.0).contains(&got), "seed {seed}: {got}%");
    }
}

#[test]
fn the_largest_sparse_disk_opens_and_reads_at_its_end() {
    for content in ["false", "true"] {
        let device =
            open(&format!("sparse-random:9223372036854775807?seed=1&random-content={content}"));
        let size = device.info().size;
        let mut out = Vec::new();
        device.resolve(size - (1 << 40), 1 << 40, 5000, &mut out).unwrap();
        assert!(out.len() > 1000);
        let mut end = vec![1; 10_000];
        device.read(&mut end, size - 10_000).unwrap();
        device.write(&end, size - 10_000, false).unwrap();
        let error = device.zero(0, size, ZeroFlags::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
    }
}

#[test]
fn a_full_disk_refuses_every_write_for_want_of_room_and_reads_zero() {
    let device = open("full:1M");
    let flags = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
    assert_eq!(device.write(&[0], 5, false).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(device.zero(0, 1 << 20, flags).unwrap_err().kind(), ErrorKind::NoSpace);
    let mut byte = [1];
    device.read(&mut byte, 5).unwrap();
    assert_eq!(byte, [0]);
}

#[test]
fn ones_and_null_forget_what_is_written() {
    for (name, byte) in [("ones:1M", 0xff), ("ones:1M?byte=0x55", 0x55), ("null:1M", 0)] {
        let device = open(name);
        assert!(device.info().abilities.discards, "{name}");
        device.write(&[7; 100], 5, true).unwrap();
        device.zero(50, 1000, ZeroFlags::default()).unwrap();
        let mut bytes = [1; 2000];
        device.read(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|b| *b == byte), "{name}");
    }
    assert_eq!(open("zero:").info().size, 0);
}
