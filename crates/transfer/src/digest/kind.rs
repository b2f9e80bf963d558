//! Which digest: its words, its size, and how it is printed and read.

use std::fmt;

use device::{Error, Result, parse_size};

/// The size of a block where none is named, in bytes.
const BLOCK: u64 = 64 << 10;
/// The sizes that a block may have. A copy holds a few blocks that are not complete.
const BLOCKS: std::ops::RangeInclusive<u64> = 512..=16 << 20;
/// Bytes in the longest digest.
const LONGEST: usize = 64;

/// A function that digests bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DigestAlgorithm {
    /// The quickest here on many processors. 32 bytes.
    Blake3,
    /// For comparing with old digests: anyone can make two disks that have the same. 16 bytes.
    Md5,
    /// The same. 20 bytes.
    Sha1,
    /// 32 bytes.
    Sha256,
    /// 64 bytes.
    Sha512,
}

/// All of them, with their words.
const ALGORITHMS: [(&str, DigestAlgorithm, usize); 5] = [
    ("sha256", DigestAlgorithm::Sha256, 32),
    ("sha512", DigestAlgorithm::Sha512, 64),
    ("sha1", DigestAlgorithm::Sha1, 20),
    ("md5", DigestAlgorithm::Md5, 16),
    ("blake3", DigestAlgorithm::Blake3, 32),
];

impl DigestAlgorithm {
    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        ALGORITHMS.iter().find(|(_, known, _)| *known == self).map_or("", |(word, ..)| word)
    }

    /// Bytes in a digest.
    #[must_use]
    pub fn length(self) -> usize {
        ALGORITHMS.iter().find(|(_, known, _)| *known == self).map_or(0, |(.., length)| *length)
    }

    /// Its words, for help.
    pub fn words() -> impl Iterator<Item = &'static str> {
        ALGORITHMS.iter().map(|(word, ..)| *word)
    }
}

/// Which digest of a disk: digests of different kinds cannot be compared.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DigestKind {
    /// The function.
    pub algorithm: DigestAlgorithm,
    /// Bytes in a block: a power of two from 512 to 16 MiB.
    pub block: u64,
}

impl Default for DigestKind {
    /// That of `nbdcopy --blkhash`.
    fn default() -> Self {
        Self { algorithm: DigestAlgorithm::Sha256, block: BLOCK }
    }
}

impl DigestKind {
    /// The quickest, for what nobody else reads.
    #[must_use]
    pub fn quick() -> Self {
        Self { algorithm: DigestAlgorithm::Blake3, block: BLOCK }
    }

    /// Reads `ALGORITHM`, or `ALGORITHM/BLOCK`, as `nbdcopy --blkhash` takes it.
    ///
    /// # Errors
    /// `InvalidInput`: there is no such function, or a block cannot be that long.
    pub fn parse(text: &str) -> Result<Self> {
        let (word, block) = match text.split_once('/') {
            Some((word, block)) => (word, Some(block)),
            None => (text, None),
        };
        let found = ALGORITHMS.iter().find(|(known, ..)| known.eq_ignore_ascii_case(word));
        let Some((_, algorithm, _)) = found else {
            let words: Vec<_> = DigestAlgorithm::words().collect();
            let action = format!("digest: there is no '{word}'; these are: {}", words.join(", "));
            return Err(Error::invalid(action));
        };
        let block = block.map_or(Ok(BLOCK), parse_size)?;
        Self { algorithm: *algorithm, block }.checked()
    }

    fn checked(self) -> Result<Self> {
        if self.block.is_power_of_two() && BLOCKS.contains(&self.block) {
            return Ok(self);
        }
        let action =
            format!("digest: a block has a power of two from 512 to 16M bytes, not {}", self.block);
        Err(Error::invalid(action))
    }
}

impl fmt::Display for DigestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.algorithm.word();
        match self.block {
            block if block >= 1 << 10 => write!(f, "{word}/{}K", block >> 10),
            block => write!(f, "{word}/{block}"),
        }
    }
}

/// A digest. Printed, it is in hexadecimal.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct ContentDigest {
    bytes: [u8; LONGEST],
    length: usize,
}

impl ContentDigest {
    /// At most 64 bytes; what is longer is cut off.
    pub(super) fn of(digest: &[u8]) -> Self {
        let (mut bytes, length) = ([0; LONGEST], digest.len().min(LONGEST));
        bytes.iter_mut().zip(digest).for_each(|(to, from)| *to = *from);
        Self { bytes, length }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Reads one that was printed; `None` if it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (digits, rest) = text.as_bytes().as_chunks::<2>();
        let known = ALGORITHMS.iter().any(|(.., length)| *length == digits.len());
        if !known || !rest.is_empty() {
            return None;
        }
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let bytes = digits.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
        Some(Self::of(&bytes.collect::<Option<Vec<u8>>>()?))
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

runtime::debug_as!(ContentDigest, |digest| "{digest}");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_as_nbdcopy_does() {
        for (text, shown) in [
            ("sha256", "sha256/64K"),
            ("SHA256/64k", "sha256/64K"),
            ("md5/512", "md5/512"),
            ("sha1/1M", "sha1/1024K"),
            ("blake3/65536", "blake3/64K"),
        ] {
            assert_eq!(DigestKind::parse(text).unwrap().to_string(), shown, "{text}");
        }
        for bad in ["", "sha384", "/4k", "sha256/", "sha256/3000", "sha256/256", "sha256/32M"] {
            assert!(DigestKind::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_digest_is_read_as_it_is_printed() {
        let digest = ContentDigest::of(&[0x0a; 20]);
        assert_eq!(ContentDigest::parse(&digest.to_string()), Some(digest));
        assert_eq!(ContentDigest::parse(&digest.to_string().to_uppercase()), Some(digest));
        for bad in ["", "0a", &"0g".repeat(20), &"0".repeat(41), &"é".repeat(20)] {
            assert_eq!(ContentDigest::parse(bad), None, "{bad}");
        }
    }
}
