//! The functions, behind one type.

use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

use super::kind::{ContentDigest, DigestAlgorithm};

/// A digest that is being computed.
pub(super) enum Hash {
    Blake3(Box<blake3::Hasher>),
    Md5(Md5),
    Sha1(Sha1),
    Sha256(Sha256),
    Sha512(Box<Sha512>),
}

impl Hash {
    pub(super) fn new(algorithm: DigestAlgorithm) -> Self {
        match algorithm {
            DigestAlgorithm::Blake3 => Self::Blake3(Box::default()),
            DigestAlgorithm::Md5 => Self::Md5(Md5::new()),
            DigestAlgorithm::Sha1 => Self::Sha1(Sha1::new()),
            DigestAlgorithm::Sha256 => Self::Sha256(Sha256::new()),
            DigestAlgorithm::Sha512 => Self::Sha512(Box::default()),
        }
    }

    /// The digest of these bytes alone.
    pub(super) fn of(algorithm: DigestAlgorithm, bytes: &[u8]) -> ContentDigest {
        let mut hash = Self::new(algorithm);
        hash.update(bytes);
        hash.finish()
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Blake3(hash) => drop(hash.update(bytes)),
            Self::Md5(hash) => hash.update(bytes),
            Self::Sha1(hash) => hash.update(bytes),
            Self::Sha256(hash) => hash.update(bytes),
            Self::Sha512(hash) => hash.update(bytes),
        }
    }

    pub(super) fn finish(self) -> ContentDigest {
        match self {
            Self::Blake3(hash) => ContentDigest::of(hash.finalize().as_bytes()),
            Self::Md5(hash) => ContentDigest::of(&hash.finalize()),
            Self::Sha1(hash) => ContentDigest::of(&hash.finalize()),
            Self::Sha256(hash) => ContentDigest::of(&hash.finalize()),
            Self::Sha512(hash) => ContentDigest::of(&hash.finalize()),
        }
    }
}
