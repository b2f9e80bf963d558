//! A front end (QEMU, say): what it says of its guest's memory and queues, over one connection.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use device::{Error, Result};
use runtime::Bell;
use rustix::fs::{
    FileType, MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_getfl, fcntl_setfl, fstat,
    ftruncate, memfd_create,
};

use super::block;
use super::memory::{GuestBytes, GuestMemory, GuestRegion, REGIONS};
use super::messages::{FILES, PAYLOAD, VhostMessage, request};
use super::protocol;
use super::queue::{QueueParts, RingAddresses, Virtqueue, region_len};
use super::session::{RunningQueue, VhostSession};
use crate::fields::Fields;

/// Queues of a guest, at most.
pub(super) const QUEUES: u16 = 16;
/// Descriptors of a queue, at most.
const LONGEST: u16 = 4096;

/// Bits of the features of the transport.
mod transport {
    pub(super) const INDIRECT: u64 = 1 << 28;
    pub(super) const EVENTS: u64 = 1 << 29;
    pub(super) const PROTOCOL: u64 = 1 << 30;
    pub(super) const VERSION_1: u64 = 1 << 32;
}

/// Bits of the features of the protocol: several queues, answers to all requests, what we say by
/// ourselves, configuration, requests in flight that outlive this process, and regions of memory
/// that come and go.
const PROTOCOL: u64 = 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12 | 1 << 15;
const ANSWERS: u64 = 1 << 3;

/// What an answer is.
enum Answer {
    /// None, or a status if the front end waits for one.
    Status,
    Bytes(Vec<u8>),
    File(Vec<u8>, OwnedFd),
}

/// What there is of a queue.
#[derive(Debug, Default)]
struct QueueSlot {
    size: u16,
    rings: RingAddresses,
    base: u16,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    broken: Option<OwnedFd>,
    is_enabled: bool,
    running: Option<RunningQueue>,
}

/// The region of requests in flight.
#[derive(Debug)]
struct InflightRegion {
    bytes: GuestBytes,
    queues: u16,
    size: u16,
}

/// A front end that is connected. Its queues are stopped when it is dropped.
#[derive(Debug)]
pub(super) struct FrontEnd<'a> {
    session: &'a Arc<VhostSession>,
    socket: OwnedFd,
    features: u64,
    protocol: u64,
    memory: Arc<GuestMemory>,
    queues: Vec<QueueSlot>,
    inflight: Option<InflightRegion>,
}

fn wrong(what: &str) -> Error {
    protocol(format!("the front end's message: {what}"))
}

fn cut() -> Error {
    wrong("is shorter than its kind is")
}

impl<'a> FrontEnd<'a> {
    pub(super) fn new(session: &'a Arc<VhostSession>, socket: OwnedFd) -> Self {
        let queues = (0..QUEUES).map(|_| QueueSlot::default()).collect();
        Self {
            session,
            socket,
            features: 0,
            protocol: 0,
            memory: Arc::default(),
            queues,
            inflight: None,
        }
    }

    /// Does what it says until it goes, or `is_over` when `bell` rings.
    ///
    /// # Errors
    /// It broke the protocol.
    pub(super) fn run(mut self, bell: &Bell, is_over: &AtomicBool) -> Result<()> {
        let is_over = || is_over.load(Ordering::SeqCst);
        while let Some(message) = VhostMessage::receive(&self.socket, bell.as_fd(), is_over)? {
            let waits = message.needs_reply && self.protocol & ANSWERS != 0;
            let kind = message.request;
            let handled = self.handle(message);
            let answer = |payload: &[u8], file: Option<&OwnedFd>| {
                VhostMessage::reply(kind, &self.socket, payload, file.map(AsFd::as_fd))
            };
            match handled {
                Ok(Answer::Status) if waits => answer(&0_u64.to_ne_bytes(), None)?,
                Ok(Answer::Status) => {}
                Ok(Answer::Bytes(bytes)) => answer(&bytes, None)?,
                Ok(Answer::File(bytes, file)) => answer(&bytes, Some(&file))?,
                Err(e) if waits => {
                    self.session.client.complain(&e);
                    answer(&1_u64.to_ne_bytes(), None)?;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn handle(&mut self, mut message: VhostMessage) -> Result<Answer> {
        let files = std::mem::take(&mut message.files);
        let mut fields = message.fields();
        match message.request {
            request::GET_FEATURES => Ok(number(self.offered())),
            request::SET_FEATURES => self.set_features(fields.u64().ok_or_else(cut)?),
            request::GET_PROTOCOL_FEATURES => Ok(number(PROTOCOL)),
            request::SET_PROTOCOL_FEATURES => {
                self.protocol = fields.u64().ok_or_else(cut)? & PROTOCOL;
                Ok(Answer::Status)
            }
            request::GET_QUEUE_NUM => Ok(number(QUEUES.into())),
            request::SET_OWNER => Ok(Answer::Status),
            request::RESET_OWNER => {
                self.stop_all();
                Ok(Answer::Status)
            }
            request::SET_MEM_TABLE => self.set_memory(fields, files),
            request::GET_MAX_MEM_SLOTS => Ok(number(REGIONS as u64)),
            request::ADD_MEM_REG => self.add_memory(fields, files),
            request::REM_MEM_REG => self.remove_memory(fields),
            request::SET_BACKEND_REQ_FD => {
                let file = files.into_iter().next().ok_or_else(|| wrong("has no file"))?;
                *self.session.notices.lock() = Some(file);
                Ok(Answer::Status)
            }
            request::GET_CONFIG => self.configuration(fields),
            request::GET_INFLIGHT_FD => inflight(fields),
            request::SET_INFLIGHT_FD => self.set_inflight(fields, files),
            request::SET_VRING_KICK | request::SET_VRING_CALL | request::SET_VRING_ERR => {
                self.set_descriptor(message.request, fields, files)
            }
            kind @ (request::SET_VRING_NUM
            | request::SET_VRING_ADDR
            | request::SET_VRING_BASE
            | request::GET_VRING_BASE
            | request::SET_VRING_ENABLE) => self.ring(kind, fields),
            request::SET_CONFIG => Err(wrong("changes what cannot be changed")),
            other => Err(wrong(&format!("{other} is unknown"))),
        }
    }

    fn offered(&self) -> u64 {
        let client = &self.session.client;
        block::features(client.edge.info(), client.is_read_only)
            | transport::INDIRECT
            | transport::EVENTS
            | transport::PROTOCOL
            | transport::VERSION_1
    }

    fn set_features(&mut self, features: u64) -> Result<Answer> {
        if features & !self.offered() != 0 {
            return Err(wrong("agrees to what was not offered"));
        }
        self.features = features;
        self.session.features.store(features, Ordering::Relaxed);
        Ok(Answer::Status)
    }

    /// `struct vhost_user_memory`: a file a region.
    fn set_memory(&mut self, mut fields: Fields<'_>, files: Vec<OwnedFd>) -> Result<Answer> {
        let (count, _) = fields.u32().zip(fields.u32()).ok_or_else(cut)?;
        if usize::try_from(count).ok() != Some(files.len()) || files.len() > FILES {
            return Err(wrong("has other regions than files"));
        }
        let mut regions = Vec::new();
        for file in files {
            regions.push(self.region(&mut fields, &file)?);
        }
        self.replace_memory(GuestMemory(regions))
    }

    /// `struct vhost_user_mem_region`.
    fn region(&self, fields: &mut Fields<'_>, file: &OwnedFd) -> Result<GuestRegion> {
        let ((guest, len, user), offset) = place(fields)?;
        let bytes = GuestBytes::map(file, offset, len, !self.session.is_unsealed)?;
        Ok(GuestRegion { guest, user, bytes })
    }

    /// `struct vhost_user_single_mem_region`: one more.
    fn add_memory(&mut self, mut fields: Fields<'_>, files: Vec<OwnedFd>) -> Result<Answer> {
        fields.u64().ok_or_else(cut)?;
        let file = files.first().ok_or_else(|| wrong("has no file"))?;
        if self.memory.0.len() >= REGIONS {
            return Err(wrong("has too many regions"));
        }
        let region = self.region(&mut fields, file)?;
        let mut memory = GuestMemory::clone(&self.memory);
        memory.0.push(region);
        self.replace_memory(memory)
    }

    fn remove_memory(&mut self, mut fields: Fields<'_>) -> Result<Answer> {
        fields.u64().ok_or_else(cut)?;
        let (region, _) = place(&mut fields)?;
        let mut memory = GuestMemory::clone(&self.memory);
        let all = memory.0.len();
        memory.0.retain(|one| !one.is_at(region));
        if memory.0.len() == all {
            return Err(wrong("removes a region that there is not"));
        }
        self.replace_memory(memory)
    }

    /// Stops the queues meanwhile: what is in flight lies in the memory that there was.
    fn replace_memory(&mut self, memory: GuestMemory) -> Result<Answer> {
        self.stop_all();
        self.memory = Arc::new(memory);
        self.start_all()
    }

    /// `struct vhost_user_config`: an offset, a length, flags and the bytes.
    fn configuration(&self, mut fields: Fields<'_>) -> Result<Answer> {
        let (offset, len) = fields.u32().zip(fields.u32()).ok_or_else(cut)?;
        let flags = fields.u32().ok_or_else(cut)?;
        let edge = &self.session.client.edge;
        let config = block::configuration(edge.info(), edge.size(), QUEUES);
        let mut answer = [offset, len, flags].map(u32::to_ne_bytes).as_flattened().to_vec();
        let (offset, len) = (usize::try_from(offset), usize::try_from(len));
        let (Ok(offset), Ok(len)) = (offset, len) else { return Err(cut()) };
        if len > PAYLOAD - answer.len() || offset > PAYLOAD || fields.rest().len() < len {
            return Err(wrong("asks for more configuration than there can be"));
        }
        // What newer devices have is not there.
        let rest = config.iter().skip(offset).copied().chain(std::iter::repeat(0));
        answer.extend(rest.take(len));
        Ok(Answer::Bytes(answer))
    }

    /// `struct vhost_user_inflight`, of what [`inflight`] has made, here or in a process before.
    fn set_inflight(&mut self, mut fields: Fields<'_>, files: Vec<OwnedFd>) -> Result<Answer> {
        let (len, offset) = fields.u64().zip(fields.u64()).ok_or_else(cut)?;
        let (queues, size) = fields.u16().zip(fields.u16()).ok_or_else(cut)?;
        let file = files.first().ok_or_else(|| wrong("has no file"))?;
        if queues > QUEUES || len < needed(queues, size) || !offset.is_multiple_of(64) {
            return Err(wrong("has a region for requests in flight that is too short"));
        }
        let bytes = GuestBytes::map(file, offset, len, !self.session.is_unsealed)?;
        self.stop_all();
        self.inflight = Some(InflightRegion { bytes, queues, size });
        self.start_all()
    }

    /// What wakes us, the guest, or tells the front end of a failure.
    fn set_descriptor(
        &mut self,
        kind: u32,
        mut fields: Fields<'_>,
        files: Vec<OwnedFd>,
    ) -> Result<Answer> {
        let value = fields.u64().ok_or_else(cut)?;
        let file = files.into_iter().next();
        if value & 0x100 == 0 && file.is_none() {
            return Err(wrong("has no file"));
        }
        file.as_ref().map(never_waits).transpose()?;
        let slot = self.slot(value & 0xff)?;
        match kind {
            request::SET_VRING_CALL => {
                let own = file.as_ref().map(OwnedFd::try_clone).transpose();
                slot.call = own.map_err(|e| Error::os("duplicate a descriptor", e))?;
                if let Some(running) = &slot.running {
                    running.queue.call_by(file);
                }
            }
            request::SET_VRING_ERR => slot.broken = file,
            _ => {
                slot.stop();
                slot.kick = file;
                self.start_all()?;
            }
        }
        Ok(Answer::Status)
    }

    fn ring(&mut self, kind: u32, mut fields: Fields<'_>) -> Result<Answer> {
        let (index, value) = fields.u32().zip(fields.u32()).ok_or_else(cut)?;
        let slot = self.slot(index.into())?;
        let short = u16::try_from(value).map_err(|_| wrong("has a number that is too high"));
        match kind {
            request::GET_VRING_BASE => {
                slot.stop();
                slot.kick = None;
                let base = u32::from(slot.base);
                let answer = [index, base].map(u32::to_ne_bytes).as_flattened().to_vec();
                return Ok(Answer::Bytes(answer));
            }
            request::SET_VRING_NUM => {
                let size = short?;
                if !size.is_power_of_two() || size > LONGEST {
                    return Err(wrong("has a queue of an odd length"));
                }
                slot.stop();
                slot.size = size;
            }
            request::SET_VRING_BASE => {
                slot.stop();
                slot.base = short?;
            }
            request::SET_VRING_ADDR => {
                let mut next = || fields.u64().ok_or_else(cut);
                let (descriptors, used, available) = (next()?, next()?, next()?);
                slot.stop();
                slot.rings = RingAddresses { descriptors, used, available };
            }
            _ => slot.is_enabled = value != 0,
        }
        self.start_all()
    }

    fn slot(&mut self, index: u64) -> Result<&mut QueueSlot> {
        let slot = usize::try_from(index).ok().and_then(|index| self.queues.get_mut(index));
        slot.ok_or_else(|| wrong("names a queue that there is not"))
    }

    /// Starts the queues that have all that they need, and stops those that were switched off.
    fn start_all(&mut self) -> Result<Answer> {
        let is_plain = self.features & transport::PROTOCOL == 0;
        for (number, slot) in self.queues.iter_mut().enumerate() {
            let is_wanted = slot.is_enabled || is_plain;
            match (&slot.running, &slot.kick) {
                (Some(_), _) if !is_wanted => slot.stop(),
                (None, Some(kick)) if is_wanted && slot.size > 0 && slot.rings.used != 0 => {
                    let kick = kick.try_clone();
                    let kick = kick.map_err(|e| Error::os("duplicate a descriptor", e))?;
                    let own = |fd: &Option<OwnedFd>| {
                        let own = fd.as_ref().map(OwnedFd::try_clone).transpose();
                        own.map_err(|e| Error::os("duplicate a descriptor", e))
                    };
                    let inflight =
                        self.inflight.as_ref().map(|region| region.of(number, slot.size));
                    let parts = QueueParts {
                        size: slot.size,
                        rings: slot.rings,
                        base: slot.base,
                        has_events: self.features & transport::EVENTS != 0,
                        memory: self.memory.clone(),
                        inflight: inflight.transpose()?,
                        call: own(&slot.call)?,
                    };
                    let queue = Virtqueue::new(parts)?;
                    let broken = own(&slot.broken)?;
                    slot.running = Some(RunningQueue::start(self.session, queue, kick, broken)?);
                }
                _ => {}
            }
        }
        Ok(Answer::Status)
    }

    fn stop_all(&mut self) {
        self.queues.iter_mut().for_each(QueueSlot::stop);
    }
}

impl Drop for FrontEnd<'_> {
    fn drop(&mut self) {
        self.stop_all();
        *self.session.notices.lock() = None;
    }
}

impl QueueSlot {
    fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            self.base = running.stop();
        }
    }
}

impl InflightRegion {
    /// The part of a queue.
    fn of(&self, number: usize, size: u16) -> Result<GuestBytes> {
        let len = region_len(self.size);
        let part = (size <= self.size && number < usize::from(self.queues))
            .then(|| self.bytes.part(number * len, region_len(size)));
        part.flatten().ok_or_else(|| wrong("has no region for a queue's requests in flight"))
    }
}

/// Where a region lies, as guest and front end count and how long it is, and where in its file.
fn place(fields: &mut Fields<'_>) -> Result<((u64, u64, u64), u64)> {
    let mut next = || fields.u64().ok_or_else(cut);
    let (guest, len, user, offset) = (next()?, next()?, next()?, next()?);
    Ok(((guest, len, user), offset))
}

fn number(value: u64) -> Answer {
    Answer::Bytes(value.to_ne_bytes().to_vec())
}

/// Bytes that the region for requests in flight takes.
fn needed(queues: u16, size: u16) -> u64 {
    let all = region_len(size).saturating_mul(usize::from(queues));
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// Makes a region for requests in flight, which the front end keeps.
fn inflight(mut fields: Fields<'_>) -> Result<Answer> {
    fields.u64().zip(fields.u64()).ok_or_else(cut)?;
    let (queues, size) = fields.u16().zip(fields.u16()).ok_or_else(cut)?;
    if queues == 0 || queues > QUEUES || size == 0 || size > LONGEST {
        return Err(wrong("has an odd number of queues"));
    }
    let len = needed(queues, size);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = memfd_create("diskferry-inflight", flags).and_then(|file| {
        ftruncate(&file, len)?;
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(file)
    });
    let file = made.map_err(|e| Error::os("make a region for requests in flight", e))?;
    let mut answer = [len, 0].map(u64::to_ne_bytes).as_flattened().to_vec();
    answer.extend([queues, size].map(u16::to_ne_bytes).as_flattened());
    // QEMU pads it to a multiple of eight, and takes nothing shorter.
    answer.extend(fields.rest().iter().take(8).map(|_| 0));
    Ok(Answer::File(answer, file))
}

/// A descriptor that this process waits for is an eventfd, and does not block: no pipe, socket or
/// file, whose other end could stop a thread.
fn never_waits(file: &OwnedFd) -> Result<()> {
    let say = |e: rustix::io::Errno| Error::os("look at a descriptor of the front end", e);
    let kind = FileType::from_raw_mode(fstat(file).map_err(say)?.st_mode);
    if kind != FileType::Unknown {
        return Err(wrong("has a descriptor that is no eventfd"));
    }
    let flags = fcntl_getfl(file).map_err(say)?;
    fcntl_setfl(file, flags | OFlags::NONBLOCK).map_err(say)
}
