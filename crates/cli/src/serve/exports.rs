//! Opens what is to be served.

use device::Edge;
use disk::{Named, OpenOptions, Opened, Stack};
use runtime::Context;
use serving::control::{ControlledExport, ExportEnd};
use serving::{Allowed, Export, Exports, LiveBitmaps};

use super::disks::Disk;
use super::settings::Settings;
use crate::failure::Failure;
use crate::names;

/// Most connections to an upstream server; as many are used as help.
const CONNECTIONS: usize = 8;

/// An export that is served.
#[derive(Debug)]
pub(super) struct OpenExport {
    pub(super) name: String,
    /// The name of the disk, for people.
    pub(super) disk: String,
    /// In bytes.
    pub(super) size: u64,
    pub(super) is_read_only: bool,
    pub(super) allow: Allowed,
    /// Those that the control socket starts, if there is one.
    bitmaps: Option<LiveBitmaps>,
    /// What is done when it is removed.
    end: ExportEnd,
}

/// Opens every disk, with filters of its own over it. The first is also the default export, unless
/// another is named.
pub(super) fn open(
    settings: &Settings,
    context: &Context,
) -> Result<(Exports, Vec<OpenExport>), Failure> {
    let (exports, mut served) = (Exports::new(), Vec::new());
    for disk in &settings.disks {
        // What can be removed ends by itself.
        let changes = settings.control.is_some() || settings.config.is_some();
        let part = changes.then(|| context.part());
        let mut export = open_one(settings, disk, part.as_ref().unwrap_or(context))?;
        let layered = settings.control.as_ref().map(|_| LiveBitmaps::over(&export.edge));
        let bitmaps = layered.map(|(edge, bitmaps)| {
            export.edge = edge;
            bitmaps
        });
        let end = part.map(|part| end_of(part, context)).unwrap_or_default();
        served.push(OpenExport {
            name: disk.export.clone(),
            disk: disk.disk.to_string(),
            size: export.edge.info().size,
            is_read_only: export.is_read_only(),
            allow: export.allow.clone(),
            bitmaps,
            end,
        });
        if !exports.add(export) {
            return Err(Failure::usage(format!("two exports are named `{}`", disk.export)));
        }
    }
    if let Some(name) = settings.default_name()
        && !exports.set_default(name)
    {
        return Err(Failure::usage(format!("--default-export: no export is named `{name}`")));
    }
    Ok((exports, served))
}

/// What the control socket knows of them.
pub(super) fn controlled(settings: &Settings, served: &[OpenExport]) -> Vec<ControlledExport> {
    let of = |export: &OpenExport| {
        let is_default = settings.default_name() == Some(&*export.name);
        let is_this = |name: &str| name == export.name || name.is_empty() && is_default;
        ControlledExport {
            name: export.name.clone(),
            disk: export.disk.clone(),
            size: export.size,
            is_read_only: export.is_read_only,
            is_default,
            is_attached: settings.points.iter().any(|point| is_this(&point.export)),
            allow: export.allow.clone(),
            is_typed: false,
            bitmaps: export.bitmaps.clone(),
            end: export.end.clone(),
        }
    };
    served.iter().map(of).collect()
}

/// What ends the part of a context that an export was opened with.
pub(super) fn end_of(part: Context, whole: &Context) -> ExportEnd {
    let whole = whole.control.clone();
    ExportEnd::new(move || {
        part.control.end();
        whole.forget(&part.control);
    })
}

fn open_one(settings: &Settings, disk: &Disk, context: &Context) -> Result<Export, Failure> {
    let read_only = settings.read_only || disk.read_only;
    let edge = open_disk(&disk.disk, &disk.filters, &disk.export, !read_only, context)
        .map_err(|failure| failure.behind(&disk.at))?;
    let description = disk.description.as_ref().unwrap_or(&settings.description).clone();
    let (name, allow) = (disk.export.clone(), Allowed::new(settings.access.of(&disk.export)));
    Ok(Export { name, description, edge, read_only, allow })
}

/// Opens a disk to serve it as `export`; read-only if the system does not allow writing.
pub(super) fn open_disk(
    disk: &Named,
    filters: &Stack,
    export: &str,
    write: bool,
    context: &Context,
) -> Result<Edge, Failure> {
    let (connections, contexts) = (CONNECTIONS, true);
    let (or_read_only, by_name) = (true, true);
    let options = OpenOptions {
        write,
        or_read_only,
        by_name,
        export: export.to_owned(),
        contexts,
        connections,
        as_nbdkit: names::is_nbdkit(),
        ..OpenOptions::default()
    };
    let Opened { container, edge, .. } = disk::open(disk, filters, &options, context)?;
    if !filters.image().is_told {
        crate::formats::warn(disk, &container, "--format");
    }
    Ok(edge)
}
