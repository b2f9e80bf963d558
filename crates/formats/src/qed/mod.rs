//! QED, read-only: QEMU's format from before qcow2 was fast. A table of tables of clusters.

mod check;
mod header;
mod map;

use std::sync::Arc;

use device::{Device, Edge, Result};
use runtime::Context;

use crate::kit::fields::le64;
use crate::kit::{Scattered, Table, disk_info};
use crate::{Description, Format, NamedFile, Opening, Reference, Role, Upkeep};

use header::{Header, MAGIC};
use map::Map;

pub(crate) const FORMAT: Format = Format {
    word: "qed",
    summary: "QED; read-only",
    is_plain: false,
    packing: None,
    params: &[],
    recognises: |head| head.has(0, MAGIC),
    open,
    describe,
    write: None,
    create: None,
    check: Some(check::check),
    upkeep: Upkeep::NONE,
};

fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let header = Header::read(&container)?;
    let backing = match &header.backing {
        Some(NamedFile { name, format }) => {
            let (role, format) = (Role::Backing, format.as_deref());
            Some(opening.files.open(&Reference { name, role, format })?)
        }
        None => None,
    };
    let shape = (header.table / 8, 8);
    let first =
        Table::new((&container, opening.context), "first table", header.first, shape, le64)?;
    let info = disk_info(&container, header.size);
    Ok(Scattered::device(info, opening.context, backing, Map { header, first, container }))
}

fn describe(container: &Edge, _: &Context) -> Result<Description> {
    let header = Header::read(container)?;
    Ok(Description {
        virtual_size: header.size,
        cluster_size: Some(header.cluster),
        backing: header.backing,
        dirty: header.dirty,
        ..Description::default()
    })
}
