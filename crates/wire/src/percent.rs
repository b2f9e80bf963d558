//! Percent coding, as URIs have it.

/// Text for `bytes`: those that are `plain` stand for themselves, and others are `%` and two
/// digits.
pub fn percent_encode(bytes: &[u8], plain: impl Fn(u8) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if plain(byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// The bytes that `text` stands for, and whether each `%` has two hexadecimal digits behind it: one
/// that has not stands for itself.
pub fn percent_decode(text: &str) -> (Vec<u8>, bool) {
    let (mut bytes, mut is_sound) = (Vec::with_capacity(text.len()), true);
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let digit = |at: usize| char::from(*others.get(at)?).to_digit(16);
        let code = digit(0).zip(digit(1)).filter(|_| *first == b'%');
        let byte = code.and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        is_sound &= *first != b'%' || byte.is_some();
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { others.get(2..).unwrap_or_default() } else { others };
    }
    (bytes, is_sound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_coded_comes_back_and_what_is_broken_stands_for_itself() {
        let all: Vec<u8> = (0..=255).collect();
        let text = percent_encode(&all, |byte| byte.is_ascii_alphanumeric());
        assert_eq!(percent_decode(&text), (all, true));
        assert_eq!(percent_decode("%4a%4A"), (b"JJ".to_vec(), true));
        for broken in ["%", "a%4", "%zz", "%+1", "%%4", "100%ä"] {
            assert_eq!(percent_decode(broken), (broken.as_bytes().to_vec(), false));
        }
    }
}
