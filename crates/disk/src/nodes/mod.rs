//! Disks as QEMU names them: nodes, each with a driver, as an option string
//! (`driver=qcow2,file.filename=disk.qcow2`) or in JSON (`json:{"driver": "qcow2", …}`).
//!
//! Nothing is opened. Keys that only tune how QEMU works are taken; any other that has no meaning
//! here is refused by its name: without its window, overlay or throttle it would be another disk.

use device::{Error, Params, Result, parse_size};
use devices::Named;

use crate::qemu::{Keys, NodeObjects, keys_of, protocols, wrong};
use crate::{Content, Image, Stack};

/// A disk that a node names.
#[derive(Debug)]
pub struct NamedNode {
    /// The disk.
    pub disk: Named,
    /// Its format, what lies over it and, below the format, under it.
    pub stack: Stack,
    /// It is not to be written.
    pub read_only: bool,
}

/// Drivers of QEMU that are not here: most are for tests.
const ABSENT: &[&str] = &[
    "blkdebug",
    "blklogwrites",
    "blkreplay",
    "blkverify",
    "copy-before-write",
    "ftp",
    "ftps",
    "gluster",
    "io_uring",
    "iscsi",
    "nfs",
    "nvme",
    "nvme-io_uring",
    "preallocate",
    "quorum",
    "rbd",
    "replication",
    "snapshot-access",
    "ssh",
    "vhdx-log",
    "virtio-blk-vhost-user",
    "virtio-blk-vhost-vdpa",
    "vvfat",
];

/// Keys of images that change no byte of what is read.
const TUNING_OF_IMAGES: &[&str] = &[
    "cache-clean-interval",
    "cache-size",
    "discard-no-unref",
    "l2-cache-entry-size",
    "l2-cache-size",
    "lazy-refcounts",
    "overlap-check",
    "overlap-check.template",
    "pass-discard-other",
    "pass-discard-request",
    "pass-discard-snapshot",
    "refcount-cache-size",
];

/// Filters of QEMU that change no byte.
const TRANSPARENT: &[&str] = &["copy-on-read"];

/// The disk that `text` names.
///
/// # Errors
/// It is no such text, or has a driver, key or value that has no meaning here.
pub fn node(text: &str, objects: &NodeObjects) -> Result<NamedNode> {
    let keys = keys_of(text)?;
    let found = of_keys(&keys, objects, Unnamed::Guess);
    found.map_err(|e| wrong("the image's options", &e))
}

/// What bytes without a driver are.
#[derive(Clone, Copy)]
enum Unnamed {
    Guess,
    /// Below a format they are what they are.
    Raw,
}

fn of_keys(keys: &Keys, objects: &NodeObjects, unnamed: Unnamed) -> Result<NamedNode> {
    let driver = keys.get("driver").unwrap_or_default();
    let read_only = matches!(keys.get("read-only"), Some("on" | "true" | "yes"));
    let node = match driver {
        // Of QEMU's formats qcow2 alone has these: the user says what it is.
        "" if keys.own().iter().any(|(key, _)| key.starts_with("encrypt.")) => {
            image("qcow2", keys, objects)?
        }
        "" => of_no_driver(keys, objects, unnamed)?,
        "raw" => window(keys, objects)?,
        "throttle" => throttled(keys, objects)?,
        "compress" => compressing(keys, objects)?,
        _ if TRANSPARENT.contains(&driver) => {
            keys.check(&["bottom"], true)?;
            below(keys, objects, Unnamed::Guess)?
        }
        _ if protocols::is_one(driver) => {
            let disk = protocols::named(driver, keys, objects)?;
            NamedNode { disk, stack: Stack::default(), read_only }
        }
        _ if ABSENT.contains(&driver) => {
            return Err(Error::invalid(format!("QEMU's driver `{driver}` is not supported")));
        }
        _ => image(driver, keys, objects)?,
    };
    Ok(NamedNode { read_only: node.read_only || read_only, ..node })
}

/// The node below.
fn below(keys: &Keys, objects: &NodeObjects, unnamed: Unnamed) -> Result<NamedNode> {
    let below = keys.below("file");
    match keys.get("file") {
        Some(name) => Err(Error::invalid(format!(
            "`file` refers to the node {name}; write its options here: file.driver=…"
        ))),
        _ if !below.is_empty() => of_keys(&below, objects, unnamed),
        // A format may have the name of its file itself.
        _ => {
            let disk = protocols::of_filename(keys.need("filename")?)?;
            Ok(NamedNode { disk, stack: Stack::default(), read_only: false })
        }
    }
}

/// Bytes whose driver is not named.
fn of_no_driver(keys: &Keys, objects: &NodeObjects, unnamed: Unnamed) -> Result<NamedNode> {
    let guess = |node: NamedNode| match unnamed {
        Unnamed::Guess if node.stack.image().is_plain() && node.stack.is_empty() => {
            NamedNode { stack: Stack::default().over_image(Image::guessed()), ..node }
        }
        _ => node,
    };
    let own = keys.own();
    if own.is_empty() || !keys.below("file").is_empty() {
        keys.check(&[], true)?;
        return below(keys, objects, Unnamed::Raw).map(guess);
    }
    keys.check(&["filename"], false)?;
    below(keys, objects, Unnamed::Raw).map(guess)
}

/// A part of the bytes below.
fn window(keys: &Keys, objects: &NodeObjects) -> Result<NamedNode> {
    keys.check(&["filename", "offset", "size"], true)?;
    let node = below(keys, objects, Unnamed::Raw)?;
    let mut params = Params::default();
    for (key, own) in [("offset", "offset"), ("size", "range")] {
        if let Some(text) = keys.get(key) {
            parse_size(text).map_err(|e| Error::invalid(format!("{key}: {e}")))?;
            params.add(own, text);
        }
    }
    let stack =
        if params.is_empty() { node.stack } else { node.stack.through("offset", params)? };
    let image = Image { is_told: true, ..stack.image().clone() };
    Ok(NamedNode { stack: stack.over_image(image), ..node })
}

/// A node with a limit of its speed.
fn throttled(keys: &Keys, objects: &NodeObjects) -> Result<NamedNode> {
    keys.check(&["throttle-group"], true)?;
    let node = below(keys, objects, Unnamed::Guess)?;
    let id = keys.need("throttle-group")?;
    let Some(bytes) = NodeObjects::find(&objects.throttles, "throttle-group", id)? else {
        return Ok(node);
    };
    let mut params = Params::default();
    params.add("rate", &bytes.saturating_mul(8).to_string());
    Ok(NamedNode { stack: node.stack.through("rate", params)?, ..node })
}

/// A node whose image is written compressed.
fn compressing(keys: &Keys, objects: &NodeObjects) -> Result<NamedNode> {
    keys.check(&[], true)?;
    let node = below(keys, objects, Unnamed::Guess)?;
    let mut image = node.stack.image().clone();
    let packs = image.format().is_some_and(|format| format.upkeep.rebase.is_some());
    if !packs {
        let action = "compress: an image of this format cannot be compressed in place";
        return Err(Error::invalid(action));
    }
    image.compress = true;
    Ok(NamedNode { stack: node.stack.over_image(image), ..node })
}

/// An image in the bytes below.
fn image(driver: &str, keys: &Keys, objects: &NodeObjects) -> Result<NamedNode> {
    let mut image = Image::of(driver)?;
    let params = image.format().map_or(&[][..], |format| format.params);
    let mut known = vec!["filename"];
    known.extend(TUNING_OF_IMAGES);
    let own = keys.own();
    for (key, value) in own.iter() {
        // QEMU's words for the encryption inside of an image.
        let here = if key == "encrypt.key-secret" { "key-secret" } else { key };
        if params.iter().any(|param| param.key == here) {
            image.params.set(here, value)?;
            known.push(key);
        } else if key == "encrypt.format" && value == "luks" {
            known.push(key);
        } else if key == "backing" && value.is_empty() {
            image.ignore_backing = true;
            known.push(key);
        } else if key == "backing" || key.starts_with("backing.") {
            let action = "only the image's own backing image is accepted; `rebase -u` changes it, \
                          and `\"backing\": null` omits it";
            return Err(Error::invalid(action));
        }
    }
    keys.check(&known, true)?;
    let node = below(keys, objects, Unnamed::Raw)?;
    if !matches!(node.stack.image().content, Content::Raw) {
        return Err(Error::invalid(format!(
            "`{driver}`: an image is stored in a file, not in an image"
        )));
    }
    Ok(NamedNode { stack: node.stack.with_image_over(image), ..node })
}

#[cfg(test)]
mod tests;
