//! Which disks are attached, and where: `--attach`, and the POINT of the verb `attach`.

use attach::{Point, PointKind};
use clap::ArgMatches;

use super::disks::Disk;
use crate::failure::Failure;

/// A point and the export that appears there.
#[derive(Clone, Debug)]
pub(super) struct ExportPoint {
    pub(super) export: String,
    pub(super) point: Point,
}

impl ExportPoint {
    /// It is a block device.
    pub(super) fn is_device(&self) -> bool {
        self.point.kind == PointKind::Device
    }

    /// It is a socket of virtual machines.
    pub(super) fn is_socket(&self) -> bool {
        matches!(self.point.kind, PointKind::Socket { .. })
    }
}

/// The points of the command line: `POINT` shows the default export, `EXPORT=POINT` another.
pub(super) fn resolve(
    matches: &ArgMatches,
    disks: &[Disk],
    default: Option<&str>,
) -> Result<Vec<ExportPoint>, Failure> {
    let first = disks.first().map(|disk| disk.export.as_str());
    let default = default.or(first).unwrap_or_default();
    let verb = matches.try_get_one::<String>("point").ok().flatten();
    let options = matches.get_many::<String>("attach").unwrap_or_default();
    let mut points: Vec<ExportPoint> = Vec::new();
    for text in verb.into_iter().chain(options) {
        let named =
            text.split_once('=').filter(|(name, _)| disks.iter().any(|d| d.export == *name));
        let (export, text) = named.unwrap_or((default, text));
        let point = Point::parse(text)?;
        if points.iter().any(|other| other.point.path == point.path) {
            let what = format!("--attach: {} is named twice", point.path.display());
            return Err(Failure::usage(what));
        }
        points.push(ExportPoint { export: export.to_owned(), point });
    }
    Ok(points)
}
