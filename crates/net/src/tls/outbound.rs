//! The sending half of an encrypted stream.
//!
//! Plaintext counts as sent when the socket has taken its record whole: before that the peer can
//! know nothing of it, and from then on it may answer, however much of what was encrypted together
//! with it still waits. What does not count yet the caller has to offer again, and it is not
//! encrypted again.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::task::Poll;

use runtime::Mutex;
use rustix::io::{Errno, Result};
use rustix::net::{SendFlags, send};
use s2n_tls::connection::split::WriteHalf;

use super::memory::Plumbing;
use super::session::{AT_ONCE, RECORD, errno, with_spare};
use crate::stream::sent;

/// Records for which there is always memory.
const FEW: usize = 8;

/// The sending half.
pub(super) struct Outbound {
    half: WriteHalf,
    plumbing: Plumbing,
    /// The records that the socket has not taken whole, in order.
    records: VecDeque<Sealed>,
    /// Plaintext in them.
    owed: usize,
    /// Short pieces, gathered so that they fill a record.
    record: Vec<u8>,
    failed: Option<Errno>,
}

/// A record that was made.
struct Sealed {
    plaintext: usize,
    /// Where it ends in the stream of ciphertext.
    end: u64,
}

impl Outbound {
    pub(super) fn new(half: WriteHalf, plumbing: Plumbing) -> Self {
        let (records, record) = (VecDeque::new(), Vec::new());
        Self { half, plumbing, records, owed: 0, record, failed: None }
    }

    /// Encrypts and sends `pieces`, but for the first `skip` bytes. Returns how much of them counts
    /// as sent now.
    pub(super) fn send<'a>(
        &mut self,
        socket: &OwnedFd,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        skip: usize,
        why: &Mutex<Option<String>>,
    ) -> Result<usize> {
        if let Some(e) = self.failed {
            return Err(e);
        }
        let sent = self.try_send(socket, pieces, skip, why);
        self.failed = sent.err();
        sent
    }

    fn try_send<'a>(
        &mut self,
        socket: &OwnedFd,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        skip: usize,
        why: &Mutex<Option<String>>,
    ) -> Result<usize> {
        with_spare(1, |spare| {
            self.plumbing.outlet.lock().give_memory(spare);
            let mut pushed = self.push(socket).map_err(Trouble::System);
            let mut again = Some(pieces);
            if matches!(pushed, Ok(true))
                && self.owed == 0
                && let Some(pieces) = again.take()
            {
                pushed = self.encrypt(pieces, skip);
                pushed = pushed.and_then(|_| self.push(socket).map_err(Trouble::System));
            }
            if self.plumbing.outlet.lock().waiting().is_empty() {
                *spare = self.plumbing.outlet.lock().take_memory();
            }
            match pushed {
                Ok(_) => {
                    let sent = self.settle();
                    if again.is_some_and(|pieces| sent > 0 && !hold(pieces, skip + sent)) {
                        // The count would be of other bytes, and these would never be sent.
                        why.lock().get_or_insert_with(|| "bytes were not offered again".into());
                        return Err(Errno::PROTO);
                    }
                    Ok(sent)
                }
                Err(Trouble::System(e)) => Err(e),
                Err(Trouble::Library(e)) => {
                    why.lock().get_or_insert_with(|| e.to_string());
                    Err(errno(&e))
                }
            }
        })
    }

    /// Forgets the records that the socket has taken whole. Returns how much plaintext was in them.
    fn settle(&mut self) -> usize {
        let gone = self.plumbing.outlet.lock().gone();
        let mut sent = 0;
        while let Some(record) = self.records.pop_front_if(|record| record.end <= gone) {
            sent += record.plaintext;
        }
        self.owed -= sent;
        if self.owed == 0 {
            // Those of bulk data: the next may take long to come.
            self.records.shrink_to(FEW);
        }
        sent
    }

    /// Encrypts as much of `pieces` as is handled at once.
    fn encrypt<'a>(
        &mut self,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        mut skip: usize,
    ) -> std::result::Result<bool, Trouble> {
        self.record.clear();
        for piece in pieces {
            let room = AT_ONCE - self.owed - self.record.len();
            let piece = piece.get(skip..).unwrap_or_default();
            let piece = piece.get(..room).unwrap_or(piece);
            skip = 0;
            if piece.len() + self.record.len() <= RECORD {
                self.record.extend_from_slice(piece);
            } else {
                self.end_record()?;
                self.put(piece)?;
            }
            if self.owed + self.record.len() == AT_ONCE {
                break;
            }
        }
        self.end_record()?;
        Ok(true)
    }

    /// Encrypts what was gathered.
    fn end_record(&mut self) -> std::result::Result<(), Trouble> {
        let record = std::mem::take(&mut self.record);
        let put = self.put(&record);
        self.record = record;
        self.record.clear();
        if self.owed >= RECORD {
            // Bulk data: the next piece may take long to come.
            self.record = Vec::new();
        }
        put
    }

    fn put(&mut self, mut bytes: &[u8]) -> std::result::Result<(), Trouble> {
        while !bytes.is_empty() {
            // The library would make several records of more.
            match self.half.poll_send(bytes.get(..RECORD).unwrap_or(bytes)) {
                Poll::Ready(Ok(n)) => {
                    self.owed += n;
                    let end = self.plumbing.outlet.lock().end();
                    self.records.push_back(Sealed { plaintext: n, end });
                    bytes = bytes.get(n..).unwrap_or_default();
                }
                Poll::Ready(Err(e)) => return Err(Trouble::Library(e)),
                // The outlet takes everything.
                Poll::Pending => return Err(Trouble::System(Errno::PROTO)),
            }
        }
        Ok(())
    }

    /// Sends ciphertext that waits. Returns whether all has left.
    fn push(&self, socket: &OwnedFd) -> Result<bool> {
        let mut outlet = self.plumbing.outlet.lock();
        while !outlet.waiting().is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sent(|| send(socket, outlet.waiting(), flags))? {
                0 => return Ok(false),
                n => {
                    outlet.sent(n);
                    self.plumbing.count(n);
                }
            }
        }
        Ok(true)
    }

    /// Ciphertext that waits for the socket.
    pub(super) fn unsent(&self) -> u64 {
        self.plumbing.outlet.lock().waiting().len() as u64
    }

    /// Announces the end to the peer, as far as the socket takes that.
    pub(super) fn end(&mut self, socket: &OwnedFd) {
        if self.failed.is_none() {
            let _ = self.half.poll_shutdown_send();
            let _ = self.push(socket);
        }
    }
}

/// Whether `pieces` are at least this many bytes.
fn hold<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, mut bytes: usize) -> bool {
    pieces.into_iter().any(|piece| {
        bytes = bytes.saturating_sub(piece.len());
        bytes == 0
    })
}

/// Why nothing was encrypted or sent.
enum Trouble {
    Library(s2n_tls::error::Error),
    System(Errno),
}
