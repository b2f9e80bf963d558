//! Opens what is to be served.

use device::{Edge, WorkPool};
use devices::OpenOptions;
use server::{Export, Exports};

use super::settings::{Disk, DiskName, Settings};
use crate::failure::Failure;

/// Opens every disk. The first is also the default export, unless another is named.
pub(super) fn open(settings: &Settings) -> Result<Exports, Failure> {
    let pool = WorkPool::new(settings.options.workers);
    let mut exports = Exports::new();
    for disk in &settings.disks {
        let export = open_one(settings, disk, &pool)?;
        if !exports.add(export) {
            return Err(Failure::usage(format!("two exports are named `{}`", disk.export)));
        }
    }
    let default = settings.default_export.as_deref();
    let default = default.or_else(|| settings.disks.first().map(|d| d.export.as_str()));
    if let Some(name) = default
        && !exports.set_default(name)
    {
        return Err(Failure::usage(format!("--default-export: no export is named `{name}`")));
    }
    Ok(exports)
}

fn open_one(settings: &Settings, disk: &Disk, pool: &WorkPool) -> Result<Export, Failure> {
    let options =
        OpenOptions { write: !settings.read_only, or_read_only: true, ..OpenOptions::default() };
    let device = match &disk.disk {
        DiskName::Name(name) => devices::open(name, &options)?,
        DiskName::Kind { kind, arg, params } => {
            devices::open_kind(kind, arg.as_deref(), params, &options)?
        }
    };
    let description = if settings.description.is_empty() {
        device.info().description.clone()
    } else {
        settings.description.clone()
    };
    Ok(Export {
        name: disk.export.clone(),
        description,
        edge: Edge::new(device, pool.clone()),
        read_only: settings.read_only,
    })
}
