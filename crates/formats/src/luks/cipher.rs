//! Sectors in cipher text: AES in XTS or CBC, each sector with an initialization vector of its own.
//!
//! Many blocks are given to the processor's AES instructions at once, also where the mode is serial
//! within a sector. Keys are zeroed when they are dropped (`aes`, with `zeroize`).

use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes192, Aes256, Block};
use device::Result;

use super::hash::Hash;
use crate::kit::fields::{corrupt, foreign};

/// The unit in which initialization vectors count, whatever the size of a sector.
pub(super) const SECTOR: usize = 512;
/// The largest sector.
pub(super) const LARGEST: usize = 4096;
/// Blocks that are computed together: those of the largest sector.
const MANY: usize = LARGEST / 16;
/// Sectors that are computed together in CBC, which is serial within each.
const ABREAST: usize = 64;

/// A cipher with its mode and its vectors, as headers name it; `aes-xts-plain64` in one word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Encryption {
    pub(super) mode: Mode,
    pub(super) vectors: Vectors,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Mode {
    Cbc,
    Xts,
}

/// How the vector of a sector follows from its number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Vectors {
    /// Its last 32 bits.
    Plain,
    /// All of it.
    Plain64,
    /// The same, encrypted with this hash of the key.
    Essiv(Hash),
}

impl Encryption {
    /// Reads `aes` and `xts-plain64`.
    ///
    /// # Errors
    /// `Unsupported`, with its name.
    pub(super) fn parse(cipher: &str, mode: &str) -> Result<Self> {
        let unknown = || {
            let (cipher, mode) = (device::text::shown(cipher), device::text::shown(mode));
            foreign(format!(
                "it is encrypted with `{cipher}-{mode}`; AES is read, in XTS or CBC, with the vectors plain, plain64 or essiv"
            ))
        };
        let (mode, vectors) = mode.split_once('-').ok_or_else(unknown)?;
        let mode = match mode {
            _ if cipher != "aes" => return Err(unknown()),
            "xts" => Mode::Xts,
            "cbc" => Mode::Cbc,
            _ => return Err(unknown()),
        };
        // QEMU writes a hash that was given to it with plain vectors, too (as Nova does), and it
        // means nothing.
        let vectors = match vectors.split_once(':') {
            Some(("essiv", hash)) => Vectors::Essiv(Hash::parse(hash)?),
            _ if vectors == "plain" || vectors.starts_with("plain:") => Vectors::Plain,
            _ if vectors == "plain64" || vectors.starts_with("plain64:") => Vectors::Plain64,
            _ => return Err(unknown()),
        };
        Ok(Self { mode, vectors })
    }

    /// `xts-plain64`.
    pub(super) fn mode_name(self) -> String {
        let mode = match self.mode {
            Mode::Cbc => "cbc",
            Mode::Xts => "xts",
        };
        match self.vectors {
            Vectors::Plain => format!("{mode}-plain"),
            Vectors::Plain64 => format!("{mode}-plain64"),
            Vectors::Essiv(hash) => format!("{mode}-essiv:{}", hash.name()),
        }
    }
}

/// AES with a key of any length.
enum Aes {
    Of128(Aes128),
    Of192(Aes192),
    Of256(Aes256),
}

impl Aes {
    fn new(key: &[u8]) -> Result<Self> {
        let aes = match key.len() {
            16 => Aes128::new_from_slice(key).ok().map(Self::Of128),
            24 => Aes192::new_from_slice(key).ok().map(Self::Of192),
            32 => Aes256::new_from_slice(key).ok().map(Self::Of256),
            _ => None,
        };
        aes.ok_or_else(|| {
            corrupt(format!("its cipher has keys of 16, 24 or 32 bytes, not of {}", key.len()))
        })
    }

    fn encrypt(&self, blocks: &mut [Block]) {
        match self {
            Self::Of128(aes) => aes.encrypt_blocks(blocks),
            Self::Of192(aes) => aes.encrypt_blocks(blocks),
            Self::Of256(aes) => aes.encrypt_blocks(blocks),
        }
    }

    fn decrypt(&self, blocks: &mut [Block]) {
        match self {
            Self::Of128(aes) => aes.decrypt_blocks(blocks),
            Self::Of192(aes) => aes.decrypt_blocks(blocks),
            Self::Of256(aes) => aes.decrypt_blocks(blocks),
        }
    }
}

/// What encrypts and decrypts sectors with one key.
pub(super) struct Sectors {
    data: Aes,
    /// Encrypts vectors: XTS' second half of the key, or ESSIV's hash of it.
    second: Option<Aes>,
    encryption: Encryption,
    /// Bytes of a sector: a multiple of [`SECTOR`], at most [`LARGEST`], which divides that.
    size: usize,
}

impl Sectors {
    /// Sectors of `size` bytes: 512, 1024, 2048 or 4096.
    ///
    /// # Errors
    /// The key does not have the length that the cipher needs.
    pub(super) fn new(encryption: Encryption, key: &[u8], size: usize) -> Result<Self> {
        debug_assert!(size >= SECTOR && LARGEST.is_multiple_of(size));
        let (data, tweak) = match encryption.mode {
            Mode::Cbc => (key, None),
            Mode::Xts => {
                let (data, tweak) = key.split_at(key.len() / 2);
                // The standard has no XTS with keys of 192 bits.
                if !matches!(data.len(), 16 | 32) || data.len() != tweak.len() {
                    let len = key.len();
                    return Err(corrupt(format!(
                        "AES in XTS has keys of 32 or 64 bytes, not of {len}"
                    )));
                }
                (data, Some(Aes::new(tweak)?))
            }
        };
        let second = match encryption.vectors {
            Vectors::Essiv(_) if tweak.is_some() => {
                return Err(foreign("it is encrypted with XTS and ESSIV together"));
            }
            Vectors::Essiv(hash) => Some(Aes::new(&hash.digest(&[key]))?),
            Vectors::Plain | Vectors::Plain64 => tweak,
        };
        Ok(Self { data: Aes::new(data)?, second, encryption, size })
    }

    /// Encrypts whole sectors in place; the first has the vector of the number `number`, which
    /// counts units of [`SECTOR`] bytes.
    pub(super) fn encrypt(&self, bytes: &mut [u8], number: u64) {
        self.crypt(bytes, number, true);
    }

    /// Decrypts them.
    pub(super) fn decrypt(&self, bytes: &mut [u8], number: u64) {
        self.crypt(bytes, number, false);
    }

    fn crypt(&self, bytes: &mut [u8], number: u64, encrypts: bool) {
        debug_assert!(bytes.len().is_multiple_of(self.size), "whole sectors");
        let (blocks, _) = Block::slice_as_chunks_mut(bytes);
        let abreast = match self.encryption.mode {
            Mode::Cbc => ABREAST * self.size / 16,
            Mode::Xts => MANY,
        };
        let mut number = number;
        for blocks in blocks.chunks_mut(abreast) {
            match self.encryption.mode {
                Mode::Xts => self.xts(blocks, number, encrypts),
                Mode::Cbc if encrypts => self.encrypt_cbc(blocks, number),
                Mode::Cbc => self.decrypt_cbc(blocks, number),
            }
            number = number.wrapping_add((blocks.len() * 16 / SECTOR) as u64);
        }
    }

    /// The vectors of sectors from that number on.
    fn vectors(&self, number: u64, vectors: &mut [Block]) {
        let step = (self.size / SECTOR) as u64;
        for (vector, index) in vectors.iter_mut().zip(0_u64..) {
            let number = number.wrapping_add(index * step);
            let number = match self.encryption.vectors {
                Vectors::Plain => number & u64::from(u32::MAX),
                Vectors::Plain64 | Vectors::Essiv(_) => number,
            };
            *vector = Array(u128::from(number).to_le_bytes());
        }
        if let Some(second) = &self.second {
            second.encrypt(vectors);
        }
    }

    fn xts(&self, blocks: &mut [Block], number: u64, encrypts: bool) {
        let per = self.size / 16;
        let (mut tweaks, mut firsts) = ([0_u128; MANY], [Block::default(); LARGEST / SECTOR]);
        let sectors = blocks.len() / per;
        let firsts = firsts.get_mut(..sectors).unwrap_or_default();
        self.vectors(number, firsts);
        for (first, tweaks) in firsts.iter().zip(tweaks.chunks_mut(per)) {
            let mut tweak = u128::from_le_bytes(first.0);
            for each in tweaks {
                *each = tweak;
                tweak = tweak << 1 ^ (0x87 & (tweak >> 127).wrapping_neg());
            }
        }
        mix(blocks, &tweaks);
        if encrypts {
            self.data.encrypt(blocks)
        } else {
            self.data.decrypt(blocks)
        }
        mix(blocks, &tweaks);
    }

    /// The first blocks of all sectors, then the second ones: those of different sectors do not
    /// depend on each other.
    fn encrypt_cbc(&self, blocks: &mut [Block], number: u64) {
        let per = self.size / 16;
        let mut chains = [Block::default(); ABREAST];
        let chains = chains.get_mut(..blocks.len() / per).unwrap_or_default();
        self.vectors(number, chains);
        for at in 0..per {
            for (chain, block) in chains.iter_mut().zip(blocks.iter().skip(at).step_by(per)) {
                *chain = xor(chain, block);
            }
            self.data.encrypt(chains);
            for (chain, block) in chains.iter().zip(blocks.iter_mut().skip(at).step_by(per)) {
                *block = *chain;
            }
        }
    }

    fn decrypt_cbc(&self, blocks: &mut [Block], number: u64) {
        let per = self.size / 16;
        let (mut vectors, mut before) = ([Block::default(); ABREAST], [Block::default(); MANY]);
        self.vectors(number, vectors.get_mut(..blocks.len() / per).unwrap_or_default());
        for (sector, vector) in blocks.chunks_mut(per).zip(vectors) {
            let mut last = vector;
            for (before, block) in before.iter_mut().zip(sector.iter()) {
                *before = std::mem::replace(&mut last, *block);
            }
            self.data.decrypt(sector);
            for (block, before) in sector.iter_mut().zip(&before) {
                *block = xor(block, before);
            }
        }
    }
}

fn xor(one: &Block, other: &Block) -> Block {
    Array((u128::from_le_bytes(one.0) ^ u128::from_le_bytes(other.0)).to_le_bytes())
}

fn mix(blocks: &mut [Block], tweaks: &[u128]) {
    for (block, tweak) in blocks.iter_mut().zip(tweaks) {
        block.0 = (u128::from_le_bytes(block.0) ^ tweak).to_le_bytes();
    }
}
