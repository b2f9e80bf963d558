//! A fast zero is fast or refused at once, with nothing written: through every pair of filters.

use device::Blocking as _;
use std::sync::Arc;

use device::{ErrorKind, ZeroFlags};

use crate::stacks::bottoms::{WAITS, waiting};
use crate::stacks::lasting::Volatile;
use crate::stacks::{SHAPES, over};

#[test]
fn a_fast_zero_is_fast_or_refused_with_nothing_written_through_every_pair_of_filters() {
    for (f, first) in SHAPES.iter().enumerate() {
        for (s, second) in SHAPES.iter().enumerate() {
            // Each pair over one way of waiting; each filter, above and below, over all.
            let wait = WAITS[(f + s) % WAITS.len()];
            for kind in 0..4 {
                let bottom = Arc::new(Volatile::new(kind));
                bottom.device.model().write_at(&[7; 8192], 0, false).unwrap();
                let disk =
                    over(&[*first, *second], |pool| waiting(bottom.device.clone(), wait, pool));
                for (offset, len) in [(0, 8192), (4096, 61440), (5, 100), (511, 40_000)] {
                    let (before, log) =
                        (bottom.device.model().bytes(), bottom.device.model().log().len());
                    let mut shown = vec![0; 96 << 10];
                    disk.read(&mut shown, 0).unwrap();
                    let flags =
                        ZeroFlags { fast_only: true, may_unmap: true, ..ZeroFlags::default() };
                    let result = disk.zero(offset, len, flags);
                    let log = bottom.device.model().log().split_off(log);
                    let place = format!(
                        "{first:?} {second:?} over {kind} {wait:?}, {offset}+{len}: {log:?}"
                    );
                    assert!(!log.iter().any(|line| line.starts_with("write")), "{place}");
                    let mut after = vec![0; 96 << 10];
                    disk.read(&mut after, 0).unwrap();
                    match result {
                        Ok(()) => {
                            assert!(disk.info().abilities.fast_zero, "not said: {place}");
                            let start = usize::try_from(offset).unwrap();
                            let len = usize::try_from(len).unwrap();
                            shown[start..start + len].fill(0);
                        }
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::NotFast, "{place}");
                            assert_eq!(before, bottom.device.model().bytes(), "{place}");
                        }
                    }
                    assert!(after == shown, "{place}");
                }
            }
        }
    }
}
