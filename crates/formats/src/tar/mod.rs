//! Archives of tar: a file in one is the disk, or an image of it. An OVA is one, and so is a layer
//! of a container image with a disk (KubeVirt's containerDisk).
//!
//! Opening walks the archive from header to header, and takes the first file of the name that is
//! asked for; without a name the only one that is a disk, by its ending or because it lies in
//! `/disk`. It checks a header before using it: its checksum, its numbers, and that the file lies
//! in the archive. It refuses compressed archives and files that are stored sparse.

mod header;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use device::{Edge, Error, ErrorKind, Fault, Result, param, part, text};

use runtime::to_usize;

use crate::format::{Format, PackingKind, Upkeep};
use crate::{Description, Head};
use header::{Attributes, BLOCK, Header, Type, goes_on};

pub(crate) const FORMAT: Format = Format {
    word: "tar",
    summary: "an archive with a disk or an image in it: an OVA",
    is_plain: false,
    packing: Some(PackingKind::Archive),
    params: &[
        param("entry", "PATH", "which file, named as `tar tf` lists it (the only disk in it)"),
        param("inside", "FORMAT", "what that file is: a format, or `raw` (raw)"),
    ],
    recognises: |head: &Head| head.first().first_chunk().is_some_and(|b| member(b).is_some()),
    open: |container, opening| {
        let entry = opening.params.get("entry").filter(|name| !name.is_empty());
        let search = TarSearch { entry, headers: OF_IMAGE, ..TarSearch::default() };
        let (start, len) = find_in_tar(&container, &search)?;
        part(container, start, len)
    },
    describe: |container, _| {
        let search = TarSearch { headers: OF_IMAGE, ..TarSearch::default() };
        let (_, virtual_size) = find_in_tar(container, &search)?;
        Ok(Description { virtual_size, ..Description::default() })
    },
    write: None,
    create: None,
    check: None,
    upkeep: Upkeep::NONE,
};

/// What is looked for in an archive.
#[derive(Clone, Copy, Debug)]
pub struct TarSearch<'a> {
    /// The name of the file; `None`: the only disk.
    pub entry: Option<&'a str>,
    /// The parameter that names it, for messages.
    pub key: &'static str,
    /// Nothing beyond this byte is read.
    pub limit: Option<u64>,
    /// The most headers to read.
    pub headers: u64,
}

impl Default for TarSearch<'_> {
    fn default() -> Self {
        Self { entry: None, key: "entry", limit: None, headers: HEADERS }
    }
}

/// Endings of files that are disks.
const ENDINGS: [&str; 8] = ["img", "qcow2", "raw", "vdi", "vhd", "vhdx", "vmdk", "vpc"];
/// Disks of an archive that a message names.
const NAMED: usize = 8;
/// Bytes to read at a time.
const PIECE: u64 = 64 << 10;
/// The most headers to read.
const HEADERS: u64 = 1 << 22;
/// The same of an archive that is taken for an image: it is to be known soon that it is none.
const OF_IMAGE: u64 = 4096;
/// The directory in which a containerDisk has its disk, whatever that is called.
const CONTAINED: &[u8] = b"disk";
/// Files that a layer removes from there, at most.
const REMOVED: usize = 4096;
/// The most blocks that list the pieces of one sparse file.
const LISTS: u64 = 1 << 20;
/// The longest name, or list of what is said of a file, in bytes.
const LONGEST: u64 = 1 << 20;

/// The place of the file: start and length.
///
/// # Errors
/// It is no archive, is damaged or cannot be read; or there is no such file, or more than one disk
/// where none is named.
pub fn find_in_tar(below: &Edge, search: &TarSearch<'_>) -> Result<(u64, u64)> {
    let limit = search.limit.unwrap_or(u64::MAX);
    let (headers, piece) = (search.headers, Vec::new());
    let mut archive = Archive { below, limit, headers, piece, from: 0 };
    let Some(wanted) = search.entry else { return archive.only_disk(search.key) };
    let found = archive.find(text::path(wanted).as_os_str())?;
    found.ok_or_else(|| {
        Error::unfit(format!(
            "there is no file `{}` in the archive; `tar tf` lists them",
            text::shown(wanted)
        ))
    })
}

/// Where the disk of a container image is, as far as one layer tells.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ContainedDisk {
    /// Start and length.
    At(u64, u64),
    /// Not in this layer.
    None,
    /// It is in no layer, for this one hides what is below.
    Ends,
}

/// Looks for the disk in one layer of a container image, given the names of what layers above it
/// have removed: the file `entry`, or the only one in `/disk`.
///
/// # Errors
/// It is no archive, is damaged or cannot be read; or there are several.
pub(crate) fn contained(
    below: &Edge,
    entry: Option<&str>,
    headers: u64,
    gone: &mut HashSet<Vec<u8>>,
) -> Result<ContainedDisk> {
    let mut archive = Archive { below, limit: u64::MAX, headers, piece: Vec::new(), from: 0 };
    if let Some(entry) = entry {
        let found = archive.find(text::path(entry).as_os_str())?;
        return Ok(found.map_or(ContainedDisk::None, |(start, len)| ContainedDisk::At(start, len)));
    }
    let (mut found, mut ends) = (Vec::<Vec<u8>>::new(), false);
    let mut removed = Vec::new();
    archive.walk(&mut |name| {
        match in_disk(name) {
            Some(b".wh..wh..opq") => ends = true,
            Some(file) => match file.strip_prefix(b".wh.") {
                Some(file) => removed.push(file.to_owned()),
                None if !gone.contains(file) && !found.iter().any(|known| known == name) => {
                    found.push(name.to_owned());
                }
                None => {}
            },
            None => ends |= parts(name).eq([&b".wh.disk"[..]]),
        }
        if found.len() > NAMED || removed.len() > REMOVED { Look::End } else { Look::On }
    })?;
    if removed.len() > REMOVED {
        let action = format!("a layer removes more than {REMOVED} files from /disk");
        return Err(Error::new(ErrorKind::Limit, Fault::File, action));
    }
    gone.extend(removed);
    match &*found {
        [] if ends => Ok(ContainedDisk::Ends),
        [] => Ok(ContainedDisk::None),
        [only] => match archive.find(OsStr::from_bytes(only))? {
            Some((start, len)) => Ok(ContainedDisk::At(start, len)),
            None => Err(broken("changed while it was read")),
        },
        several => Err(several_disks("entry", several)),
    }
}

/// What is done after a file was seen.
enum Look {
    On,
    Take,
    End,
}

/// The parts of a path.
fn parts(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b"."))
}

/// The name of a file that lies in the directory of a containerDisk.
fn in_disk(name: &[u8]) -> Option<&[u8]> {
    let mut parts = parts(name);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(CONTAINED), Some(file), None) => Some(file),
        _ => None,
    }
}

/// Which of several disks is meant is for the parameter `key`.
fn several_disks(key: &str, disks: &[Vec<u8>]) -> Error {
    let shown = |name: &Vec<u8>| {
        let name = String::from_utf8_lossy(name).into_owned();
        format!("`{}`", text::shown(&name))
    };
    let names: Vec<_> = disks.iter().take(NAMED).map(shown).collect();
    let more = if disks.len() > NAMED { " and others" } else { "" };
    Error::invalid(format!(
        "the archive has several disks; {key}= names one of {}{more}",
        names.join(", ")
    ))
}

/// Whether a file is a disk, by its ending or its directory.
fn is_disk(name: &[u8]) -> bool {
    if let Some(file) = in_disk(name) {
        // What marks in a layer that a file of another one is gone is no disk.
        return !file.starts_with(b".wh.");
    }
    let last = name.rsplit(|b| *b == b'/').next().unwrap_or_default();
    let dot = last.iter().rposition(|b| *b == b'.');
    let ending = dot.and_then(|dot| last.get(dot + 1..)).unwrap_or_default();
    ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known.as_bytes()))
}

/// A walk from header to header of an archive.
struct Archive<'a> {
    below: &'a Edge,
    /// Nothing beyond this is read.
    limit: u64,
    /// The most headers to read.
    headers: u64,
    /// The bytes read last, and their offset.
    piece: Vec<u8>,
    from: u64,
}

impl Archive<'_> {
    /// The first file of this name.
    fn find(&mut self, wanted: &OsStr) -> Result<Option<(u64, u64)>> {
        self.walk(&mut |name| if name == wanted.as_bytes() { Look::Take } else { Look::On })
    }

    /// The only file that is a disk. The parameter `key` names one of several.
    fn only_disk(&mut self, key: &str) -> Result<(u64, u64)> {
        let mut disks: Vec<Vec<u8>> = Vec::new();
        self.walk(&mut |name| {
            if is_disk(name) && !disks.iter().any(|other| *other == name) {
                disks.push(name.to_owned());
            }
            // One too many is enough to say that.
            if disks.len() > NAMED { Look::End } else { Look::On }
        })?;
        match &*disks {
            [only] => {
                let found = self.find(OsStr::from_bytes(only))?;
                found.ok_or_else(|| broken("changed while it was read"))
            }
            [] => Err(Error::unfit(format!(
                "the archive has no file that is a disk by its ending; {key}= names one, `tar tf` lists them"
            ))),
            several => Err(several_disks(key, several)),
        }
    }

    /// Goes from file to file until `look` ends that: the place of the one that it takes.
    fn walk(&mut self, look: &mut dyn FnMut(&[u8]) -> Look) -> Result<Option<(u64, u64)>> {
        let (mut at, mut said) = (0, Attributes::default());
        for _ in 0..self.headers {
            let Some(block) = self.block(at)? else { return Ok(None) };
            let Some(header) = Header::parse(&block).map_err(|why| broken(why).at(at))? else {
                // A block of zeroes is the end.
                return Ok(None);
            };
            let start = self.contents(at, &header)?;
            let stored = header.stored(&said);
            let room = self.below.info().size - start;
            if stored > room {
                let why = format!("has a file of {stored} bytes where {room} are left");
                return Err(broken(&why).at(at));
            }
            match header.kind {
                Type::LongName => said.name = Some(self.long_name(start, stored)?),
                Type::Described => {
                    let text = self.text(start, stored)?;
                    said.read(&text).map_err(|why| broken(why).at(start))?;
                }
                Type::Bare | Type::DescribesAll | Type::Other => {}
                Type::File | Type::Sparse | Type::Link => {
                    let name = said.name.as_deref().unwrap_or(&header.name);
                    match look(name) {
                        Look::On => {}
                        Look::Take => {
                            return header.is_plain(&said).map(|()| Some((start, stored)));
                        }
                        Look::End => return Ok(None),
                    }
                }
            }
            if !matches!(header.kind, Type::LongName | Type::Described | Type::DescribesAll) {
                said = Attributes::default();
            }
            // It cannot overflow: it lies in the archive, whose size is below 2^63.
            at = start + stored.next_multiple_of(BLOCK);
        }
        Err(Error::new(
            ErrorKind::Limit,
            Fault::File,
            format!("the archive has more than {} headers", self.headers),
        ))
    }

    /// Where the contents begin that belong to the header at `at`.
    fn contents(&mut self, at: u64, header: &Header) -> Result<u64> {
        let (mut start, mut more) = (at + BLOCK, header.is_continued);
        for _ in 0..LISTS {
            if !more {
                return Ok(start);
            }
            let block = self.block(start)?.ok_or_else(|| broken("ends early").at(start))?;
            more = goes_on(&block);
            start += BLOCK;
        }
        Err(broken("has a sparse file of too many pieces").at(at))
    }

    /// The block at `at`; `None` at the end of the archive.
    fn block(&mut self, at: u64) -> Result<Option<[u8; 512]>> {
        let size = self.below.info().size;
        if at >= size || size - at < BLOCK {
            return Ok(None);
        }
        if at >= self.limit || self.limit - at < BLOCK {
            let action =
                format!("the file is not within the first {} bytes (tar-limit)", self.limit);
            return Err(Error::new(ErrorKind::Limit, Fault::User, action));
        }
        let known = |me: &Self| {
            let from = to_usize(at.checked_sub(me.from)?);
            me.piece.get(from..from.checked_add(512)?)?.try_into().ok()
        };
        if let Some(block) = known(self) {
            return Ok(Some(block));
        }
        let len = PIECE.min(size - at).min(self.limit - at);
        self.piece = self.read(at, len)?;
        self.from = at;
        known(self).map(Some).ok_or_else(|| broken("ends early").at(at))
    }

    fn read(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; to_usize(len)];
        let read = self.below.read(&mut bytes, at);
        read.map_err(|e| Error::unfit("read the archive").at(at).with_source(e))?;
        Ok(bytes)
    }

    /// The contents between two headers, as a whole.
    fn text(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        if len > LONGEST || at.saturating_add(len) > self.limit {
            let action = format!("{len} bytes that describe a file are too many");
            return Err(Error::new(ErrorKind::Limit, Fault::File, action).at(at));
        }
        self.read(at, len)
    }

    /// The name of the next file, if it is too long for its header.
    fn long_name(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        let mut name = self.text(at, len)?;
        let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        name.truncate(end);
        Ok(name)
    }
}

/// The name of a member of an archive, and how many bytes of contents follow, if `block` is its
/// header, and one of POSIX's kinds or GNU's.
#[must_use]
pub fn member(block: &[u8; 512]) -> Option<(Vec<u8>, u64)> {
    let header = Header::parse(block).ok()??;
    let stored = header.stored(&Attributes::default());
    (block.get(257..262) == Some(b"ustar")).then_some((header.name, stored))
}

/// It is no archive, or is damaged.
fn broken(what: &str) -> Error {
    Error::unfit(format!("the tar archive {what}"))
}
