//! Recognises images where a file is not opened as one: a warning where an image is about to be
//! taken for the raw bytes of a disk, and a refusal where a format is known but cannot be read.
//!
//! It looks at the first bytes, and changes nothing. Nothing is guessed when something is written or served.
//! A user who means the bytes of the file writes `file:PATH`, or names the format raw.

use device::Edge;
use disk::Named;

use crate::failure::{self, Failure};

/// Bytes that are looked at; the table's signatures lie within.
const LOOKED_AT: usize = 1024;

/// Formats by their signatures and offsets.
const SIGNATURES: &[(&str, usize, &[u8])] = &[
    ("qcow2", 0, b"QFI\xfb\0\0\0\x02"),
    ("qcow2", 0, b"QFI\xfb\0\0\0\x03"),
    ("qcow", 0, b"QFI\xfb\0\0\0\x01"),
    ("QED", 0, b"QED\0"),
    ("VMDK", 0, b"KDMV"),
    ("VMDK", 0, b"COWD"),
    ("VMDK", 0, b"# Disk DescriptorFile"),
    ("VHDX", 0, b"vhdxfile"),
    ("VHD", 0, b"conectix"),
    ("VDI", 0x40, b"\x7f\x10\xda\xbe"),
    ("Parallels", 0, b"WithoutFreeSpace"),
    ("Parallels", 0, b"WithouFreSpacExt"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
];

/// The warning if `disk` is named by a plain path, and `below` begins like an image of a known
/// format.
pub(crate) fn warning(disk: &Named, below: &Edge) -> Option<String> {
    let path = device::text::shown(disk.path()?);
    let format = known(below)?;
    Some(format!(
        "warning: {path}: looks like a {format} image, and is taken as raw bytes; write \
         file:{path} if you mean it"
    ))
}

/// Warns of it.
pub(crate) fn warn(disk: &Named, below: &Edge) {
    if let Some(warning) = warning(disk, below) {
        failure::say(&warning);
    }
}

/// Refuses to guess that an image of a format that is not read here is a raw disk.
pub(crate) fn refuse(disk: &Named, container: &Edge) -> Result<(), Failure> {
    match known(container) {
        Some(format) => Err(Failure::new(format!(
            "{disk}: looks like a {format} image, but cannot be read as one; with -f raw its \
             bytes are taken as they are"
        ))),
        None => Ok(()),
    }
}

/// The format of the first bytes.
pub(crate) fn known(disk: &Edge) -> Option<&'static str> {
    let size = usize::try_from(disk.info().size).unwrap_or(LOOKED_AT);
    let mut head = [0; LOOKED_AT];
    let head = head.get_mut(..size.min(LOOKED_AT))?;
    // What cannot be read is reported when it is used.
    disk.read(head, 0).ok()?;
    let is = |at: usize, bytes: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    SIGNATURES.iter().find(|(_, at, bytes)| is(*at, bytes)).map(|(format, _, _)| *format)
}
