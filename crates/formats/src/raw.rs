//! Raw: the bytes of the container are those of the disk.

use device::{ExtentKind, Result};

use crate::Description;
use crate::format::{Creator, Format, Fresh, Measure};

pub(crate) const FORMAT: Format = Format {
    word: "raw",
    summary: "the bytes of the disk as they are",
    is_plain: true,
    is_packing: false,
    params: &[],
    // Anything may be raw; nothing looks like it.
    recognises: |_| false,
    open: |container, _| Ok(container.device().clone()),
    describe: |container, _| {
        Ok(Description { virtual_size: container.info().size, ..Description::default() })
    },
    create: Some(Creator {
        options: &[],
        open: |container, making| {
            Ok(Fresh { disk: container.device().clone(), is_zero: making.zeroed })
        },
        measure: |making, map| {
            let mut required = 0;
            for extent in map {
                let extent = extent?;
                required += if extent.kind == ExtentKind::Data { extent.len } else { 0 };
            }
            Result::Ok(Measure { required, fully_allocated: making.size })
        },
    }),
    check: None,
};
