//! The file system: its superblock, its groups, and its inodes.

use device::{Edge, Error, Result};
use formats::crc32c;

use super::broken;

/// Where the superblock is, and its length.
const SUPERBLOCK: u64 = 1024;
const SUPERBLOCK_LEN: usize = 1024;
const MAGIC: u16 = 0xef53;
/// The inode of the root directory.
pub(super) const ROOT: u32 = 2;

/// What a reader must know: types in directories, groups of descriptors elsewhere, extents, 64
/// bits, flexible groups, large attributes, a seed of its own, large directories, data in inodes,
/// encryption and folded case. What of these a file itself has is asked of its inode.
const KNOWN: u32 = 0x2
    | META_GROUPS
    | 0x40
    | WIDE
    | 0x200
    | 0x400
    | OWN_SEED
    | 0x4000
    | 0x8000
    | 0x1_0000
    | 0x2_0000;
const META_GROUPS: u32 = 0x10;
const WIDE: u32 = 0x80;
const OWN_SEED: u32 = 0x2000;
const TO_RECOVER: u32 = 0x4;
/// Read-only features: superblocks in few groups, checksums of metadata.
const SPARSE: u32 = 0x1;
const CHECKSUMS: u32 = 0x400;
/// Few superblocks, in two groups that are named.
const SPARSE_TWO: u32 = 0x200;

pub(super) fn le16(from: &[u8], at: usize) -> u16 {
    let bytes = from.get(at..).and_then(|rest| rest.first_chunk());
    u16::from_le_bytes(bytes.copied().unwrap_or_default())
}

pub(super) fn le32(from: &[u8], at: usize) -> u32 {
    let bytes = from.get(at..).and_then(|rest| rest.first_chunk());
    u32::from_le_bytes(bytes.copied().unwrap_or_default())
}

/// A number in two halves.
pub(super) fn wide(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[derive(Debug)]
pub(super) struct Volume<'a> {
    below: &'a Edge,
    superblock: Vec<u8>,
    /// Bytes of a block.
    pub(super) block: u64,
    /// Blocks of the file system, all of which lie in the disk.
    blocks: u64,
    first: u64,
    blocks_per_group: u64,
    inodes_per_group: u32,
    inode_len: u64,
    descriptor: u64,
    /// What checksums begin with, if there are any.
    pub(super) seed: Option<u32>,
}

impl<'a> Volume<'a> {
    pub(super) fn open(below: &'a Edge) -> Result<Self> {
        let size = below.info().size;
        if size < SUPERBLOCK + SUPERBLOCK_LEN as u64 {
            return Err(broken("is not there: the disk is too small for one"));
        }
        let mut superblock = vec![0; SUPERBLOCK_LEN];
        read(below, &mut superblock, SUPERBLOCK)?;
        let sb = &superblock;
        if le16(sb, 0x38) != MAGIC {
            return Err(Error::unfit("there is no ext2, ext3 or ext4 file system on the disk"));
        }
        let (shift, features) = (le32(sb, 0x18), features(sb)?);
        if shift > 6 {
            return Err(broken("has blocks of an impossible size"));
        }
        let block = 1024_u64 << shift;
        let is_wide = features & WIDE != 0;
        let blocks = wide(le32(sb, 4), if is_wide { le32(sb, 0x150) } else { 0 });
        let inode_len = if le32(sb, 0x4c) == 0 { 128 } else { u64::from(le16(sb, 0x58)) };
        let descriptor = if is_wide { u64::from(le16(sb, 0xfe)) } else { 32 };
        let volume = Self {
            below,
            block,
            blocks,
            first: u64::from(le32(sb, 0x14)),
            blocks_per_group: u64::from(le32(sb, 0x20)),
            inodes_per_group: le32(sb, 0x28),
            inode_len,
            descriptor,
            seed: seed(sb, features)?,
            superblock,
        };
        let fits = |len: u64, least: u64| len >= least && len <= block && len.is_power_of_two();
        let makes_sense = blocks <= size / block
            && volume.first < blocks
            && (1..=block * 8 * 16).contains(&volume.blocks_per_group)
            && (1..=block * 8).contains(&u64::from(volume.inodes_per_group))
            && fits(inode_len, 128)
            && fits(descriptor, if is_wide { 64 } else { 32 });
        match makes_sense {
            true => Ok(volume),
            false => Err(broken("has an invalid superblock, or is longer than the disk")),
        }
    }

    /// The contents of a block.
    pub(super) fn load(&self, number: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; runtime::to_usize(self.block)];
        read(self.below, &mut bytes, self.place(number, 1)?)?;
        Ok(bytes)
    }

    /// Where so many blocks lie on the disk.
    pub(super) fn place(&self, number: u64, count: u64) -> Result<u64> {
        // Nothing of a file lies before the first group's superblock.
        let is_inside =
            number > self.first && number < self.blocks && count <= self.blocks - number;
        is_inside
            .then(|| number * self.block)
            .ok_or_else(|| broken(&format!("leads to block {number}, which is not in it")))
    }

    pub(super) fn inode(&self, number: u32) -> Result<Inode> {
        let index = number.checked_sub(1).filter(|_| number <= le32(&self.superblock, 0));
        let index = index.ok_or_else(|| broken("names an inode that is not there"))?;
        let table = self.table(index / self.inodes_per_group)?;
        let at = u64::from(index % self.inodes_per_group) * self.inode_len;
        let place = self.place(table + at / self.block, 1)? + at % self.block;
        let mut bytes = vec![0; runtime::to_usize(self.inode_len)];
        read(self.below, &mut bytes, place)?;
        let inode = Inode { number, bytes };
        match self.seed.is_none_or(|seed| inode.is_whole(seed)) {
            true => Ok(inode),
            false => Err(broken(&format!("has a wrong checksum in inode {number}"))),
        }
    }

    /// The first block of a group's inodes.
    fn table(&self, group: u32) -> Result<u64> {
        let at = u64::from(group) * self.descriptor;
        let (block, within) = (at / self.block, at % self.block);
        let bytes = self.load(self.descriptors(block)?)?;
        let len = runtime::to_usize(self.descriptor);
        let within = runtime::to_usize(within);
        let own = bytes.get(within..within + len).unwrap_or_default();
        if let Some(seed) = self.seed {
            let sum = crc32c(seed, &group.to_le_bytes());
            let sum = crc32c(crc32c(sum, own.get(..0x1e).unwrap_or_default()), &[0; 2]);
            let sum = crc32c(sum, own.get(0x20..).unwrap_or_default());
            if sum & 0xffff != u32::from(le16(own, 0x1e)) {
                return Err(broken(&format!("has a wrong checksum of group {group}")));
            }
        }
        Ok(wide(le32(own, 8), if len > 32 { le32(own, 0x28) } else { 0 }))
    }

    /// The block with the `n`th part of the descriptors of groups.
    fn descriptors(&self, n: u64) -> Result<u64> {
        let sb = &self.superblock;
        if le32(sb, 0x60) & META_GROUPS == 0 || n < u64::from(le32(sb, 0x104)) {
            return Ok(SUPERBLOCK / self.block + 1 + n);
        }
        let group = n * (self.block / self.descriptor);
        let start =
            group.checked_mul(self.blocks_per_group).and_then(|at| at.checked_add(self.first));
        let start = start.ok_or_else(|| broken("has more groups than blocks"))?;
        // The first superblock lies in block 1 of blocks of 1 KiB, also where block 0 is the first.
        Ok(match n {
            0 => SUPERBLOCK / self.block + 1,
            _ => start + u64::from(self.has_superblock(group)),
        })
    }

    fn has_superblock(&self, group: u64) -> bool {
        let is_power = |of: u64| {
            let mut power = of;
            while power < group {
                power *= of;
            }
            power == group
        };
        let sb = &self.superblock;
        if le32(sb, 0x5c) & SPARSE_TWO != 0 {
            let named = [0, u64::from(le32(sb, 0x24c)), u64::from(le32(sb, 0x250))];
            return named.contains(&group);
        }
        le32(sb, 0x64) & SPARSE == 0 || group <= 1 || [3, 5, 7].into_iter().any(is_power)
    }
}

/// The incompatible features, if all are known.
fn features(sb: &[u8]) -> Result<u32> {
    // Those of old revisions mean nothing.
    let features = if le32(sb, 0x4c) == 0 { 0 } else { le32(sb, 0x60) };
    if features & TO_RECOVER != 0 {
        return Err(broken(
            "was not unmounted, and its journal is to be replayed first: `e2fsck -p` does that, or mounting it",
        ));
    }
    match features & !KNOWN {
        0 => Ok(features),
        unknown => Err(broken(&format!("has unknown features ({unknown:#x})"))),
    }
}

/// What checksums of metadata begin with.
fn seed(sb: &[u8], features: u32) -> Result<Option<u32>> {
    if le32(sb, 0x4c) == 0 || le32(sb, 0x64) & CHECKSUMS == 0 {
        return Ok(None);
    }
    if crc32c(u32::MAX, sb.get(..0x3fc).unwrap_or_default()) != le32(sb, 0x3fc) {
        return Err(broken("has a wrong checksum in its superblock"));
    }
    Ok(Some(match features & OWN_SEED {
        0 => crc32c(u32::MAX, sb.get(0x68..0x78).unwrap_or_default()),
        _ => le32(sb, 0x270),
    }))
}

/// A piece that lies on the disk, as was checked.
fn read(below: &Edge, bytes: &mut [u8], at: u64) -> Result<()> {
    let read = below.read(bytes, at);
    read.map_err(|e| Error::unfit("read the file system").at(at).with_source(e))
}

/// A file or directory.
#[derive(Debug)]
pub(super) struct Inode {
    pub(super) number: u32,
    pub(super) bytes: Vec<u8>,
}

impl Inode {
    /// The type in its mode.
    pub(super) fn kind(&self) -> u16 {
        le16(&self.bytes, 0) & 0xf000
    }

    pub(super) fn flags(&self) -> u32 {
        le32(&self.bytes, 0x20)
    }

    pub(super) fn size(&self) -> u64 {
        wide(le32(&self.bytes, 4), le32(&self.bytes, 0x6c))
    }

    /// The 60 bytes that lead to its blocks.
    pub(super) fn root(&self) -> &[u8] {
        self.bytes.get(0x28..0x64).unwrap_or_default()
    }

    /// What checksums of its blocks begin with.
    pub(super) fn seed(&self, seed: u32) -> u32 {
        let own = crc32c(seed, &self.number.to_le_bytes());
        crc32c(own, self.bytes.get(0x64..0x68).unwrap_or_default())
    }

    fn is_whole(&self, seed: u32) -> bool {
        let mut bytes = self.bytes.clone();
        let is_long = bytes.len() > 128 && le16(&bytes, 0x80) >= 4;
        let said = wide(u32::from(le16(&bytes, 0x7c)), 0)
            | if is_long { u64::from(le16(&bytes, 0x82)) << 16 } else { 0 };
        for (at, is_there) in [(0x7c, true), (0x82, is_long)] {
            if let Some(own) = bytes.get_mut(at..at + 2).filter(|_| is_there) {
                own.fill(0);
            }
        }
        let sum = u64::from(crc32c(self.seed(seed), &bytes));
        said == if is_long { sum } else { sum & 0xffff }
    }
}
