//! A front end (QEMU, say): what it says of its guest's memory and queues, over one connection.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::{Error, Result};
use runtime::to_usize;
use rustix::fs::{
    FileType, MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_getfl, fcntl_setfl, fstat,
    ftruncate, memfd_create,
};

use super::block;
use super::memory::{GuestBytes, GuestMemory, GuestRegion, REGIONS};
use super::messages::{PAYLOAD, VhostMessage, reply, request};
use super::protocol;
use super::queue::{QueueParts, RingAddresses, Virtqueue, region_len};
use super::session::{RunningQueue, StopSign, VhostSession};
use crate::fields::{FieldBytes, Fields};

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

/// What a request is answered, and a descriptor with it. None: a status, if the front end waits for
/// one.
type Answer = Option<(Vec<u8>, Option<OwnedFd>)>;

/// What there is of a queue.
#[derive(Debug, Default)]
struct QueueSlot {
    /// As far as it is known.
    parts: QueueParts,
    kick: Option<Arc<OwnedFd>>,
    broken: Option<Arc<OwnedFd>>,
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

/// A number of a message, which must be there.
fn need<T>(number: Option<T>) -> Result<T> {
    number.ok_or_else(|| wrong("is too short"))
}

fn number(value: u64) -> Answer {
    Some((value.to_ne_bytes().to_vec(), None))
}

impl<'a> FrontEnd<'a> {
    pub(super) fn new(session: &'a Arc<VhostSession>, socket: OwnedFd) -> Self {
        let queues = (0..QUEUES).map(|_| QueueSlot::default()).collect();
        let (memory, inflight) = (Arc::default(), None);
        Self { session, socket, features: 0, protocol: 0, memory, queues, inflight }
    }

    /// Does what it says until it goes, or `stop` is set.
    ///
    /// # Errors
    /// It broke the protocol.
    pub(super) fn run(mut self, stop: &StopSign) -> Result<()> {
        while let Some(message) = VhostMessage::receive(&self.socket, stop)? {
            let waits = message.needs_reply && self.protocol & ANSWERS != 0;
            let kind = message.request;
            let answer = match self.handle(message) {
                Ok(None) if waits => number(0),
                Ok(answer) => answer,
                Err(e) if waits => {
                    self.session.client.complain(&e);
                    number(1)
                }
                Err(e) => return Err(e),
            };
            if let Some((payload, file)) = answer {
                reply(kind, &self.socket, &payload, file.as_ref())?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, message: VhostMessage) -> Result<Answer> {
        let mut fields = Fields(&message.payload);
        let mut files = message.files.into_iter();
        match message.request {
            request::GET_FEATURES => return Ok(number(self.offered())),
            request::GET_PROTOCOL_FEATURES => return Ok(number(PROTOCOL)),
            request::GET_QUEUE_NUM => return Ok(number(QUEUES.into())),
            request::GET_MAX_MEM_SLOTS => return Ok(number(REGIONS as u64)),
            request::GET_CONFIG => return self.configuration(fields),
            request::GET_INFLIGHT_FD => return new_inflight(fields),
            request::GET_VRING_BASE => return self.end_queue(fields),
            request::SET_OWNER => {}
            request::RESET_OWNER => self.stop_all(),
            request::SET_FEATURES => self.set_features(need(fields.u64())?)?,
            request::SET_PROTOCOL_FEATURES => self.protocol = need(fields.u64())? & PROTOCOL,
            request::SET_BACKEND_REQ_FD => {
                *self.session.notices.lock() = Some(given(files.next())?);
            }
            kind @ (request::SET_MEM_TABLE | request::ADD_MEM_REG | request::REM_MEM_REG) => {
                self.set_memory(kind, fields, files.as_slice())?;
            }
            request::SET_INFLIGHT_FD => self.set_inflight(fields, &given(files.next())?)?,
            kind @ request::SET_VRING_KICK..=request::SET_VRING_ERR => {
                self.set_descriptor(kind, need(fields.u64())?, files.next())?;
            }
            kind @ (request::SET_VRING_NUM..=request::SET_VRING_BASE
            | request::SET_VRING_ENABLE) => self.set_ring(kind, fields)?,
            request::SET_CONFIG => return Err(wrong("writes configuration that is read-only")),
            other => return Err(wrong(&format!("{other} is unknown"))),
        }
        Ok(None)
    }

    fn offered(&self) -> u64 {
        let client = &self.session.client;
        block::features(client.edge.info(), client.is_read_only)
            | transport::INDIRECT
            | transport::EVENTS
            | transport::PROTOCOL
            | transport::VERSION_1
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.offered() != 0 {
            return Err(wrong("acknowledges features that were not offered"));
        }
        self.features = features;
        self.session.features.store(features, Ordering::Relaxed);
        Ok(())
    }

    /// `struct vhost_user_memory`: all regions, or `vhost_user_single_mem_region`: one more, or one
    /// less. Stops the queues meanwhile: what is in flight lies in the memory that there was.
    fn set_memory(&mut self, kind: u32, mut fields: Fields<'_>, files: &[OwnedFd]) -> Result<()> {
        // The latter begins with padding.
        let (count, _) = need(fields.u32().zip(fields.u32()))?;
        let mut regions = self.memory.0.clone();
        let new = match kind {
            request::SET_MEM_TABLE if usize::try_from(count) == Ok(files.len()) => {
                regions.clear();
                files
            }
            request::ADD_MEM_REG if regions.len() < REGIONS && !files.is_empty() => {
                files.get(..1).unwrap_or_default()
            }
            request::REM_MEM_REG => {
                let (place, _) = place(&mut fields)?;
                regions.retain(|one| (one.guest, one.bytes.len() as u64, one.user) != place);
                &[]
            }
            _ => return Err(wrong("has a region without a file, or too many regions")),
        };
        if kind == request::REM_MEM_REG && regions.len() == self.memory.0.len() {
            return Err(wrong("removes an unknown region"));
        }
        for file in new {
            let ((guest, len, user), offset) = place(&mut fields)?;
            let bytes = GuestBytes::map(file, offset, len, !self.session.is_unsealed)?;
            regions.push(GuestRegion { guest, user, bytes });
        }
        self.stop_all();
        self.memory = Arc::new(GuestMemory(regions));
        self.start_all()
    }

    /// `struct vhost_user_config`: an offset, a length, flags and the bytes.
    fn configuration(&self, mut fields: Fields<'_>) -> Result<Answer> {
        let (offset, len) = need(fields.u32().zip(fields.u32()))?;
        let mut answer = FieldBytes::default().u32(offset).u32(len).u32(need(fields.u32())?).0;
        let (offset, len) = (to_usize(offset.into()), to_usize(len.into()));
        if len > PAYLOAD - answer.len() || offset > PAYLOAD || fields.rest().len() < len {
            return Err(wrong("asks for configuration beyond its end"));
        }
        let edge = &self.session.client.edge;
        let config = block::configuration(edge.info(), edge.size(), QUEUES);
        // What newer devices have is not there.
        let rest = config.into_iter().skip(offset).chain(std::iter::repeat(0));
        answer.extend(rest.take(len));
        Ok(Some((answer, None)))
    }

    /// `struct vhost_user_inflight`, of what [`new_inflight`] has made, here or in a process
    /// before.
    fn set_inflight(&mut self, mut fields: Fields<'_>, file: &OwnedFd) -> Result<()> {
        let (len, offset) = need(fields.u64().zip(fields.u64()))?;
        let (queues, size) = need(fields.u16().zip(fields.u16()))?;
        if queues > QUEUES || len < needed(queues, size) || !offset.is_multiple_of(64) {
            return Err(wrong("has an inflight region that is too short"));
        }
        let bytes = GuestBytes::map(file, offset, len, !self.session.is_unsealed)?;
        self.stop_all();
        self.inflight = Some(InflightRegion { bytes, queues, size });
        self.start_all()
    }

    /// What wakes us, the guest, or tells the front end of a failure.
    fn set_descriptor(&mut self, kind: u32, value: u64, file: Option<OwnedFd>) -> Result<()> {
        let is_none = value & 0x100 != 0;
        let file = file.map(never_waits).transpose()?;
        if file.is_none() && !is_none {
            return Err(wrong("has no file"));
        }
        let slot = self.slot(value & 0xff)?;
        match kind {
            request::SET_VRING_CALL => {
                if let Some(running) = &slot.running {
                    running.queue.call_by(file.clone());
                }
                slot.parts.call = file;
            }
            request::SET_VRING_ERR => slot.broken = file,
            _ => {
                slot.stop();
                slot.kick = file;
                self.start_all()?;
            }
        }
        Ok(())
    }

    fn set_ring(&mut self, kind: u32, mut fields: Fields<'_>) -> Result<()> {
        let (index, value) = need(fields.u32().zip(fields.u32()))?;
        let slot = self.slot(index.into())?;
        match (kind, u16::try_from(value)) {
            (request::SET_VRING_ENABLE, _) => slot.is_enabled = value != 0,
            (request::SET_VRING_ADDR, _) => {
                let mut next = || need(fields.u64());
                let (descriptors, used, available) = (next()?, next()?, next()?);
                slot.stop().rings = RingAddresses { descriptors, used, available };
            }
            (request::SET_VRING_BASE, Ok(base)) => slot.stop().base = base,
            (request::SET_VRING_NUM, Ok(size)) if size.is_power_of_two() && size <= LONGEST => {
                slot.stop().size = size;
            }
            _ => return Err(wrong("has a queue of an invalid length or position")),
        }
        self.start_all()
    }

    /// Stops a queue; where its ring of available requests goes on.
    fn end_queue(&mut self, mut fields: Fields<'_>) -> Result<Answer> {
        let index = need(fields.u32())?;
        let slot = self.slot(index.into())?;
        slot.kick = None;
        let base = slot.stop().base.into();
        Ok(Some((FieldBytes::default().u32(index).u32(base).0, None)))
    }

    fn slot(&mut self, index: u64) -> Result<&mut QueueSlot> {
        let slot = usize::try_from(index).ok().and_then(|index| self.queues.get_mut(index));
        slot.ok_or_else(|| wrong("names an unknown queue"))
    }

    /// Starts the queues that have all that they need, and stops those that were switched off.
    fn start_all(&mut self) -> Result<()> {
        let is_plain = self.features & transport::PROTOCOL == 0;
        let has_events = self.features & transport::EVENTS != 0;
        for (number, slot) in self.queues.iter_mut().enumerate() {
            let is_wanted = slot.is_enabled || is_plain;
            let size = slot.parts.size;
            match (&slot.running, &slot.kick) {
                (Some(_), _) if !is_wanted => {
                    slot.stop();
                }
                (None, Some(kick)) if is_wanted && size > 0 && slot.parts.rings.used != 0 => {
                    let inflight = self.inflight.as_ref().map(|region| region.of(number, size));
                    let (memory, inflight) = (self.memory.clone(), inflight.transpose()?);
                    let parts = QueueParts { memory, inflight, has_events, ..slot.parts.clone() };
                    let (queue, broken) = (Virtqueue::new(parts)?, slot.broken.clone());
                    let running = RunningQueue::start(self.session, queue, kick.clone(), broken)?;
                    slot.running = Some(running);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn stop_all(&mut self) {
        self.queues.iter_mut().for_each(|slot| {
            slot.stop();
        });
    }
}

impl Drop for FrontEnd<'_> {
    fn drop(&mut self) {
        self.stop_all();
        *self.session.notices.lock() = None;
    }
}

impl QueueSlot {
    /// Stops the queue, if it runs; what it is made of.
    fn stop(&mut self) -> &mut QueueParts {
        if let Some(running) = self.running.take() {
            self.parts.base = running.stop();
        }
        &mut self.parts
    }
}

impl InflightRegion {
    /// The part of a queue.
    fn of(&self, number: usize, size: u16) -> Result<GuestBytes> {
        let len = region_len(self.size);
        let part = (size <= self.size && number < usize::from(self.queues))
            .then(|| self.bytes.part(number * len, region_len(size)));
        part.flatten().ok_or_else(|| wrong("has no inflight region for the queue"))
    }
}

/// `struct vhost_user_mem_region`: where a region lies, as guest and front end count and how long
/// it is, and where in its file.
fn place(fields: &mut Fields<'_>) -> Result<((u64, u64, u64), u64)> {
    let mut next = || need(fields.u64());
    let (guest, len, user, offset) = (next()?, next()?, next()?, next()?);
    Ok(((guest, len, user), offset))
}

/// Bytes that the region for requests in flight takes.
fn needed(queues: u16, size: u16) -> u64 {
    let all = region_len(size).saturating_mul(usize::from(queues));
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// Makes a region for requests in flight, which the front end keeps.
fn new_inflight(mut fields: Fields<'_>) -> Result<Answer> {
    need(fields.u64().zip(fields.u64()))?;
    let (queues, size) = need(fields.u16().zip(fields.u16()))?;
    if queues == 0 || queues > QUEUES || size == 0 || size > LONGEST {
        return Err(wrong("has an invalid number of queues"));
    }
    let len = needed(queues, size);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = memfd_create("diskferry-inflight", flags).and_then(|file| {
        ftruncate(&file, len)?;
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(file)
    });
    let file = made.map_err(|e| Error::os("create the inflight region", e))?;
    let answer = FieldBytes::default().u64(len).u64(0).u16(queues).u16(size);
    // QEMU pads it to a multiple of eight, and takes nothing shorter.
    Ok(Some((answer.zeroes(fields.rest().len().min(8)).0, Some(file))))
}

fn given(file: Option<OwnedFd>) -> Result<OwnedFd> {
    file.ok_or_else(|| wrong("has no file"))
}

/// A descriptor that this process waits for is an eventfd, and does not block: no pipe, socket or
/// file, whose other end could stop a thread.
fn never_waits(file: OwnedFd) -> Result<Arc<OwnedFd>> {
    let say = |e| Error::os("inspect a descriptor of the front end", e);
    let kind = FileType::from_raw_mode(fstat(&file).map_err(say)?.st_mode);
    if kind != FileType::Unknown {
        return Err(wrong("has a descriptor that is not an eventfd"));
    }
    let flags = fcntl_getfl(&file).map_err(say)?;
    fcntl_setfl(&file, flags | OFlags::NONBLOCK).map_err(say)?;
    Ok(Arc::new(file))
}
