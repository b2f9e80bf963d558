//! Recognises images where a file is not opened as one: a warning where an image is about to be
//! taken for the raw bytes of a disk, and a refusal where a format is known but cannot be read.
//!
//! It looks at the first bytes and the last ones, and changes nothing. Nothing is guessed when
//! something is written or served. A user who means the bytes of the file writes `file:PATH`, or
//! names the format raw.

use std::path::Path;

use device::{Edge, Error, ErrorKind, Fault, Result as Answered};
use disk::Named;

use crate::archive;
use crate::failure;

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

/// Formats by what their footers begin with, and how many bytes before the end that is. A VHD's has
/// a byte less if a program older than Virtual PC 2004 made it.
const FOOTERS: &[(&str, u64, &[u8])] =
    &[("VHD", 512, b"conectix"), ("VHD", 511, b"conectix"), ("DMG", 512, b"koly\0\0\0\x04")];

/// The warning if `disk` is named by a plain path, and `below` looks like an image of a known
/// format. `option` is the one that names a format.
pub(crate) fn warning(disk: &Named, below: &Edge, option: &str) -> Option<String> {
    let path = device::text::shown(disk.path()?);
    // What cannot be read is reported when it is used.
    let Some(format) = known(below).ok()? else {
        let cure = archive::look(below).ok()?.filter(archive::Archive::is_appliance)?.cure(&path);
        return Some(format!(
            "warning: {path}: is an OVA, and is taken as raw bytes; {cure}; file:{path} means its bytes"
        ));
    };
    let cure = readable(format).map(|word| format!("{option} {word} reads the disk in it, and "));
    let cure = cure.unwrap_or_default();
    Some(format!(
        "warning: {path}: looks like a {format} image, and is taken as raw bytes; {cure}file:{path} means \
         its bytes"
    ))
}

/// Warns of it.
pub(crate) fn warn(disk: &Named, below: &Edge, option: &str) {
    if let Some(warning) = warning(disk, below, option) {
        failure::say(&warning);
    }
}

/// The word of a format that people call `name`, if it can be read.
pub(crate) fn readable(name: &str) -> Option<&'static str> {
    let word = if name == "VHD" { "vpc".to_owned() } else { name.to_ascii_lowercase() };
    disk::formats().iter().map(|format| format.word).find(|known| *known == word)
}

/// The format of which a file with such a name should be: one that can be made, and is not raw.
pub(crate) fn promised(name: &str) -> Option<&'static str> {
    let end = Path::new(name).extension()?.to_str()?.to_ascii_lowercase();
    let end = if end == "vhd" { "vpc" } else { &end };
    let mut made = disk::formats().iter().filter(|format| format.create.is_some());
    made.find(|format| format.word == end && end != "raw").map(|format| format.word)
}

/// Refuses to guess that an image of a format that is not read here is a raw disk.
pub(crate) fn refuse(disk: &Named, container: &Edge) -> Answered<()> {
    let text = match known(container)? {
        Some(format) => format!(
            "{disk}: looks like a {format} image, but cannot be read as one; with -f raw its \
             bytes are taken as they are"
        ),
        None => return refuse_archive(disk, container),
    };
    Err(Error::new(ErrorKind::Unsupported, Fault::User, text))
}

/// Refuses to guess that an archive is a disk, or that a file in it is meant.
pub(crate) fn refuse_archive(disk: &Named, container: &Edge) -> Answered<()> {
    let Some(found) = archive::look(container)? else { return Ok(()) };
    let text = format!(
        "{disk}: is {}, not a disk; {}; with -f raw its bytes are taken as they are",
        found.words(),
        found.cure(&disk.to_string())
    );
    Err(Error::new(ErrorKind::Unsupported, Fault::User, text))
}

/// The format of the first bytes, or of a footer: a fixed VHD image is a raw disk with one behind
/// it.
pub(crate) fn known(disk: &Edge) -> Answered<Option<&'static str>> {
    let size = disk.info().size;
    let mut head = vec![0; usize::try_from(size).unwrap_or(LOOKED_AT).min(LOOKED_AT)];
    disk.read(&mut head, 0)?;
    let is = |at: usize, bytes: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    if let Some((format, ..)) = SIGNATURES.iter().find(|(_, at, bytes)| is(*at, bytes)) {
        return Ok(Some(format));
    }
    for (format, footer, bytes) in FOOTERS {
        let Some(at) = size.checked_sub(*footer) else { continue };
        let mut found = vec![0; bytes.len()];
        disk.read(&mut found, at)?;
        if found == *bytes {
            return Ok(Some(format));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use runtime::Context;

    use super::*;

    /// A memory disk that holds `bytes` at `offset`.
    fn holding(size: u64, offset: u64, bytes: &[u8]) -> Edge {
        let disk = Named::parse(&format!("memory:{size}")).unwrap();
        let options = disk::OpenOptions::read_write();
        let opened =
            disk::open(&disk, &disk::Stack::default(), &options, &Context::default()).unwrap();
        opened.edge.write(bytes, offset, false).unwrap();
        opened.edge
    }

    #[test]
    fn a_format_is_known_by_its_first_bytes_or_by_its_footer_and_only_there() {
        let size = 1 << 20;
        for (offset, bytes, format) in [
            (0, b"QFI\xfb\0\0\0\x03", Some("qcow2")),
            (0, b"conectix", Some("VHD")),
            (size - 512, b"conectix", Some("VHD")),
            (size - 511, b"conectix", Some("VHD")),
            (size - 512, b"koly\0\0\0\x04", Some("DMG")),
            (size - 510, b"conectix", None),
            (512, b"conectix", None),
            (512, b"QFI\xfb\0\0\0\x03", None),
        ] {
            let found = known(&holding(size, offset, bytes)).unwrap();
            assert_eq!(found, format, "{bytes:?} at {offset}");
        }
        // Shorter than a footer.
        assert_eq!(known(&holding(510, 0, b"raw")).unwrap(), None);
    }
}
