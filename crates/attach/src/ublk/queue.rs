//! A queue: the thread that takes its requests from the kernel, and what becomes of each. What a
//! device does not do at once is ended by the thread that completes it, which puts the result here
//! and wakes the thread of the queue: the kernel takes results from that alone.

#[cfg(feature = "played")]
#[allow(unreachable_pub, reason = "it is reached with the feature")]
pub(crate) mod played;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use device::{Buffer, ErrorKind, Operation, OperationKind, Outcome, ZeroFlags};
use runtime::{Bell, Mutex, to_usize};
use rustix::io::Errno;

use super::abi::{self, UblkRequest};
use super::ring::{RingEvent, UblkRing};
use crate::client::{AttachedClient, PendingRequest};

const FAILED: i32 = -Errno::IO.raw_os_error();
const UNKNOWN: i32 = -Errno::OPNOTSUPP.raw_os_error();

/// What all queues of a disk share. The character device is closed with the last of them.
pub(super) struct UblkDisk {
    pub(super) client: Arc<AttachedClient>,
    pub(super) file: File,
    pub(super) detached: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

runtime::debug_as!(UblkDisk, |it| "UblkDisk({:?})", it.client);

impl Drop for UblkDisk {
    fn drop(&mut self) {
        if let Some(detached) = self.detached.lock().take() {
            self.client.leave();
            detached();
        }
    }
}

/// A queue of a disk.
pub(super) struct UblkQueue {
    disk: Arc<UblkDisk>,
    number: u16,
    bell: Bell,
    done: Mutex<Results>,
}

/// What has become of requests, by tag, until the thread of the queue tells the kernel.
#[derive(Default)]
struct Results {
    all: Vec<(u16, i32)>,
    is_asleep: bool,
}

impl UblkQueue {
    /// A queue of the disk; `bell` wakes its ring.
    pub(super) fn new(disk: &Arc<UblkDisk>, number: u16, bell: Bell) -> Arc<Self> {
        Arc::new(Self { disk: disk.clone(), number, bell, done: Mutex::default() })
    }

    /// Takes requests until the kernel asks for no more with any of `depth` tags.
    ///
    /// # Errors
    /// The kernel takes no more.
    pub(super) fn serve(self: &Arc<Self>, ring: &mut UblkRing, depth: u16) -> io::Result<()> {
        let (mut events, mut ended) = (Vec::new(), 0);
        while ended < depth {
            ring.wait(&mut events)?;
            self.done.lock().is_asleep = false;
            for event in events.drain(..) {
                match event {
                    RingEvent::Bell => {
                        self.bell.silence();
                        ring.await_bell()?;
                    }
                    RingEvent::Ended => ended += 1,
                    RingEvent::Request(tag) => self.begin(tag, ring.request(tag)),
                }
            }
            let mut done = self.done.lock();
            done.is_asleep = true;
            done.all.drain(..).try_for_each(|(tag, result)| ring.end(tag, result))?;
        }
        Ok(())
    }

    fn begin(self: &Arc<Self>, tag: u16, request: Option<UblkRequest>) {
        let Some(request) = request else { return self.put(tag, UNKNOWN) };
        let client = &self.disk.client;
        let in_flight = Some(client.admit(Some(request.kind), request.len));
        let pending = KernelRequest { queue: self.clone(), tag, request, in_flight };
        // A panic has failed the request, as it was dropped.
        client.run(|| pending.begin());
    }

    fn put(&self, tag: u16, result: i32) {
        let mut done = self.done.lock();
        done.all.push((tag, result));
        if std::mem::take(&mut done.is_asleep) {
            drop(done);
            self.bell.ring();
        }
    }
}

/// A request that is being done. Dropped, it has failed.
struct KernelRequest {
    queue: Arc<UblkQueue>,
    tag: u16,
    request: UblkRequest,
    in_flight: Option<PendingRequest>,
}

impl KernelRequest {
    fn begin(mut self) {
        let UblkRequest { kind, offset, len, fua, keeps_room } = self.request;
        let client = self.client().clone();
        let operation = match kind {
            OperationKind::Read => Operation::Read { offset, buffer: self.buffer() },
            OperationKind::Flush => Operation::Flush,
            _ if client.is_read_only => return self.end(-Errno::ROFS.raw_os_error()),
            OperationKind::Write => {
                let mut data = self.buffer();
                if let Err(e) = self.queue.disk.file.read_exact_at(&mut data, self.place()) {
                    return self.end(number(&e));
                }
                Operation::Write { offset, data: data.into(), fua }
            }
            OperationKind::Trim => Operation::Trim { offset, len, fua },
            _ => {
                let flags = ZeroFlags { may_unmap: !keeps_room, fua, ..ZeroFlags::default() };
                Operation::Zero { offset, len, flags }
            }
        };
        client.perform(operation, move |result| self.finish(result));
    }

    fn client(&self) -> &Arc<AttachedClient> {
        &self.queue.disk.client
    }

    fn buffer(&self) -> Buffer {
        self.client().buffers.take_whole(to_usize(self.request.len))
    }

    fn place(&self) -> u64 {
        abi::place(self.queue.number, self.tag)
    }

    /// Tells the kernel what became of it.
    fn finish(&mut self, result: device::Result<Outcome>) {
        let len = i32::try_from(self.request.len).unwrap_or(0);
        let result = match result {
            Ok(Outcome::Read(data)) => {
                let copied = self.queue.disk.file.write_all_at(&data, self.place());
                copied.map_or_else(|e| number(&e), |()| len)
            }
            Ok(_) if self.request.kind == OperationKind::Write => len,
            Ok(_) => 0,
            Err(e) => {
                self.client().complain(&e);
                e.kind().errno().0.saturating_neg()
            }
        };
        self.end(result);
    }

    fn end(&mut self, result: i32) {
        if let Some(in_flight) = self.in_flight.take() {
            if result < 0 {
                in_flight.failed(ErrorKind::from_errno(result.saturating_neg()));
            }
            // First: what waits for an idle disk goes on when that is.
            drop(in_flight);
            self.queue.put(self.tag, result);
        }
    }
}

impl Drop for KernelRequest {
    fn drop(&mut self) {
        self.end(FAILED);
    }
}

/// What the kernel is told of a failed copy.
fn number(e: &io::Error) -> i32 {
    e.raw_os_error().map_or(FAILED, i32::saturating_neg)
}
