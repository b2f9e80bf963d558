//! A handle, which a plugin opens for a client, and its operations. Everything here may block.
//!
//! Opening a handle asks once for the plugin's abilities, in nbdkit's order. Missing ones are
//! emulated as in nbdkit (FUA by flush, cache by reading), or left to the edge (zeroes as data).

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use device::{
    Abilities, BlockSizes, Blocking, Buffer, Error, ErrorKind, Extent, ExtentKind, Fault, Info,
    Result, ZeroFlags, merge_extent,
};
use runtime::Pass;

use crate::abi::{Raw, extent, flag};
use crate::call::{Caller, Leave, Said};
use crate::host::NbdkitExtents;
use crate::plugin::{Plugin, ThreadModel, alone, explained, failure};
use crate::request_queue::RequestQueue;

/// The longest zero, trim, map or cache request to a plugin: lengths have 32 bits.
const LONGEST: u64 = 1 << 30;
/// The longest read or write.
const LONGEST_DATA: u32 = 32 << 20;
/// Bytes of one read to emulate cache requests.
const READ_AHEAD: u64 = 1 << 20;

/// How a plugin supports an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Support {
    None,
    /// It is emulated.
    Emulate,
    Native,
}

/// The meaning of "not supported" from a plugin.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RefusalMeaning {
    /// A failure like any other.
    Error,
    /// It would not be fast.
    NotFast,
    /// The edge does it by other means.
    Unsupported,
}

/// The abilities of a handle that only this crate needs.
#[derive(Clone, Copy, Debug)]
struct Means {
    fua: Support,
    cache: Support,
    /// Fast zeroes go to the plugin, and are not refused here.
    fast_zero: bool,
}

/// An open handle. Dropping it closes it, in the plugin's pool.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) plugin: Arc<Plugin>,
    raw: Raw,
    pub(crate) caller: Arc<Caller>,
    info: Info,
    means: Means,
    /// The queue of its requests.
    pub(crate) requests: Arc<RequestQueue>,
    /// The plugin asks to disconnect this client.
    leaving: AtomicBool,
    /// The pass for the only handle, if the plugin has one at a time.
    pass: Option<Pass>,
}

impl Handle {
    /// Opens a handle. Runs in the pool, and behind the plugin's gate if it has one; `pass` is the
    /// one, if only one handle is allowed.
    pub(crate) fn open(
        plugin: Arc<Plugin>,
        caller: Arc<Caller>,
        read_only: bool,
        pass: Option<Pass>,
    ) -> Result<Arc<Self>> {
        let calls = plugin.library.callbacks;
        let (answer, said) = plugin.call(&caller, || calls.preconnect(read_only));
        if answer == Some(-1) {
            return Err(failure(&plugin.library, "admit the client", &said));
        }
        let (raw, said) = plugin.call(&caller, || calls.open(read_only));
        let Some(raw) = raw else { return Err(plugin.without_export("open", &said)) };
        said.tell(&plugin.title(), &plugin.log);
        let asking = Asking { plugin: &plugin, raw, caller: &caller };
        let known = asking.info(read_only);
        let (info, means) = match known {
            Ok(known) => known,
            Err(e) => {
                plugin.call(&caller, || calls.close(raw));
                return Err(e);
            }
        };
        plugin.count(1);
        let leaving = AtomicBool::new(false);
        let requests = Arc::default();
        let handle = Arc::new(Self { plugin, raw, caller, info, means, requests, leaving, pass });
        let mut last = handle.plugin.last.lock();
        *last = Arc::downgrade(&handle);
        drop(last);
        Ok(handle)
    }

    /// Calls the plugin for a request; `None` if it has no such callback.
    fn call(
        &self,
        action: &str,
        offset: u64,
        refusal: RefusalMeaning,
        callback: impl FnOnce() -> Option<c_int>,
    ) -> Result<Option<()>> {
        if self.leaving.load(Ordering::Relaxed) {
            let action = format!("{action}: the plugin ended the connection");
            return Err(Error::new(ErrorKind::Shutdown, Fault::File, action));
        }
        let (answer, said) = self.plugin.call(&self.caller, callback);
        match said.leave {
            Some(Leave::AtOnce) => {
                self.leaving.store(true, Ordering::Relaxed);
                let action = format!("{action}: the plugin ended the connection");
                return Err(Error::new(ErrorKind::Dropped, Fault::File, action));
            }
            Some(Leave::Gracefully) => self.leaving.store(true, Ordering::Relaxed),
            None => {}
        }
        match answer {
            Some(answer) if answer < 0 => Err(self.refused(action, offset, refusal, &said)),
            answer => {
                said.tell(&self.plugin.title(), &self.plugin.log);
                Ok(answer.map(drop))
            }
        }
    }

    /// The error of a request, as nbdkit sends it to clients: EINVAL for numbers that NBD does not
    /// have.
    fn refused(&self, action: &str, offset: u64, refusal: RefusalMeaning, said: &Said) -> Error {
        let number = said.number(self.plugin.library.callbacks.is_errno_preserved());
        let name = &self.info.name;
        match refusal {
            RefusalMeaning::NotFast if is_unsupported(number) => {
                return Error::not_fast().on(name).at(offset);
            }
            RefusalMeaning::Unsupported if is_unsupported(number) => {
                return Error::unsupported(action).on(name).at(offset);
            }
            RefusalMeaning::NotFast | RefusalMeaning::Unsupported | RefusalMeaning::Error => {}
        }
        let kind = match number {
            libc::EPERM => ErrorKind::PermissionDenied,
            libc::EROFS => ErrorKind::ReadOnly,
            libc::EIO => ErrorKind::Io,
            libc::ENOMEM => ErrorKind::NoMemory,
            libc::ENOSPC | libc::EFBIG | libc::EDQUOT => ErrorKind::NoSpace,
            libc::ESHUTDOWN => ErrorKind::Shutdown,
            _ => ErrorKind::InvalidInput,
        };
        let error = Error::new(kind, Fault::File, action).on(name).at(offset);
        explained(error, said, number)
    }

    /// The flags for an operation with FUA; and whether a flush has to follow.
    fn durably(&self, fua: bool) -> (u32, bool) {
        match self.means.fua {
            Support::Native if fua => (flag::FUA, false),
            _ => (0, fua),
        }
    }

    fn flushed(&self, flush: bool) -> Result<()> {
        if flush { self.flush() } else { Ok(()) }
    }

    /// Runs an operation piece by piece.
    fn each(
        offset: u64,
        len: u64,
        most: u64,
        mut work: impl FnMut(u64, u32) -> Result<()>,
    ) -> Result<()> {
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            let count = u32::try_from(most.min(end - at)).unwrap_or(u32::MAX);
            work(at, count)?;
            at = at.saturating_add(count.into());
        }
        Ok(())
    }
}

/// Whether an error says that there is no such operation.
fn is_unsupported(number: c_int) -> bool {
    number == libc::EOPNOTSUPP || number == libc::ENOTSUP
}

impl Blocking for Handle {
    fn info(&self) -> &Info {
        &self.info
    }

    fn waits(&self) -> bool {
        true
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let calls = self.plugin.library.callbacks;
        self.call("read", offset, RefusalMeaning::Error, || calls.pread(self.raw, buffer, offset))?
            .ok_or_else(|| Error::unsupported("read").on(&self.info.name))
    }

    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        let calls = self.plugin.library.callbacks;
        let (flags, flush) = self.durably(fua);
        let written = self.call("write", offset, RefusalMeaning::Error, || {
            calls.pwrite(self.raw, data, offset, flags)
        })?;
        if written.is_none() {
            let action = "write: the plugin cannot";
            return Err(Error::new(ErrorKind::ReadOnly, Fault::File, action).on(&self.info.name));
        }
        self.flushed(flush)
    }

    fn flush(&self) -> Result<()> {
        let calls = self.plugin.library.callbacks;
        self.call("flush", 0, RefusalMeaning::Error, || calls.flush(self.raw))?
            .ok_or_else(|| Error::unsupported("flush").on(&self.info.name))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        if flags.fast_only && !self.means.fast_zero {
            return Err(Error::not_fast().on(&self.info.name).at(offset));
        }
        if !self.info.abilities.zero {
            return Err(Error::unsupported("zero").on(&self.info.name));
        }
        let calls = self.plugin.library.callbacks;
        let (durable, flush) = self.durably(flags.fua);
        let unmap = if flags.may_unmap { flag::MAY_TRIM } else { 0 };
        // Only the first piece may refuse.
        let mut fast = flags.fast_only;
        Self::each(offset, len, LONGEST, |at, count| {
            let asked = durable | unmap | if fast { flag::FAST_ZERO } else { 0 };
            let zero = || calls.zero(self.raw, count, at, asked);
            // If the plugin turns out not to support it, the edge writes data; never for a fast
            // zero.
            let how = if std::mem::take(&mut fast) {
                RefusalMeaning::NotFast
            } else {
                RefusalMeaning::Unsupported
            };
            let done = self.call("zero", at, how, zero)?;
            done.ok_or_else(|| Error::unsupported("zero").on(&self.info.name))
        })?;
        self.flushed(flush)
    }

    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        let calls = self.plugin.library.callbacks;
        let (flags, flush) = self.durably(fua);
        Self::each(offset, len, LONGEST, |at, count| {
            self.call("trim", at, RefusalMeaning::Error, || calls.trim(self.raw, count, at, flags))
                .map(drop)
        })?;
        self.flushed(flush)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        let calls = self.plugin.library.callbacks;
        match self.means.cache {
            Support::None => Ok(()),
            Support::Native => Self::each(offset, len, LONGEST, |at, count| {
                // Without this callback there is nothing to do.
                self.call("prefetch", at, RefusalMeaning::Error, || {
                    calls.cache(self.raw, count, at)
                })
                .map(drop)
            }),
            Support::Emulate => {
                let size = usize::try_from(len.min(READ_AHEAD)).unwrap_or(0);
                let mut buffer = Buffer::zeroed(size);
                Self::each(offset, len, READ_AHEAD, |at, count| {
                    let count = usize::try_from(count).unwrap_or(usize::MAX);
                    let part = buffer.get_mut(..count).unwrap_or_default();
                    self.read_at(part, at)
                })
            }
        }
    }

    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        if !self.info.abilities.extents {
            out.push(Extent::new(offset, len, ExtentKind::Data));
            return Ok(());
        }
        let calls = self.plugin.library.callbacks;
        let count = len.min(LONGEST);
        let mut list = NbdkitExtents::new(offset, offset.saturating_add(count));
        let flags = if max == 1 { flag::REQ_ONE } else { 0 };
        let wanted = u32::try_from(count).unwrap_or(u32::MAX);
        let told = self.call("tell the map", offset, RefusalMeaning::Error, || {
            calls.extents(self.raw, wanted, offset, flags, &mut list)
        })?;
        if told.is_none() || list.list().is_empty() {
            let action = "tell the map: the plugin must return at least one extent";
            return Err(Error::new(ErrorKind::InvalidInput, Fault::File, action)
                .on(&self.info.name)
                .at(offset));
        }
        let before = out.len();
        for found in list.list() {
            let kind = match found.kind & (extent::HOLE | extent::ZERO) {
                extent::ZERO => ExtentKind::Zero,
                0 | extent::HOLE => ExtentKind::Data,
                _ => ExtentKind::Hole,
            };
            if out.len().saturating_sub(before) >= max {
                break;
            }
            let roomless = found.kind & extent::HOLE != 0;
            let extent = Extent::new(found.offset, found.length, kind).without_room(roomless);
            merge_extent(out, extent);
        }
        Ok(())
    }
}

/// A thread of the pool closes the handle, in the plugin's turn.
impl Drop for Handle {
    fn drop(&mut self) {
        let (plugin, raw, caller) = (self.plugin.clone(), self.raw, self.caller.clone());
        let (pass, one) = (self.pass.take(), plugin.one.clone());
        runtime::spawn(async move {
            let _alone = alone(&one).await;
            plugin.pool.enter().await;
            let ((), said) = plugin.call(&caller, || plugin.library.callbacks.close(raw));
            said.tell(&plugin.title(), &plugin.log);
            drop(pass);
            plugin.count(-1);
        });
    }
}

/// Asks a plugin for the abilities of a handle.
struct Asking<'a> {
    plugin: &'a Arc<Plugin>,
    raw: Raw,
    caller: &'a Arc<Caller>,
}

impl Asking<'_> {
    /// Asks for a number; `None`: the plugin has no such callback.
    fn ask<T: PartialEq + From<i8>>(
        &self,
        what: &str,
        callback: impl FnOnce() -> Option<T>,
    ) -> Result<Option<T>> {
        let (answer, said) = self.plugin.call(self.caller, callback);
        if answer == Some(T::from(-1)) {
            return Err(failure(&self.plugin.library, &format!("ask for {what}"), &said));
        }
        said.tell(&self.plugin.title(), &self.plugin.log);
        Ok(answer)
    }

    /// Whether the plugin can do something: by its answer, or by its callbacks.
    fn can(
        &self,
        what: &str,
        has: &[&str],
        callback: impl FnOnce() -> Option<c_int>,
    ) -> Result<bool> {
        let calls = self.plugin.library.callbacks;
        let said = self.ask(what, callback)?;
        Ok(said.map_or_else(|| has.iter().any(|name| calls.can(name)), |said| said != 0))
    }

    fn info(&self, read_only: bool) -> Result<(Info, Means)> {
        let (calls, raw) = (self.plugin.library.callbacks, self.raw);
        let description =
            self.plugin.call(self.caller, || calls.export_description(raw)).0.unwrap_or_default();
        let size = self.ask("the size", || calls.get_size(raw))?.unwrap_or(-1);
        let name = self.plugin.title();
        let size = u64::try_from(size).map_err(|_| {
            let action = format!("open: the plugin says that the disk has {size} bytes");
            Error::new(ErrorKind::Corrupt, Fault::File, action).on(&name)
        })?;
        let (blocks, advertised) = self.blocks()?;
        let write = !read_only
            && self.can("writing", &["pwrite", "_pwrite_v1"], || calls.can_write(raw))?;
        let flush = self.can("flush", &["flush", "_flush_v1"], || calls.can_flush(raw))?;
        let rotational = self.can("rotation", &[], || calls.is_rotational(raw))?;
        let trim = write && self.can("trim", &["trim", "_trim_v1"], || calls.can_trim(raw))?;
        let zero = write && self.can("zero", &["zero", "_zero_v1"], || calls.can_zero(raw))?;
        let fast = if write { self.fast_zero(zero)? } else { false };
        let extents = self.can("extents", &["extents"], || calls.can_extents(raw))?;
        let fua = if write { self.fua()? } else { Support::None };
        let multi_conn = self.can("several connections", &[], || calls.can_multi_conn(raw))?
            // There cannot be several.
            && self.plugin.model != ThreadModel::Connections;
        let cache = self.cache()?;
        let abilities = Abilities {
            write,
            flush,
            fua: fua != Support::None,
            hides_fua: fua == Support::None,
            trim,
            zero,
            fast_zero: fast,
            rotational,
            extents,
            multi_conn,
            prefetch: cache != Support::None,
            observed: true,
            ..Abilities::READ
        };
        // If the plugin cannot zero, a fast zero is refused here, at once.
        let means = Means { fua, cache, fast_zero: fast && zero };
        let export = self.caller.export.to_str().ok().filter(|name| !name.is_empty());
        let info = Info {
            description,
            export: export.map(Arc::from),
            blocks,
            advertised,
            abilities,
            ..Info::new(name, size)
        };
        Ok((Info { longest_effect: LONGEST, ..info }, means))
    }

    fn fast_zero(&self, zero: bool) -> Result<bool> {
        let (calls, raw) = (self.plugin.library.callbacks, self.raw);
        let said = self.ask("fast zero", || calls.can_fast_zero(raw))?;
        // An unsupported operation fails at once, which is fast enough.
        Ok(said.map_or_else(|| !calls.can("zero") || !zero, |said| said != 0))
    }

    fn fua(&self) -> Result<Support> {
        let (calls, raw) = (self.plugin.library.callbacks, self.raw);
        let flushes = calls.can("flush") || calls.can("_flush_v1");
        Ok(match self.ask("FUA", || calls.can_fua(raw))? {
            None if flushes => Support::Emulate,
            None | Some(..=0) => Support::None,
            // Version 1 has no flags.
            Some(2..) if calls.api_version() >= 2 => Support::Native,
            Some(1..) => Support::Emulate,
        })
    }

    fn cache(&self) -> Result<Support> {
        let (calls, raw) = (self.plugin.library.callbacks, self.raw);
        Ok(match self.ask("cache", || calls.can_cache(raw))? {
            None if calls.can("cache") => Support::Native,
            None | Some(..=0) => Support::None,
            Some(1) => Support::Emulate,
            Some(2..) => Support::Native,
        })
    }

    /// The block sizes to enforce, and those to advertise, if the plugin gives any.
    fn blocks(&self) -> Result<(BlockSizes, Option<BlockSizes>)> {
        let (calls, raw) = (self.plugin.library.callbacks, self.raw);
        let mut sizes = [0; 3];
        self.ask("the block size", || {
            let (answer, told) = calls.block_size(raw)?;
            sizes = told;
            Some(answer)
        })?;
        let [minimum, preferred, maximum] = sizes;
        if sizes == [0; 3] {
            return Ok((BlockSizes::ANY, None));
        }
        let wrong = [
            (!(1..=65536).contains(&minimum), "minimum block size between 1 and 64K"),
            (!minimum.is_power_of_two(), "minimum block size to a power of 2"),
            (!preferred.is_power_of_two(), "preferred block size to a power of 2"),
            (!(512..=32 << 20).contains(&preferred), "preferred block size between 512 and 32M"),
            (
                maximum != u32::MAX && minimum > 0 && !maximum.is_multiple_of(minimum),
                "maximum block size to -1 or a multiple of minimum block size",
            ),
            (
                minimum > preferred || preferred > maximum,
                "minimum block size <= preferred <= maximum",
            ),
        ];
        if let Some((_, why)) = wrong.into_iter().find(|(is_wrong, _)| *is_wrong) {
            let action = format!("open: the plugin must set {why}");
            let error = Error::new(ErrorKind::Corrupt, Fault::File, action);
            return Err(error.on(self.plugin.title()));
        }
        // The server's own maximum is a multiple of any of them.
        let blocks = BlockSizes { minimum, preferred, maximum: maximum.min(LONGEST_DATA) };
        Ok((blocks, Some(blocks)))
    }
}
