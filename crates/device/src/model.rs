//! A model device: a byte array with a map, as slow and as obvious as possible.
//!
//! Property tests run the same operations on it and on a real device and compare bytes and maps.
//! Its abilities and block sizes can be set, so that it can also be below the edge and filters.

use std::sync::Arc;

use runtime::{Mutex, to_usize};

use crate::{
    Abilities, BlockSizes, Blocking, Error, ErrorKind, Extent, ExtentKind, Fault, Info, Place,
    Result, StatusRun, ZeroFlags, merge_run,
};

/// The status context of a model: 1 where it was ever asked to change something, else 0.
pub const CHANGED: &str = "x-model:changed";

/// The model.
pub struct Model {
    info: Info,
    state: Mutex<State>,
}

struct State {
    bytes: Vec<u8>,
    /// One for each byte: whether it is allocated.
    allocated: Vec<bool>,
    /// One for each byte: whether it was ever asked to change it.
    changed: Vec<bool>,
    /// How many times it was flushed, or written with FUA.
    flushes: u64,
    log: Vec<String>,
}

runtime::debug_as!(Model, |model| "Model({} bytes)", model.info.size);

impl Model {
    /// A model of `size` bytes that can do everything, all of it a hole.
    #[must_use]
    pub fn new(size: usize) -> Self {
        let abilities = Abilities { take: true, extents: true, ..Abilities::all(true) };
        Self::with(size, abilities, BlockSizes::ANY)
    }

    /// A model with chosen abilities and block sizes. It panics at operations without an ability or
    /// of sizes that it does not take, so that a test notices.
    #[must_use]
    pub fn with(size: usize, abilities: Abilities, blocks: BlockSizes) -> Self {
        let contexts = vec![Arc::from(CHANGED)];
        let info = Info { blocks, abilities, contexts, ..Info::new("model", size as u64) };
        let state = State {
            bytes: vec![0; size],
            allocated: vec![false; size],
            changed: vec![false; size],
            flushes: 0,
            log: Vec::new(),
        };
        Self { info, state: Mutex::new(state) }
    }

    /// All bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.state.lock().bytes.clone()
    }

    /// Gives it another size, as others may do with a volume. What is new is a hole.
    pub fn give(&self, size: usize) {
        let mut state = self.state.lock();
        state.bytes.resize(size, 0);
        state.allocated.resize(size, false);
        state.changed.resize(size, false);
    }

    fn size(&self) -> u64 {
        self.state.lock().bytes.len() as u64
    }

    /// How many times it was made durable.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.state.lock().flushes
    }

    /// What it was asked to change, in order.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.state.lock().log.clone()
    }

    fn range(&self, offset: u64, len: u64) -> std::ops::Range<usize> {
        let min = u64::from(self.info.blocks.minimum);
        assert!(offset.is_multiple_of(min), "offset {offset} is not aligned to {min}");
        let (end, size) = (offset + len, self.size());
        assert!(len.is_multiple_of(min) || end == size, "length {len} is not aligned");
        assert!(end <= size, "{offset}+{len} is outside");
        to_usize(offset)..to_usize(end)
    }
}

impl Blocking for Model {
    fn info(&self) -> &Info {
        &self.info
    }

    fn size_now(&self) -> Option<u64> {
        Some(self.size())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        assert!(buf.len() <= self.info.blocks.maximum as usize, "read of {} bytes", buf.len());
        let range = self.range(offset, buf.len() as u64);
        buf.copy_from_slice(&self.state.lock().bytes[range]);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        assert!(data.len() <= self.info.blocks.maximum as usize, "write of {} bytes", data.len());
        assert!(self.info.abilities.write, "write to a read-only model");
        assert!(self.info.abilities.fua || !fua, "FUA");
        let range = self.range(offset, data.len() as u64);
        let mut state = self.state.lock();
        state.bytes[range.clone()].copy_from_slice(data);
        state.allocated[range.clone()].fill(true);
        state.changed[range].fill(true);
        state.flushes += u64::from(fua);
        state.log.push(format!("write {offset}+{} fua={fua}", data.len()));
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        let a = self.info.abilities;
        assert!(a.write && len > 0 && (a.fua || !flags.fua));
        let range = self.range(offset, len);
        let mut state = self.state.lock();
        state.log.push(format!("zero {offset}+{len} {flags:?}"));
        if flags.fast_only && !a.fast_zero {
            return Err(Error::new(ErrorKind::NotFast, Fault::User, "zero fast"));
        }
        if !a.zero {
            return Err(Error::unsupported("zero"));
        }
        state.bytes[range.clone()].fill(0);
        state.allocated[range.clone()].fill(!flags.may_unmap);
        state.changed[range].fill(true);
        state.flushes += u64::from(flags.fua);
        Ok(())
    }

    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        assert!(self.info.abilities.write && len > 0 && (self.info.abilities.fua || !fua));
        let range = self.range(offset, len);
        let mut state = self.state.lock();
        state.log.push(format!("trim {offset}+{len} fua={fua}"));
        if self.info.abilities.trim {
            state.bytes[range.clone()].fill(0);
            state.allocated[range.clone()].fill(false);
            state.changed[range].fill(true);
        }
        state.flushes += u64::from(fua);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.state.lock().flushes += 1;
        Ok(())
    }

    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        let range = to_usize(offset)..to_usize(offset + len);
        let state = self.state.lock();
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end && found.len() < max {
            let rest = &state.allocated[at..range.end];
            let n = rest.iter().position(|a| *a != rest[0]).unwrap_or(rest.len());
            let kind = if rest[0] { ExtentKind::Data } else { ExtentKind::Hole };
            found.push(Extent::new(at as u64, n as u64, kind));
            at += n;
        }
        out.append(&mut found);
        Ok(())
    }

    fn status(
        &self,
        context: &str,
        offset: u64,
        len: u64,
        max: usize,
        out: &mut Vec<StatusRun>,
    ) -> Result<()> {
        assert!(context == CHANGED && len > 0 && max > 0, "{context}: {len} bytes, {max} runs");
        let range = offset..offset + len;
        let (state, mut runs) = (self.state.lock(), Vec::new());
        for at in range {
            let at = to_usize(at);
            merge_run(&mut runs, StatusRun { len: 1, value: u64::from(state.changed[at]) });
        }
        out.extend(runs.into_iter().take(max));
        Ok(())
    }

    /// Never more than the first half, so that the caller must go on.
    fn take(&self, offset: u64, len: u64, from: &Place, share_only: bool) -> Result<u64> {
        assert!(self.info.abilities.write && len > 0, "take of {len} bytes");
        let range = self.range(offset, len);
        if share_only || !self.info.abilities.take {
            return Ok(0);
        }
        let block = u64::from(self.info.blocks.minimum);
        let half = (len / 2).next_multiple_of(block).min(len);
        let mut bytes = vec![0; to_usize(half)];
        let n = rustix::io::pread(from.fd(), &mut bytes, from.offset());
        let n = n.map_err(|e| Error::os("take", e))?;
        let n = n - n % to_usize(block);
        let range = range.start..range.start + n;
        let mut state = self.state.lock();
        state.bytes[range.clone()].copy_from_slice(&bytes[..n]);
        state.allocated[range.clone()].fill(true);
        state.changed[range].fill(true);
        state.log.push(format!("take {offset}+{n}"));
        Ok(n as u64)
    }
}
