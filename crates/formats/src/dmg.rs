//! Apple's disk images. They are not read, only recognised, so that none is taken for a raw disk.

use device::{Edge, Error};

use crate::kit::fields::foreign;
use crate::{Format, Head, Upkeep};

pub(crate) const FORMAT: Format = Format {
    word: "dmg",
    summary: "Apple's disk image: not read, only recognised",
    is_plain: false,
    packing: None,
    params: &[],
    recognises: |head: &Head| {
        trailer(head).is_some_and(|trailer| trailer.starts_with(b"koly\0\0\0\x04"))
    },
    open: |container, _| Err(refusal(&container)),
    describe: |container, _| Err(refusal(container)),
    write: None,
    create: None,
    check: None,
    upkeep: Upkeep::NONE,
};

/// The last 512 bytes.
fn trailer(head: &Head) -> Option<&[u8]> {
    head.last().len().checked_sub(512).and_then(|at| head.last().get(at..))
}

fn refusal(container: &Edge) -> Error {
    let action =
        "Apple's disk images are not read; `qemu-img convert -f dmg` and `hdiutil convert` do";
    foreign(action).on(&container.info().name)
}
