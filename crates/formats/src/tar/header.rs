//! Headers of tar: the old ones, POSIX' (ustar, pax) and GNU's.

use std::ops::Range;

use device::{Error, Result};

/// Bytes of a header; contents are padded to a multiple of it.
pub(super) const BLOCK: u64 = 512;

/// What a header describes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Type {
    /// A file, as it is.
    File,
    /// A file without its holes.
    Sparse,
    /// A link: its contents are elsewhere.
    Link,
    /// The name of the next file (GNU).
    LongName,
    /// Attributes of the next file (pax).
    Described,
    /// Attributes of all files that follow.
    DescribesAll,
    /// A directory or a device: there are no contents.
    Bare,
    /// An unknown type.
    Other,
}

/// A header whose checksum is right.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) kind: Type,
    pub(super) name: Vec<u8>,
    size: u64,
    /// A block with more of the list of what is stored follows, and then the contents (GNU).
    pub(super) is_continued: bool,
}

impl Header {
    /// A header; `None` of a block of zeroes.
    pub(super) fn parse(block: &[u8; 512]) -> std::result::Result<Option<Self>, &'static str> {
        if block.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let sum = number(field(block, 148..156))
            .ok_or("has no checksum where one must be; is it compressed?")?;
        if !sums(block).contains(&sum) {
            return Err("has a header with a wrong checksum; is it compressed?");
        }
        let size = number(field(block, 124..136)).ok_or("has a file without a size")?;
        let kind = match block.get(156) {
            Some(b'0' | 0 | b'7') => Type::File,
            Some(b'S') => Type::Sparse,
            Some(b'1' | b'2') => Type::Link,
            Some(b'L') => Type::LongName,
            Some(b'x') => Type::Described,
            // For all files that follow, or the target of a link (GNU), which is ignored.
            Some(b'g' | b'K') => Type::DescribesAll,
            Some(b'3'..=b'6') => Type::Bare,
            _ => Type::Other,
        };
        let is_continued = kind == Type::Sparse && block.get(482).is_some_and(|more| *more != 0);
        Ok(Some(Self { kind, name: name(block), size, is_continued }))
    }

    /// How many bytes follow it.
    pub(super) fn stored(&self, said: &Attributes) -> u64 {
        match self.kind {
            // Whatever the number says, there are none.
            Type::Bare | Type::Link => 0,
            Type::LongName | Type::Described | Type::DescribesAll => self.size,
            Type::File | Type::Sparse | Type::Other => said.size.unwrap_or(self.size),
        }
    }

    /// Refuses a file that is not stored as it is.
    pub(super) fn is_plain(&self, said: &Attributes) -> Result<()> {
        match self.kind {
            Type::File if !said.sparse => Ok(()),
            Type::Link => Err(Error::unfit("the entry is a link to another file; name that one")),
            _ => Err(Error::unfit(
                "the entry is stored sparse, without its holes; pack it again without --sparse",
            )),
        }
    }
}

/// The attributes that pax or GNU gives for the next file.
#[derive(Debug, Default)]
pub(super) struct Attributes {
    pub(super) name: Option<Vec<u8>>,
    size: Option<u64>,
    sparse: bool,
}

impl Attributes {
    /// Reads records: `LENGTH KEY=VALUE` and an end of line, the length that of all of it.
    pub(super) fn read(&mut self, text: &[u8]) -> std::result::Result<(), &'static str> {
        const WRONG: &str = "describes a file in words that make no sense";
        let mut rest = text;
        while !rest.is_empty() {
            let space = rest.iter().take(20).position(|b| *b == b' ').ok_or(WRONG)?;
            let (digits, _) = rest.split_at(space);
            let digits =
                std::str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
            let len: usize = digits.and_then(|digits| digits.parse().ok()).ok_or(WRONG)?;
            let record =
                rest.get(space + 1..len).and_then(|r| r.strip_suffix(b"\n")).ok_or(WRONG)?;
            let equals = record.iter().position(|b| *b == b'=').ok_or(WRONG)?;
            let (key, value) = record.split_at(equals);
            self.note(key, value.get(1..).unwrap_or_default()).ok_or(WRONG)?;
            rest = rest.get(len..).unwrap_or_default();
        }
        Ok(())
    }

    fn note(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"path" => self.name = Some(value.to_vec()),
            b"size" => {
                let size = std::str::from_utf8(value).ok()?.parse().ok();
                self.size = Some(size.filter(|size: &u64| i64::try_from(*size).is_ok())?);
            }
            key if key.starts_with(b"GNU.sparse.") => {
                self.sparse = true;
                if key == b"GNU.sparse.name" {
                    self.name = Some(value.to_vec());
                }
            }
            _ => {}
        }
        Some(())
    }
}

/// Whether another block like this one follows, which goes on with the list of what is stored of a
/// sparse file (GNU).
pub(super) fn goes_on(block: &[u8; 512]) -> bool {
    block.get(504).is_some_and(|more| *more != 0)
}

fn field(block: &[u8; 512], range: Range<usize>) -> &[u8] {
    block.get(range).unwrap_or_default()
}

/// Up to the first zero.
fn words(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    bytes.get(..end).unwrap_or_default()
}

/// The name, with the prefix of POSIX.
fn name(block: &[u8; 512]) -> Vec<u8> {
    let (name, prefix) = (words(field(block, 0..100)), words(field(block, 345..500)));
    // GNU's own headers have times there.
    if field(block, 257..263) != b"ustar\0" || prefix.is_empty() {
        return name.to_vec();
    }
    [prefix, b"/", name].concat()
}

/// A number: octal digits, or, beyond what these can say, bytes whose first bit is set (GNU).
fn number(field: &[u8]) -> Option<u64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        let top = u64::from(first & 0x7f);
        let all = rest.iter().try_fold(top, |n, b| n.checked_mul(256)?.checked_add(u64::from(*b)));
        return all.filter(|n| i64::try_from(*n).is_ok());
    }
    let text = std::str::from_utf8(words(field)).ok()?.trim_matches(' ');
    let plain = !text.is_empty() && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    plain.then(|| u64::from_str_radix(text, 8).ok()).flatten()
}

/// The sum of all bytes, with spaces in its own place; and as old programs made it, of signed
/// bytes.
fn sums(block: &[u8; 512]) -> [u64; 2] {
    let (mut unsigned, mut negative) = (0_u64, 0_u64);
    for (at, byte) in block.iter().enumerate() {
        let byte = if (148..156).contains(&at) { b' ' } else { *byte };
        unsigned += u64::from(byte);
        negative += if byte >= 0x80 { 256 } else { 0 };
    }
    [unsigned, unsigned.wrapping_sub(negative)]
}
