//! The library reads and writes ciphertext in two buffers in memory, never a descriptor.
//!
//! Uses `unsafe` for the two callbacks and for registering them. A buffer is only reached through
//! its lock, and lives as long as a [`Plumbing`], which every owner of a connection keeps beside
//! it.
#![expect(unsafe_code, reason = "see above")]

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use runtime::Mutex;
use s2n_tls::connection::Connection;
use s2n_tls::error::Error;

/// Ciphertext that came and was not read yet.
#[derive(Debug, Default)]
pub(super) struct Inlet {
    bytes: Vec<u8>,
    /// Bytes of it that were read, and the end of those that came.
    taken: usize,
    end: usize,
    /// Bytes that the library may read before it has to return.
    allowed: usize,
    /// No more will come.
    ended: bool,
}

impl Inlet {
    /// Bytes that were not read.
    pub(super) fn left(&self) -> usize {
        self.end - self.taken
    }

    /// Lets the library read this many bytes, after which there seem to be no more for now.
    pub(super) fn allow(&mut self, bytes: usize) {
        self.allowed = bytes;
    }

    /// More has come.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.bytes.truncate(self.end);
        self.bytes.drain(..self.taken);
        self.bytes.extend_from_slice(bytes);
        (self.taken, self.end) = (0, self.bytes.len());
    }

    /// Nothing more will come.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Borrows `bytes`, of which the first `len` are ciphertext, until [`Inlet::give_back`].
    /// Nothing may be left of earlier bytes.
    pub(super) fn borrow(&mut self, bytes: &mut Vec<u8>, len: usize) {
        self.bytes = std::mem::take(bytes);
        (self.taken, self.end) = (0, len.min(self.bytes.len()));
    }

    /// Gives `bytes` back, and keeps a copy of what was not read.
    pub(super) fn give_back(&mut self, bytes: &mut Vec<u8>) {
        let rest = self.bytes.get(self.taken..self.end).unwrap_or_default().to_vec();
        (self.taken, self.end) = (0, rest.len());
        *bytes = std::mem::replace(&mut self.bytes, rest);
    }

    fn take(&mut self, most: usize) -> &[u8] {
        let (from, some) = (self.taken, most.min(self.left()).min(self.allowed));
        self.taken += some;
        self.allowed -= some;
        self.bytes.get(from..self.taken).unwrap_or_default()
    }
}

/// Ciphertext to send.
#[derive(Debug, Default)]
pub(super) struct Outlet {
    bytes: Vec<u8>,
    /// Bytes of it that were sent.
    gone: usize,
    /// Bytes that were sent before the first of it.
    before: u64,
}

impl Outlet {
    /// The bytes to send.
    pub(super) fn waiting(&self) -> &[u8] {
        self.bytes.get(self.gone..).unwrap_or_default()
    }

    /// This much of it was sent.
    pub(super) fn sent(&mut self, n: usize) {
        self.gone = (self.gone + n).min(self.bytes.len());
        if self.gone == self.bytes.len() {
            self.before = self.gone();
            self.bytes.clear();
            self.gone = 0;
        }
    }

    /// How much was ever sent.
    pub(super) fn gone(&self) -> u64 {
        self.before + self.gone as u64
    }

    /// How much there ever was to send: the end of the stream so far.
    pub(super) fn end(&self) -> u64 {
        self.before + self.bytes.len() as u64
    }

    /// Takes its memory, if nothing waits.
    pub(super) fn take_memory(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Gives it memory to fill, unless it has some.
    pub(super) fn give_memory(&mut self, memory: &mut Vec<u8>) {
        if self.bytes.capacity() == 0 {
            self.bytes = std::mem::take(memory);
        }
    }
}

/// Both buffers of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Plumbing {
    pub(super) inlet: Arc<Mutex<Inlet>>,
    pub(super) outlet: Arc<Mutex<Outlet>>,
    /// Bytes that the socket has taken and given, after the handshake.
    pub(super) carried: Arc<AtomicU64>,
}

impl Plumbing {
    /// So many more have.
    pub(super) fn count(&self, bytes: usize) {
        self.carried.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Makes `connection` use these buffers. They must live longer than it.
    pub(super) fn connect(&self, connection: &mut Connection) -> Result<(), Error> {
        connection.set_receive_callback(Some(receive))?;
        connection.set_send_callback(Some(send))?;
        let inlet = Arc::as_ptr(&self.inlet).cast_mut().cast();
        let outlet = Arc::as_ptr(&self.outlet).cast_mut().cast();
        // SAFETY: both stay where they are, and the owner of the connection keeps this, or a clone
        // of it, until the connection is gone (fields are dropped in their order).
        unsafe {
            connection.set_receive_context(inlet)?;
            connection.set_send_context(outlet)?;
        }
        Ok(())
    }
}

/// Takes at most `len` bytes to `into`; 0 at the end, and "would block" where nothing is left.
unsafe extern "C" fn receive(context: *mut c_void, into: *mut u8, len: u32) -> i32 {
    // SAFETY: the context is the inlet that `connect` named, which outlives the connection.
    let mut inlet = (unsafe { &*context.cast::<Mutex<Inlet>>() }).lock();
    if inlet.left() == 0 && inlet.ended {
        return 0;
    }
    if inlet.left() == 0 || inlet.allowed == 0 {
        would_block();
        return -1;
    }
    let most = usize::try_from(len).unwrap_or(0).min(i32::MAX as usize);
    let bytes = inlet.take(most);
    // SAFETY: the library gives `len` bytes to be written at `into`, and these are no more; they
    // lie in memory of ours, so the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into, bytes.len()) };
    i32::try_from(bytes.len()).unwrap_or(0)
}

/// Takes all of the `len` bytes at `from`.
unsafe extern "C" fn send(context: *mut c_void, from: *const u8, len: u32) -> i32 {
    // SAFETY: the context is the outlet that `connect` named, which outlives the connection.
    let mut outlet = (unsafe { &*context.cast::<Mutex<Outlet>>() }).lock();
    let (Ok(taken), Ok(len)) = (i32::try_from(len), usize::try_from(len)) else { return -1 };
    // SAFETY: the library gives `len` bytes that can be read at `from`, for the time of the call.
    outlet.bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, len) });
    taken
}

fn would_block() {
    // SAFETY: errno of this thread is an int that may be written at any time.
    unsafe { *libc::__errno_location() = libc::EWOULDBLOCK };
}
