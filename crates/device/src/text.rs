//! Names as text that carries any bytes.
//!
//! A path may hold bytes that are not UTF-8, and the words of a command line are taken apart as
//! text. [`carry`] makes text of any bytes, and [`path`] the same bytes of that text again: a byte
//! that belongs to no character travels as one of the last 128 private characters (U+10FF80 to
//! U+10FFFF), and so do the bytes of such a character, so that nothing is ambiguous. [`shown`] is
//! for people.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The character of byte 0; those of bytes below 128 are never used.
const BASE: u32 = 0x10_ff00;

/// The byte that a character carries.
fn carried(c: char) -> Option<u8> {
    let byte = u8::try_from(u32::from(c).checked_sub(BASE)?).ok()?;
    (byte >= 0x80).then_some(byte)
}

/// Bytes as text.
#[must_use]
pub fn carry(bytes: &OsStr) -> String {
    let mut text = String::with_capacity(bytes.len());
    let carrier = |byte: &u8| char::from_u32(BASE + u32::from(*byte));
    for chunk in bytes.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match carried(c) {
                None => text.push(c),
                Some(_) => {
                    text.extend(c.encode_utf8(&mut [0; 4]).as_bytes().iter().filter_map(carrier))
                }
            }
        }
        text.extend(chunk.invalid().iter().filter_map(carrier));
    }
    text
}

/// The path whose bytes `text` carries.
#[must_use]
pub fn path(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match carried(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    OsString::from_vec(bytes).into()
}

/// `text` for people: `\xff` for a byte that belongs to no character, and `\u{1b}` for a control
/// character, so that no name makes several lines of one or tells a terminal what to do.
#[must_use]
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| carried(c).is_some() || c.is_control()) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match carried(c) {
            Some(byte) => shown.push_str(&format!("\\x{byte:02x}")),
            None if c.is_control() => shown.extend(c.escape_unicode()),
            None => shown.push(c),
        }
    }
    shown.into()
}

/// A word of the kernel's tables (`/proc/self/mountinfo`, `/proc/swaps`), in which `\040` and the
/// like are bytes.
#[must_use]
pub fn unescaped(word: &[u8]) -> OsString {
    let (mut bytes, mut rest) = (Vec::new(), word);
    while let Some((first, others)) = rest.split_first() {
        let digits = others.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { others.get(3..).unwrap_or_default() } else { others };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mount_tables_escape_is_itself_again() {
        assert_eq!(unescaped(br"/mnt/a\040b\134c"), r"/mnt/a b\c");
        assert_eq!(unescaped(br"\04"), r"\04");
        assert_eq!(unescaped(b"x"), "x");
    }

    #[test]
    fn any_bytes_come_back_and_text_stays_text() {
        for bytes in [
            &b"disk.raw"[..],
            "päth \u{10ff41} \u{10ffff}\u{10ff80}".as_bytes(),
            b"\xff\xfe/a\xc3",
            b"\xc3\xa4\x80\xf4\x8f\xbe\x80",
            b"",
        ] {
            let text = carry(OsStr::from_bytes(bytes));
            assert_eq!(path(&text).as_os_str().as_bytes(), bytes);
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(path(&carry(OsStr::from_bytes(&all))).as_os_str().as_bytes(), all);
        assert_eq!(carry(OsStr::new("päth")), "päth");
        assert_eq!(path("päth").as_os_str(), "päth");
    }

    #[test]
    fn people_see_bytes_that_are_no_text_escaped() {
        assert_eq!(shown(&carry(OsStr::from_bytes(b"d\xff\xe4.raw"))), r"d\xff\xe4.raw");
        assert_eq!(shown("disk.raw"), "disk.raw");
        assert_eq!(shown("a\n\x1b[2Jä\0\u{9b}"), r"a\u{a}\u{1b}[2Jä\u{0}\u{9b}");
    }
}
