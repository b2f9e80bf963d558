//! Opens what is to be served.

use device::Edge;
use disk::{Named, OpenOptions, Opened, Stack};
use runtime::Context;
use server::{Export, Exports};

use super::disks::Disk;
use super::settings::Settings;
use crate::failure::Failure;

/// Connections to a server behind us, at most: as many as help those that use it.
const CONNECTIONS: usize = 8;

/// Opens every disk, with filters of its own over it. The first is also the default export, unless
/// another is named.
pub(super) fn open(settings: &Settings, context: &Context) -> Result<Exports, Failure> {
    let disks = &settings.disks.list;
    let mut exports = Exports::new();
    for disk in disks {
        let export = open_one(settings, disk, context)?;
        if !exports.add(export) {
            return Err(Failure::usage(format!("two exports are named `{}`", disk.export)));
        }
    }
    let default = settings.default_export.as_deref();
    let default = default.or_else(|| disks.first().map(|d| d.export.as_str()));
    if let Some(name) = default
        && !exports.set_default(name)
    {
        return Err(Failure::usage(format!("--default-export: no export is named `{name}`")));
    }
    Ok(exports)
}

fn open_one(settings: &Settings, disk: &Disk, context: &Context) -> Result<Export, Failure> {
    let Disk { export: name, disk } = disk;
    let edge = open_disk(disk, &settings.disks.filters, !settings.read_only, context)?;
    let description = settings.description.clone();
    let (name, read_only) = (name.clone(), settings.read_only);
    let allow = settings.access.of(&name);
    Ok(Export { name, description, edge, read_only, allow })
}

/// Opens a disk; for reading only if the system refuses more.
pub(super) fn open_disk(
    disk: &Named,
    filters: &Stack,
    write: bool,
    context: &Context,
) -> Result<Edge, Failure> {
    let (connections, contexts) = (CONNECTIONS, true);
    let (or_read_only, by_name) = (true, true);
    let options = OpenOptions {
        write,
        or_read_only,
        by_name,
        contexts,
        connections,
        ..OpenOptions::default()
    };
    let Opened { container, edge, .. } = disk::open(disk, filters, &options, context)?;
    if !filters.image().is_told {
        crate::formats::warn(disk, &container);
    }
    Ok(edge)
}
