//! What a header says, of either version, and the key of the disk.

use std::hint::black_box;

use device::{Edge, Error, ErrorKind, Fault, Result};
use zeroize::{Zeroize as _, Zeroizing};

use super::cipher::{Encryption, SECTOR, Sectors};
use super::derive::{Budget, Derivation};
use super::hash::Hash;
use super::split;
use crate::kit::fields::{corrupt, load};

/// The most stripes that a key is split into: as many as all programs make.
pub(super) const STRIPES: u32 = 4000;
/// The longest key, in bytes: two of AES-256.
pub(super) const LONGEST_KEY: usize = 64;

/// What is needed to open a disk.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) segment: Segment,
    /// The keyslots in the order in which they are tried. Each may be one that is not read here,
    /// which matters only if no other opens the disk.
    pub(super) slots: Vec<Result<Slot>>,
}

/// Where the disk lies, and how it is encrypted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// First byte in the container.
    pub(super) offset: u64,
    /// Bytes; `None`: to the end of the container.
    pub(super) len: Option<u64>,
    /// The number of the first sector's vector, in units of 512 bytes.
    pub(super) first: u64,
    pub(super) encryption: Encryption,
    /// Bytes of a sector.
    pub(super) sector: usize,
}

/// A keyslot: the disk's key under a passphrase.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) derivation: Derivation,
    /// Bytes of the disk's key.
    pub(super) key_len: usize,
    pub(super) stripes: u32,
    /// The hash of the splitter.
    pub(super) hash: Hash,
    /// Where the stripes lie in the container.
    pub(super) offset: u64,
    /// How they are encrypted, and how long the key of that is.
    pub(super) encryption: Encryption,
    pub(super) area_key_len: usize,
    /// Shows that a key is the disk's.
    pub(super) digest: Digest,
}

/// What a key can be compared with.
#[derive(Clone, Debug)]
pub(super) struct Digest {
    pub(super) hash: Hash,
    pub(super) iterations: u32,
    pub(super) salt: Vec<u8>,
    pub(super) value: Vec<u8>,
}

impl Segment {
    /// Bytes of the disk in a container of `size` bytes.
    ///
    /// # Errors
    /// It does not lie in there.
    pub(super) fn size_in(&self, size: u64) -> Result<u64> {
        let room = size.checked_sub(self.offset);
        let len = match (room, self.len) {
            (Some(room), None) => room - room % self.sector as u64,
            (Some(room), Some(len)) if len <= room => len,
            _ => {
                let why = format!("its disk lies outside the file, which has {size} bytes");
                return Err(corrupt(why).at(self.offset));
            }
        };
        Ok(len)
    }
}

impl Digest {
    pub(super) fn of(key: &[u8], hash: Hash, iterations: u32, salt: Vec<u8>, len: usize) -> Self {
        let value = hash.pbkdf2(key, &salt, iterations, len).to_vec();
        Self { hash, iterations, salt, value }
    }

    fn is_of(&self, key: &[u8], budget: &mut Budget) -> Result<bool> {
        let Self { hash, iterations, salt, value } = self;
        let derivation =
            Derivation::Pbkdf2 { hash: *hash, iterations: *iterations, salt: salt.clone() };
        budget.take(&derivation, value.len())?;
        let found = derivation.derive(key, value.len())?;
        Ok(is_same(&found, value))
    }
}

/// In a time that does not tell how much of it is the same.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differs = one.iter().zip(other).fold(0, |found, (a, b)| black_box(found | a ^ b));
    one.len() == other.len() && differs == 0
}

impl Slot {
    /// Bytes of all stripes, in whole sectors.
    pub(super) fn area_len(&self) -> usize {
        (self.key_len * self.stripes as usize).next_multiple_of(SECTOR)
    }

    /// Refuses numbers that would cost too much, or make no sense.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(super) fn check(self) -> Result<Self> {
        for (what, len) in [("key", self.key_len), ("keyslot's key", self.area_key_len)] {
            if len == 0 || len > LONGEST_KEY {
                return Err(corrupt(format!(
                    "its {what} has {len} bytes; at most {LONGEST_KEY} are read"
                )));
            }
        }
        if self.stripes == 0 || self.stripes > STRIPES {
            let stripes = self.stripes;
            return Err(corrupt(format!(
                "a keyslot has {stripes} stripes; at most {STRIPES} are read"
            )));
        }
        Ok(self)
    }

    /// The disk's key, if this passphrase opens the slot.
    pub(super) fn open(
        &self,
        container: &Edge,
        passphrase: &[u8],
        budget: &mut Budget,
    ) -> Result<Option<Zeroizing<Vec<u8>>>> {
        budget.take(&self.derivation, self.area_key_len)?;
        // What cannot be read is known before the long computation.
        let mut stripes = load(container, "keyslot", self.offset, self.area_len())?;
        let key = self.derivation.derive(passphrase, self.area_key_len)?;
        Sectors::new(self.encryption, &key, SECTOR)?.decrypt(&mut stripes, 0);
        let key = split::merge(&stripes, self.key_len, self.stripes as usize, self.hash);
        stripes.zeroize();
        Ok(self.digest.is_of(&key, budget)?.then_some(key))
    }

    /// The stripes of a new slot, encrypted: `random` has [`area_len`](Self::area_len) bytes.
    ///
    /// # Errors
    /// As of [`Derivation::derive`].
    pub(super) fn fill(&self, key: &[u8], passphrase: &[u8], random: &mut [u8]) -> Result<()> {
        let area = self.derivation.derive(passphrase, self.area_key_len)?;
        let len = self.key_len * self.stripes as usize;
        split::split(key, random.get_mut(..len).unwrap_or_default(), self.hash);
        Sectors::new(self.encryption, &area, SECTOR)?.encrypt(random, 0);
        Ok(())
    }
}

impl Volume {
    /// Refuses one whose parts overlap: writing into the disk would change its header, which takes
    /// `header` bytes, or its keyslots.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(super) fn check(self, header: u64) -> Result<Self> {
        let disk = self.segment.offset;
        if disk < header {
            return Err(corrupt("its disk overlaps its header").at(disk));
        }
        for slot in self.slots.iter().flatten() {
            let end = slot.offset.checked_add(slot.area_len() as u64);
            if slot.offset < header || end.is_none_or(|end| end > disk) {
                let why = "a keyslot lies outside the area between its header and its disk";
                return Err(corrupt(why).at(slot.offset));
            }
        }
        Ok(self)
    }

    /// The key of the disk.
    ///
    /// # Errors
    /// `NeedsKey`: the passphrase opens no keyslot. Otherwise why one could not be tried, if no
    /// other opens it.
    pub(super) fn key(
        &self,
        container: &Edge,
        passphrase: &[u8],
        memory: u64,
    ) -> Result<Zeroizing<Vec<u8>>> {
        let (mut budget, mut failed) = (Budget::new(memory), None);
        for slot in &self.slots {
            let opened = match slot {
                Ok(slot) => slot.open(container, passphrase, &mut budget),
                Err(e) => Err(e.duplicate()),
            };
            match opened {
                Ok(Some(key)) => return Ok(key),
                Ok(None) => {}
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        Err(failed.unwrap_or_else(|| {
            let why = match self.slots.len() {
                0 => "it has no keyslot: nothing opens it any more".to_owned(),
                1 => "the passphrase does not open its keyslot".to_owned(),
                many => format!("the passphrase opens none of its {many} keyslots"),
            };
            Error::new(ErrorKind::NeedsKey, Fault::User, why)
        }))
    }
}
