//! What formats can find out without a disk being used: whether an image is sound, how large one would
//! be, and what bytes look like.

use device::{Edge, Error, Extent, ExtentKind, Params, Result};
use devices::{Named, OpenOptions};
use formats::{Closed, Findings, Format, Head, Making, Measure};
use runtime::Context;

use crate::Image;

/// What came of a check.
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
/// It cannot be opened, is no such image, or cannot be read.
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
    let findings = format.check.map(|check| check(&container, context).map_err(|e| e.on(&name)));
    Ok(Checked { format, findings: findings.transpose()? })
}

/// Of which disk a measure is.
#[derive(Clone, Copy, Debug)]
pub enum Measured<'a> {
    /// An empty one of so many bytes.
    Empty(u64),
    /// This one.
    Disk(&'a Edge),
}

/// How large an image of `format` would be.
///
/// # Errors
/// The format is not made, the options make no sense, or the disk's map cannot be had.
pub fn measure(
    format: &Format,
    options: &Params,
    disk: Measured<'_>,
    context: &Context,
) -> Result<Measure> {
    let Some(creator) = format.create else {
        return Err(Error::unsupported("make such an image").on(format.word));
    };
    let size = match disk {
        Measured::Empty(size) => size,
        Measured::Disk(disk) => disk.info().size,
    };
    let making = Making {
        size,
        options,
        compress: false,
        zeroed: true,
        durable: false,
        files: &Closed,
        context,
    };
    match disk {
        Measured::Empty(size) => {
            let hole = (size > 0).then(|| Ok(Extent::new(0, size, ExtentKind::Hole)));
            (creator.measure)(&making, &mut hole.into_iter())
        }
        Measured::Disk(disk) => {
            (creator.measure)(&making, &mut Map { disk, at: 0, known: Vec::new().into_iter() })
        }
    }
}

/// The map of a disk, as it is asked for.
struct Map<'a> {
    disk: &'a Edge,
    at: u64,
    known: std::vec::IntoIter<Extent>,
}

impl Map<'_> {
    /// Extents asked for at a time.
    const MANY: usize = 4096;
}

impl Iterator for Map<'_> {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        let size = self.disk.info().size;
        if self.known.len() == 0 && self.at < size {
            let mut known = Vec::new();
            if let Err(e) = self.disk.resolve(self.at, size - self.at, Self::MANY, &mut known) {
                let at = self.at;
                self.at = size;
                return Some(Err(e.at(at)));
            }
            self.known = known.into_iter();
        }
        let extent = self.known.next()?;
        self.at = extent.end();
        Some(Ok(extent))
    }
}

/// All formats that the bytes in a container may be of, besides raw.
///
/// # Errors
/// Its beginning or its end cannot be read.
pub fn looks_like(container: &Edge) -> Result<Vec<&'static Format>> {
    let head = Head::of(container)?;
    Ok(formats::formats().iter().filter(|format| (format.recognises)(&head)).collect())
}
