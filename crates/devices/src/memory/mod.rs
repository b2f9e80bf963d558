//! `memory`: a sparse disk in memory, on a memfd.
//!
//! Bytes are in an anonymous file, so that reads can be sent from their place by sendfile, and the
//! kernel keeps the map: pages never written are holes and cost nothing, and zeroed or trimmed
//! pages go back to the system. A zeroed range always becomes a hole, even if the caller would
//! rather keep it allocated: memory is not reserved, so there is nothing to keep, and one request
//! of many terabytes must not be able to fill the machine.

mod backing;
mod pages;
mod present;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use device::{
    Abilities, Blocking, Error, Extent, ExtentKind, Info, Now, Param, Params, Result, Window,
    ZeroFlags, param,
};

use crate::OpenOptions;
use crate::file::long_punch::{LongPunches, in_pieces};
use crate::file::map::Map;
use crate::file::transfer;
use device::values;
use present::Present;

/// A disk in memory.
pub(crate) struct Memory {
    info: Info,
    file: Arc<OwnedFd>,
    map: Map,
    /// The long zeroes and trims that other work has to wait for.
    long: LongPunches,
    present: Option<Present>,
    /// The map is told in units of so many bytes; those of the system's pages otherwise.
    unit: Option<u64>,
}

/// The parameters that say how bytes are kept, for every device that keeps them here.
pub(crate) const ALLOCATOR: Param = param(
    "allocator",
    "sparse|malloc|zstd",
    "nbdkit's: malloc shows no holes; sparse and zstd are alike here (default sparse)",
);

/// Opens `memory`.
pub(crate) fn open(params: &Params, options: &OpenOptions) -> Result<Memory> {
    let size = values::required_size(params, "size")?;
    Memory::new(format!("memory:{size}"), size, options.write)?.kept(params, options)
}

impl Memory {
    /// An empty disk of `size` bytes, at most 2^63-1.
    ///
    /// # Errors
    /// The system gives no memory, or no descriptor.
    pub(crate) fn new(name: String, size: u64, write: bool) -> Result<Self> {
        let made = backing::make(size).map_err(|e| e.on(&name))?;
        let mapped = write && backing::CAN_BE_MAPPED;
        let present = if mapped { Present::of(&made, size) } else { None };
        let (file, map) = (Arc::new(made), backing::map());
        let place = map.place(&file, 0);
        let info = Info {
            abilities: Abilities { extents: true, ..Abilities::all(write) },
            flat: Some(place),
            ..Info::new(name, size)
        };
        Ok(Self { info, file, map, long: LongPunches::default(), present, unit: None })
    }

    /// The same, as `allocator=` and the options say.
    ///
    /// # Errors
    /// There is no such allocator here.
    pub(crate) fn kept(mut self, params: &Params, options: &OpenOptions) -> Result<Self> {
        let allocators = [("sparse", true), ("malloc", false), ("zstd", true)];
        let asked = params.get("allocator").unwrap_or("sparse");
        let found = allocators.iter().find(|(word, _)| *word == asked);
        let Some((_, has_holes)) = found else {
            let what = "sparse, malloc or zstd, without options";
            return Err(values::not_a("allocator", asked, what));
        };
        self.info.abilities.extents = *has_holes;
        if options.as_nbdkit && *has_holes {
            self.unit = Some(pages::NBDKIT);
            self.info.blocks.preferred = u32::try_from(pages::NBDKIT).unwrap_or(u32::MAX);
        }
        Ok(self)
    }

    /// The map in the system's pages.
    fn own_map(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        self.map
            .resolve(&self.file, self.info.size, offset, len, max, out)
            .map_err(|(at, e)| self.error("query the map".into(), at, e))
    }

    fn punch(&self, what: &str, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let _in_flight = self.long.begin(len);
        let file = self.file.as_fd();
        let done = in_pieces(file, offset, len, |at, n| {
            transfer::retry(|| backing::free(file, at, n))?;
            Ok(true)
        });
        self.map.forget(offset, len);
        if let Some(present) = &self.present {
            present.forget(offset, len);
        }
        done.map_err(|e| self.error(format!("{what} {len} bytes"), offset, e)).map(drop)
    }

    fn error(&self, action: String, offset: u64, e: std::io::Error) -> Error {
        Error::os(action, e).on(&self.info.name).at(offset)
    }
}

impl Blocking for Memory {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let n = buf.len();
        transfer::read_exact(self.file.as_fd(), buf, offset)
            .map_err(|e| self.error(format!("read {n} bytes"), offset, e))
    }

    fn write_at(&self, data: &[u8], offset: u64, _fua: bool) -> Result<()> {
        transfer::write_all(self.file.as_fd(), data, offset)
            .map_err(|e| self.error(format!("write {} bytes", data.len() as u64), offset, e))?;
        if let Some(present) = &self.present {
            present.remember(offset, data.len() as u64);
        }
        Ok(())
    }

    fn waits(&self) -> bool {
        self.long.any()
    }

    /// A read takes no lock of the inode: it does not wait for a long hole.
    fn now(&self, now: Now<'_>) -> Result<bool> {
        match now {
            Now::Read { offset, buffer } => self.read_at(buffer, offset).map(|()| true),
            Now::Resolve { .. } | Now::Write { .. } => Ok(false),
        }
    }

    /// None while a long hole is punched: pages of it are waited for.
    fn window(&self, offset: u64, len: usize) -> Option<Window> {
        if self.long.any() {
            return None;
        }
        self.present.as_ref()?.window(offset, len)
    }

    fn zero(&self, offset: u64, len: u64, _flags: ZeroFlags) -> Result<()> {
        self.punch("zero", offset, len)
    }

    fn trim(&self, offset: u64, len: u64, _fua: bool) -> Result<()> {
        self.punch("trim", offset, len)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        if !self.info.abilities.extents {
            let place = Some(self.map.place(&self.file, offset));
            out.push(Extent::new(offset, len, ExtentKind::Data).at(place));
            return Ok(());
        }
        let Some(unit) = self.unit else { return self.own_map(offset, len, max, out) };
        let (start, end) = pages::outward((offset, len), unit, self.info.size);
        let mut own = Vec::new();
        // Enough for some whole units.
        self.own_map(start, end - start, max.saturating_mul(2).max(pages::ENOUGH), &mut own)?;
        let place = |at| Some(self.map.place(&self.file, at));
        let told = pages::in_units(&own, unit, self.info.size, place);
        let parts = told.iter().filter_map(|extent| extent.part(offset, offset + len));
        out.extend(parts.take(max));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use device::Simple;
    use runtime::WorkPool;
    use rustix::fs::{SealFlags, fcntl_add_seals};

    use super::*;

    #[test]
    fn the_largest_disk_opens_at_once_and_holds_what_is_written_at_its_end() {
        let size = i64::MAX.unsigned_abs();
        let disk = Memory::new("memory".into(), size, true).unwrap();
        disk.write_at(b"end", size - 3, false).unwrap();
        let mut out = Vec::new();
        disk.resolve(0, size, 10, &mut out).unwrap();
        assert_eq!(out.len(), 2);
        assert_eq!((out[0].kind, out[1].kind), (ExtentKind::Hole, ExtentKind::Data));
        assert_eq!(out[1].end(), size);
        disk.zero(0, size, ZeroFlags::default()).unwrap();
        let mut end = [1; 3];
        disk.read_at(&mut end, size - 3).unwrap();
        assert_eq!(end, [0; 3]);
    }

    #[test]
    fn a_long_run_of_data_is_looked_at_and_told_in_pieces() {
        let size = 600 << 20;
        let disk = Memory::new("memory".into(), size + (1 << 20), true).unwrap();
        for at in 0..600 {
            disk.write_at(&vec![1; 1 << 20], at << 20, false).unwrap();
        }
        let (mut at, mut pieces) = (0, 0);
        while at < size {
            let mut out = Vec::new();
            disk.resolve(at, size + (1 << 20) - at, 10, &mut out).unwrap();
            assert_eq!((out[0].start, out[0].kind), (at, ExtentKind::Data));
            at = out[0].end();
            pieces += 1;
        }
        assert!(at == size && pieces >= 2, "{pieces} pieces to {at}");
    }

    #[test]
    fn while_a_long_hole_is_punched_nothing_is_done_at_once_and_no_window_is_given() {
        let disk = Arc::new(Memory::new("memory".into(), 64 << 20, true).unwrap());
        let edge = Simple::shared_edge(disk.clone(), &WorkPool::new(2));
        edge.write(&vec![1; 256 << 10], 0, false).unwrap();
        let is_free = || (edge.write_now(&[2; 10], 5, false).unwrap(), edge.window(0, 128 << 10));
        assert!(matches!(is_free(), (true, Some(_))));
        let punch = disk.long.begin(64 << 20);
        assert!(matches!(is_free(), (false, None)));
        edge.write(&[3; 10], 5, false).unwrap();
        // What needs no lock is read all the same.
        let mut read = [0; 10];
        assert!(edge.read_now(&mut read, 5).unwrap() && read == [3; 10]);
        drop(punch);
        assert!(matches!(is_free(), (true, Some(_))));
    }

    #[test]
    fn no_other_program_shortens_or_seals_the_disk() {
        let disk = Memory::new("memory".into(), 1 << 20, true).unwrap();
        let other = std::fs::File::options()
            .write(true)
            .open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&*disk.file)))
            .unwrap();
        assert!(other.set_len(4096).is_err());
        assert!(fcntl_add_seals(&other, SealFlags::FUTURE_WRITE).is_err());
        disk.write_at(b"end", (1 << 20) - 3, false).unwrap();
    }

    #[test]
    fn only_what_was_written_before_is_received_in_place_and_zeroing_ends_that() {
        let disk = Memory::new("memory".into(), 1 << 20, true).unwrap();
        assert!(disk.window(0, 128 << 10).is_none());
        disk.write_at(&vec![1; 200 << 10], 0, false).unwrap();
        assert!(disk.window(0, 256 << 10).is_none());
        let window = disk.window(64 << 10, 128 << 10).unwrap();
        window.put(5, b"here").unwrap();
        let mut bytes = [0; 6];
        disk.read_at(&mut bytes, (64 << 10) + 4).unwrap();
        assert_eq!(&bytes, b"\x01here\x01");
        disk.zero(70_000, 1, ZeroFlags::default()).unwrap();
        assert!(disk.window(64 << 10, 128 << 10).is_none());
        assert!(disk.window(128 << 10, 64 << 10).is_some());
        // A window from before a hole was punched still writes to the disk.
        disk.zero(0, 1 << 20, ZeroFlags::default()).unwrap();
        window.put(0, b"late").unwrap();
        let mut out = Vec::new();
        disk.resolve(0, 1 << 20, 10, &mut out).unwrap();
        assert!(out.iter().any(|e| e.kind == ExtentKind::Data && e.start <= 64 << 10));
        let mut bytes = [0; 4];
        disk.read_at(&mut bytes, 64 << 10).unwrap();
        assert_eq!(&bytes, b"late");
    }
}
