//! The names in a certificate, as text.
//!
//! Reads the subject and the issuer of a certificate that the library has verified, and is strict:
//! a certificate that it does not understand has no names.

use der::asn1::{AnyRef, ObjectIdentifier};
use der::{Reader, SliceReader, Tag, Tagged};
use device::Identity;
use s2n_tls::connection::Connection;

use super::certificate::{Certificate, any, inside, object};

/// Parts of a name, at most, and bytes of its text.
const MOST_PARTS: usize = 64;
const LONGEST: usize = 4096;

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// Short names of attributes (RFC 4514, and GnuTLS's additions), by their object identifiers.
const TYPES: [(&str, ObjectIdentifier); 13] = [
    ("CN", COMMON_NAME),
    ("SN", ObjectIdentifier::new_unwrap("2.5.4.4")),
    ("serialNumber", ObjectIdentifier::new_unwrap("2.5.4.5")),
    ("C", ObjectIdentifier::new_unwrap("2.5.4.6")),
    ("L", ObjectIdentifier::new_unwrap("2.5.4.7")),
    ("ST", ObjectIdentifier::new_unwrap("2.5.4.8")),
    ("STREET", ObjectIdentifier::new_unwrap("2.5.4.9")),
    ("O", ObjectIdentifier::new_unwrap("2.5.4.10")),
    ("OU", ObjectIdentifier::new_unwrap("2.5.4.11")),
    ("title", ObjectIdentifier::new_unwrap("2.5.4.12")),
    ("DC", ObjectIdentifier::new_unwrap("0.9.2342.19200300.100.1.25")),
    ("UID", ObjectIdentifier::new_unwrap("0.9.2342.19200300.100.1.1")),
    ("EMAIL", ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.1")),
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
    let Certificate { issuer, subject, .. } = Certificate::read(certificate)?;
    Some((name(subject)?, name(issuer)?))
}

/// The common names of a subject: each is text.
pub(super) fn common(subject: AnyRef<'_>) -> Option<Vec<&str>> {
    let all = parts(subject)?.into_iter().flatten();
    all.filter(|(kind, _)| *kind == COMMON_NAME).map(|(_, value)| text(value)).collect()
}

/// The parts of a name, in their sets.
fn parts(name: AnyRef<'_>) -> Option<Vec<Vec<(ObjectIdentifier, AnyRef<'_>)>>> {
    (name.tag() == Tag::Sequence).then_some(())?;
    let (mut sets, mut all) = (SliceReader::new(name.value()).ok()?, Vec::new());
    while !sets.is_finished() {
        let (mut set, mut one) = (inside(&mut sets, Tag::Set)?, Vec::new());
        while !set.is_finished() {
            let mut pair = inside(&mut set, Tag::Sequence)?;
            one.push((object(&mut pair)?, any(&mut pair)?));
        }
        all.push(one);
    }
    (all.len() <= MOST_PARTS).then_some(all)
}

/// A name as RFC 4514 writes it: the last part first.
fn name(whole: AnyRef<'_>) -> Option<String> {
    let mut texts = Vec::new();
    for set in parts(whole)?.into_iter().rev() {
        let joined: Option<Vec<_>> =
            set.into_iter().map(|(kind, value)| part(kind, value)).collect();
        texts.push(joined?.join("+"));
    }
    Some(texts.join(",")).filter(|text| text.len() <= LONGEST)
}

fn part(kind: ObjectIdentifier, value: AnyRef<'_>) -> Option<String> {
    let word = TYPES.iter().find(|(_, object)| *object == kind)?.0;
    text(value).map(|text| format!("{word}={}", escaped(text)))
}

fn text(value: AnyRef<'_>) -> Option<&str> {
    let text = std::str::from_utf8(value.value()).ok()?;
    let is_text = match value.tag() {
        Tag::Utf8String => true,
        Tag::PrintableString | Tag::Ia5String => text.is_ascii(),
        _ => false,
    };
    is_text.then_some(text)
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

#[cfg(test)]
mod tests {
    use super::super::certificate::tests::{OBJECT, SEQUENCE, der};
    use super::*;

    const SET: u8 = 0x31;
    const UTF8: u8 = 0x0c;
    const PRINTABLE: u8 = 0x13;

    fn rdn(kind: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
        let pair = [der(OBJECT, kind), der(tag, text)].concat();
        der(SET, &der(SEQUENCE, &pair))
    }

    fn certificate(subject: &[u8], issuer: &[u8]) -> Vec<u8> {
        let signed = [
            der(0xa0, &der(2, &[2])),
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
    fn parts_of_several_and_certificates_without_a_version_are_read_too() {
        let pair = |kind: u8, tag, text| {
            der(SEQUENCE, &[der(OBJECT, &[0x55, 4, kind]), der(tag, text)].concat())
        };
        let both = der(SET, &[pair(3, PRINTABLE, b"a_b@c"), pair(10, UTF8, &[b'o'; 200])].concat());
        let long = certificate(&both, &[]);
        let (subject, issuer) = names(&long).unwrap();
        assert_eq!((subject, issuer.as_str()), (format!("CN=a_b@c+O={}", "o".repeat(200)), ""));
        let signed = [der(2, &[1]), der(SEQUENCE, &[]), der(SEQUENCE, &both), der(SEQUENCE, &[])];
        let first = [&signed[..], &[der(SEQUENCE, &both), der(3, b"more")]].concat().concat();
        let whole = der(SEQUENCE, &[der(SEQUENCE, &first), der(SEQUENCE, b"")].concat());
        assert_eq!(names(&whole).unwrap().0, names(&long).unwrap().0);
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
