//! The interface of a format: how it is recognised, opened, described, made, measured and checked.

use std::sync::Arc;

use device::{Device, Edge, Extent, Param, Params, Result};
use runtime::Context;

use crate::{Description, Files, Head, Reference, Role, StoredBitmap};

/// The map of a disk: its extents, in order.
pub type DiskMap<'a> = &'a mut dyn Iterator<Item = Result<Extent>>;

/// Opens the disk in a container.
pub type ImageOpener = fn(Edge, &Opening<'_>) -> Result<Arc<dyn Device>>;

/// The bytes of a disk that gets another size, given those that it has.
pub type NewSize<'a> = &'a dyn Fn(u64) -> Result<u64>;

/// Gives the disk in an image another size.
pub type ImageResizer = fn(Edge, &Opening<'_>, NewSize<'_>, NewRoom) -> Result<()>;

/// Changes the internal snapshots of the image in a container.
pub type SnapshotKeeper = fn(Edge, &Opening<'_>, SnapshotChange<'_>) -> Result<()>;

/// Gives an image other options.
pub type ImageAmender = fn(Edge, &Opening<'_>, &Params) -> Result<()>;

/// Repairs the image in a container.
pub type Repairer = fn(Edge, &Opening<'_>, Repair) -> Result<Repaired>;

/// Changes one of the dirty bitmaps of the image in a container: all of it, in this order, or
/// nothing.
pub type BitmapKeeper = fn(Edge, &Opening<'_>, &str, &[BitmapChange<'_>]) -> Result<()>;

/// What only holds a disk or an image. An archive may be in a stream; nothing else is in another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PackingKind {
    /// A compressed stream.
    Stream,
    /// Files, of which one is the disk.
    Archive,
    /// The same in a directory, which is known by a file of this name.
    Directory(&'static str),
}

impl PackingKind {
    /// Whether it holds files.
    #[must_use]
    pub fn has_files(self) -> bool {
        !matches!(self, Self::Stream)
    }
}

/// A kind of image.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The word that names it, as qemu-img's `-f` has it: `qcow2`.
    pub word: &'static str,
    /// One line on what it is.
    pub summary: &'static str,
    /// Whether the bytes of the container are the disk itself.
    pub is_plain: bool,
    /// The disk in it may be an image again.
    pub packing: Option<PackingKind>,
    /// The parameters for opening it, for example `snapshot`.
    pub params: &'static [Param],
    /// Whether these are the first and last bytes of one. This is a guess, for reading only, and is
    /// reported as one.
    pub recognises: fn(&Head) -> bool,
    /// The disk in a container. It may ask the gate for what the image names.
    pub open: ImageOpener,
    /// Describes an image. Reads only the container, and only the heads of its tables: bounded in
    /// bytes and in time for any input.
    pub describe: fn(&Edge, &Context) -> Result<Description>,
    /// The same disk, to be written where it lies, if the format can be: its container may be
    /// written and excludes other writers. An image that cannot be written as it is (it is corrupt,
    /// or has a feature that this program does not keep up to date) is refused before anything is
    /// changed, as [`ReadOnly`](device::ErrorKind::ReadOnly).
    pub write: Option<ImageOpener>,
    /// How to make one, if that is possible.
    pub create: Option<Creator>,
    /// Checks its metadata, if the format can. Changes nothing.
    pub check: Option<fn(&Edge, &Context) -> Result<Findings>>,
    /// What verbs change in one where it lies.
    pub upkeep: Upkeep,
}

/// What verbs change in an image where it lies, besides its bytes: each if the format can. They get
/// a container that may be written and excludes other writers. Whenever they are stopped, the image
/// opens, and is what it was or what it was to be; at most room is lost.
#[derive(Clone, Copy, Debug)]
pub struct Upkeep {
    /// Gives the disk another size. New bytes read as zeroes.
    pub resize: Option<ImageResizer>,
    /// Changes its internal snapshots.
    pub snapshot: Option<SnapshotKeeper>,
    /// Puts an overlay over another backing image.
    pub rebase: Option<Rebase>,
    /// Gives up all that an overlay holds: it reads as what is below it.
    pub empty: Option<fn(Edge, &Opening<'_>) -> Result<()>>,
    /// Changes options with which it was made: those in `amended`.
    pub amend: Option<ImageAmender>,
    /// Of `-o`.
    pub amended: &'static [Param],
    /// Repairs its metadata.
    pub repair: Option<Repairer>,
    /// Changes its dirty bitmaps.
    pub bitmap: Option<BitmapKeeper>,
}

impl Upkeep {
    /// For a format that can do none of it.
    pub const NONE: Self = Self {
        resize: None,
        snapshot: None,
        rebase: None,
        empty: None,
        amend: None,
        amended: &[],
        repair: None,
        bitmap: None,
    };
}

/// The room that an image has for new bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum NewRoom {
    /// None, before they are written.
    #[default]
    None,
    /// A place for each.
    Tables,
    /// A place, where zeroes are written.
    Written,
}

/// What is done with a dirty bitmap.
#[derive(Clone, Copy, Debug)]
pub enum BitmapChange<'a> {
    /// It is made: enabled, and with nothing set. So many bytes are a bit, or as QEMU chooses.
    Add(Option<u64>),
    /// It is removed.
    Remove,
    /// Nothing in it is set any more.
    Clear,
    /// From now on it is kept true.
    Enable,
    /// From now on it stays as it is.
    Disable,
    /// What is set in the one of this name is set in it, too: in the same image, or in that in
    /// another container.
    Merge(&'a str, Option<&'a Edge>),
}

/// What is done with internal snapshots.
#[derive(Clone, Copy, Debug)]
pub enum SnapshotChange<'a> {
    /// The disk as it is becomes a snapshot of this name. There may be others of the same name.
    Create(&'a str),
    /// The disk becomes what it was in a snapshot: that with this number, or else the first with
    /// this name.
    Apply(&'a str),
    /// The first with this name is deleted.
    Delete(&'a str),
}

/// The name of a backing image and its format; `None`: there is none.
pub type BackingName<'a> = Option<(&'a str, &'a str)>;

/// How to put an overlay over another backing image.
#[derive(Clone, Copy, Debug)]
pub struct Rebase {
    /// As [`Format::write`]; what is made zero stays so whatever will lie below, also if nothing
    /// does now.
    pub write: ImageOpener,
    /// The same; what is written is compressed, by whole clusters, where that makes it shorter.
    pub pack: ImageOpener,
    /// Refuses another name of the backing image, with its format, or none, where that cannot be
    /// written. Changes nothing.
    pub check: fn(&Edge, BackingName<'_>) -> Result<()>,
    /// Writes it, durably. The disk reads as what it holds itself, over that backing image.
    pub rename: fn(&Edge, BackingName<'_>) -> Result<()>,
}

/// How to make an image.
#[derive(Clone, Copy, Debug)]
pub struct Creator {
    /// `-o`: qemu-img's names and values, and our own.
    pub options: &'static [Param],
    /// The names of the other files that an image of this name and with these options may consist
    /// of, beside those that its options name.
    pub beside: Option<fn(&str, &Params) -> Vec<String>>,
    /// A new image in a container that is empty or may be overwritten, and that grows with writes
    /// ([`Device::resize`] sets its length). [`Device::finish`] writes last what makes it a valid
    /// image, and finishes the container too. What the extents of the disk call zero must stay zero
    /// in a container that takes every byte once, in ascending order: a pipe.
    pub open: fn(Edge, &Making<'_>, DiskMap<'_>) -> Result<Arc<dyn Device>>,
    /// The backing image that the options name. It is opened before anything existing is changed.
    pub over: for<'a> fn(&'a Making<'_>) -> Option<Reference<'a>>,
    /// Whether one can be written into a pipe ([`Order::Upwards`](device::Order::Upwards)).
    /// Otherwise it is made in a file, which is then copied into the pipe.
    pub piped: fn(&Making<'_>) -> Result<bool>,
    /// The options that would recreate an empty image as it is. An error says what the image holds,
    /// or what would be lost.
    pub remake: Option<fn(&Edge, &Context) -> Result<Params>>,
    /// Whether a new image without a backing image reads as zeroes until it is written. Otherwise
    /// it is not known what it reads as.
    pub reads_zero: bool,
    /// How large one would be, given the extents of its disk; none of them where there is no disk
    /// yet.
    pub measure: fn(&Making<'_>, DiskMap<'_>) -> Result<Measure>,
    /// How many more bytes these bitmaps of a disk of that size would take; `None` if a new image
    /// with these options can hold none.
    pub measure_bitmaps: fn(&Making<'_>, &[StoredBitmap]) -> Result<Option<u64>>,
}

/// For a format whose images hold no bitmaps.
pub(crate) fn no_bitmaps(_: &Making<'_>, _: &[StoredBitmap]) -> Result<Option<u64>> {
    Ok(None)
}

/// The parameters for opening an image.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The parameters that the format declares.
    pub params: &'a Params,
    /// The gate, which opens the files that the image names.
    pub files: &'a dyn Files,
    /// The program's one context.
    pub context: &'a Context,
}

/// The parameters for making an image.
#[derive(Clone, Copy, Debug)]
pub struct Making<'a> {
    /// Bytes of the disk in it.
    pub size: u64,
    /// The declared options of `-o`.
    pub options: &'a Params,
    /// `-c`: compress clusters if that makes them shorter.
    pub compress: bool,
    /// Whether unwritten ranges of the container read as zeroes.
    pub zeroed: bool,
    /// Whether the image will be made durable: then what makes it valid is written only after all
    /// else is durable.
    pub durable: bool,
    /// The gate, which creates further files, and opens those that the options name.
    pub files: &'a dyn Files,
    /// The program's one context.
    pub context: &'a Context,
}

impl Making<'_> {
    /// The backing image, in qemu-img's option names; `format` is the only format allowed, if
    /// given.
    pub(crate) fn backing(&self, format: Option<&'static str>) -> Option<Reference<'_>> {
        let name = self.options.get("backing_file").filter(|name| !name.is_empty())?;
        let format = format.or(self.options.get("backing_fmt"));
        Some(Reference { name, role: Role::Backing, format })
    }
}

/// For a format without backing images.
pub(crate) fn over_nothing<'a>(_: &'a Making<'_>) -> Option<Reference<'a>> {
    None
}

/// How large an image would be, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Measure {
    /// With the current data.
    pub required: u64,
    /// If all of it were data.
    pub fully_allocated: u64,
}

/// The result of a check, with the numbers that `qemu-img check` prints.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Findings {
    /// The corruptions, for which a reader may get wrong data. A line each, at most 100.
    pub corruptions: Vec<String>,
    /// The number of corruptions.
    pub corruption_count: u64,
    /// Clusters that nothing refers to: only space is lost.
    pub leaks: u64,
    /// The number of checks that failed.
    pub check_errors: u64,
    /// Clusters of the disk.
    pub total_clusters: u64,
    /// Of these, the allocated ones.
    pub allocated_clusters: u64,
    /// Of these, the fragmented ones: they do not follow the one before.
    pub fragmented_clusters: u64,
    /// Of these, the compressed ones.
    pub compressed_clusters: u64,
    /// Where the image ends in the container, in bytes.
    pub image_end: u64,
}

/// What is to be repaired.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Repair {
    /// Leaks, and what then is safe.
    Leaks,
    /// All that can be.
    All,
}

/// The result of a repair.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Repaired {
    /// What was found before.
    pub before: Findings,
    /// What is found now.
    pub now: Findings,
    /// Clusters that were freed.
    pub leaks_fixed: u64,
    /// Corruptions that are none any more.
    pub corruptions_fixed: u64,
}

impl Findings {
    /// The most corruptions to keep a line for.
    pub(crate) const LINES: usize = 100;

    /// Counts one more corruption.
    pub(crate) fn wrong(&mut self, line: String) {
        self.corruption_count += 1;
        if self.corruptions.len() < Self::LINES {
            self.corruptions.push(line);
        }
    }
}
