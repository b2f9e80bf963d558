//! Lines of digests and names, in the form of sha256sum: `DIGEST  NAME`. A name with a backslash or
//! the end of a line in it is escaped, and the line begins with a backslash.

use device::text;
use transfer::ContentDigest;

/// The line for a disk.
pub(crate) fn line(digest: &ContentDigest, name: &str) -> Vec<u8> {
    let name = text::path(name).into_os_string().into_encoded_bytes();
    let mut line = Vec::new();
    let escaped = name.iter().any(|byte| matches!(byte, b'\\' | b'\n' | b'\r'));
    if escaped {
        line.push(b'\\');
    }
    line.extend(format!("{digest}  ").bytes());
    for byte in name {
        match byte {
            b'\\' => line.extend(b"\\\\"),
            b'\n' => line.extend(b"\\n"),
            b'\r' => line.extend(b"\\r"),
            byte => line.push(byte),
        }
    }
    line.push(b'\n');
    line
}

/// Reads one; `None` if it is none.
pub(super) fn parse(line: &[u8]) -> Option<(ContentDigest, String)> {
    let (escaped, line) = match line.strip_prefix(b"\\") {
        Some(line) => (true, line),
        None => (false, line),
    };
    let end = line.iter().position(|byte| *byte == b' ')?;
    let (digest, name) = line.split_at_checked(end)?;
    let digest = ContentDigest::parse(std::str::from_utf8(digest).ok()?)?;
    // The second letter says binary or text, which is the same here.
    let name = name.strip_prefix(b"  ").or_else(|| name.strip_prefix(b" *"))?;
    let name = if escaped { unescaped(name)? } else { name.to_vec() };
    if name.is_empty() {
        return None;
    }
    let name = <std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(name);
    Some((digest, text::carry(&name)))
}

fn unescaped(name: &[u8]) -> Option<Vec<u8>> {
    let (mut bytes, mut out) = (name.iter(), Vec::new());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'\\' => match bytes.next()? {
                b'\\' => b'\\',
                b'n' => b'\n',
                b'r' => b'\r',
                _ => return None,
            },
            byte => *byte,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_is_written() {
        let digest = ContentDigest::parse(&"5a".repeat(32)).unwrap();
        for name in ["disk.raw", "nbd://host/a b", "a\\b\nc\rd", " x", "*"] {
            let line = line(&digest, name);
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            let read = parse(line.strip_suffix(b"\n").unwrap());
            assert_eq!(read, Some((digest, name.to_owned())), "{name:?}");
        }
        let binary = format!("{digest} *disk");
        assert_eq!(parse(binary.as_bytes()), Some((digest, "disk".to_owned())));
        for bad in ["", "5a  x", &format!("{digest}  "), &format!("\\{digest}  a\\x"), "# no"] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
