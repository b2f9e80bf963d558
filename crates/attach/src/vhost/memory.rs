//! The memory of a guest, as its front end shares it: files that are mapped, and where they lie.
//!
//! A file that its owner may shorten is refused, because what is then touched behind its end ends
//! the process. Each access is checked against its mapping.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::{Error, Result};
use runtime::to_usize;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};

use super::protocol;
use crate::mapping::{SharedMapping, SharedParts};

/// Regions of a guest, at most.
pub(super) const REGIONS: usize = 128;

/// A range of bytes that is shared with the front end. Offsets are inside it; what does not lie in
/// it whole is not touched.
#[derive(Clone, Debug)]
pub(super) struct GuestBytes {
    mapping: Arc<SharedMapping>,
    offset: usize,
    len: usize,
}

impl GuestBytes {
    /// Maps `len` bytes from `offset` of a file, which `is_sealed` says must be one that nobody can
    /// shorten.
    ///
    /// # Errors
    /// It is shorter, may become so, or cannot be mapped.
    pub(super) fn map(file: &OwnedFd, offset: u64, len: u64, is_sealed: bool) -> Result<Self> {
        let what = "attach: map the memory of the guest";
        let length = fstat(file).map_err(|e| Error::os(what, e))?.st_size;
        let length = u64::try_from(length).unwrap_or(0);
        if len == 0 || offset > length || len > length - offset {
            return Err(protocol(format!("{what}: its file is shorter")));
        }
        let sealed = || fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if is_sealed && !sealed() {
            let cure =
                "use a memfd that is sealed, as QEMU's memory-backend-memfd, or unsealed=true";
            return Err(protocol(format!("{what}: its file can become shorter; {cure}")));
        }
        // From its beginning: the offset need not be that of a page.
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_NORESERVE);
        let mapping = SharedMapping::new(file.as_fd(), (0, to_usize(offset + len)), rights, flags);
        let mapping = Arc::new(mapping.map_err(|e| Error::os(what, e))?);
        Ok(Self { mapping, offset: to_usize(offset), len: to_usize(len) })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A part of it.
    pub(super) fn part(&self, at: usize, len: usize) -> Option<Self> {
        let offset = self.place(at, len)?;
        Some(Self { mapping: self.mapping.clone(), offset, len })
    }

    /// Where `len` bytes from `at`, all of which lie in it, are in the mapping.
    fn place(&self, at: usize, len: usize) -> Option<usize> {
        (at <= self.len && len <= self.len - at).then(|| self.offset + at)
    }

    /// Copies bytes from `at` on out of it.
    pub(super) fn read(&self, at: usize, to: &mut [u8]) -> Option<()> {
        self.mapping.read(self.place(at, to.len())?, to)
    }

    /// Copies bytes to `at` and on in it.
    pub(super) fn write(&self, at: usize, from: &[u8]) -> Option<()> {
        self.mapping.write(self.place(at, from.len())?, from)
    }

    /// A number of two bytes that the guest writes; what it wrote before is seen, too.
    pub(super) fn load(&self, at: usize) -> Option<u16> {
        let number = self.mapping.number(self.place(at, size_of::<u16>())?)?;
        Some(u16::from_le(number.load(Ordering::Acquire)))
    }

    /// Tells the guest a number of two bytes, and with it all that was written before.
    pub(super) fn store(&self, at: usize, value: u16) -> Option<()> {
        let number = self.mapping.number(self.place(at, size_of::<u16>())?)?;
        number.store(value.to_le(), Ordering::Release);
        Some(())
    }
}

/// A part of the guest's memory, `struct vhost_user_mem_region`.
#[derive(Clone, Debug)]
pub(super) struct GuestRegion {
    /// Its first byte, as the guest counts.
    pub(super) guest: u64,
    /// Its first byte, as the front end counts.
    pub(super) user: u64,
    pub(super) bytes: GuestBytes,
}

/// All of a guest's memory.
#[derive(Clone, Debug, Default)]
pub(super) struct GuestMemory(pub(super) Vec<GuestRegion>);

impl GuestMemory {
    /// Bytes at an address of the front end, where a ring lies, which must be in one region.
    pub(super) fn ring(&self, user: u64, len: usize) -> Option<GuestBytes> {
        self.0.iter().find_map(|region| {
            let at = user.checked_sub(region.user)?;
            region.bytes.part(usize::try_from(at).ok()?, len)
        })
    }

    /// Does `work` with each part of `len` bytes from an address of the guest on: their region,
    /// where they begin in it, and which of all they are. A part lies in one region.
    fn each<'a>(
        &'a self,
        guest: u64,
        len: usize,
        mut work: impl FnMut(&'a GuestBytes, usize, Range<usize>) -> Option<()>,
    ) -> Option<()> {
        let mut done = 0;
        while done < len {
            let address = guest.checked_add(done as u64)?;
            let (bytes, at, left) = self.0.iter().find_map(|region| {
                let at = usize::try_from(address.checked_sub(region.guest)?).ok()?;
                let left = region.bytes.len().checked_sub(at).filter(|left| *left > 0)?;
                Some((&region.bytes, at, left))
            })?;
            let end = done + left.min(len - done);
            work(bytes, at, done..end)?;
            done = end;
        }
        Some(())
    }

    /// Copies bytes from an address of the guest.
    pub(super) fn read(&self, guest: u64, to: &mut [u8]) -> Option<()> {
        self.each(guest, to.len(), |bytes, at, range| bytes.read(at, to.get_mut(range)?))
    }

    /// Adds `len` bytes from an address of the guest on to `parts`.
    pub(super) fn add<'a>(
        &'a self,
        guest: u64,
        len: usize,
        to: &mut SharedParts<'a>,
    ) -> Option<()> {
        self.each(guest, len, |bytes, at, range| {
            to.push(&bytes.mapping, bytes.place(at, range.len())?, range.len())
        })
    }

    /// Copies bytes to an address of the guest.
    pub(super) fn write(&self, guest: u64, from: &[u8]) -> Option<()> {
        self.each(guest, from.len(), |bytes, at, range| bytes.write(at, from.get(range)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    fn file(len: u64, is_sealed: bool) -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, len).unwrap();
        if is_sealed {
            fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        }
        file
    }

    #[test]
    fn what_is_not_there_is_not_touched_and_regions_join() {
        let files = [file(8192, true), file(4096, true)];
        let map = |n: usize, offset, len| GuestBytes::map(&files[n], offset, len, true).unwrap();
        let memory = GuestMemory(vec![
            GuestRegion { guest: 0, user: 1 << 20, bytes: map(0, 4096, 4096) },
            GuestRegion { guest: 4096, user: 1 << 30, bytes: map(1, 0, 4096) },
        ]);
        memory.write(4090, b"over the edge").unwrap();
        let mut back = [0; 13];
        memory.read(4090, &mut back).unwrap();
        assert_eq!(&back, b"over the edge");
        for (address, len) in [(8190, 3), (8192, 1), (u64::MAX, 2), (u64::MAX - 5, 6)] {
            assert!(memory.read(address, &mut vec![0; len]).is_none(), "{address}");
            assert!(memory.write(address, &vec![0; len]).is_none(), "{address}");
        }
        assert!(memory.ring((1 << 20) + 4000, 96).is_some());
        for (address, len) in [((1 << 20) + 4000, 97), (0, 1), ((1 << 20) - 1, 1), (u64::MAX, 1)] {
            assert!(memory.ring(address, len).is_none(), "{address}");
        }
        let ring = memory.ring(1 << 20, 16).unwrap();
        assert!(ring.store(14, 7).is_some() && ring.load(14) == Some(7));
        for odd in [1, 15, 16, usize::MAX] {
            assert!(ring.load(odd).is_none() && ring.store(odd, 0).is_none(), "{odd}");
        }
    }

    #[test]
    fn a_file_that_is_or_may_become_too_short_is_refused() {
        for (offset, len) in [(0, 4097), (4096, 1), (1, u64::MAX), (u64::MAX, 1), (0, 0)] {
            assert!(GuestBytes::map(&file(4096, true), offset, len, true).is_err());
        }
        assert!(GuestBytes::map(&file(4096, false), 0, 4096, true).is_err());
        GuestBytes::map(&file(4096, false), 0, 4096, false).unwrap();
    }
}
