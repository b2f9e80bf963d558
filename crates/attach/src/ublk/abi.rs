//! The kernel's words for ublk (include/uapi/linux/ublk_cmd.h), as bytes in the machine's order.

use device::{Info, OperationKind};

use crate::fields::{FieldBytes, Fields};

/// Bytes of a sector, by which the kernel counts.
pub(super) const SECTOR: u64 = 512;
/// Bytes of a request's data, at most.
pub(super) const MOST: u32 = 1 << 20;
/// Sectors of a discard or a zero, at most.
const LONG: u32 = 1 << 22;
/// Logical blocks are no larger than a page.
const PAGE: u32 = 4096;

/// `_IOC('u', …)` of a command with a `struct` of this size, which is read, or read and written.
const fn code(direction: u32, size: u32, number: u32) -> u32 {
    direction << 30 | size << 16 | 0x75 << 8 | number
}

const READS: u32 = 2;
const BOTH: u32 = 3;

/// Commands to /dev/ublk-control.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(super) enum ControlCommand {
    Info = code(READS, 32, 0x02),
    Add = code(BOTH, 32, 0x04),
    Delete = code(BOTH, 32, 0x05),
    Start = code(BOTH, 32, 0x06),
    Stop = code(BOTH, 32, 0x07),
    SetParameters = code(BOTH, 32, 0x08),
    Parameters = code(READS, 32, 0x09),
    StartRecovery = code(BOTH, 32, 0x10),
    EndRecovery = code(BOTH, 32, 0x11),
    Features = code(READS, 32, 0x13),
    UpdateSize = code(BOTH, 32, 0x15),
}

/// Commands to the character device of a disk.
pub(super) const FETCH: u32 = code(BOTH, 16, 0x20);
pub(super) const COMMIT_AND_FETCH: u32 = code(BOTH, 16, 0x21);

/// What a device is asked to be: its data is copied by pread(2) and pwrite(2), it waits for another
/// process when its own has died, and then asks again for what was in flight.
pub(super) const USER_COPY: u64 = 1 << 7;
pub(super) const WANTED: u64 = USER_COPY | 1 << 3 | 1 << 4;
/// The kernel takes another size of a device that is there (Linux 6.16).
pub(super) const UPDATE_SIZE: u64 = 1 << 10;

/// States of a device.
pub(super) const DEAD: u16 = 0;
pub(super) const LIVE: u16 = 1;
pub(super) const QUIESCED: u16 = 2;

/// `struct ublksrv_ctrl_cmd`; `data` is what some commands take besides their buffer.
pub(super) fn control(device: u32, buffer: u64, len: u16, data: u64) -> [u8; 80] {
    // Of no queue.
    let words = FieldBytes::default().u32(device).u16(u16::MAX).u16(len).u64(buffer).u64(data);
    *words.zeroes(56).0.first_chunk().unwrap_or(&[0; 80])
}

/// `struct ublksrv_io_cmd`, without an address.
pub(super) fn answer(queue: u16, tag: u16, result: i32) -> [u8; 16] {
    let mut bytes = [0; 16];
    let parts: [&[u8]; 3] = [&queue.to_ne_bytes(), &tag.to_ne_bytes(), &result.to_ne_bytes()];
    parts.into_iter().flatten().zip(&mut bytes).for_each(|(from, to)| *to = *from);
    bytes
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct UblkInfo {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) state: u16,
    /// Bytes of a request's data, at most.
    pub(super) most: u32,
    pub(super) device: u32,
    /// The process that serves it.
    pub(super) process: i32,
    pub(super) flags: u64,
    /// What the process that added it noted there.
    pub(super) note: u64,
}

impl UblkInfo {
    pub(super) const LEN: usize = 64;

    pub(super) fn encode(&self) -> Vec<u8> {
        let words = FieldBytes::default().u16(self.queues).u16(self.depth).u16(self.state).u16(0);
        let words = words.u32(self.most).u32(self.device).u32(self.process.cast_unsigned()).u32(0);
        // The kernel notes the owner behind these.
        words.u64(self.flags).u64(self.note).zeroes(24).0
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Fields(bytes);
        let (queues, depth, state) = (from.u16()?, from.u16()?, from.u16()?);
        from.u16()?;
        let (most, device, process) = (from.u32()?, from.u32()?, from.u32()?.cast_signed());
        from.u32()?;
        let (flags, note) = (from.u64()?, from.u64()?);
        Some(Self { queues, depth, state, most, device, process, flags, note })
    }
}

/// `struct ublk_params`, as far as the discards: what the kernel knows of a disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct UblkParameters {
    pub(super) sectors: u64,
    pub(super) is_read_only: bool,
    /// Block sizes as powers of two.
    logical: u8,
    physical: u8,
    best: u8,
    /// Bytes that a discard frees together; 0: there is none.
    discard: u32,
}

impl UblkParameters {
    pub(super) const LEN: usize = 60;
    const BASIC: u32 = 1;
    const DISCARD: u32 = 2;

    /// Those of a disk, the size of which is made of sectors.
    pub(super) fn of(info: &Info, is_read_only: bool) -> Self {
        let power = |bytes: u32| u8::try_from(bytes.max(1).ilog2()).unwrap_or(0);
        let block = info.blocks.minimum.clamp(512, PAGE);
        let block = if info.size.is_multiple_of(block.into()) { block } else { 512 };
        let physical = info.granules.physical.max(block);
        let can_discard = info.abilities.trim && !is_read_only;
        Self {
            sectors: info.size / SECTOR,
            is_read_only,
            logical: power(block),
            physical: power(physical),
            best: power(info.blocks.preferred.max(physical)),
            discard: if can_discard { info.granules.trim.max(block) } else { 0 },
        }
    }

    /// Bytes of a logical block.
    pub(super) fn block(&self) -> u64 {
        1 << self.logical
    }

    /// Whether a device of these can go on as one of those.
    pub(super) fn is_same_disk(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.sectors, it.is_read_only, it.logical);
        of(self) == of(other)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        /// A cache that is flushed, and FUA.
        const CACHE: u32 = 1 << 2 | 1 << 3;
        let types = if self.is_read_only { Self::BASIC } else { Self::BASIC | Self::DISCARD };
        let len = u32::try_from(Self::LEN).unwrap_or(0);
        let words =
            FieldBytes::default().u32(len).u32(types).u32(CACHE | u32::from(self.is_read_only));
        let blocks = [self.logical, self.physical, self.best, self.physical];
        let words = words.u32(u32::from_ne_bytes(blocks)).u32(MOST / 512).u32(0);
        let discards = if self.discard > 0 { LONG } else { 0 };
        let words = words.u64(self.sectors).u64(0).u32(0).u32(self.discard.max(512));
        // One range a discard.
        words.u32(discards).u32(LONG).u16(1).zeroes(2).0
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Fields(bytes);
        let (_len, types, attributes) = (from.u32()?, from.u32()?, from.u32()?);
        let [logical, physical, best, _] = from.u32()?.to_ne_bytes();
        from.u64()?;
        let sectors = from.u64()?;
        from.u64()?;
        from.u32()?;
        let (granularity, discards) = (from.u32()?, from.u32()?);
        let has_discard = types & Self::DISCARD != 0 && discards > 0;
        let discard = if has_discard { granularity } else { 0 };
        let is_read_only = attributes & 1 != 0;
        Some(Self { sectors, is_read_only, logical, physical, best, discard })
    }
}

/// `struct ublksrv_io_desc`: a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct UblkRequest {
    pub(super) kind: OperationKind,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) fua: bool,
    /// A zero keeps its room.
    pub(super) keeps_room: bool,
}

impl UblkRequest {
    pub(super) const LEN: usize = 24;

    /// `None`: it is of a kind that was not offered.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Fields(bytes);
        let (word, sectors, start) = (from.u32()?, from.u32()?, from.u64()?);
        let kind = match word & 0xff {
            0 => OperationKind::Read,
            1 => OperationKind::Write,
            2 => OperationKind::Flush,
            3 => OperationKind::Trim,
            5 => OperationKind::Zero,
            _ => return None,
        };
        let is_set = |bit: u32| word & 1 << bit != 0;
        // A flush is nowhere, which the kernel writes as the last sector that there could be.
        let (start, sectors) = if kind == OperationKind::Flush { (0, 0) } else { (start, sectors) };
        let (offset, len) = (start.checked_mul(SECTOR)?, u64::from(sectors) * SECTOR);
        let has_data = matches!(kind, OperationKind::Read | OperationKind::Write);
        let is_good = !has_data || len <= u64::from(MOST);
        is_good.then_some(Self { kind, offset, len, fua: is_set(13), keeps_room: is_set(15) })
    }
}

/// Where the data of a request is in the character device.
pub(super) fn place(queue: u16, tag: u16) -> u64 {
    0x8000_0000 + (u64::from(queue) << 41 | u64::from(tag) << 25)
}

/// Where the requests of a queue are, in what is mapped of the character device.
pub(super) fn requests_at(queue: u16, page: usize) -> usize {
    usize::from(queue) * (4096 * UblkRequest::LEN).next_multiple_of(page)
}

#[cfg(test)]
mod tests {
    use device::{Abilities, BlockSizes, Granules};

    use super::*;

    #[test]
    fn words_are_as_the_kernel_has_them() {
        assert_eq!(ControlCommand::Add as u32, 0xc020_7504);
        assert_eq!(ControlCommand::Features as u32, 0x8020_7513);
        assert_eq!(ControlCommand::UpdateSize as u32, 0xc020_7515);
        assert_eq!((FETCH, COMMIT_AND_FETCH), (0xc010_7520, 0xc010_7521));
        let info = UblkInfo {
            queues: 4,
            depth: 64,
            state: QUIESCED,
            most: MOST,
            device: 7,
            process: -1,
            flags: WANTED,
            note: 9,
        };
        assert_eq!(UblkInfo::decode(&info.encode()), Some(info));
        assert_eq!(UblkInfo::decode(&info.encode()[..39]), None, "it is cut short");
        assert_eq!(control(1, 2, 3, 4)[..8], [1, 0, 0, 0, 0xff, 0xff, 3, 0]);
        assert_eq!(answer(1, 2, -5)[..8], [1, 0, 2, 0, 0xfb, 0xff, 0xff, 0xff]);
        assert_eq!(place(1, 2), 0x8000_0000 + (1 << 41) + (2 << 25));
        assert_eq!((requests_at(2, 4096), requests_at(1, 65536)), (2 * 98304, 131_072));
    }

    #[test]
    fn the_kernel_is_told_blocks_that_fit_the_disk_and_what_a_discard_frees() {
        let mut info = Info::new("disk", 3 << 20);
        info.blocks = BlockSizes { minimum: 1, preferred: 65536, maximum: 1 << 25 };
        info.granules = Granules { physical: 4096, trim: 65536, zero: 0 };
        info.abilities = Abilities { trim: true, ..Abilities::READ };
        let of = UblkParameters::of(&info, false);
        assert_eq!((of.logical, of.physical, of.best, of.discard), (9, 12, 16, 65536));
        assert_eq!(UblkParameters::decode(&of.encode()), Some(of));
        assert_eq!(of.encode().len(), UblkParameters::LEN);
        info.blocks.minimum = 1 << 16;
        let large = UblkParameters::of(&info, true);
        assert_eq!((large.logical, large.discard, large.sectors), (12, 0, 6144));
        assert!(!large.is_same_disk(&of));
        info.size = 4096 + 512;
        assert_eq!(UblkParameters::of(&info, true).logical, 9, "it is no multiple of a page");
    }

    #[test]
    fn a_request_is_one_that_was_offered_and_as_long() {
        let words = |word: u32, sectors: u32, start: u64| {
            let mut bytes = word.to_ne_bytes().to_vec();
            bytes.extend(sectors.to_ne_bytes());
            bytes.extend(start.to_ne_bytes());
            bytes.resize(UblkRequest::LEN, 0);
            UblkRequest::decode(&bytes)
        };
        let write = words(1 | 1 << 13 | 1 << 11, 8, 2).unwrap();
        assert_eq!((write.kind, write.offset, write.len), (OperationKind::Write, 1024, 4096));
        assert!(write.fua && !write.keeps_room);
        assert!(words(5 | 1 << 15, 1 << 22, 0).unwrap().keeps_room);
        assert_eq!(words(0, (MOST / 512) + 1, 0), None, "it is longer than asked for");
        assert_eq!(words(0, 1, u64::MAX), None);
        assert_eq!(words(2, 0, u64::MAX).unwrap().offset, 0, "as the kernel sends a flush");
        assert_eq!(words(13, 1, 0), None, "zones");
    }
}
