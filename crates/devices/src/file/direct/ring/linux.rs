//! Transfers by io_uring: started by any thread, harvested by one, which ends with the ring.
//!
//! At most [`DEPTH`] are with the system at a time; the others wait here. A transfer owns its bytes
//! until the system has reported its end, even if the device was closed long before. The ring can
//! only read and write, whatever code gets hold of it: a sandbox cannot check its requests.
//!
//! Uses `unsafe` because the system reads and writes memory at any time, and because both ends of a
//! ring are shared memory. It is worth it: requests wait side by side without a thread for each.
#![expect(unsafe_code, reason = "see above")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types::Fd};
use runtime::Mutex;

use super::super::queue::{Bytes, Next, Transfer};

/// Transfers that the system has at a time.
const DEPTH: usize = 64;
/// The ticket of the entry that only wakes the thread.
const WAKE: u64 = u64::MAX;
/// `IORING_ENTER_GETEVENTS`.
const GETEVENTS: u32 = 1;
/// How long to sleep where the system does not let us wait for completions.
const PAUSE: Duration = Duration::from_millis(1);

/// The ring; dropped, it continues until all transfers have ended.
pub(in super::super) struct Ring(Arc<Shared>);

struct Shared {
    ring: IoUring,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What the system has, by ticket.
    under_way: Vec<Option<Transfer>>,
    /// Tickets that are free.
    free: Vec<usize>,
    waiting: VecDeque<Transfer>,
    /// The system accepts no more requests. Those in the ring are never submitted.
    broken: bool,
    ending: bool,
}

/// Results of transfers, to be reported once the state is unlocked.
type Ended = Vec<(Transfer, io::Result<()>)>;

fn tell(ended: Ended) {
    for (transfer, result) in ended {
        transfer.end(result);
    }
}

fn broken() -> io::Error {
    io::Error::other("the system takes no more requests")
}

/// Whether another try may succeed.
fn is_passing(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

impl Ring {
    /// # Errors
    /// io_uring is forbidden here, or missing; or there is no thread to be had.
    pub(in super::super) fn new() -> io::Result<Self> {
        let entries = u32::try_from(DEPTH * 2).unwrap_or(128);
        let ring = IoUring::builder().setup_r_disabled().build(entries)?;
        let calls = [opcode::Read::CODE, opcode::Write::CODE, opcode::Nop::CODE];
        let mut allowed = calls.map(Restriction::sqe_op);
        ring.submitter().register_restrictions(&mut allowed)?;
        ring.submitter().register_enable_rings()?;
        let state = State {
            under_way: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH).collect(),
            ..State::default()
        };
        let shared = Arc::new(Shared { ring, state: Mutex::new(state) });
        let mine = shared.clone();
        std::thread::Builder::new().name("direct".into()).spawn(move || mine.harvest())?;
        Ok(Self(shared))
    }

    /// Starts a transfer. Never waits for the disk.
    pub(in super::super) fn start(&self, transfer: Transfer) {
        let mut ended = Ended::new();
        {
            let mut state = self.0.state.lock();
            state.waiting.push_back(transfer);
            self.0.submit(&mut state, &mut ended);
        }
        tell(ended);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.ending = true;
        if !state.broken {
            self.0.push(&mut state, &opcode::Nop::new().build().user_data(WAKE));
            let _ = self.0.enter();
        }
    }
}

impl Shared {
    /// Submits waiting transfers, up to the limit.
    fn submit(&self, state: &mut State, ended: &mut Ended) {
        let mut put = Vec::new();
        while let Some(transfer) = state.waiting.pop_front() {
            if state.broken {
                ended.push((transfer, Err(broken())));
                continue;
            }
            let Some(ticket) = state.free.pop() else {
                state.waiting.push_front(transfer);
                break;
            };
            self.put(state, ticket, transfer);
            put.push(ticket);
        }
        self.hand_over(state, put, ended);
    }

    /// Submits the entries in the ring; those that the system does not take have failed.
    fn hand_over(&self, state: &mut State, put: Vec<usize>, ended: &mut Ended) {
        if put.is_empty() || self.enter().is_ok() {
            return;
        }
        state.broken = true;
        for ticket in put {
            let taken = state.under_way.get_mut(ticket).and_then(Option::take);
            state.free.push(ticket);
            ended.extend(taken.map(|transfer| (transfer, Err(broken()))));
        }
    }

    /// Puts a transfer, or the rest of it, into the ring.
    fn put(&self, state: &mut State, ticket: usize, mut transfer: Transfer) {
        let at = transfer.offset.saturating_add(transfer.moved as u64);
        let fd = Fd(transfer.fd.as_raw_fd());
        let moved = transfer.moved;
        let entry = match &mut transfer.bytes {
            Bytes::In(buffer) => {
                let rest = buffer.get_mut(moved..).unwrap_or_default();
                let len = u32::try_from(rest.len()).unwrap_or(u32::MAX);
                opcode::Read::new(fd, rest.as_mut_ptr(), len).offset(at).build()
            }
            Bytes::Out(data) => {
                let rest = data.get(moved..).unwrap_or_default();
                let len = u32::try_from(rest.len()).unwrap_or(u32::MAX);
                opcode::Write::new(fd, rest.as_ptr(), len).offset(at).build()
            }
        };
        if let Some(slot) = state.under_way.get_mut(ticket) {
            *slot = Some(transfer);
        }
        self.push(state, &entry.user_data(ticket as u64));
    }

    /// The state is locked, so only one thread is here.
    fn push(&self, _locked: &mut State, entry: &Entry) {
        // SAFETY: only the holder of the lock of the state, which is borrowed from its guard, uses
        // this end of the ring; the memory that the entry names belongs to the transfer in its slot
        // until the system has ended it. There is room: twice as many entries as tickets.
        let pushed = unsafe { self.ring.submission_shared().push(entry) };
        debug_assert!(pushed.is_ok(), "no more entries than tickets");
    }

    /// Submits the entries in the ring. Entries that the system refuses for the moment are
    /// submitted again.
    fn enter(&self) -> io::Result<()> {
        loop {
            match self.ring.submitter().submit() {
                Err(e) if is_passing(&e) => std::thread::yield_now(),
                other => return other.map(drop),
            }
        }
    }

    /// Waits for completions, until there will be no more.
    fn harvest(&self) {
        loop {
            // SAFETY: no argument points anywhere; nothing is submitted.
            let waited =
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 1, GETEVENTS, None) };
            if waited.is_err_and(|e| !is_passing(&e)) {
                // Completions are visible all the same.
                std::thread::sleep(PAUSE);
            }
            let mut ended = Ended::new();
            let over = {
                let mut state = self.state.lock();
                // SAFETY: only this thread uses this end of the ring.
                let completions = unsafe { self.ring.completion_shared() };
                for completion in completions {
                    let answer = match completion.result() {
                        n if n < 0 => Err(io::Error::from_raw_os_error(n.saturating_neg())),
                        n => Ok(usize::try_from(n).unwrap_or(0)),
                    };
                    self.went(&mut state, completion.user_data(), answer, &mut ended);
                }
                self.submit(&mut state, &mut ended);
                state.ending && state.free.len() == DEPTH && state.waiting.is_empty()
            };
            tell(ended);
            if over {
                return;
            }
        }
    }

    fn went(&self, state: &mut State, ticket: u64, answer: io::Result<usize>, ended: &mut Ended) {
        let Ok(ticket) = usize::try_from(ticket) else { return };
        let Some(mut transfer) = state.under_way.get_mut(ticket).and_then(Option::take) else {
            return;
        };
        match transfer.went(answer) {
            Next::GoOn => {
                self.put(state, ticket, transfer);
                self.hand_over(state, vec![ticket], ended);
            }
            Next::Ended(result) => {
                state.free.push(ticket);
                ended.push((transfer, result));
            }
        }
    }
}
