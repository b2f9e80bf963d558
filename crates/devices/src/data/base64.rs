//! Base64 as RFC 4648 has it, with or without padding; white space is skipped.

pub(crate) fn decode(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count, mut padding) = (0u32, 0u32, 0);
    for (at, c) in text.bytes().enumerate().filter(|(_, c)| !c.is_ascii_whitespace()) {
        if c == b'=' {
            padding += 1;
            continue;
        }
        let value = digit(c).filter(|_| padding == 0);
        let value = value.ok_or_else(|| format!("character {} is not base64", at + 1))?;
        bits = (bits << 6) | value;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push(u8::try_from((bits >> count) & 0xff).unwrap_or(0));
        }
    }
    // What is left over is less than a byte, of zeroes; six bits alone are half a character lost.
    if count == 6 || padding > 2 || bits & ((1 << count) - 1) != 0 {
        return Err("it is truncated".into());
    }
    Ok(out)
}

fn digit(c: u8) -> Option<u32> {
    Some(u32::from(match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_4648_are_read_and_invalid_text_is_refused() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zg", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9v\nYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(decode(text).unwrap(), bytes.as_bytes(), "{text}");
        }
        for text in ["Z", "Zg=g", "Zh", "Z!==", "Zg====", "é"] {
            assert!(decode(text).is_err(), "{text}");
        }
    }
}
