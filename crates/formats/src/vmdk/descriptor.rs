//! The descriptor: text that lists the extents of an image and names its parent.
//!
//! It is untrusted: its length is bounded, no line is skipped that could shift the disk, and an
//! important key may appear only once.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use device::{Error, ErrorKind, Fault, Result};

use crate::kit::fields::foreign;

/// The longest descriptor that is read, in bytes.
pub(super) const LONGEST: u64 = 1 << 20;
/// The most extents that it may name.
const MOST_EXTENTS: usize = 4096;
/// Bytes of a sector, the unit of all numbers.
pub(super) const SECTOR: u64 = 512;
/// The parent's content ID if there is no parent.
pub(super) const NO_PARENT: u32 = u32::MAX;

/// The contents of a descriptor.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Descriptor {
    /// The content ID of the image.
    pub(super) cid: u32,
    /// The content ID of its parent, or [`NO_PARENT`].
    pub(super) parent_cid: u32,
    /// The kind of image: `monolithicSparse`.
    pub(super) create_type: Option<String>,
    /// The name of its parent.
    pub(super) parent: Option<String>,
    /// Its extents, in the order of the disk.
    pub(super) extents: Vec<Line>,
    /// One of them is not to be written.
    pub(super) is_read_only: bool,
}

/// A line that names an extent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Line {
    /// Bytes of the disk.
    pub(super) len: u64,
    pub(super) kind: LineKind,
    /// The name of a file; empty for zeroes.
    pub(super) name: String,
    /// Where it begins in the file, in bytes.
    pub(super) offset: u64,
}

/// The kind of an extent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LineKind {
    Flat,
    Vmfs,
    Sparse,
    VmfsSparse,
    SeSparse,
    Zero,
}

impl LineKind {
    const WORDS: [(&'static str, Self); 6] = [
        ("FLAT", Self::Flat),
        ("VMFS", Self::Vmfs),
        ("SPARSE", Self::Sparse),
        ("VMFSSPARSE", Self::VmfsSparse),
        ("SESPARSE", Self::SeSparse),
        ("ZERO", Self::Zero),
    ];

    /// As descriptors have it.
    pub(super) fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, kind)| *kind == self).map_or("", |(word, _)| word)
    }

    /// Whether its file holds the bytes as they are.
    pub(super) fn is_flat(self) -> bool {
        matches!(self, Self::Flat | Self::Vmfs)
    }
}

/// Whether a container begins as a descriptor does.
pub(super) fn is_one(first: &[u8]) -> bool {
    let lines = first.split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
    let mut told = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    told.next().is_some_and(|line| {
        // Not the whole line in small letters: without a line's end it is all of 64 KiB.
        let version = line.split_at_checked(b"version".len());
        let version = version.filter(|(word, _)| word.eq_ignore_ascii_case(b"version"));
        version.is_some_and(|(_, rest)| rest.trim_ascii_start().starts_with(b"="))
    })
}

impl Descriptor {
    /// The descriptor of an image that has none.
    pub(super) fn none() -> Self {
        let extents = Vec::new();
        Self {
            cid: 0,
            parent_cid: NO_PARENT,
            create_type: None,
            parent: None,
            extents,
            is_read_only: false,
        }
    }

    /// Parses `bytes`, up to the first zero.
    ///
    /// # Errors
    /// They are no descriptor.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() as u64 > LONGEST {
            return Err(broken(format!("it is longer than {LONGEST} bytes")));
        }
        let bytes = bytes.split(|b| *b == 0).next().unwrap_or_default();
        let mut keys = Keys::default();
        let (mut extents, mut is_read_only) = (Vec::new(), false);
        for line in bytes.split(|b| *b == b'\n').map(<[u8]>::trim_ascii) {
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            if let Some(extent) = parse_extent(line)? {
                if extents.len() >= MOST_EXTENTS {
                    return Err(broken(format!("it names more than {MOST_EXTENTS} extents")));
                }
                extents.push(extent);
                is_read_only |= word(line).0.eq_ignore_ascii_case(b"RDONLY");
            } else if let Some((key, value)) = cut(line, b'=') {
                keys.take(key.trim_ascii(), unquoted(value.trim_ascii()))?;
            } else {
                return Err(broken(format!(
                    "it has a line that is not understood: {}",
                    shown(line)
                )));
            }
        }
        Ok(Self { is_read_only, ..keys.descriptor(extents)? })
    }

    /// Itself, if it describes a whole disk: a truncated descriptor must not pass for a small disk.
    ///
    /// # Errors
    /// It does not say what kind of image it is, or names no extent.
    pub(super) fn whole(self) -> Result<Self> {
        match (&self.create_type, &*self.extents) {
            (None, _) => Err(broken("it does not say what kind of image it is (createType)")),
            (_, []) => Err(broken("it names no extent")),
            _ => Ok(self),
        }
    }

    /// The name of the parent, if there is one.
    ///
    /// # Errors
    /// It has only one of the parent's name and content ID.
    pub(super) fn parent(&self) -> Result<Option<&str>> {
        match (&self.parent, self.parent_cid) {
            (None, NO_PARENT) => Ok(None),
            (Some(name), cid) if cid != NO_PARENT => Ok(Some(name)),
            (Some(_), _) => Err(broken("it names a parent and says that there is none")),
            (None, _) => Err(broken("it has a parent and does not name it")),
        }
    }
}

/// Where the content ID stands in a descriptor: its digits, as many as it has.
pub(super) fn cid_place(bytes: &[u8]) -> Option<Range<usize>> {
    let bytes = bytes.split(|b| *b == 0).next().unwrap_or_default();
    let mut start = 0;
    for line in bytes.split(|b| *b == b'\n') {
        let key = cut(line, b'=').filter(|(key, _)| key.trim_ascii().eq_ignore_ascii_case(b"CID"));
        if let Some((key, value)) = key {
            let at = start + key.len() + 1 + (value.len() - value.trim_ascii_start().len());
            return Some(at..at + value.trim_ascii().len());
        }
        start += line.len() + 1;
    }
    None
}

/// The keys that matter.
#[derive(Default)]
struct Keys {
    cid: Option<u32>,
    parent_cid: Option<u32>,
    create_type: Option<String>,
    parent: Option<String>,
}

impl Keys {
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let is = |word: &str| key.eq_ignore_ascii_case(word.as_bytes());
        if is("CID") {
            once(&mut self.cid, number(value)?, "CID")
        } else if is("parentCID") {
            once(&mut self.parent_cid, number(value)?, "parentCID")
        } else if is("createType") {
            once(&mut self.create_type, text(value), "createType")
        } else if is("parentFileNameHint") {
            once(&mut self.parent, text(value), "parentFileNameHint")
        } else if is("version") && !matches!(value, b"1" | b"2" | b"3") {
            Err(Error::unfit(format!(
                "the descriptor has version {}, which is unknown",
                shown(value)
            )))
        } else {
            Ok(())
        }
    }

    fn descriptor(self, extents: Vec<Line>) -> Result<Descriptor> {
        let descriptor = Descriptor {
            cid: self.cid.unwrap_or(0),
            parent_cid: self.parent_cid.unwrap_or(NO_PARENT),
            create_type: self.create_type,
            parent: self.parent,
            extents,
            is_read_only: false,
        };
        descriptor.parent().map(|_| ())?;
        Ok(descriptor)
    }
}

fn once<T>(slot: &mut Option<T>, value: T, key: &str) -> Result<()> {
    if slot.replace(value).is_some() {
        return Err(broken(format!("it says {key} twice")));
    }
    Ok(())
}

/// `RW 4192256 SPARSE "disk-s001.vmdk"`; `None` if the line is of another kind.
fn parse_extent(line: &[u8]) -> Result<Option<Line>> {
    let wrong = || broken(format!("it has a malformed extent line: {}", shown(line)));
    let (access, rest) = word(line);
    if access.eq_ignore_ascii_case(b"NOACCESS") {
        return Err(Error::unfit(format!("the image does not give access to {}", shown(rest))));
    }
    if !access.eq_ignore_ascii_case(b"RW") && !access.eq_ignore_ascii_case(b"RDONLY") {
        return Ok(None);
    }
    let (sectors, rest) = word(rest);
    let (kind, rest) = word(rest);
    let len = decimal(sectors).and_then(|n| n.checked_mul(SECTOR)).filter(|n| *n > 0);
    let len = len.ok_or_else(wrong)?;
    let known = LineKind::WORDS.iter().find(|(word, _)| kind.eq_ignore_ascii_case(word.as_bytes()));
    let Some((_, kind)) = known.copied() else {
        return Err(foreign(format!("read an extent of the kind {}", shown(kind))));
    };
    let (name, offset) = match (kind, rest) {
        (LineKind::Zero, _) => (String::new(), 0),
        (_, [b'"', rest @ ..]) => {
            let (name, after) = cut(rest, b'"').ok_or_else(wrong)?;
            let after = after.trim_ascii();
            let offset = if after.is_empty() { Some(0) } else { decimal(after) };
            let offset = offset.and_then(|n| n.checked_mul(SECTOR)).ok_or_else(wrong)?;
            (text(name), offset)
        }
        _ => return Err(wrong()),
    };
    if (name.is_empty() && kind != LineKind::Zero) || (offset > 0 && !kind.is_flat()) {
        return Err(wrong());
    }
    Ok(Some(Line { len, kind, name, offset }))
}

/// The first word, and what follows it.
fn word(line: &[u8]) -> (&[u8], &[u8]) {
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let (word, rest) = line.split_at_checked(end).unwrap_or((line, &[]));
    (word, rest.trim_ascii())
}

/// The parts before and after the first `byte`.
fn cut(line: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = line.iter().position(|b| *b == byte)?;
    Some((line.get(..at)?, line.get(at + 1..)?))
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\"")).unwrap_or(value)
}

fn decimal(word: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(word).ok()?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

fn number(word: &[u8]) -> Result<u32> {
    let digits = std::str::from_utf8(word).ok().filter(|d| !d.starts_with('+'));
    let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
    number.ok_or_else(|| broken(format!("its number {} is not a number", shown(word))))
}

fn text(bytes: &[u8]) -> String {
    device::text::carry(OsStr::from_bytes(bytes))
}

/// The start of a line, for messages.
fn shown(line: &[u8]) -> String {
    let line = line.get(..80).unwrap_or(line);
    format!("`{}`", String::from_utf8_lossy(line).escape_debug())
}

fn broken(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, Fault::File, format!("the descriptor is broken: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# Disk DescriptorFile\nversion=1\nCID=a3028ca6\nparentCID=ffffffff\n\
        createType=\"monolithicFlat\"\n\n# Extent description\r\nRW 6291456 FLAT \"a b-flat.vmdk\" 12\n\
        RDONLY 8 ZERO\nRW 1 VMFS \"x\"\nddb.virtualHWVersion = \"4\"\n";

    #[test]
    fn what_a_descriptor_says_is_read() {
        let read = Descriptor::parse(GOOD.as_bytes()).unwrap();
        assert_eq!((read.cid, read.parent_cid), (0xa302_8ca6, NO_PARENT));
        assert_eq!(read.create_type.as_deref(), Some("monolithicFlat"));
        let line = |sectors, kind, name: &str, offset| Line {
            len: sectors * SECTOR,
            kind,
            name: name.into(),
            offset: offset * SECTOR,
        };
        let extents = [
            line(6_291_456, LineKind::Flat, "a b-flat.vmdk", 12),
            line(8, LineKind::Zero, "", 0),
            line(1, LineKind::Vmfs, "x", 0),
        ];
        assert_eq!(read.extents, extents);
        assert!(is_one(GOOD.as_bytes()) && is_one(b"\n# x\r\n  Version = 1\n"));
        assert!(!is_one(b"# x\nversions=1") && !is_one(b"") && !is_one(&[0; 512]));
    }

    #[test]
    fn nothing_is_skipped_that_could_shift_the_disk_or_be_read_in_two_ways() {
        for bad in [
            "CID=1\ncid=2",
            "createType=\"a\"\ncreateType=\"a\"",
            "RW 10 FLOP \"x\"",
            "NOACCESS 10 ZERO",
            "WO 10 FLAT \"x\" 0",
            "RW ten FLAT \"x\" 0",
            "RW 0 FLAT \"x\" 0",
            "RW 10 FLAT \"x 0",
            "RW 10 FLAT x 0",
            "RW 10 FLAT \"\" 0",
            "RW 10 SPARSE \"x\" 5",
            "RW 10 FLAT \"x\" -5",
            "RW 36028797018963968 FLAT \"x\" 0",
            "version=9",
            "CID=+1",
            "CID=123456789",
            "parentCID=1",
            "parentFileNameHint=\"x\"",
        ] {
            assert!(Descriptor::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let many = "RW 1 ZERO\n".repeat(MOST_EXTENTS + 1);
        assert!(Descriptor::parse(many.as_bytes()).is_err());
        for cut in ["version=1\nCID=a3028ca6\n", "createType=\"vmfs\"\n", "RW 1 ZERO\n"] {
            assert!(Descriptor::parse(cut.as_bytes()).unwrap().whole().is_err(), "{cut}");
        }
        assert!(Descriptor::parse(GOOD.as_bytes()).unwrap().whole().is_ok());
        let child = Descriptor::parse(b"parentCID=1\nparentFileNameHint=\"/x\"\n\0junk").unwrap();
        assert_eq!(child.parent().unwrap(), Some("/x"));
    }
}
