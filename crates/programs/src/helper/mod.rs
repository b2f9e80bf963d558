//! The client side of the helper: one socket, one question at a time.

mod fork;
mod granted;
mod message;
mod process;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown,
    socketpair,
};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use rustix::stdio::{stderr, stdin, stdout};

use crate::names::{Act, At, Grant, Numbers};
use crate::{Program, Running, StandardStreams};
use message::{Answer, Question};

/// The one that this process has.
static HELPER: OnceLock<Helper> = OnceLock::new();

/// The way to it.
#[derive(Debug)]
pub(crate) struct Helper {
    socket: Mutex<OwnedFd>,
    programs: Vec<Program>,
    grants: Vec<Grant>,
}

/// The helper, if there is one.
pub(crate) fn asked() -> Option<&'static Helper> {
    HELPER.get()
}

/// From now on a helper starts programs, and changes directories: these programs, and these names,
/// and no others. It ends with this process, and has none of its descriptors but those that a
/// program would get. Call it while there is one thread, before the process is confined, and once.
///
/// # Errors
/// There are other threads, or a helper already; or none can be had.
pub fn hand_over(programs: Vec<Program>, grants: Vec<Grant>) -> io::Result<()> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 || asked().is_some() {
        return Err(io::Error::other(format!("{threads} threads, or a helper already; a defect")));
    }
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut grants: Vec<_> = grants.into_iter().map(Grant::absolute).collect();
    grants.dedup();
    if let Some(mask) = fork::helper()? {
        drop(ours);
        process::run(&theirs, &programs, &grants, &mask);
    }
    // Nothing else can have set it.
    let _ = HELPER.set(Helper { socket: Mutex::new(ours), programs, grants });
    Ok(())
}

impl Helper {
    pub(crate) fn start(
        &self,
        program: &Program,
        values: &[Option<&str>],
        streams: &StandardStreams,
    ) -> io::Result<Running> {
        let known = self.programs.iter().position(|known| known == program);
        let Some(index) = known else {
            let what = "it was not named before the sandbox; a defect";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        };
        let input = streams.input.as_ref().map_or_else(|| stdin(), AsFd::as_fd);
        let output = streams.output.as_ref().map_or_else(|| stdout(), AsFd::as_fd);
        let question = Question::Start { index, values: values.to_vec() };
        let (answer, _) = self.ask(&question, &[input, output, stderr()])?;
        match (answer.errno, Pid::from_raw(answer.pid)) {
            (0, Some(pid)) => Running::of(pid),
            (errno, pid) => {
                if let Some(pid) = pid {
                    // It was a child of ours for a moment.
                    let _ = waitpid(Some(pid), WaitOptions::empty());
                }
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }

    pub(crate) fn signal(&self, pid: Pid, signal: Signal) -> io::Result<()> {
        let question =
            Question::Signal { pid: pid.as_raw_nonzero().get(), signal: signal.as_raw() };
        self.order(&question)
    }

    pub(crate) fn kill_group(&self, pid: Pid) -> io::Result<()> {
        self.order(&Question::KillGroup { pid: pid.as_raw_nonzero().get() })
    }

    /// Asks for what has no other answer than whether it was done.
    fn order(&self, question: &Question<'_>) -> io::Result<()> {
        self.order_with(question, &[]).map(drop)
    }

    /// The same of what may open something.
    fn order_with(
        &self,
        question: &Question<'_>,
        along: &[BorrowedFd<'_>],
    ) -> io::Result<Option<OwnedFd>> {
        match self.ask(question, along)? {
            (Answer { errno: 0, .. }, opened) => Ok(opened),
            (Answer { errno, .. }, _) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    pub(crate) fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Does that at the grant of this index; `along` goes with it.
    pub(crate) fn act(
        &self,
        index: u32,
        act: Act,
        along: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        self.order_with(&Question::Name { index, act }, along.as_slice()).map(drop)
    }

    /// The same of what opens a file.
    pub(crate) fn open(
        &self,
        index: u32,
        act: Act,
        along: Option<BorrowedFd<'_>>,
    ) -> io::Result<OwnedFd> {
        let opened = self.order_with(&Question::Name { index, act }, along.as_slice())?;
        if opened.is_none() && matches!(act, Act::Make { .. }) {
            self.take_back(index);
        }
        // There was no room for one more descriptor.
        opened.ok_or_else(|| Errno::MFILE.into())
    }

    /// Has a file removed that was made, and did not arrive here.
    fn take_back(&self, index: u32) {
        let grant = usize::try_from(index).ok().and_then(|index| self.grants.get(index));
        if let Some(Ok(stat)) = grant.map(|grant| At::here(grant.path()).stat()) {
            // If it is another one by now, the helper has not made it, and leaves it.
            let _ = self.act(index, Act::Remove { numbers: Numbers::of(&stat) }, None);
        }
    }

    fn ask(
        &self,
        question: &Question<'_>,
        streams: &[BorrowedFd<'_>],
    ) -> io::Result<(Answer, Option<OwnedFd>)> {
        let gone = || io::Error::other("the helper outside of the sandbox has ended");
        let bytes = question.bytes()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(process::STREAMS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !streams.is_empty() && !control.push(SendAncillaryMessage::ScmRights(streams)) {
            return Err(Errno::TOOBIG.into());
        }
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let pieces = [IoSlice::new(&bytes)];
        let sent = retry_on_intr(|| sendmsg(&*socket, &pieces, &mut control, SendFlags::NOSIGNAL));
        match sent {
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(gone()),
            sent => sent?,
        };
        let mut answer = [0; Answer::LEN];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = retry_on_intr(|| {
            let mut pieces = [IoSliceMut::new(&mut answer)];
            recvmsg(&*socket, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        match got {
            Ok(got) if got.bytes == Answer::LEN => {}
            wrong => {
                // The answer could still come, and would be taken for that to the next question.
                let _ = shutdown(&*socket, Shutdown::Both);
                return Err(match wrong {
                    Ok(_) | Err(Errno::CONNRESET) => gone(),
                    Err(e) => e.into(),
                });
            }
        }
        let opened = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        Ok((Answer::parse(answer), opened))
    }
}
