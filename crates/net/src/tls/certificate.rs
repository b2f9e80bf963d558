//! The fields of a certificate that we read ourselves.
//!
//! Strict: a certificate that is not understood is to be treated like one that proves nothing.

use der::asn1::{AnyRef, ObjectIdentifier};
use der::{Decode, Reader, SliceReader, Tag, TagNumber, Tagged};

/// The explicit version that comes first in most certificates.
const VERSION: Tag = Tag::ContextSpecific { constructed: true, number: TagNumber(0) };
const EXTENSIONS: Tag = Tag::ContextSpecific { constructed: true, number: TagNumber(3) };
/// The hash in the parameters of an RSA-PSS signature; SHA-1 where it is left out.
const PSS_HASH: Tag = VERSION;

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const RSA_PSS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.10");
/// SHA-256, SHA-384 and SHA-512.
const HASHES: [ObjectIdentifier; 3] = [
    ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.1"),
    ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.2"),
    ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.3"),
];
/// Signatures with these hashes, or with none: RSA, ECDSA, Ed25519, ML-DSA.
const SIGNATURES: [ObjectIdentifier; 10] = [
    ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.11"),
    ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.12"),
    ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.13"),
    ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.2"),
    ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.3"),
    ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.4"),
    ObjectIdentifier::new_unwrap("1.3.101.112"),
    ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.3.17"),
    ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.3.18"),
    ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.3.19"),
];

/// A certificate, as far as it has been read.
pub(super) struct Certificate<'a> {
    pub(super) issuer: AnyRef<'a>,
    pub(super) subject: AnyRef<'a>,
    /// What is signed, behind the subject: the key, and the extensions.
    behind: SliceReader<'a>,
    /// What follows what is signed: the algorithm, and the signature.
    signature: SliceReader<'a>,
}

impl<'a> Certificate<'a> {
    /// `None`: it is not understood.
    pub(super) fn read(der: &'a [u8]) -> Option<Self> {
        let mut signature = inside(&mut SliceReader::new(der).ok()?, Tag::Sequence)?;
        let mut behind = inside(&mut signature, Tag::Sequence)?;
        // The version, which may be missing, and the serial number.
        let mut number = any(&mut behind)?;
        if number.tag() == VERSION {
            number = any(&mut behind)?;
        }
        (number.tag() == Tag::Integer).then_some(())?;
        // How it is signed, which is repeated behind.
        any(&mut behind)?;
        let issuer = any(&mut behind)?;
        // The validity.
        any(&mut behind)?;
        let subject = any(&mut behind)?;
        Some(Self { issuer, subject, behind, signature })
    }

    /// Whether it may be signed by its own key.
    pub(super) fn is_self_issued(&self) -> bool {
        self.issuer == self.subject
    }

    /// Whether its signature is one that cannot be forged today. `None`: it is not understood.
    pub(super) fn is_signed_well(&self) -> Option<bool> {
        let mut algorithm = inside(&mut self.signature.clone(), Tag::Sequence)?;
        let kind = object(&mut algorithm)?;
        if kind != RSA_PSS {
            return Some(SIGNATURES.contains(&kind));
        }
        let mut params = inside(&mut algorithm, Tag::Sequence)?;
        if params.is_finished() {
            return Some(false);
        }
        let first = any(&mut params)?;
        if first.tag() != PSS_HASH {
            return Some(false);
        }
        let mut hash = inside(&mut SliceReader::new(first.value()).ok()?, Tag::Sequence)?;
        Some(HASHES.contains(&object(&mut hash)?))
    }

    /// The length of its key in bits, if that is one of RSA; `None`: it is not understood.
    pub(super) fn rsa_bits(&self) -> Option<Option<usize>> {
        let mut info = inside(&mut self.behind.clone(), Tag::Sequence)?;
        let kind = object(&mut inside(&mut info, Tag::Sequence)?)?;
        if kind != RSA && kind != RSA_PSS {
            return Some(None);
        }
        let bits = any(&mut info).filter(|bits| bits.tag() == Tag::BitString)?;
        // No bit of the last byte is unused.
        let key = bits.value().strip_prefix(&[0])?;
        let mut key = inside(&mut SliceReader::new(key).ok()?, Tag::Sequence)?;
        let modulus = any(&mut key).filter(|number| number.tag() == Tag::Integer)?;
        let zeros = modulus.value().iter().take_while(|byte| **byte == 0).count();
        let digits = modulus.value().get(zeros..)?;
        let unused = digits.first()?.leading_zeros();
        Some(Some((digits.len() * 8).saturating_sub(usize::try_from(unused).ok()?)))
    }

    /// The contents of its extensions of this kind. `None`: they are not understood.
    pub(super) fn extensions(&self, kind: ObjectIdentifier) -> Option<Vec<&'a [u8]>> {
        let mut behind = self.behind.clone();
        let mut found = Vec::new();
        while !behind.is_finished() {
            let field = any(&mut behind)?;
            if field.tag() != EXTENSIONS {
                continue;
            }
            let mut all = inside(&mut SliceReader::new(field.value()).ok()?, Tag::Sequence)?;
            while !all.is_finished() {
                let mut one = inside(&mut all, Tag::Sequence)?;
                let is_wanted = object(&mut one)? == kind;
                let mut content = any(&mut one)?;
                // Whether it is critical, which may be left out.
                if content.tag() == Tag::Boolean {
                    content = any(&mut one)?;
                }
                (content.tag() == Tag::OctetString).then_some(())?;
                if is_wanted {
                    found.push(content.value());
                }
            }
        }
        Some(found)
    }
}

/// The content of the next element, which has to have this tag.
pub(super) fn inside<'a>(reader: &mut SliceReader<'a>, tag: Tag) -> Option<SliceReader<'a>> {
    let element = any(reader).filter(|element| element.tag() == tag)?;
    SliceReader::new(element.value()).ok()
}

pub(super) fn any<'a>(reader: &mut SliceReader<'a>) -> Option<AnyRef<'a>> {
    AnyRef::decode(reader).ok()
}

pub(super) fn object(reader: &mut SliceReader<'_>) -> Option<ObjectIdentifier> {
    ObjectIdentifier::decode(reader).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::host;
    use super::*;

    pub(in super::super) const SEQUENCE: u8 = 0x30;
    pub(in super::super) const OBJECT: u8 = 0x06;
    const SHA1: [u8; 5] = [0x2b, 14, 3, 2, 26];
    const SHA256: [u8; 9] = [0x60, 0x86, 0x48, 1, 101, 3, 4, 2, 1];

    pub(in super::super) fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        match u8::try_from(content.len()) {
            Ok(short) if short < 128 => bytes.push(short),
            Ok(long) => bytes.extend([0x81, long]),
            Err(_) => {
                bytes.push(0x82);
                bytes.extend_from_slice(&u16::try_from(content.len()).unwrap().to_be_bytes());
            }
        }
        bytes.extend_from_slice(content);
        bytes
    }

    fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
        der(SEQUENCE, &parts.concat())
    }

    /// A signature of RSA, the last number of whose kind this is.
    fn rsa(kind: u8, params: &[u8]) -> Vec<u8> {
        let kind = [&[0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1][..], &[kind]].concat();
        sequence(&[der(OBJECT, &kind), params.to_vec()])
    }

    fn key(modulus: &[u8]) -> Vec<u8> {
        let numbers = sequence(&[der(2, modulus), der(2, &[3])]);
        sequence(&[rsa(1, &[5, 0]), der(3, &[&[0], &numbers[..]].concat())])
    }

    fn certificate(algorithm: &[u8], key: &[u8], extensions: &[Vec<u8>]) -> Vec<u8> {
        let name = der(SEQUENCE, &[]);
        let signed = [
            der(0xa0, &der(2, &[2])),
            der(2, &[1]),
            algorithm.to_vec(),
            name.clone(),
            der(SEQUENCE, &[]),
            name,
            key.to_vec(),
            der(0xa3, &sequence(extensions)),
        ];
        sequence(&[sequence(&signed), algorithm.to_vec(), der(3, &[0, 1])])
    }

    /// Alternative names.
    fn alternative(is_critical: bool, names: &[Vec<u8>]) -> Vec<u8> {
        let critical = if is_critical { vec![1, 1, 0xff] } else { Vec::new() };
        sequence(&[der(OBJECT, &[0x55, 29, 17]), critical, der(4, &sequence(names))])
    }

    #[test]
    fn signatures_with_weak_hashes_are_told_apart() {
        let pss = |tag, hash: &[u8]| {
            rsa(10, &der(SEQUENCE, &der(tag, &sequence(&[der(OBJECT, hash), vec![5, 0]]))))
        };
        let ecdsa = |kind: &[u8]| {
            sequence(&[der(OBJECT, &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4], kind].concat())])
        };
        for (algorithm, is) in [
            (rsa(11, &[5, 0]), Some(true)),
            (rsa(13, &[5, 0]), Some(true)),
            (rsa(5, &[5, 0]), Some(false)),
            (rsa(4, &[5, 0]), Some(false)),
            (ecdsa(&[3, 2]), Some(true)),
            (ecdsa(&[1]), Some(false)),
            (pss(0xa0, &SHA256), Some(true)),
            (pss(0xa0, &SHA1), Some(false)),
            // The hash is left out: SHA-1.
            (pss(0xa1, &SHA256), Some(false)),
            (rsa(10, &der(SEQUENCE, &[])), Some(false)),
            (rsa(10, &[]), None),
            (sequence(&[]), None),
        ] {
            let whole = certificate(&algorithm, &key(&[1]), &[]);
            assert_eq!(Certificate::read(&whole).unwrap().is_signed_well(), is, "{algorithm:?}");
        }
    }

    #[test]
    fn the_length_of_a_key_is_counted_without_zeros_in_front() {
        let digits = |first: &[u8]| [first, &[0; 255]].concat();
        let other = sequence(&[sequence(&[der(OBJECT, &[0x2a, 3])]), der(3, &[0, 4])]);
        for (key, bits) in [
            (key(&digits(&[0, 0x80])), Some(Some(2048))),
            (key(&digits(&[0x7f])), Some(Some(2047))),
            (key(&[0, 0, 1]), Some(Some(1))),
            (key(&[0, 0]), None),
            (key(&[]), None),
            (other, Some(None)),
            (sequence(&[]), None),
        ] {
            let whole = certificate(&rsa(11, &[]), &key, &[]);
            assert_eq!(Certificate::read(&whole).unwrap().rsa_bits(), bits, "{key:?}");
        }
    }

    #[test]
    fn what_is_not_understood_or_said_twice_is_for_no_host() {
        let name = der(0x82, b"host.example");
        let names = alternative(true, &[der(0x86, b"x"), name.clone()]);
        let is = |extensions: &[Vec<u8>]| {
            let whole = certificate(&rsa(11, &[]), &key(&[1]), extensions);
            host::is_named("host.example", &Certificate::read(&whole).unwrap())
        };
        assert_eq!(is(std::slice::from_ref(&names)), Some(true));
        assert_eq!(is(&[alternative(false, &[])]), Some(false));
        assert_eq!(is(&[names.clone(), names.clone()]), None);
        assert_eq!(is(&[alternative(false, &[name, der(0x82, &[0xff])])]), None);
        assert_eq!(is(&[der(SEQUENCE, &[])]), None);
        // No cut and no change of a byte is more than that.
        let whole = certificate(&rsa(11, &[]), &key(&[1]), &[names]);
        for at in 0..whole.len() {
            let mut other = whole.clone();
            other[at] ^= 0x81;
            for bytes in [&whole[..at], &other] {
                if let Some(read) = Certificate::read(bytes) {
                    let _ = (read.is_signed_well(), read.rsa_bits());
                    let _ = host::is_named("host.example", &read);
                }
            }
        }
    }
}
