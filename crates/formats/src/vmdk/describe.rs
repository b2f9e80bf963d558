//! The description of an image, as in `qemu-img info`. Opens no files that the image names.

use device::{Edge, Result};
use runtime::Context;
use serde_json::{Map, Value, json};

use super::descriptor::LineKind;
use super::open::Top;
use crate::{Description, NamedFile};

pub(super) fn describe(container: &Edge, _: &Context) -> Result<Description> {
    let top = Top::of(container)?;
    let descriptor = &top.descriptor;
    let stored = |name: &str, format: &str| NamedFile {
        name: name.to_owned(),
        format: Some(format.to_owned()),
    };
    let parent = descriptor.parent()?;
    let named = descriptor.extents.iter().filter(|line| line.kind != LineKind::Zero);
    let files = named.filter(|_| top.layout.is_none());
    Ok(Description {
        virtual_size: top.size()?,
        cluster_size: top.layout.as_ref().map(|layout| layout.grain),
        backing: parent.map(|name| stored(name, "vmdk")),
        data_files: files
            .map(|line| NamedFile {
                name: line.name.clone(),
                format: line.kind.is_flat().then(|| "raw".to_owned()),
            })
            .collect(),
        compressed: top.layout.as_ref().is_some_and(|layout| layout.packed),
        dirty: top.layout.as_ref().is_some_and(|layout| layout.dirty),
        specific: specific(&top, container),
        ..Description::default()
    })
}

fn specific(top: &Top, container: &Edge) -> Map<String, Value> {
    let descriptor = &top.descriptor;
    let extents: Vec<Value> = match &top.layout {
        Some(layout) => {
            let mut extent = json!({
                "virtual-size": layout.capacity,
                "filename": container.info().name,
                "cluster-size": layout.grain,
                "format": "",
            });
            if layout.packed
                && let Some(extent) = extent.as_object_mut()
            {
                extent.insert("compressed".to_owned(), true.into());
            }
            vec![extent]
        }
        None => {
            let extent = |line: &super::descriptor::Line| {
                json!({
                    "virtual-size": line.len,
                    "filename": device::text::shown(&line.name),
                    "format": line.kind.word(),
                })
            };
            descriptor.extents.iter().map(extent).collect()
        }
    };
    let mut specific = Map::new();
    specific.insert("cid".to_owned(), descriptor.cid.into());
    specific.insert("parent-cid".to_owned(), descriptor.parent_cid.into());
    specific.insert("create-type".to_owned(), top.create_type().into());
    specific.insert("extents".to_owned(), extents.into());
    specific
}
