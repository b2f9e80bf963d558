//! An encrypted stream: plaintext in and out, ciphertext over the socket.
//!
//! One thread may send while another receives. Each works on 256 KiB and a header at once, in one
//! system call, with memory that the thread lends; a connection on which nothing waits keeps none.
//!
//! `outbound.rs` has the sending half, and says when plaintext counts as sent.

use std::cell::RefCell;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use device::Identity;
use runtime::Mutex;
use rustix::io::{Errno, Result};
use s2n_tls::connection::Connection;
use s2n_tls::connection::split::ReadHalf;

use super::memory::Plumbing;
use super::outbound::Outbound;
use crate::stream::{Received, received};
use rustix::net::{RecvFlags, recv};

/// Plaintext that is encrypted at once, in bytes: 256 KiB, and the header that goes with them.
pub(super) const AT_ONCE: usize = (256 << 10) + (4 << 10);
/// Ciphertext that is received at once, in bytes.
const PIECE: usize = AT_ONCE + (AT_ONCE / RECORD + 1) * OVERHEAD;
/// Plaintext of a record, at most.
pub(super) const RECORD: usize = 16 << 10;
/// The overhead of a record.
const OVERHEAD: usize = 64;
/// Ciphertext that the library gets at once, in bytes: it does not return before it has found data,
/// so this bounds its work without any.
const STRETCH: usize = 2 * (RECORD + OVERHEAD);
/// Ciphertext that may come without any plaintext in it: new keys and empty records, which cost
/// work for nothing.
const IDLE: usize = 64 << 10;

thread_local! {
    /// Memory for ciphertext, lent to one session at a time.
    static SPARE: RefCell<[Vec<u8>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// The session of a stream that encrypts.
pub(crate) struct TlsSession {
    inbound: Mutex<Inbound>,
    outbound: Mutex<Outbound>,
    /// Bytes have come that the socket does not report.
    holds: AtomicBool,
    /// See [`TlsSession::carried`].
    carried: Arc<AtomicU64>,
    identity: Arc<Identity>,
    /// The version and the ciphers that were negotiated, for people.
    agreed: String,
    why: Mutex<Option<String>>,
}

/// The receiving half. It is before the plumbing, which outlives it.
struct Inbound {
    half: ReadHalf,
    plumbing: Plumbing,
    /// Ciphertext that brought no plaintext so far.
    idle: usize,
    failed: Option<Errno>,
    /// An end or a failure came after bytes that were returned first. The socket will not report
    /// it.
    untold: bool,
}

runtime::debug_as!(TlsSession, |it| "TlsSession({}, {:?})", it.agreed, it.identity);

/// Works with memory of this thread, from [`SPARE`].
pub(super) fn with_spare<T>(place: usize, work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let taken = SPARE.with_borrow_mut(|all| all.get_mut(place).map(std::mem::take));
    let mut memory = taken.unwrap_or_default();
    let done = work(&mut memory);
    SPARE.with_borrow_mut(|all| {
        if let Some(kept) = all.get_mut(place).filter(|kept| kept.capacity() < memory.capacity()) {
            *kept = memory;
        }
    });
    done
}

impl TlsSession {
    pub(super) fn new(connection: Connection, plumbing: Plumbing, identity: Arc<Identity>) -> Self {
        let holds = plumbing.inlet.lock().left() > 0 || connection.peek_len() > 0;
        let version = connection.actual_protocol_version();
        let version = version.map_or_else(|e| e.to_string(), |version| format!("{version:?}"));
        let agreed = format!("{version} {}", connection.cipher_suite().unwrap_or("?"));
        let (reads, writes) = connection.split();
        let (idle, failed, untold) = (0, None, false);
        let inbound = Inbound { half: reads, plumbing: plumbing.clone(), idle, failed, untold };
        let carried = plumbing.carried.clone();
        let outbound = Outbound::new(writes, plumbing);
        Self {
            inbound: Mutex::new(inbound),
            outbound: Mutex::new(outbound),
            holds: AtomicBool::new(holds),
            carried,
            identity,
            agreed,
            why: Mutex::default(),
        }
    }

    /// The identity that the peer has shown.
    pub(crate) fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// The version and the ciphers that were negotiated.
    pub(crate) fn agreed(&self) -> &str {
        &self.agreed
    }

    /// Why it failed, if the library knows.
    pub(crate) fn why(&self) -> Option<String> {
        self.why.lock().clone()
    }

    /// Whether bytes have come that the socket does not report.
    pub(crate) fn holds(&self) -> bool {
        self.holds.load(Ordering::Acquire)
    }

    /// How many of those there are, at most.
    pub(crate) fn held(&self) -> u64 {
        if !self.holds() {
            return 0;
        }
        let inbound = self.inbound.lock();
        (inbound.half.peek_len() + inbound.plumbing.inlet.lock().left()) as u64
    }

    pub(crate) fn receive(&self, socket: &OwnedFd, into: &mut [u8]) -> Result<Received> {
        self.receive_scattered(socket, &mut [IoSliceMut::new(into)])
    }

    /// Fills the buffers in turn, as far as there is something.
    pub(crate) fn receive_scattered(
        &self,
        socket: &OwnedFd,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<Received> {
        let mut inbound = self.inbound.lock();
        let (mut total, mut drained) = (0, false);
        let mut last = Ok(Received::Nothing);
        for slice in into.iter_mut().filter(|slice| !slice.is_empty()) {
            last = inbound.receive(socket, slice, &mut drained, &self.why);
            match last {
                Ok(Received::Bytes(n)) => {
                    total += n;
                    if n < slice.len() {
                        break;
                    }
                }
                // Earlier bytes are returned first; the error comes again.
                Ok(Received::End) | Err(_) => {
                    inbound.untold = total > 0;
                    break;
                }
                Ok(Received::Nothing) => break,
            }
        }
        let holds = inbound.half.peek_len() > 0 || inbound.plumbing.inlet.lock().left() > 0;
        let holds = (holds && inbound.failed.is_none()) || inbound.untold;
        self.holds.store(holds, Ordering::Release);
        if total > 0 { Ok(Received::Bytes(total)) } else { last }
    }

    /// Encrypts and sends `pieces`, but for the first `skip` bytes. Returns how many were sent, as
    /// without TLS. 0: the socket has no room; the same bytes have to be offered again.
    pub(crate) fn send_gathered<'a>(
        &self,
        socket: &OwnedFd,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        skip: usize,
    ) -> Result<usize> {
        self.outbound.lock().send(socket, pieces, skip, &self.why)
    }

    /// Ciphertext that waits for the socket.
    pub(crate) fn unsent(&self) -> u64 {
        self.outbound.lock().unsent()
    }

    /// Ciphertext that went over the socket so far, either way.
    pub(crate) fn carried(&self) -> u64 {
        self.carried.load(Ordering::Relaxed)
    }

    /// Announces the end to the peer, as far as the socket takes that.
    pub(crate) fn end(&self, socket: &OwnedFd) {
        self.outbound.lock().end(socket);
    }
}

impl Inbound {
    /// `drained`: the socket was found to be empty just now.
    fn receive(
        &mut self,
        socket: &OwnedFd,
        into: &mut [u8],
        drained: &mut bool,
        why: &Mutex<Option<String>>,
    ) -> Result<Received> {
        self.untold = false;
        if let Some(e) = self.failed {
            return Err(e);
        }
        let mut filled = 0;
        let done = match self.take(into, &mut filled, why) {
            Ok(Took::All) => return Ok(Received::Bytes(filled)),
            Ok(Took::End) => Ok(true),
            Err(e) => Err(e),
            Ok(Took::NeedsMore) if self.plumbing.inlet.lock().left() > 0 => Err(Errno::PROTO),
            Ok(Took::NeedsMore) if *drained => Ok(false),
            Ok(Took::NeedsMore) => with_spare(0, |spare| {
                let mut room = Room { into, filled: &mut filled, drained };
                self.fetch(socket, &mut room, spare, why)
            }),
        };
        if let Err(e) = done {
            self.failed = Some(e);
        }
        self.untold = filled > 0 && done != Ok(false);
        match done {
            _ if filled > 0 => Ok(Received::Bytes(filled)),
            Err(e) => Err(e),
            Ok(true) => Ok(Received::End),
            Ok(false) => Ok(Received::Nothing),
        }
    }

    /// Receives ciphertext and decrypts it, until there is no more room or the socket is empty.
    /// Returns whether the end has come.
    fn fetch(
        &mut self,
        socket: &OwnedFd,
        room: &mut Room<'_>,
        spare: &mut Vec<u8>,
        why: &Mutex<Option<String>>,
    ) -> Result<bool> {
        loop {
            let wanted = room.into.len() - *room.filled;
            let most = (wanted + (wanted / RECORD + 1) * OVERHEAD).clamp(RECORD + OVERHEAD, PIECE);
            if spare.len() < most {
                // Zeroed once for each thread: earlier ciphertext is overwritten.
                spare.resize(most, 0);
            }
            let piece = spare.get_mut(..most).unwrap_or_default();
            let got = received(|| recv(socket, &mut *piece, RecvFlags::DONTWAIT).map(|(n, _)| n))?;
            // Less than there was room for: the socket is empty.
            *room.drained = got != Received::Bytes(most);
            let n = match got {
                Received::Nothing => return Ok(false),
                Received::End => {
                    self.plumbing.inlet.lock().end();
                    0
                }
                Received::Bytes(n) => {
                    self.plumbing.count(n);
                    n
                }
            };
            self.plumbing.inlet.lock().borrow(spare, n);
            let took = self.take(room.into, room.filled, why);
            self.plumbing.inlet.lock().give_back(spare);
            match took? {
                Took::All => return Ok(false),
                Took::End => return Ok(true),
                Took::NeedsMore if *room.drained => return Ok(false),
                Took::NeedsMore => {}
            }
        }
    }

    /// Decrypts what is there. The library may want more before it has read everything: so this
    /// continues as long as ciphertext is read.
    fn take(
        &mut self,
        into: &mut [u8],
        filled: &mut usize,
        why: &Mutex<Option<String>>,
    ) -> Result<Took> {
        loop {
            let Some(room) = into.get_mut(*filled..).filter(|room| !room.is_empty()) else {
                return Ok(Took::All);
            };
            let before = self.plumbing.inlet.lock().left();
            self.plumbing.inlet.lock().allow(STRETCH);
            let polled = self.half.poll_recv(room);
            let left = self.plumbing.inlet.lock().left();
            match polled {
                Poll::Ready(Ok(0)) => return Ok(Took::End),
                Poll::Ready(Ok(n)) => {
                    *filled += n;
                    self.idle = 0;
                }
                Poll::Ready(Err(e)) => {
                    why.lock().get_or_insert_with(|| e.to_string());
                    return Err(errno(&e));
                }
                Poll::Pending => {
                    self.idle += before - left.min(before);
                    if self.idle > IDLE {
                        let flood = "the peer sends TLS messages and no data";
                        why.lock().get_or_insert_with(|| flood.to_owned());
                        return Err(Errno::PROTO);
                    }
                    if left == 0 || left == before {
                        return Ok(Took::NeedsMore);
                    }
                }
            }
        }
    }
}

/// The destination of plaintext.
struct Room<'a> {
    into: &'a mut [u8],
    filled: &'a mut usize,
    drained: &'a mut bool,
}

/// How far decrypting came.
enum Took {
    /// As much as was asked for.
    All,
    /// All that was there.
    NeedsMore,
    /// The peer announced the end.
    End,
}

/// The closest error of the system: a peer that closed without an announcement is a reset.
pub(super) fn errno(e: &s2n_tls::error::Error) -> Errno {
    match e.kind() {
        s2n_tls::error::ErrorType::ConnectionClosed => Errno::CONNRESET,
        _ => Errno::PROTO,
    }
}
