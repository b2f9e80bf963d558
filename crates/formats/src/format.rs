//! What a format is to the rest of the program: how it is recognised, opened, described, made,
//! measured and checked.

use std::sync::Arc;

use device::{Device, Edge, Extent, Param, Params, Result};
use runtime::Context;

use crate::{Description, Files, Head, Reference, Role, StoredBitmap};

/// A kind of image.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The word that names it, as qemu-img's `-f` has it: `qcow2`.
    pub word: &'static str,
    /// One line on what it is.
    pub summary: &'static str,
    /// Whether the bytes of the container are the disk, so that nothing is put over them.
    pub is_plain: bool,
    /// Whether the disk in it may be an image in its turn: it is a packed stream.
    pub is_packing: bool,
    /// What it takes when it is opened: `snapshot`, say.
    pub params: &'static [Param],
    /// Whether these are the first and last bytes of one. Nothing but a guess: it is for reading
    /// only, and the guess is reported.
    pub recognises: fn(&Head) -> bool,
    /// The disk in a container. It may ask the gate for what the image names.
    pub open: fn(Edge, &Opening<'_>) -> Result<Arc<dyn Device>>,
    /// What there is to tell of an image. Looks at nothing but the container, and at no more of it than
    /// its tables' heads: bounded in bytes and in time for any input.
    pub describe: fn(&Edge, &Context) -> Result<Description>,
    /// How one is made, if it can be.
    pub create: Option<Creator>,
    /// Finds out whether its metadata are sound, if that is known how. Changes nothing.
    pub check: Option<fn(&Edge, &Context) -> Result<Findings>>,
}

/// How an image is made.
#[derive(Clone, Copy, Debug)]
pub struct Creator {
    /// `-o`: qemu-img's names and values, and ours.
    pub options: &'static [Param],
    /// A new image in a container that is empty, or whose bytes may be written over, and which
    /// grows as it is written ([`Device::resize`] gives it its length). What it needs to be an image at all is
    /// written in [`Device::finish`], last of all, and that finishes the container too.
    pub open: fn(Edge, &Making<'_>) -> Result<Fresh>,
    /// What the options say that it lies over. It is opened before anything that is there is changed.
    pub over: for<'a> fn(&'a Making<'_>) -> Option<Reference<'a>>,
    /// How one is written into a pipe.
    pub piped: fn(&Making<'_>) -> Result<Piped>,
    /// The options with which an image that holds nothing would be made again as it is. An error says what it holds, or
    /// what would be lost.
    pub remake: Option<fn(&Edge, &Context) -> Result<Params>>,
    /// How large one would be. The extents are those of the disk that would be in it.
    pub measure: fn(&Making<'_>, &mut dyn Iterator<Item = Result<Extent>>) -> Result<Measure>,
    /// How many bytes these bitmaps, of a disk of that size, would take besides; `None` where a new image with these
    /// options can hold none.
    pub measure_bitmaps: fn(&Making<'_>, &[StoredBitmap]) -> Result<Option<u64>>,
}

/// For a format whose images hold no bitmaps.
///
/// # Errors
/// None.
pub(crate) fn no_bitmaps(_: &Making<'_>, _: &[StoredBitmap]) -> Result<Option<u64>> {
    Ok(None)
}

/// How an image is made in a container that takes every byte once and upwards
/// ([`Order::Upwards`](device::Order::Upwards)): a pipe.
#[derive(Clone, Copy, Debug)]
pub enum Piped {
    /// Not at all; in a file, which then goes into the pipe.
    ByFile,
    /// As in any other.
    AsItComes,
    /// So, once it is known where the disk has data. The extents are those of the disk; where they say that it is zero,
    /// nothing else may be written.
    Planned(fn(Edge, &Making<'_>, &mut dyn Iterator<Item = Result<Extent>>) -> Result<Fresh>),
}

/// What an image is opened with.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// Those that the format declares.
    pub params: &'a Params,
    /// Whether it will be written. A format that cannot be, in place, opens for reading and says so in its abilities.
    pub write: bool,
    /// What opens the files that the image names.
    pub files: &'a dyn Files,
    /// The program's one context.
    pub context: &'a Context,
}

/// What an image is made with.
#[derive(Clone, Copy, Debug)]
pub struct Making<'a> {
    /// Bytes of the disk in it.
    pub size: u64,
    /// Those of `-o`, declared ones.
    pub options: &'a Params,
    /// `-c`: clusters are compressed where that is shorter.
    pub compress: bool,
    /// Whether the container reads as zeroes wherever nothing was written to it.
    pub zeroed: bool,
    /// Whether the image will be made durable: then what makes it an image is written only when all
    /// else is durable.
    pub durable: bool,
    /// What makes further files, and opens those that the options name.
    pub files: &'a dyn Files,
    /// The program's one context.
    pub context: &'a Context,
}

impl Making<'_> {
    /// What it lies over, in qemu-img's words; `format` is the only one that there may be, if it is.
    pub(crate) fn backing(&self, format: Option<&'static str>) -> Option<Reference<'_>> {
        let name = self.options.get("backing_file").filter(|name| !name.is_empty())?;
        let format = format.or(self.options.get("backing_fmt"));
        Some(Reference { name, role: Role::Backing, format })
    }
}

/// For a format whose images lie over nothing.
pub(crate) fn over_nothing<'a>(_: &'a Making<'_>) -> Option<Reference<'a>> {
    None
}

/// An image that is being made, to be filled.
pub struct Fresh {
    /// The disk in it.
    pub disk: Arc<dyn Device>,
    /// Whether it reads as zeroes until it is written. Over a backing image it does not.
    pub is_zero: bool,
}

impl std::fmt::Debug for Fresh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fresh({}, {})", self.disk.info().name, self.is_zero)
    }
}

/// How large an image would be, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Measure {
    /// With what is data now.
    pub required: u64,
    /// With data everywhere.
    pub fully_allocated: u64,
}

/// What a check found. Numbers as `qemu-img check` prints them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Findings {
    /// What is wrong: a reader may get other bytes than were written. A line each, at most 100.
    pub corruptions: Vec<String>,
    /// How many there are.
    pub corruption_count: u64,
    /// Clusters that nothing refers to: room is lost, and nothing else.
    pub leaks: u64,
    /// What could not be looked at.
    pub check_errors: u64,
    /// Clusters of the disk.
    pub total_clusters: u64,
    /// Of these, those that are in the container.
    pub allocated_clusters: u64,
    /// Of these, those that do not follow the one before.
    pub fragmented_clusters: u64,
    /// Of these, those that are compressed.
    pub compressed_clusters: u64,
    /// Where the image ends in the container, in bytes.
    pub image_end: u64,
}

impl Findings {
    /// Lines that are kept of what is wrong.
    pub(crate) const LINES: usize = 100;

    /// Counts one more thing that is wrong.
    pub(crate) fn wrong(&mut self, line: String) {
        self.corruption_count += 1;
        if self.corruptions.len() < Self::LINES {
            self.corruptions.push(line);
        }
    }
}
