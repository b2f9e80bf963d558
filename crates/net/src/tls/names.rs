//! The names in a certificate, as text.
//!
//! A small reader of DER, enough for the subject and the issuer of a certificate that the library has
//! verified, and strict: a certificate that it does not understand has no names.

use device::Identity;
use s2n_tls::connection::Connection;

/// Parts of a name, at most, and bytes of its text.
const MOST_PARTS: usize = 64;
const LONGEST: usize = 4096;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT: u8 = 0x06;
/// The explicit version that comes first in most certificates.
const VERSION: u8 = 0xa0;
const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const IA5: u8 = 0x16;

/// Short names of attributes (RFC 4514, and GnuTLS's additions), by their object identifiers.
const TYPES: [(&str, &[u8]); 13] = [
    ("CN", &[0x55, 4, 3]),
    ("SN", &[0x55, 4, 4]),
    ("serialNumber", &[0x55, 4, 5]),
    ("C", &[0x55, 4, 6]),
    ("L", &[0x55, 4, 7]),
    ("ST", &[0x55, 4, 8]),
    ("STREET", &[0x55, 4, 9]),
    ("O", &[0x55, 4, 10]),
    ("OU", &[0x55, 4, 11]),
    ("title", &[0x55, 4, 12]),
    ("DC", &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25]),
    ("UID", &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1]),
    ("EMAIL", &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1]),
];

/// The names of a client that had to show a certificate; none for others.
pub(super) fn of_client(connection: &Connection) -> Identity {
    if !connection.client_cert_used() {
        return Identity::default();
    }
    let Ok(chain) = connection.peer_cert_chain() else { return Identity::default() };
    let Some(Ok(first)) = chain.iter().next() else { return Identity::default() };
    let names = first.der().ok().and_then(names);
    let (subject, issuer) = names.map_or((None, None), |(a, b)| (Some(a), Some(b)));
    Identity { subject, issuer, user: None }
}

/// The subject and the issuer of a certificate.
fn names(certificate: &[u8]) -> Option<(String, String)> {
    let mut whole = certificate;
    let mut whole = element(&mut whole, SEQUENCE)?;
    let mut signed = element(&mut whole, SEQUENCE)?;
    if signed.first() == Some(&VERSION) {
        any(&mut signed)?;
    }
    // The serial number, and how it is signed.
    any(&mut signed)?;
    any(&mut signed)?;
    let issuer = name(element(&mut signed, SEQUENCE)?)?;
    // The validity.
    any(&mut signed)?;
    let subject = name(element(&mut signed, SEQUENCE)?)?;
    Some((subject, issuer))
}

/// A name as RFC 4514 writes it: the last part first.
fn name(mut parts: &[u8]) -> Option<String> {
    let mut texts = Vec::new();
    while !parts.is_empty() {
        let mut set = element(&mut parts, SET)?;
        let mut joined = String::new();
        while !set.is_empty() {
            let mut pair = element(&mut set, SEQUENCE)?;
            let kind = element(&mut pair, OBJECT)?;
            let (tag, value) = any(&mut pair)?;
            if !joined.is_empty() {
                joined.push('+');
            }
            joined.push_str(&part(kind, tag, value)?);
        }
        texts.push(joined);
        if texts.len() > MOST_PARTS {
            return None;
        }
    }
    texts.reverse();
    Some(texts.join(",")).filter(|text| text.len() <= LONGEST)
}

fn part(kind: &[u8], tag: u8, value: &[u8]) -> Option<String> {
    let word = TYPES.iter().find(|(_, object)| *object == kind)?.0;
    let text = match tag {
        UTF8 => std::str::from_utf8(value).ok()?,
        PRINTABLE | IA5 => std::str::from_utf8(value).ok().filter(|text| text.is_ascii())?,
        _ => return None,
    };
    Some(format!("{word}={}", escaped(text)))
}

/// Escapes characters that have a meaning in a name.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let last = text.chars().count().saturating_sub(1);
    for (at, c) in text.chars().enumerate() {
        let edge = (c == ' ' && (at == 0 || at == last)) || (c == '#' && at == 0);
        if edge || r#",+"\<>;"#.contains(c) {
            out.push('\\');
        }
        if c.is_control() {
            out.push_str(&c.to_string().bytes().map(|b| format!("\\{b:02X}")).collect::<String>());
        } else {
            out.push(c);
        }
    }
    out
}

/// The content of the next element, which has to have this tag.
fn element<'a>(input: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (found, content) = any(input)?;
    (found == tag).then_some(content)
}

/// The next element: its tag and its content.
fn any<'a>(input: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, rest) = input.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let length = match first {
        short @ 0..=0x7f => usize::from(short),
        // The length of the length: up to three bytes are more than any certificate has.
        0x81..=0x83 => {
            let (digits, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
            rest = after;
            digits.iter().fold(0, |all, digit| all << 8 | usize::from(*digit))
        }
        _ => return None,
    };
    let (content, after) = rest.split_at_checked(length)?;
    *input = after;
    Some((tag, content))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        match u8::try_from(content.len()) {
            Ok(short) if short < 128 => bytes.push(short),
            _ => {
                bytes.push(0x82);
                bytes.extend_from_slice(&u16::try_from(content.len()).unwrap().to_be_bytes());
            }
        }
        bytes.extend_from_slice(content);
        bytes
    }

    fn rdn(kind: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
        let pair = [der(OBJECT, kind), der(tag, text)].concat();
        der(SET, &der(SEQUENCE, &pair))
    }

    fn certificate(subject: &[u8], issuer: &[u8]) -> Vec<u8> {
        let signed = [
            der(VERSION, &der(2, &[2])),
            der(2, &[1]),
            der(SEQUENCE, &[]),
            der(SEQUENCE, issuer),
            der(SEQUENCE, &[]),
            der(SEQUENCE, subject),
        ];
        der(SEQUENCE, &der(SEQUENCE, &signed.concat()))
    }

    #[test]
    fn a_name_is_written_from_its_last_part_on_and_nothing_in_it_can_pretend() {
        let subject = [
            rdn(&[0x55, 4, 10], UTF8, "Büro, Ltd".as_bytes()),
            rdn(&[0x55, 4, 3], PRINTABLE, b" a=b"),
        ];
        let issuer = rdn(&[0x55, 4, 3], UTF8, b"The CA");
        let told = names(&certificate(&subject.concat(), &issuer)).unwrap();
        assert_eq!(told.0, r"CN=\ a=b,O=Büro\, Ltd");
        assert_eq!(told.1, "CN=The CA");
    }

    #[test]
    fn what_is_not_understood_has_no_name() {
        let good = rdn(&[0x55, 4, 3], UTF8, b"x");
        for subject in [
            rdn(&[0x55, 4, 99], UTF8, b"x"),
            rdn(&[0x55, 4, 3], UTF8, &[0xff]),
            rdn(&[0x55, 4, 3], 0x1e, b"x"),
            vec![SET],
            vec![SET, 0x84, 0xff, 0xff, 0xff, 0xff],
            good.repeat(MOST_PARTS + 1),
        ] {
            assert!(names(&certificate(&subject, &good)).is_none(), "{subject:?}");
        }
        let whole = certificate(&good, &good);
        for cut in 0..whole.len() {
            assert!(names(&whole[..cut]).is_none(), "{cut}");
        }
    }
}
