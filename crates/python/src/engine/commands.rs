//! Commands, from when they are asked for until they are retired.

use rustix::io::Errno;
use wire::constants::{EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC};
use wire::{Command as Kind, CommandFlags, Framing, ReadCoverage, TransmissionFlags};

use super::settings::strict;
use super::{Engine, EngineError, Event, PythonMemory, State, When};

/// Longest read or write, in bytes.
const MAX_PAYLOAD: u64 = 64 << 20;
/// Longest payload for a server that advertises no limit, in bytes.
const USUAL_PAYLOAD: u32 = 32 << 20;

/// A command that the user asks for.
#[derive(Debug)]
pub(crate) struct CommandSpec<K> {
    pub(crate) kind: Kind,
    pub(crate) flags: u32,
    pub(crate) offset: u64,
    /// Bytes of the disk.
    pub(crate) count: u64,
    /// Where the bytes go, or come from.
    pub(crate) memory: PythonMemory,
    /// Contexts that a block status is limited to.
    pub(crate) only: Option<Vec<String>>,
    /// Whether the pieces of a read are reported as they come.
    pub(crate) chunks: bool,
    /// Whether its end is reported.
    pub(crate) completion: bool,
    /// The memory holds no bytes of the user yet: if the read fails it is zeroed.
    pub(crate) fresh: bool,
    /// What the caller keeps with it until it is retired.
    pub(crate) keep: K,
}

impl<K: Default> CommandSpec<K> {
    /// A command without payload, callbacks or special wishes.
    pub(crate) fn new(kind: Kind, count: u64, offset: u64, flags: u32) -> Self {
        Self {
            kind,
            flags,
            offset,
            count,
            memory: PythonMemory::none(),
            only: None,
            chunks: false,
            completion: false,
            fresh: false,
            keep: K::default(),
        }
    }
}

/// A command that was accepted.
#[derive(Debug)]
pub(crate) struct Submitted<K> {
    pub(crate) ask: CommandSpec<K>,
    /// The first error; 0 if there was none.
    pub(crate) errno: i32,
    pub(super) coverage: ReadCoverage,
    /// Where its payload ends in what is sent.
    end: u64,
    pub(super) progress: CommandProgress,
}

/// How far a command has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CommandProgress {
    Flying,
    /// Its completion is being called.
    Telling,
    Ended,
}

impl<K> Submitted<K> {
    /// Part of the memory that a read goes into.
    pub(super) fn part(&mut self, start: usize, len: usize) -> Option<&mut [u8]> {
        if self.ask.kind == Kind::Read { self.ask.memory.part(start, len) } else { None }
    }

    /// Notes the first error.
    pub(crate) fn fail(&mut self, errno: i32) {
        if self.errno == 0 {
            self.errno = errno;
        }
    }
}

/// Commands by libnbd's names.
pub(crate) const fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::BlockStatus => "block-status",
        Kind::WriteZeroes => "write-zeroes",
        other => other.name(),
    }
}

/// Flags that make sense with a command.
const fn known_flags(kind: Kind, chunks: bool, only: bool) -> u32 {
    let flags = match kind {
        Kind::Read if chunks => CommandFlags::DF.0,
        Kind::Write => CommandFlags::FUA.0 | CommandFlags::PAYLOAD_LEN.0,
        Kind::Trim => CommandFlags::FUA.0,
        Kind::WriteZeroes => {
            CommandFlags::FUA.0 | CommandFlags::NO_HOLE.0 | CommandFlags::FAST_ZERO.0
        }
        Kind::BlockStatus if only => CommandFlags::REQ_ONE.0 | CommandFlags::PAYLOAD_LEN.0,
        Kind::BlockStatus => CommandFlags::REQ_ONE.0,
        _ => 0,
    };
    flags as u32
}

impl<K> Engine<K> {
    fn has(&self, flag: TransmissionFlags) -> bool {
        self.export.known.is_some_and(|(_, flags)| flags.contains(flag))
    }

    /// The longest payload that the server takes, in bytes.
    pub(crate) fn payload_maximum(&self) -> u32 {
        let told = self.export.blocks.map_or(0, |[_, _, maximum]| maximum);
        let most = u32::try_from(MAX_PAYLOAD).unwrap_or(u32::MAX);
        if told == 0 { USUAL_PAYLOAD } else { told.min(most) }
    }

    /// Accepts a command, and sends what can be sent of it now. Returns its cookie.
    ///
    /// # Errors
    /// It was not accepted. A failure to send is reported as the result of the command.
    pub(crate) fn issue(&mut self, mut ask: CommandSpec<K>) -> Result<u64, (EngineError, K)> {
        let payload = match self.check(&mut ask) {
            Ok(payload) => payload,
            Err(fault) => return Err((fault, ask.keep)),
        };
        self.count += 1;
        let cookie = self.count;
        self.put_request(&ask, cookie, payload.as_deref());
        let (mut end, mut coverage) = (0, ReadCoverage::new(0));
        match ask.kind {
            Kind::Disconnect => {
                (self.disconnecting, self.is_last) = (true, true);
                self.send_or_die();
                return Ok(cookie);
            }
            Kind::Write => {
                self.outgoing.payload(ask.memory.same());
                end = self.outgoing.end();
            }
            Kind::Read => coverage = ReadCoverage::new(ask.count),
            _ => {}
        }
        let progress = CommandProgress::Flying;
        self.commands.insert(cookie, Submitted { ask, errno: 0, coverage, end, progress });
        self.in_flight += 1;
        self.send_or_die();
        Ok(cookie)
    }

    fn send_or_die(&mut self) {
        // The result of the command reports it.
        let _ = self.or_die(Self::send);
    }

    /// Not by `wire`, which sends no wrong flags.
    fn put_request(&mut self, ask: &CommandSpec<K>, cookie: u64, payload: Option<&[u8]>) {
        let wide = self.mode == Framing::Extended;
        let flags = u16::try_from(ask.flags).unwrap_or_default();
        let length = payload.map_or(ask.count, |payload| payload.len() as u64);
        let magic = if wide { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        self.put(|out| {
            out.extend_from_slice(&magic.to_be_bytes());
            out.extend_from_slice(&flags.to_be_bytes());
            out.extend_from_slice(&ask.kind.to_wire().to_be_bytes());
            out.extend_from_slice(&cookie.to_be_bytes());
            out.extend_from_slice(&ask.offset.to_be_bytes());
            if wide {
                out.extend_from_slice(&length.to_be_bytes());
            } else {
                out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
            }
        });
        if let Some(payload) = payload {
            self.put(|out| out.extend_from_slice(payload));
        }
    }

    /// Refuses what strict mode forbids; returns the payload of a block status.
    fn check(&mut self, ask: &mut CommandSpec<K>) -> Result<Option<Vec<u8>>, EngineError> {
        When::Connected.check(self.state)?;
        self.check_flags(ask)?;
        self.check_kind(ask)?;
        if self.disconnecting {
            return Err(EngineError::invalid("cannot request more commands after NBD_CMD_DISC"));
        }
        let ranged = !matches!(ask.kind, Kind::Flush | Kind::Disconnect);
        if ranged {
            self.check_range(ask)?;
        }
        self.check_length(ask)?;
        match ask.only.take() {
            Some(only) => self.filter(ask, &only).map(Some),
            None => Ok(None),
        }
    }

    fn check_flags(&self, ask: &CommandSpec<K>) -> Result<(), EngineError> {
        let known = if self.settings.is_strict(strict::FLAGS) {
            known_flags(ask.kind, ask.chunks, ask.only.is_some())
        } else {
            0xffff
        };
        if ask.flags & !known == 0 {
            return Ok(());
        }
        Err(EngineError::invalid(format!("flags: invalid value for flag: {:#x}", ask.flags)))
    }

    /// Whether the server has advertised the command, and its flags.
    fn check_kind(&self, ask: &mut CommandSpec<K>) -> Result<(), EngineError> {
        use TransmissionFlags as Flags;
        let refuse = |errno, what: &str| Err(EngineError::new(errno, what));
        let (commands, flags) =
            (self.settings.is_strict(strict::COMMANDS), self.settings.is_strict(strict::FLAGS));
        let asked = |flag: CommandFlags| ask.flags & u32::from(flag.0) != 0;
        let needed = match ask.kind {
            Kind::Flush => Some((Flags::SEND_FLUSH, "flush")),
            Kind::Trim => Some((Flags::SEND_TRIM, "trim")),
            Kind::Cache => Some((Flags::SEND_CACHE, "cache")),
            Kind::WriteZeroes => Some((Flags::SEND_WRITE_ZEROES, "zero")),
            _ => None,
        };
        if let Some((_, what)) = needed.filter(|(flag, _)| commands && !self.has(*flag)) {
            let text = format!("server does not support {what} operations");
            return refuse(Errno::INVAL, &text);
        }
        let writes = matches!(ask.kind, Kind::Write | Kind::Trim | Kind::WriteZeroes);
        if commands && writes && self.has(Flags::READ_ONLY) {
            return refuse(Errno::PERM, "server does not support write operations");
        }
        if ask.kind == Kind::BlockStatus && commands {
            self.check_status(ask.only.is_some())?;
        }
        if flags {
            let offered = [
                (CommandFlags::DF, Flags::SEND_DF, "DF"),
                (CommandFlags::FUA, Flags::SEND_FUA, "FUA"),
                (CommandFlags::FAST_ZERO, Flags::SEND_FAST_ZERO, "fast zero"),
            ];
            let missing = offered.iter().find(|(flag, needs, _)| asked(*flag) && !self.has(*needs));
            if let Some((_, _, what)) = missing {
                return refuse(Errno::INVAL, &format!("server does not support the {what} flag"));
            }
        }
        self.check_payload_flag(ask)
    }

    /// The flag for a payload that follows.
    fn check_payload_flag(&self, ask: &mut CommandSpec<K>) -> Result<(), EngineError> {
        let payload = u32::from(CommandFlags::PAYLOAD_LEN.0);
        let right = match ask.kind {
            Kind::Write if self.mode == Framing::Extended => payload,
            Kind::BlockStatus if ask.only.is_some() => payload,
            Kind::Write => 0,
            _ => return Ok(()),
        };
        if self.settings.is_strict(strict::AUTO_FLAG) {
            ask.flags = ask.flags & !payload | right;
        }
        if self.settings.is_strict(strict::FLAGS) && ask.flags & payload != right {
            return Err(EngineError::invalid("incorrect setting for PAYLOAD_LEN flag"));
        }
        Ok(())
    }

    fn check_status(&self, filtered: bool) -> Result<(), EngineError> {
        let narrow = self.mode != Framing::Extended;
        let takes_payload = self.has(TransmissionFlags::BLOCK_STATUS_PAYLOAD);
        let has_contexts = self.contexts_valid && !self.contexts.is_empty();
        let (errno, text) = if filtered && narrow {
            (Errno::NOTSUP, "server does not support extended headers")
        } else if filtered && !takes_payload {
            (Errno::INVAL, "server does not support the block status payload flag")
        } else if self.mode == Framing::Simple {
            (Errno::NOTSUP, "server does not support structured replies")
        } else if !has_contexts {
            let text = "did not negotiate any metadata contexts, either you did not call \
                        nbd_add_meta_context before connecting or the server does not support it";
            (Errno::NOTSUP, text)
        } else {
            return Ok(());
        };
        Err(EngineError::new(errno, text))
    }

    fn check_range(&self, ask: &CommandSpec<K>) -> Result<(), EngineError> {
        let checks = |bit| self.settings.is_strict(bit);
        let size = self.export.known.map_or(0, |(size, _)| size);
        let outside = ask.offset > size || ask.count > size - ask.offset;
        let block = self.export.blocks.map_or(1, |[minimum, ..]| u64::from(minimum)).max(1);
        let aligned = ask.offset.is_multiple_of(block) && ask.count.is_multiple_of(block);
        let changes = matches!(ask.kind, Kind::Write | Kind::WriteZeroes | Kind::Trim);
        let (errno, text) = if ask.count == 0 && checks(strict::ZERO_SIZE) {
            (Errno::INVAL, "count cannot be 0")
        } else if outside && checks(strict::BOUNDS) {
            (if changes { Errno::NOSPC } else { Errno::INVAL }, "request out of bounds")
        } else if !aligned && checks(strict::ALIGN) {
            (Errno::INVAL, "request is unaligned")
        } else {
            return Ok(());
        };
        Err(EngineError::new(errno, text))
    }

    fn check_length(&self, ask: &CommandSpec<K>) -> Result<(), EngineError> {
        let payload = self.payload_maximum().into();
        let strict = self.settings.is_strict(strict::PAYLOAD);
        let (what, most) = match ask.kind {
            Kind::Read | Kind::Write if strict && ask.count > payload => ("payload", payload),
            Kind::Read | Kind::Write => ("request", MAX_PAYLOAD),
            _ if self.mode == Framing::Extended => return Ok(()),
            _ => ("request", u32::MAX.into()),
        };
        if ask.count <= most {
            return Ok(());
        }
        let text = format!("request too large: maximum {what} size is {most}");
        Err(EngineError::new(Errno::RANGE, text))
    }

    /// The payload that limits a block status to some contexts.
    fn filter(&self, ask: &CommandSpec<K>, only: &[String]) -> Result<Vec<u8>, EngineError> {
        let mut payload = ask.count.to_be_bytes().to_vec();
        for wanted in only {
            let found = self.contexts.iter().find(|(_, name)| name == wanted);
            let Some((id, _)) = found else {
                return Err(EngineError::invalid(format!("context {wanted} not negotiated")));
            };
            payload.extend_from_slice(&id.to_be_bytes());
        }
        Ok(payload)
    }

    /// A command that was not retired.
    pub(crate) fn command(&mut self, cookie: u64) -> Option<&mut Submitted<K>> {
        self.commands.get_mut(&cookie)
    }

    /// Whether a command is over, its completion was called, and it was not retired.
    pub(crate) fn has_ended(&self, cookie: u64) -> bool {
        self.commands.get(&cookie).is_some_and(|command| command.progress == CommandProgress::Ended)
    }

    /// Commands that were sent or are queued, and are not over.
    pub(crate) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The first command that is over and not retired.
    pub(crate) fn first_ended(&self) -> Option<u64> {
        self.ended.front().copied()
    }

    /// Whether there is any command at all that is not retired.
    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    /// A command whose last reply has not come.
    pub(super) fn flying(&mut self, cookie: u64) -> Option<&mut Submitted<K>> {
        let flying = CommandProgress::Flying;
        self.commands.get_mut(&cookie).filter(|command| command.progress == flying)
    }

    /// The last reply to a command has come.
    pub(super) fn finish(&mut self, cookie: u64) {
        let command = self.commands.get_mut(&cookie);
        let flying = CommandProgress::Flying;
        let Some(command) = command.filter(|c| c.progress == flying) else { return };
        if !self.outgoing.has_sent(command.end) {
            // Its memory is still needed.
            return self.early.push(cookie);
        }
        if command.ask.kind == Kind::Read && !command.coverage.is_complete() {
            // The replies do not cover all of it, although the server calls it done.
            command.fail(Errno::PROTO.raw_os_error());
        }
        if command.ask.fresh && command.errno != 0 {
            let len = command.ask.memory.len();
            command.part(0, len).unwrap_or_default().fill(0);
        }
        let (errno, tell) = (command.errno, command.ask.completion);
        command.progress = if tell { CommandProgress::Telling } else { CommandProgress::Ended };
        self.in_flight -= 1;
        self.progressed = true;
        if tell {
            self.events.push_back(Event::Completed { cookie, errno });
        } else {
            self.ended.push_back(cookie);
        }
    }

    /// The completion of a command was called; its result replaces the error. Returns the command
    /// if it is retired.
    pub(crate) fn told(
        &mut self,
        cookie: u64,
        errno: Option<i32>,
        retire: bool,
    ) -> Option<Submitted<K>> {
        let command = self.commands.get_mut(&cookie)?;
        if let Some(errno) = errno {
            command.errno = errno;
        }
        command.progress = CommandProgress::Ended;
        if retire {
            return self.commands.remove(&cookie);
        }
        self.ended.push_back(cookie);
        None
    }

    /// Retires a command that is over; returns whether it succeeded, in libnbd's form. `None`: it
    /// is not over, or not known.
    pub(crate) fn retire(&mut self, cookie: u64) -> Option<(Result<(), EngineError>, K)> {
        if !self.has_ended(cookie) {
            return None;
        }
        let command = self.commands.remove(&cookie)?;
        if self.ended.front() == Some(&cookie) {
            self.ended.pop_front();
        } else {
            self.ended.retain(|other| *other != cookie);
        }
        let result = match command.errno {
            0 => Ok(()),
            errno => {
                let text = format!("{}: command failed", name(command.ask.kind));
                Err(EngineError::number(errno, text))
            }
        };
        Some((result, command.ask.keep))
    }

    /// Fails all commands that are not over.
    pub(super) fn fail_all(&mut self) {
        let flying = self.commands.iter().filter(|(_, c)| c.progress == CommandProgress::Flying);
        let mut flying: Vec<u64> = flying.map(|(cookie, _)| *cookie).collect();
        flying.sort_unstable();
        for cookie in flying {
            if let Some(command) = self.commands.get_mut(&cookie) {
                command.fail(Errno::NOTCONN.raw_os_error());
            }
            self.finish(cookie);
        }
        debug_assert_eq!(self.in_flight, 0);
    }

    /// Fails the commands that were never sent, and will not be.
    pub(crate) fn abandon_pending(&mut self) {
        if self.state == State::Ready {
            self.ended_by_server();
        }
    }
}
