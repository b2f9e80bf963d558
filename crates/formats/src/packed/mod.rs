//! Compressed streams: gz, xz, lzip, zstd, bz2. They contain a disk, or an image.
//!
//! A stream is read in *sections*, each of which can be decompressed by itself: blocks of xz by its
//! index, members of lzip by their trailers, frames of zstd by its seek table or by their headers.
//! A stream that does not give its size is decompressed once when it is opened: that counts it,
//! verifies its checksums, and notes points to resume from. `size` gives the size instead; it is
//! checked at the end of the stream. Nothing is written to a temporary file; the cache has a bound.

mod bz2;
mod cursor;
mod device;
mod gz;
mod index;
mod lz;
#[cfg(test)]
mod tests;
mod xz;
mod zstd;

use std::sync::Arc;

use ::device::{Device, Edge, Error, Param, Result, param, values};
use runtime::Context;

use crate::{Description, Format, Head, Opening, PackingKind, Upkeep};

use cursor::Unpack;
use index::Index;

const PARAMS: &[Param] = &[
    param("inside", "FORMAT", "what is in it: a format, or `raw` (raw)"),
    param("size", "SIZE", "how large it is unpacked, so that it need not be counted"),
    param("max-size", "SIZE", "how large it may be (1T)"),
];

/// The largest disk to decompress, unless the user allows more.
const MAX_SIZE: u64 = 1 << 40;

/// A kind of stream.
#[derive(Debug)]
struct Kind {
    /// A decoder at the start of a stream.
    start: fn() -> Result<Box<dyn Unpack>>,
    /// The index of the stream, if it gives its size; reads little.
    index: fn(&Edge, u64) -> Result<Option<Index>>,
}

const fn format(
    word: &'static str,
    summary: &'static str,
    recognises: fn(&Head) -> bool,
    open: fn(Edge, &Opening<'_>) -> Result<Arc<dyn Device>>,
    describe: fn(&Edge, &Context) -> Result<Description>,
) -> Format {
    Format {
        word,
        summary,
        is_plain: false,
        packing: Some(PackingKind::Stream),
        params: PARAMS,
        recognises,
        open,
        describe,
        write: None,
        create: None,
        check: None,
        upkeep: Upkeep::NONE,
    }
}

pub(crate) const GZ: Format = format(
    "gz",
    "a stream packed by gzip",
    |head| head.has(0, &[0x1f, 0x8b, 8]),
    |container, opening| open(&gz::KIND, container, opening),
    |container, _| describe(&gz::KIND, container),
);

pub(crate) const XZ: Format = format(
    "xz",
    "a stream packed by xz",
    |head| head.has(0, &xz::MAGIC),
    |container, opening| open(&xz::KIND, container, opening),
    |container, _| describe(&xz::KIND, container),
);

pub(crate) const LZ: Format = format(
    "lz",
    "a stream packed by lzip",
    |head| head.has(0, &lz::MAGIC),
    |container, opening| open(&lz::KIND, container, opening),
    |container, _| describe(&lz::KIND, container),
);

pub(crate) const ZSTD: Format = format(
    "zstd",
    "a stream packed by zstd",
    |head| head.has(0, &zstd::MAGIC),
    |container, opening| open(&zstd::KIND, container, opening),
    |container, _| describe(&zstd::KIND, container),
);

pub(crate) const BZ2: Format = format(
    "bz2",
    "a stream packed by bzip2",
    |head| head.has(0, b"BZh") && head.has(4, &bz2::BLOCK),
    |container, opening| open(&bz2::KIND, container, opening),
    |container, _| describe(&bz2::KIND, container),
);

fn open(kind: &'static Kind, container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let max = values::size(opening.params, "max-size")?.unwrap_or(MAX_SIZE).min(i64::MAX as u64);
    let given = values::size(opening.params, "size")?;
    let index = match (given, (kind.index)(&container, max)?) {
        (Some(size), Some(index)) if index.size != size => {
            let action = format!("it unpacks to {} bytes, and not to {size}", index.size);
            return Err(Error::unfit(action));
        }
        (_, Some(index)) => index,
        (Some(size), None) => Index::given(size),
        (None, None) => index::count(kind, &container, max, index::APART)?,
    };
    if index.size > max {
        return Err(too_large(index.size, max));
    }
    Ok(device::open(kind, container, index))
}

fn too_large(size: u64, max: u64) -> Error {
    use ::device::{ErrorKind, Fault};
    let action = format!("it unpacks to {size} bytes or more; max-size={max} allows no more");
    Error::new(ErrorKind::Limit, Fault::File, action)
}

fn describe(kind: &'static Kind, container: &Edge) -> Result<Description> {
    let index = (kind.index)(container, MAX_SIZE)?.ok_or_else(|| {
        let action =
            "find its unpacked size: the stream does not say, and would have to be unpacked";
        Error::unsupported(action)
    })?;
    Ok(Description { virtual_size: index.size, compressed: true, ..Description::default() })
}
