//! The helper itself: waits for questions, starts named programs, and changes what has granted
//! names. It ends when the asking process is gone, and ends the programs that nothing else would
//! end.
//!
//! It trusts nothing in a message: a program is an index into its own list, and only its variables
//! get values from outside. It signals only programs that it has started, and the groups of those
//! that have one of their own, and only to end them.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, kill_process_group, pidfd_send_signal, test_kill_process};

use super::fork::{self, Mask};
use super::granted::Granted;
use super::message::{Answer, LONGEST, Question};
use crate::names::{Act, Grant};
use crate::program::{Program, StandardStreams, nothing};

/// Descriptors that come with a question: what the program reads, prints, and complains to.
pub(super) const STREAMS: usize = 3;

/// The programs that were still running at the last check, or that may have left others in their
/// group.
type Started = Vec<Child>;

struct Child {
    pid: Pid,
    process: OwnedFd,
    /// No terminal ends it, and if the process that asks is killed, nothing else would.
    is_apart: bool,
}

impl Child {
    /// Whether it may still be told to end: it runs, or it is the first of a group and its number
    /// is its own until it was waited for.
    fn is_of_use(&self) -> bool {
        !has_ended(&self.process) || self.is_apart && test_kill_process(self.pid).is_ok()
    }

    /// Kills it, and what it has started in its group.
    fn kill_group(&self) -> Result<(), Errno> {
        if !self.is_apart {
            return Err(Errno::PERM);
        }
        // Fails if it was waited for: the number may be another group's.
        pidfd_send_signal(&self.process, Signal::KILL)?;
        kill_process_group(self.pid, Signal::KILL)
    }
}

/// Answers until nothing can ask any more. Does not return, whatever happens.
pub(super) fn run(socket: &OwnedFd, programs: &[Program], grants: &[Grant], mask: &Mask) -> ! {
    let served = catch_unwind(AssertUnwindSafe(|| serve(socket, programs, grants, mask)));
    fork::leave(i32::from(!matches!(served, Ok(Ok(())))))
}

fn serve(socket: &OwnedFd, programs: &[Program], grants: &[Grant], mask: &Mask) -> io::Result<()> {
    let null = nothing()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    drop(null);
    fork::let_go(socket.as_fd())?;
    // As ps shows it; fewer than 16 bytes.
    rustix::thread::set_name(c"diskferry-start")?;
    let mut started = Started::new();
    let served = answer_all(socket, programs, grants, mask, &mut started);
    // Also when the asking process was gone before it had the answer. A shell ends with what it
    // has started, or that would go on and hold its streams.
    for child in started.iter().filter(|child| child.is_apart && !has_ended(&child.process)) {
        let _ = kill_process_group(child.pid, Signal::TERM);
    }
    served
}

/// Answers until the asking process is gone.
fn answer_all(
    socket: &OwnedFd,
    programs: &[Program],
    grants: &[Grant],
    mask: &Mask,
    started: &mut Started,
) -> io::Result<()> {
    let (mut buffer, mut granted) = (vec![0; LONGEST], Granted::new(grants));
    loop {
        let (len, streams) = receive(socket, &mut buffer)?;
        started.retain(Child::is_of_use);
        if len == 0 {
            return Ok(());
        }
        let question = buffer.get(..len).and_then(Question::parse);
        match question {
            Some(Question::Name { index, act }) => {
                let opened = granted.act(index, act, streams);
                hand_out(socket, &mut granted, (index, act), opened)?;
            }
            question => {
                reply(socket, answer(question, programs, streams, mask, started), None)?;
            }
        }
    }
}

/// Answers with what was opened, or why it was not. It may not be possible to send the descriptor,
/// because the user has too many under way: that is the answer then.
fn hand_out(
    socket: &OwnedFd,
    granted: &mut Granted<'_>,
    (index, act): (u32, Act),
    opened: io::Result<Option<OwnedFd>>,
) -> io::Result<()> {
    let done = Answer { errno: 0, pid: 0 };
    let failed = |e: &io::Error| Answer { errno: errno(e), pid: 0 };
    let file = match opened {
        Ok(Some(file)) => file,
        Ok(None) => return reply(socket, done, None),
        Err(e) => return reply(socket, failed(&e), None),
    };
    reply(socket, done, Some(&file)).or_else(|e| {
        granted.take_back(index, act, &file);
        reply(socket, failed(&e), None)
    })
}

/// An answer, and what was opened.
fn reply(socket: &OwnedFd, answer: Answer, opened: Option<&OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let opened = opened.map(AsFd::as_fd);
    if opened.is_some() && !control.push(SendAncillaryMessage::ScmRights(opened.as_slice())) {
        return Err(Errno::TOOBIG.into());
    }
    let bytes = answer.bytes();
    let pieces = [IoSlice::new(&bytes)];
    retry_on_intr(|| sendmsg(socket, &pieces, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// The system's number of an error.
fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
}

/// The length of a question, 0 at the end, and what came with it.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = retry_on_intr(|| {
        let mut pieces = [IoSliceMut::new(buffer)];
        recvmsg(socket, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE.into());
    }
    let streams = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds.collect::<Vec<_>>()),
        _ => None,
    });
    Ok((got.bytes, streams.flatten().collect()))
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)).is_ok_and(|n| n > 0)
}

fn answer(
    question: Option<Question<'_>>,
    programs: &[Program],
    streams: Vec<OwnedFd>,
    mask: &Mask,
    started: &mut Started,
) -> Answer {
    let errno = |e: Errno| Answer { errno: e.raw_os_error(), pid: 0 };
    let is = |child: &&Child, pid| child.pid.as_raw_nonzero().get() == pid;
    match question {
        Some(Question::Start { index, values }) => {
            let Some(program) = programs.get(index) else { return errno(Errno::PERM) };
            if values.len() != program.variables.len() {
                return errno(Errno::INVAL);
            }
            start(program, &values, streams, mask, started)
        }
        Some(Question::Signal { pid, signal }) => {
            let ends = [Signal::TERM, Signal::KILL].into_iter().find(|s| s.as_raw() == signal);
            let Some(signal) = ends else { return errno(Errno::PERM) };
            let found = started.iter().find(|child| is(child, pid));
            let sent =
                found.map_or(Err(Errno::SRCH), |child| pidfd_send_signal(&child.process, signal));
            Answer { errno: sent.err().map_or(0, Errno::raw_os_error), pid: 0 }
        }
        Some(Question::KillGroup { pid }) => {
            let found = started.iter().find(|child| is(child, pid));
            let killed = found.map_or(Err(Errno::SRCH), Child::kill_group);
            Answer { errno: killed.err().map_or(0, Errno::raw_os_error), pid: 0 }
        }
        Some(Question::Name { .. }) | None => errno(Errno::INVAL),
    }
}

fn start(
    program: &Program,
    values: &[Option<&str>],
    streams: Vec<OwnedFd>,
    mask: &Mask,
    started: &mut Started,
) -> Answer {
    let failed = |e: io::Error| Answer { errno: errno(&e), pid: 0 };
    let Ok([input, output, error]) = <[OwnedFd; STREAMS]>::try_from(streams) else {
        return failed(Errno::INVAL.into());
    };
    let (mut told, mut tell) = match io::pipe() {
        Ok(pipe) => pipe,
        Err(e) => return failed(e),
    };
    match fork::sibling() {
        Err(e) => failed(e),
        Ok(None) => {
            drop(told);
            let streams = StandardStreams { input: Some(input), output: Some(output) };
            mask.restore();
            // It becomes the program.
            let e = program.command(values, streams).stderr(error).exec();
            // If it is not read, nothing waits for it.
            let _ = tell.write_all(&errno(&e).to_le_bytes());
            fork::leave(127)
        }
        Ok(Some((pid, process))) => {
            drop(tell);
            let mut why = [0; 4];
            // It closes when the program has begun.
            let errno = told.read_exact(&mut why).map_or(0, |()| i32::from_le_bytes(why));
            if errno == 0 {
                started.push(Child { pid, process, is_apart: program.is_apart });
            }
            Answer { errno, pid: pid.as_raw_nonzero().get() }
        }
    }
}
