//! Raw: the bytes of the container are those of the disk.

use device::param;

use crate::Description;
use crate::format::{Creator, Format, Measure, Upkeep};

pub(crate) const FORMAT: Format = Format {
    word: "raw",
    summary: "the bytes of the disk as they are",
    is_plain: true,
    packing: None,
    params: &[],
    // Anything may be raw; nothing looks like it.
    recognises: |_| false,
    open: |container, _| Ok(container.device().clone()),
    describe: |container, _| {
        Ok(Description { virtual_size: container.info().size, ..Description::default() })
    },
    write: None,
    create: Some(Creator {
        beside: None,
        options: &[param(
            "preallocation",
            "off|falloc|full|sparse|unwritten|written",
            "room for all of it; full, or written: zeroes are written",
        )],
        open: |container, _, _| Ok(container.device().clone()),
        over: crate::format::over_nothing,
        piped: |_| Ok(true),
        remake: None,
        reads_zero: true,
        // Whole sectors, as QEMU makes them; ours ends where the disk does.
        measure: |making, _| {
            let size = making.size.checked_next_multiple_of(512).unwrap_or(making.size);
            Ok(Measure { required: size, fully_allocated: size })
        },
        measure_bitmaps: crate::format::no_bitmaps,
    }),
    check: None,
    upkeep: Upkeep::NONE,
};
