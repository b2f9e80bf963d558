//! Hashes that headers name, and what is derived by them.

use device::Result;
use sha1::Sha1;
use sha2::digest::{Digest, DynDigest};
use sha2::{Sha224, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

use crate::kit::fields::foreign;

/// A hash.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Hash {
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// All, with the names that cryptsetup and QEMU give them.
    pub(super) const ALL: [(&str, Self); 5] = [
        ("sha1", Self::Sha1),
        ("sha224", Self::Sha224),
        ("sha256", Self::Sha256),
        ("sha384", Self::Sha384),
        ("sha512", Self::Sha512),
    ];

    /// The one of that name.
    ///
    /// # Errors
    /// `Unsupported`, with the name.
    pub(super) fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(word, _)| *word == name);
        found.map(|(_, hash)| *hash).ok_or_else(|| {
            let name = device::text::shown(name);
            foreign(format!("it is hashed with `{name}`; SHA-1 and SHA-2 are read"))
        })
    }

    pub(super) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, hash)| *hash == self).map_or("", |(word, _)| word)
    }

    /// Bytes of a digest.
    pub(super) fn len(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha224 => 28,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// The digest of these pieces, one after the other.
    pub(super) fn digest(self, pieces: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        let mut hash: Box<dyn DynDigest> = match self {
            Self::Sha1 => Box::new(Sha1::new()),
            Self::Sha224 => Box::new(Sha224::new()),
            Self::Sha256 => Box::new(Sha256::new()),
            Self::Sha384 => Box::new(Sha384::new()),
            Self::Sha512 => Box::new(Sha512::new()),
        };
        pieces.iter().for_each(|piece| hash.update(piece));
        Zeroizing::new(hash.finalize().into_vec())
    }

    /// PBKDF2 with HMAC of this hash: `len` bytes.
    pub(super) fn pbkdf2(
        self,
        password: &[u8],
        salt: &[u8],
        iterations: u32,
        len: usize,
    ) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(vec![0; len]);
        match self {
            Self::Sha1 => pbkdf2::pbkdf2_hmac::<Sha1>(password, salt, iterations, &mut out),
            Self::Sha224 => pbkdf2::pbkdf2_hmac::<Sha224>(password, salt, iterations, &mut out),
            Self::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut out),
            Self::Sha384 => pbkdf2::pbkdf2_hmac::<Sha384>(password, salt, iterations, &mut out),
            Self::Sha512 => pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, iterations, &mut out),
        }
        out
    }
}
