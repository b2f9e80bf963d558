//! LUKS1: a header of 592 bytes with eight keyslots. All numbers are big-endian.

use device::{Edge, Result};

use super::cipher::{Encryption, SECTOR};
use super::derive::Derivation;
use super::hash::Hash;
use super::volume::{Digest, Segment, Slot, Volume};
use crate::kit::fields::{array, be32, corrupt, load, put};

/// Bytes of it.
pub(super) const LEN: usize = 592;
/// Where the keyslots begin, and bytes of each.
pub(super) const SLOTS: usize = 208;
const SLOT: usize = 48;
/// Keyslots.
pub(super) const COUNT: usize = 8;
/// Bytes of the digest of the key.
pub(super) const DIGEST: usize = 20;
/// The marks of a slot that is used, and of one that is not.
const USED: u32 = 0x00ac_71f3;
const FREE: u32 = 0x0000_dead;

/// The header as it is written.
#[derive(Clone, Debug, Default)]
pub(super) struct Header {
    pub(super) cipher: String,
    pub(super) mode: String,
    pub(super) hash: String,
    /// Where the disk begins, in sectors.
    pub(super) payload: u32,
    /// Bytes of its key.
    pub(super) key_len: u32,
    pub(super) digest: [u8; DIGEST],
    pub(super) salt: [u8; 32],
    pub(super) iterations: u32,
    pub(super) uuid: String,
    pub(super) slots: [HeaderSlot; COUNT],
}

/// A keyslot as it is written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeaderSlot {
    pub(super) is_used: bool,
    pub(super) iterations: u32,
    pub(super) salt: [u8; 32],
    /// Where its stripes lie, in sectors.
    pub(super) offset: u32,
    pub(super) stripes: u32,
}

impl Header {
    /// Reads it from `at`; that it is one is known.
    pub(super) fn read(container: &Edge, at: u64) -> Result<Self> {
        let bytes = load(container, "header", at, LEN)?;
        let mut slots = [HeaderSlot::default(); COUNT];
        for (slot, at) in slots.iter_mut().zip((SLOTS..).step_by(SLOT)) {
            let is_used = match be32(&bytes, at) {
                USED => true,
                FREE => false,
                mark => {
                    return Err(corrupt(format!("a keyslot is neither used nor free: {mark:#x}")));
                }
            };
            *slot = HeaderSlot {
                is_used,
                iterations: be32(&bytes, at + 4),
                salt: array(&bytes, at + 8),
                offset: be32(&bytes, at + 40),
                stripes: be32(&bytes, at + 44),
            };
        }
        Ok(Self {
            cipher: text(&bytes, 8, 32),
            mode: text(&bytes, 40, 32),
            hash: text(&bytes, 72, 32),
            payload: be32(&bytes, 104),
            key_len: be32(&bytes, 108),
            digest: array(&bytes, 112),
            salt: array(&bytes, 132),
            iterations: be32(&bytes, 164),
            uuid: text(&bytes, 168, 40),
            slots,
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        put(&mut bytes, 0, super::MAGIC);
        put(&mut bytes, 6, &1_u16.to_be_bytes());
        put(&mut bytes, 8, self.cipher.as_bytes());
        put(&mut bytes, 40, self.mode.as_bytes());
        put(&mut bytes, 72, self.hash.as_bytes());
        put(&mut bytes, 104, &self.payload.to_be_bytes());
        put(&mut bytes, 108, &self.key_len.to_be_bytes());
        put(&mut bytes, 112, &self.digest);
        put(&mut bytes, 132, &self.salt);
        put(&mut bytes, 164, &self.iterations.to_be_bytes());
        put(&mut bytes, 168, self.uuid.as_bytes());
        for (slot, at) in self.slots.iter().zip((SLOTS..).step_by(SLOT)) {
            put(&mut bytes, at, &if slot.is_used { USED } else { FREE }.to_be_bytes());
            put(&mut bytes, at + 4, &slot.iterations.to_be_bytes());
            put(&mut bytes, at + 8, &slot.salt);
            put(&mut bytes, at + 40, &slot.offset.to_be_bytes());
            put(&mut bytes, at + 44, &slot.stripes.to_be_bytes());
        }
        bytes
    }

    /// The hash of all that it has of keys.
    ///
    /// # Errors
    /// It is not read here.
    pub(super) fn hash(&self) -> Result<Hash> {
        Hash::parse(&self.hash)
    }

    /// A keyslot, used or not.
    ///
    /// # Errors
    /// The cipher or the hash is not read here, or a number makes no sense.
    pub(super) fn slot(&self, number: usize) -> Result<Slot> {
        let hash = self.hash()?;
        let HeaderSlot { iterations, salt, stripes, offset, .. } =
            self.slots.get(number).copied().unwrap_or_default();
        let key_len = usize::try_from(self.key_len).unwrap_or(usize::MAX);
        Slot {
            derivation: Derivation::Pbkdf2 { hash, iterations, salt: salt.to_vec() },
            key_len,
            stripes,
            hash,
            offset: u64::from(offset) * SECTOR as u64,
            encryption: Encryption::parse(&self.cipher, &self.mode)?,
            area_key_len: key_len,
            digest: Digest {
                hash,
                iterations: self.iterations,
                salt: self.salt.to_vec(),
                value: self.digest.to_vec(),
            },
        }
        .check()
    }

    /// What it means.
    ///
    /// # Errors
    /// The cipher or the hash is not read here, or a number makes no sense.
    pub(super) fn volume(&self) -> Result<Volume> {
        let encryption = Encryption::parse(&self.cipher, &self.mode)?;
        self.hash()?;
        let used = (0..COUNT).filter(|n| self.slots.get(*n).is_some_and(|slot| slot.is_used));
        let slots = used.map(|number| self.slot(number));
        let segment = Segment {
            offset: u64::from(self.payload) * SECTOR as u64,
            len: None,
            first: 0,
            encryption,
            sector: SECTOR,
        };
        if segment.offset == 0 {
            return Err(corrupt("its header is detached, which is not supported"));
        }
        Volume { segment, slots: slots.collect() }.check(LEN as u64)
    }
}

/// Text that ends with a zero, or with its field.
pub(super) fn text(bytes: &[u8], at: usize, len: usize) -> String {
    let field = bytes.get(at..).unwrap_or_default();
    let field = field.get(..len).unwrap_or(field);
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    crate::kit::numbers::text(field.get(..end).unwrap_or_default())
}
