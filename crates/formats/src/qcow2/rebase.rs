//! Another backing image for an overlay: its name and its format in the header.
//!
//! What the header says is in its first sector, and what that leads to behind it. So the bytes
//! behind it are written first, where nothing old is, and then that sector, at once: at every
//! moment the image has either name, with its format. Extensions stay as they are. Only the names
//! of features, which nothing needs, are dropped where they would have to move.

use std::ops::Range;

use device::{Edge, Error, ErrorKind, Fault, Result, text};

use super::header::{BACKING_NAME_MAX, Header, extension, incompatible};
use super::{corrupt, open};
use crate::Rebase;
use crate::kit::container::Container;
use crate::kit::numbers::{be32, be64};

pub(super) const REBASE: Rebase = Rebase {
    write: open::open_to_rebase,
    pack: open::open_to_pack,
    check: |container, backing| plan(container, backing).map(drop),
    rename,
};

/// What a disk writes at once, or not at all.
const SECTOR: usize = 512;
/// Where the header has the offset of the name, and after it its length.
const NAME_AT: usize = 8;

/// The first cluster, as it is and as it is to be.
struct Plan {
    new: Vec<u8>,
    /// What of `new` is used.
    used: Vec<Range<usize>>,
    /// Where the last used byte is, or was.
    end: usize,
}

fn rename(container: &Edge, backing: Option<(&str, &str)>) -> Result<()> {
    // It may have grown since it was opened, and its tables are where it has.
    let (_, container) = Container::open(container.clone());
    let Plan { new, used, end } = plan(&container, backing)?;
    let (first, _) = new.split_at_checked(SECTOR).ok_or_else(short)?;
    for range in used {
        let range = range.start.max(SECTOR)..range.end;
        if !range.is_empty() {
            container.write(
                new.get(range.clone()).ok_or_else(short)?,
                range.start as u64,
                false,
            )?;
        }
    }
    container.flush()?;
    container.write(first, 0, false)?;
    container.flush()?;
    // Nothing of the old name stays.
    if let Some(rest) = new.get(SECTOR..end) {
        container.write(rest, SECTOR as u64, false)?;
        container.flush()?;
    }
    Ok(())
}

fn plan(container: &Edge, backing: Option<(&str, &str)>) -> Result<Plan> {
    let header = open::header(container)?;
    if header.has(incompatible::CORRUPT) {
        let action =
            "cannot be written: it is marked as corrupt; `qemu-img check -r all` repairs it";
        return Err(Error::new(ErrorKind::ReadOnly, Fault::File, action));
    }
    if backing.is_some() && header.is_data_file_raw() {
        let action = "has a data file that is a disk of its own, and so no backing image";
        return Err(Error::unsupported(action));
    }
    let mut old = vec![0; 1 << header.cluster_bits];
    let there = usize::try_from(container.info().size).unwrap_or(usize::MAX).min(old.len());
    container.read(old.get_mut(..there).ok_or_else(short)?, 0)?;
    let name = backing.map(|(name, _)| bytes_of(name)).unwrap_or_default();
    if name.len() as u64 > u64::from(BACKING_NAME_MAX) {
        let action = format!("name a backing image in more than {BACKING_NAME_MAX} bytes");
        return Err(Error::invalid(action));
    }
    let known = Known::read(&old, &header)?;
    let format = backing.map(|(_, format)| format);
    let plans = [true, false].into_iter().find_map(|all| known.plan(&old, format, &name, all));
    plans.ok_or_else(|| {
        let action = format!(
            "there is no space for the name of the backing image ({} bytes) in the first cluster; \
             choose a shorter name",
            name.len()
        );
        Error::invalid(action)
    })
}

/// What the first cluster has besides the header itself.
struct Known {
    /// Bytes of the header.
    length: usize,
    /// In their order: kind and bytes.
    extensions: Vec<(u32, Vec<u8>)>,
    /// Where they are, and the name, as far as they are behind the first sector.
    old: [Range<usize>; 2],
}

impl Known {
    fn read(cluster: &[u8], header: &Header) -> Result<Self> {
        let length = usize::try_from(header.length).map_err(|_| short())?;
        let (at, len) = be64(cluster, NAME_AT).zip(be32(cluster, NAME_AT + 8)).ok_or_else(short)?;
        let at = usize::try_from(at).map_err(|_| short())?;
        let end = if at == 0 { cluster.len() } else { at };
        let name =
            if at == 0 { 0..0 } else { at..at + usize::try_from(len).map_err(|_| short())? };
        let mut rest = cluster.get(length..end).ok_or_else(short)?;
        let (mut extensions, mut last) = (Vec::new(), length);
        while let (Some(kind), Some(len)) = (be32(rest, 0), be32(rest, 4)) {
            last += 8;
            if kind == extension::END {
                break;
            }
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let bytes = rest.get(8..).and_then(|rest| rest.get(..len)).ok_or_else(short)?;
            extensions.push((kind, bytes.to_vec()));
            last += len.next_multiple_of(8);
            rest = rest.get(8 + len.next_multiple_of(8)..).unwrap_or(&[]);
        }
        let behind = |range: Range<usize>| range.start.max(SECTOR)..range.end.max(SECTOR);
        Ok(Self { length, extensions, old: [behind(length..last.min(end)), behind(name)] })
    }

    /// Whether this can be written before the first sector is: there is nothing old, or the same.
    fn is_free(&self, cluster: &[u8], at: usize, bytes: &[u8]) -> bool {
        let Some(there) = cluster.get(at..).and_then(|rest| rest.get(..bytes.len())) else {
            return false;
        };
        let meets = |at: &usize| self.old.iter().any(|old| old.contains(at));
        (at..).zip(there.iter().zip(bytes)).all(|(at, (old, new))| old == new || !meets(&at))
    }

    /// With all extensions, or without the names of features; `None`: it cannot be written so.
    fn plan(&self, old: &[u8], format: Option<&str>, name: &[u8], all: bool) -> Option<Plan> {
        let mut area = Vec::new();
        let mut add = |kind: u32, data: &[u8]| {
            area.extend(kind.to_be_bytes());
            area.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
            area.extend(data);
            area.resize(area.len().next_multiple_of(8), 0);
        };
        if let Some(format) = format {
            add(extension::BACKING_FORMAT, format.as_bytes());
        }
        let stays = |kind: u32| {
            kind != extension::BACKING_FORMAT && (all || kind != extension::FEATURE_NAMES)
        };
        self.extensions.iter().filter(|(kind, _)| stays(*kind)).for_each(|(k, data)| add(*k, data));
        add(extension::END, &[]);
        let end = self.length + area.len();
        let behind_all = self.old.iter().map(|old| old.end).fold(end, usize::max);
        let places = [end, behind_all.next_multiple_of(8)];
        let is_free = |at: usize| self.is_free(old, at, name);
        let at = places.into_iter().find(|at| is_free(*at))?;
        if !self.is_free(old, self.length, &area) {
            return None;
        }
        // What is no longer used is zero.
        let mut new = vec![0; old.len()];
        let mut put = |at: usize, bytes: &[u8]| {
            new.get_mut(at..)?.get_mut(..bytes.len())?.copy_from_slice(bytes);
            Some(())
        };
        put(0, old.get(..self.length)?)?;
        put(self.length, &area)?;
        put(at, name)?;
        let offset = if name.is_empty() { 0 } else { at as u64 };
        put(NAME_AT, &offset.to_be_bytes())?;
        put(NAME_AT + 8, &u32::try_from(name.len()).ok()?.to_be_bytes())?;
        let used = vec![self.length..end, at..at + name.len()];
        Some(Plan { new, used, end: behind_all.max(at + name.len()).min(old.len()) })
    }
}

fn short() -> Error {
    corrupt("the header is cut off")
}

/// A name as on the file system: it may have bytes that are not UTF-8.
fn bytes_of(name: &str) -> Vec<u8> {
    std::os::unix::ffi::OsStringExt::into_vec(text::path(name).into_os_string())
}
