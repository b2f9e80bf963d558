//! What formats can find out without using a disk: whether an image is sound, how large one would
//! be, and what bytes look like.

use device::{Edge, Error, Extent, ExtentKind, Fault, Params, Result, Stored};
use devices::{Named, OpenOptions};
use formats::{Closed, Creator, Findings, Format, Head, Making, Measure};
use runtime::Context;

use crate::Image;
use crate::contents::Contents;

/// The result of a check.
#[derive(Debug)]
pub struct Checked {
    /// The image's format; raw bytes have one too.
    pub format: &'static Format,
    /// What was found; `None`: there is no such check.
    pub findings: Option<Findings>,
}

/// Finds out whether the metadata of an image are sound. Opens nothing else, and changes nothing.
///
/// # Errors
/// It cannot be opened or read, or is not such an image.
pub fn check(
    disk: &Named,
    image: &Image,
    options: &OpenOptions,
    context: &Context,
) -> Result<Checked> {
    let container = Edge::new(disk.open(options, context)?, context.pool.clone());
    let format = match image.format_of(&container)? {
        Some(format) => format,
        None => formats::format("raw")?,
    };
    let name = container.info().name.clone();
    let findings = format.check.map(|check| check(&container, context));
    match findings.transpose() {
        Ok(findings) => Ok(Checked { format, findings }),
        // Formats that cannot be checked. Unknown features of the image itself are an error.
        Err(e) if e.is_unsupported() && e.fault() != Fault::File => {
            Ok(Checked { format, findings: None })
        }
        Err(e) => Err(e.on(&name)),
    }
}

/// An image that holds nothing.
#[derive(Debug)]
pub struct Remade {
    /// Bytes of the disk in it.
    pub size: u64,
    /// The options with which it would be made again as it is.
    pub options: Params,
}

/// Examines an image that is to be made again in its place. Changes nothing.
///
/// # Errors
/// It cannot be opened, is not such an image, or holds something that would be lost.
pub fn remake(
    disk: &Named,
    image: &Image,
    options: &OpenOptions,
    context: &Context,
) -> Result<Remade> {
    let described = crate::describe(disk, image, options, context)?;
    let format = described.format;
    let Some(remake) = format.create.and_then(|create| create.remake) else {
        return Err(Error::unsupported("write into an existing image").on(format.word));
    };
    let options = remake(&described.container, context).map_err(|e| e.on(disk.to_string()))?;
    Ok(Remade { size: described.description.virtual_size, options })
}

/// Extents asked for at a time.
const MANY: usize = 1024;

/// The disk to measure for.
#[derive(Clone, Copy, Debug)]
pub enum Measured<'a> {
    /// An empty one of that many bytes.
    Empty(u64),
    /// This one, and its container, if that is another.
    Disk(&'a Edge, Option<&'a Edge>),
}

/// How large an image of `format` would be.
///
/// # Errors
/// The format cannot be created, the options make no sense, or the disk's map cannot be read.
pub fn measure(
    format: &Format,
    options: &Params,
    disk: Measured<'_>,
    context: &Context,
) -> Result<Measure> {
    let creator = creator_of(format)?;
    let size = match disk {
        Measured::Empty(size) => size,
        Measured::Disk(disk, _) => disk.info().size,
    };
    let making = making(size, options, context);
    match disk {
        // Of no disk there is no map.
        Measured::Empty(_) => (creator.measure)(&making, &mut std::iter::empty()),
        Measured::Disk(disk, container) => {
            let contents = Contents::Disk { disk, is_read: false };
            let map = contents.map(size).flat_map(|extent| match (extent, container) {
                (Ok(extent), Some(container)) => pieces(&extent, container),
                (extent, _) => vec![extent],
            });
            (creator.measure)(&making, &mut { map })
        }
    }
}

/// Data of an image, without what is a hole in its container: a copy finds that when it reads it.
fn pieces(extent: &Extent, container: &Edge) -> Vec<Result<Extent>> {
    let home = extent.home.filter(|home| home.file == 0 && home.stored == Stored::Plain);
    let Some(home) = home.filter(|_| extent.depth == 0 && extent.kind == ExtentKind::Data) else {
        return vec![Ok(extent.clone())];
    };
    let (mut found, mut at, end) =
        (Vec::new(), home.offset, home.offset.saturating_add(extent.len));
    while at < end {
        let mut below = Vec::new();
        if container.resolve(at, end - at, MANY, &mut below).is_err() || below.is_empty() {
            return vec![Ok(extent.clone())];
        }
        for piece in below {
            let start = extent.start.saturating_add(at.saturating_sub(home.offset));
            let kind = if piece.kind.reads_zero() { ExtentKind::Zero } else { ExtentKind::Data };
            found.push(Ok(Extent::new(start, piece.len, kind)));
            at = piece.end();
        }
    }
    found
}

/// How many bytes the bitmaps of an image would take in one of `format`; `None` where one of the
/// formats has none.
///
/// # Errors
/// As [`measure`]; the image cannot be described.
pub fn measure_bitmaps(
    format: &Format,
    options: &Params,
    (source, container): (&Format, &Edge),
    context: &Context,
) -> Result<Option<u64>> {
    let creator = creator_of(format)?;
    let described = (source.describe)(container, context);
    let described = described.map_err(|e| e.on(container.info().name.clone()))?;
    let Some(bitmaps) = described.bitmaps else { return Ok(None) };
    (creator.measure_bitmaps)(&making(described.virtual_size, options, context), &bitmaps)
}

fn creator_of(format: &Format) -> Result<Creator> {
    format.create.ok_or_else(|| Error::unsupported("make such an image").on(format.word))
}

/// Nothing is made.
fn making<'a>(size: u64, options: &'a Params, context: &'a Context) -> Making<'a> {
    Making { size, options, compress: false, zeroed: true, durable: false, files: &Closed, context }
}

/// All formats that the bytes in a container may be of, besides raw.
///
/// # Errors
/// Its beginning or its end cannot be read.
pub fn looks_like(container: &Edge) -> Result<Vec<&'static Format>> {
    let head = Head::of(container)?;
    Ok(formats::formats().iter().filter(|format| (format.recognises)(&head)).collect())
}
