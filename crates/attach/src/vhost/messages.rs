//! The messages of vhost-user, as bytes (QEMU's docs/interop/vhost-user.rst).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use device::{Error, Result};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};

use super::protocol;
use super::session::StopSign;
use crate::fields::Fields;

/// Requests of the front end.
pub(super) mod request {
    pub(in super::super) const GET_FEATURES: u32 = 1;
    pub(in super::super) const SET_FEATURES: u32 = 2;
    pub(in super::super) const SET_OWNER: u32 = 3;
    pub(in super::super) const RESET_OWNER: u32 = 4;
    pub(in super::super) const SET_MEM_TABLE: u32 = 5;
    pub(in super::super) const SET_VRING_NUM: u32 = 8;
    pub(in super::super) const SET_VRING_ADDR: u32 = 9;
    pub(in super::super) const SET_VRING_BASE: u32 = 10;
    pub(in super::super) const GET_VRING_BASE: u32 = 11;
    pub(in super::super) const SET_VRING_KICK: u32 = 12;
    pub(in super::super) const SET_VRING_CALL: u32 = 13;
    pub(in super::super) const SET_VRING_ERR: u32 = 14;
    pub(in super::super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(in super::super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(in super::super) const GET_QUEUE_NUM: u32 = 17;
    pub(in super::super) const SET_VRING_ENABLE: u32 = 18;
    pub(in super::super) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(in super::super) const GET_CONFIG: u32 = 24;
    pub(in super::super) const SET_CONFIG: u32 = 25;
    pub(in super::super) const GET_INFLIGHT_FD: u32 = 31;
    pub(in super::super) const SET_INFLIGHT_FD: u32 = 32;
    pub(in super::super) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(in super::super) const ADD_MEM_REG: u32 = 37;
    pub(in super::super) const REM_MEM_REG: u32 = 38;
}

/// What we say by ourselves: the configuration is another one.
const CONFIG_CHANGE: u32 = 2;

/// Descriptors of a message, at most: one a region.
pub(super) const FILES: usize = 8;
/// Bytes of a message's header: `request`, `flags`, `size`.
const HEADER: usize = 12;
/// Bytes of a payload, at most: the longest that there is has a region table or a configuration.
pub(super) const PAYLOAD: usize = 512;
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;

/// A request as it came.
#[derive(Debug)]
pub(super) struct VhostMessage {
    pub(super) request: u32,
    /// The front end waits for the status of a request that has no answer of its own.
    pub(super) needs_reply: bool,
    pub(super) payload: Vec<u8>,
    /// Descriptors that came with it.
    pub(super) files: Vec<OwnedFd>,
}

impl VhostMessage {
    /// Receives the next one. `None` when the front end has gone, or `stop` is set.
    pub(super) fn receive(socket: &OwnedFd, stop: &StopSign) -> Result<Option<Self>> {
        let (mut header, mut files) = ([0; HEADER], Vec::new());
        if !receive(socket, stop, &mut header, &mut files)? {
            return Ok(None);
        }
        let mut fields = Fields(&header);
        let (Some(request), Some(flags), Some(size)) = (fields.u32(), fields.u32(), fields.u32())
        else {
            return Ok(None);
        };
        if flags & VERSION_MASK != VERSION || flags & REPLY != 0 {
            return Err(protocol(format!("message {request} has an unknown version")));
        }
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size > PAYLOAD {
            return Err(protocol(format!("message {request} has {size} bytes")));
        }
        let mut payload = vec![0; size];
        let is_whole = receive(socket, stop, &mut payload, &mut files)?;
        let needs_reply = flags & NEED_REPLY != 0;
        Ok(is_whole.then_some(Self { request, needs_reply, payload, files }))
    }
}

/// Receives as many bytes of a message, and the descriptors that come with them; whether they are
/// there.
fn receive(
    socket: &OwnedFd,
    stop: &StopSign,
    to: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> Result<bool> {
    let mut done = 0;
    while done < to.len() {
        if !stop.wait(socket.as_fd())? {
            return Ok(false);
        }
        match part(socket, to.get_mut(done..).unwrap_or_default(), files) {
            Ok(0) if done == 0 => return Ok(false),
            Ok(0) => return Err(protocol("a message is cut off")),
            Ok(n) => done += n,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(false),
            Err(e) => return Err(Error::os("receive a message", e)),
        }
    }
    Ok(true)
}

/// Answers a request, with a descriptor where there is one.
pub(super) fn reply(
    request: u32,
    socket: &OwnedFd,
    payload: &[u8],
    file: Option<&OwnedFd>,
) -> Result<()> {
    let len = u32::try_from(payload.len()).unwrap_or(0);
    let header = [request, VERSION | REPLY, len].map(u32::to_ne_bytes);
    let message = [header.as_flattened(), payload].concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let file = file.map(AsFd::as_fd);
    if !file.as_slice().is_empty() {
        control.push(SendAncillaryMessage::ScmRights(file.as_slice()));
    }
    // The front end reads each answer before it goes on, so there is always room for one.
    let sent = sendmsg(socket, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL);
    match sent {
        Ok(n) if n == message.len() => Ok(()),
        Ok(_) => Err(protocol("the front end does not read replies")),
        Err(e) => Err(Error::os("reply to a message", e)),
    }
}

/// Says that the configuration is another one. Does not wait: a front end that does not read has
/// not read what was said before.
///
/// # Errors
/// It has gone, or has no room.
pub(super) fn tell_change(socket: &OwnedFd) -> Result<()> {
    let message = [CONFIG_CHANGE, VERSION, 0].map(u32::to_ne_bytes);
    let sent = send(socket, message.as_flattened(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    sent.map(drop).map_err(|e| Error::os("announce the new size to the front end", e))
}

/// What there is of a message, and the descriptors that come with it.
fn part(socket: &OwnedFd, to: &mut [u8], files: &mut Vec<OwnedFd>) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = recvmsg(socket, &mut [IoSliceMut::new(to)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            // More than a message may have are closed.
            files.extend(received.take(FILES - files.len().min(FILES)));
        }
    }
    Ok(got.bytes)
}
