//! The options that would recreate an existing, empty image as it is.

use device::{Edge, Error, ErrorKind, Fault, Params, Result};
use runtime::Context;

use crate::qcow2::header::{Encryption, Header, compatible, incompatible};
use crate::qcow2::{bitmap, open, snapshot};
use crate::{Closed, Opening};

/// Extents asked for at a time.
const MANY: usize = 64;

pub(super) fn remake(container: &Edge, context: &Context) -> Result<Params> {
    let header = Header::read(container)?;
    header.check_features()?;
    let (snapshots, _) = snapshot::read(container, &header)?;
    let reasons = [
        (header.encryption != Encryption::None, "is encrypted"),
        (header.backing.is_some(), "has a backing image"),
        (header.has(incompatible::DATA_FILE), "has a data file"),
        (!snapshots.is_empty(), "has snapshots"),
        (!bitmap::read(container, &header)?.is_empty(), "has bitmaps"),
    ];
    if let Some((_, why)) = reasons.into_iter().find(|(is_so, _)| *is_so) {
        return Err(holds(why));
    }
    check_empty(container, context)?;
    let mut params = Params::default();
    let flag = |on: bool| if on { "on" } else { "off" }.to_owned();
    let geometry = header.geometry();
    let known = [
        ("compat", if header.version == 2 { "0.10" } else { "1.1" }.to_owned()),
        ("cluster_size", geometry.cluster().to_string()),
        ("lazy_refcounts", flag(header.compatible & compatible::LAZY_REFCOUNTS != 0)),
        ("refcount_bits", (1u32 << header.refcount_order).to_string()),
        ("compression_type", header.compression.word().to_owned()),
        ("extended_l2", flag(geometry.extended)),
    ];
    for (key, value) in known {
        params.set(key, &value)?;
    }
    Ok(params)
}

/// Whether it was never written to, and has no preallocated space.
fn check_empty(container: &Edge, context: &Context) -> Result<()> {
    let params = Params::default();
    let opening = Opening { params: &params, files: &Closed, context };
    let disk = Edge::new(open::open(container.clone(), &opening)?, context.pool.clone());
    let (mut at, mut extents) = (0, Vec::new());
    while at < disk.info().size {
        disk.resolve(at, disk.info().size - at, MANY, &mut extents)?;
        for extent in extents.drain(..) {
            at = extent.end();
            if !extent.kind.reads_zero() || extent.home.is_some() {
                return Err(holds("is not empty").at(extent.start));
            }
        }
    }
    Ok(())
}

fn holds(why: &str) -> Error {
    let action = "an existing image is recreated only while it is empty, and this one";
    Error::new(ErrorKind::Unsupported, Fault::User, format!("{action} {why}"))
}
