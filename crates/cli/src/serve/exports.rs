//! Opens what is to be served.

use device::Edge;
use devices::OpenOptions;
use filters::Context;
use server::{Export, Exports};

use super::disks::{Disk, DiskName};
use super::settings::Settings;
use crate::failure::Failure;

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
    // What nobody changes is not locked against those who may.
    let write = !settings.read_only && !settings.disks.filters.reads_only();
    let device = open_device(&disk.disk, write)?;
    let edge = Edge::new(device, context.pool.clone());
    let edge = settings.disks.filters.over(edge, context)?;
    let description = if settings.description.is_empty() {
        edge.info().description.clone()
    } else {
        settings.description.clone()
    };
    Ok(Export { name: disk.export.clone(), description, edge, read_only: settings.read_only })
}

/// Opens a disk without filters; for reading only if the system refuses more.
pub(super) fn open_device(
    disk: &DiskName,
    write: bool,
) -> Result<std::sync::Arc<dyn device::Device>, Failure> {
    let options = OpenOptions { write, or_read_only: true, ..OpenOptions::default() };
    Ok(match disk {
        DiskName::Name(name) => {
            let device = devices::open(name, &options)?;
            crate::formats::warn(name, &*device);
            device
        }
        DiskName::Kind { kind, params } => devices::open_kind(kind.word, None, params, &options)?,
    })
}
