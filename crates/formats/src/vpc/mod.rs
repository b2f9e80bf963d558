//! VHD, which QEMU calls vpc: the disks of Virtual PC, Hyper-V before 2012, Xen and Azure.
//!
//! All numbers are big-endian. Reads fixed, dynamic and differencing images (the parent through the
//! gate), makes fixed and dynamic ones, and writes them where they lie. How large a disk is depends
//! on the creator: see [`header`].

mod create;
mod header;
mod map;
mod parent;
#[cfg(test)]
mod tests;
mod write;

use std::sync::Arc;

use device::{Device, Edge, Result, param};
use runtime::Context;

use crate::kit::fields::lies_inside;
use crate::kit::{Scattered, disk_info};
use crate::{Creator, Description, Format, NamedFile, Opening, Upkeep};

use header::{Dynamic, Footer, Kind};
use map::{Map, Whole};

pub(crate) const FORMAT: Format = Format {
    word: "vpc",
    summary: "VHD, the disk image of Virtual PC, Hyper-V and Azure",
    is_plain: false,
    packing: None,
    params: &[],
    recognises: header::recognises,
    open,
    describe,
    write: Some(write::open),
    create: Some(Creator {
        beside: None,
        options: &[
            param("subformat", "dynamic|fixed", "whether room is taken as it is needed (dynamic)"),
            param("force_size", "on|off", "the size as it is, not rounded up to cylinders (off)"),
        ],
        open: create::open,
        over: crate::format::over_nothing,
        piped: |_| Ok(false),
        remake: None,
        reads_zero: true,
        measure: create::measure,
        measure_bitmaps: crate::format::no_bitmaps,
    }),
    check: None,
    upkeep: Upkeep::NONE,
};

fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let footer = Footer::read(&container)?;
    if footer.kind == Kind::Fixed {
        lies_inside(&container, "disk", 0, footer.size)?;
        let mut info = disk_info(&container, footer.size);
        if !container.info().abilities.observed {
            info.flat = container.info().flat.clone();
        }
        return Ok(Scattered::device(
            info,
            opening.context,
            None,
            Whole { container, written: None },
        ));
    }
    let dynamic = Dynamic::read(&container, &footer)?;
    let backing = match footer.kind {
        Kind::Differencing => Some(parent::open(&container, &dynamic, opening.files)?),
        Kind::Fixed | Kind::Dynamic => None,
    };
    let map = Map::new((&container, opening.context), dynamic, footer.kind)?;
    let info = disk_info(&container, footer.size);
    Ok(Scattered::device(info, opening.context, backing, map))
}

fn describe(container: &Edge, _: &Context) -> Result<Description> {
    let footer = Footer::read(container)?;
    let mut told = Description { virtual_size: footer.size, ..Description::default() };
    if footer.kind != Kind::Fixed {
        let dynamic = Dynamic::read(container, &footer)?;
        told.cluster_size = Some(dynamic.block);
        if footer.kind == Kind::Differencing {
            let name = parent::names(container, &dynamic)?.into_iter().next();
            told.backing = name.map(|name| NamedFile { name, format: Some(FORMAT.word.into()) });
        }
    }
    Ok(told)
}
