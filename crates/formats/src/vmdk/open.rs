//! An image, open: its extents in the order of the disk, and its parent.

use std::sync::Arc;

use device::{Abilities, BlockSizes, Device, Edge, Error, ErrorKind, Fault, Info, Result};
use runtime::Context;

use super::descriptor::{Descriptor, LONGEST, Line, LineKind, is_one};
use super::header::{self, FirstBytes, Layout, broken};
use super::map::{Kind, Map, Part};
use super::sparse::Sparse;
use crate::kit::Scattered;
use crate::{Files, Opening, Reference, Role};

/// The preferred length of reads, in whole grains, if grains are compressed.
const PREFERRED: u32 = 4096;

/// The kind of a container, before anything else is opened.
pub(super) struct Top {
    pub(super) descriptor: Descriptor,
    /// Its layout, if it is a sparse extent itself.
    pub(super) layout: Option<Layout>,
}

impl Top {
    /// Reads a container's header and descriptor.
    ///
    /// # Errors
    /// It is no such image, or broken; it cannot be read.
    pub(super) fn of(container: &Edge) -> Result<Self> {
        let size = container.info().size;
        match header::read(container)? {
            Some(FirstBytes::Sparse(layout)) => {
                let descriptor = match layout.descriptor {
                    Some(range) => read_descriptor(container, range)?,
                    None => Descriptor::none(),
                };
                if descriptor.extents.len() > 1 {
                    return Err(broken("it is one extent, and its descriptor names more"));
                }
                Ok(Self { descriptor, layout: Some(layout) })
            }
            Some(FirstBytes::Only(range)) => {
                let descriptor = read_descriptor(container, range)?.whole()?;
                Ok(Self { descriptor, layout: None })
            }
            None => {
                let range = (0, size.min(LONGEST + 1));
                let descriptor = read_descriptor(container, range)?.whole()?;
                Ok(Self { descriptor, layout: None })
            }
        }
    }

    /// Bytes of the disk.
    pub(super) fn size(&self) -> Result<u64> {
        if let Some(layout) = &self.layout {
            return Ok(layout.capacity);
        }
        let mut lens = self.descriptor.extents.iter().map(|line| line.len);
        let size = lens.try_fold(0u64, u64::checked_add);
        let size = size.filter(|size| i64::try_from(*size).is_ok());
        size.ok_or_else(|| broken("the disk is too large"))
    }

    /// Its name in qemu-img.
    pub(super) fn create_type(&self) -> &str {
        match &self.layout {
            Some(layout) if layout.packed => "streamOptimized",
            Some(_) => "monolithicSparse",
            None => self.descriptor.create_type.as_deref().unwrap_or_default(),
        }
    }
}

/// Reads a descriptor that is in a range of a container.
fn read_descriptor(container: &Edge, (at, len): (u64, u64)) -> Result<Descriptor> {
    let size = container.info().size;
    if len > LONGEST || size.checked_sub(at).is_none_or(|after| len > after) {
        return Err(broken(format!("a descriptor of {len} bytes")).at(at));
    }
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    container.read(&mut bytes, at)?;
    if !is_one(&bytes) {
        return Err(Error::unfit(
            "it is not a vmdk image: it has neither a header nor a descriptor",
        ));
    }
    Descriptor::parse(&bytes)
}

/// Opens an image for reading.
///
/// # Errors
/// It is broken; a file that it names cannot or may not be opened; its parent has changed.
pub(super) fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let top = Top::of(&container)?;
    let size = top.size()?;
    let backing = parent(&top.descriptor, opening.files)?;
    let name = container.info().name.clone();
    let parts = match top.layout {
        Some(layout) => {
            let end = layout.capacity;
            let sparse = Box::new(Sparse::new(layout, container, opening.context));
            vec![Part { start: 0, end, kind: Kind::Sparse(sparse, 0) }]
        }
        None => open_parts(&top.descriptor.extents, opening, false)?,
    };
    let info = info(name, size, &parts, backing.is_some());
    Ok(Scattered::device(info, opening.context, backing, Map { parts, written: None }))
}

pub(super) fn info(name: String, size: u64, parts: &[Part], has_parent: bool) -> Info {
    let packed = parts.iter().filter_map(|part| match &part.kind {
        Kind::Sparse(sparse, _) if sparse.layout.packed => Some(sparse.layout.grain),
        _ => None,
    });
    let preferred = packed.max().and_then(|grain| u32::try_from(grain).ok()).unwrap_or(PREFERRED);
    let blocks = BlockSizes { preferred: preferred.max(PREFERRED), ..BlockSizes::ANY };
    // One flat file, used from start to end.
    let flat = match parts {
        [Part { kind: Kind::Flat(file, _, offset), .. }] if !has_parent => {
            file.info().flat.as_ref().map(|place| place.advanced(*offset))
        }
        _ => None,
    };
    let abilities = Abilities { extents: true, ..Abilities::READ };
    Info { blocks, abilities, flat, ..Info::new(name, size) }
}

/// The extents that a descriptor names, each file opened once.
pub(super) fn open_parts(lines: &[Line], opening: &Opening<'_>, write: bool) -> Result<Vec<Part>> {
    let mut opened: Vec<(&Line, Edge)> = Vec::new();
    let (mut parts, mut start) = (Vec::new(), 0u64);
    for line in lines {
        let end = start.saturating_add(line.len);
        let known = opened.iter().position(|(other, _)| {
            other.name == line.name && other.kind.is_flat() && line.kind.is_flat()
        });
        let kind = if line.kind == LineKind::Zero {
            Kind::Zero
        } else {
            let at = match known {
                Some(at) => at,
                None => {
                    opened.push((line, open_file(line, opening.files, write)?));
                    opened.len() - 1
                }
            };
            let number = u16::try_from(at + 1).unwrap_or(u16::MAX);
            let file = opened.get(at).map(|(_, file)| file.clone());
            let file = file.ok_or_else(|| broken("an extent"))?;
            part(line, file, number, opening.context).map_err(|e| e.on(&line.name))?
        };
        parts.push(Part { start, end, kind });
        start = end;
    }
    Ok(parts)
}

fn open_file(line: &Line, files: &dyn Files, write: bool) -> Result<Edge> {
    let role = if line.kind.is_flat() { Role::Data } else { Role::Part };
    let reference = Reference { name: &line.name, role, format: None };
    if !write {
        return files.open(&reference);
    }
    files.open_to_write(&reference).map_err(|e| match e.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnly => {
            let action = "cannot be written: one of its extents cannot";
            Error::new(ErrorKind::ReadOnly, Fault::User, action).with_source(e)
        }
        _ => e,
    })
}

fn part(line: &Line, file: Edge, number: u16, context: &Context) -> Result<Kind> {
    if line.kind.is_flat() {
        let size = file.info().size;
        if size.checked_sub(line.offset).is_none_or(|after| line.len > after) {
            let action = format!(
                "the extent has {} bytes from {} on; the file has {size}",
                line.len, line.offset
            );
            return Err(broken(action));
        }
        return Ok(Kind::Flat(file, number, line.offset));
    }
    let Some(FirstBytes::Sparse(layout)) = header::read(&file)? else {
        return Err(broken(format!("it is not a {} extent", line.kind.word())));
    };
    // Its last grain may reach beyond the disk.
    let longest = line.len.checked_next_multiple_of(layout.grain).unwrap_or(u64::MAX);
    if !(line.len..=longest).contains(&layout.capacity) {
        let action =
            format!("the extent has {} bytes, and its header says {}", line.len, layout.capacity);
        return Err(broken(action));
    }
    Ok(Kind::Sparse(Box::new(Sparse::new(layout, file, context)), number))
}

/// The parent, which must not have changed since the image was made over it.
pub(super) fn parent(descriptor: &Descriptor, files: &dyn Files) -> Result<Option<Edge>> {
    let Some(name) = descriptor.parent()? else { return Ok(None) };
    let cid = parent_cid(name, files)?;
    if cid != descriptor.parent_cid {
        let action = format!(
            "its parent `{}` was changed since: its number is {cid:08x}, and was {:08x}",
            device::text::shown(name),
            descriptor.parent_cid
        );
        return Err(Error::unfit(action));
    }
    files.open(&Reference { name, role: Role::Backing, format: Some("vmdk") }).map(Some)
}

/// The content ID of an image.
pub(super) fn parent_cid(name: &str, files: &dyn Files) -> Result<u32> {
    let container = files.open(&Reference { name, role: Role::Part, format: None })?;
    Ok(Top::of(&container).map_err(|e| e.on(name))?.descriptor.cid)
}
