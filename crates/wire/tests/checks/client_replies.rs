//! Checks 22 to 38: replies of every sort, honest and not.

use wire::{
    Body, Command, CommandFlags, ContextStatus, ErrorCode, Fatal, Framing, InFlight, Negotiated,
    PayloadEffect, PeerMisbehaved, PendingReply, ReplyError, StatusExtent, TransmissionFlags,
    parse_reply_header,
};

use blackbox::conformance::replies::{self, Verdict};
use blackbox::rules::Seen;
use blackbox::session::Mode;

use crate::checks::bytes::Bytes;

const NONE: u16 = 0;
const DATA: u16 = 1;
const HOLE: u16 = 2;
const STATUS: u16 = 5;
const STATUS_EXT: u16 = 6;
const ERROR: u16 = 0x8001;
const ERROR_OFFSET: u16 = 0x8002;

/// A request in flight, with the buffer its data go to.
struct Flight {
    reply: PendingReply,
    buffer: Vec<u8>,
}

type Outcome = Result<(Vec<u8>, Vec<ContextStatus>), ReplyError>;

/// A client that reads replies as a device would.
struct Client {
    session: Negotiated,
    flying: InFlight<Flight>,
    landed: Vec<(u64, Outcome)>,
    input: Vec<u8>,
}

impl Client {
    fn new(mode: Framing) -> Self {
        let contexts = [(1, "base:allocation"), (9, "test:numbers")];
        let session = Negotiated {
            mode,
            size: 1 << 20,
            flags: TransmissionFlags(0xffff).without(TransmissionFlags::READ_ONLY),
            contexts: contexts.map(|(id, name)| (id, name.to_owned())).to_vec(),
            ..Negotiated::default()
        };
        Self { session, flying: InFlight::default(), landed: Vec::new(), input: Vec::new() }
    }

    fn ask(&mut self, command: Command, offset: u64, length: u64) -> u64 {
        self.ask_with(command, CommandFlags::NONE, offset, length)
    }

    fn ask_with(&mut self, command: Command, flags: CommandFlags, offset: u64, len: u64) -> u64 {
        let reply = PendingReply::new(&self.session, command, flags, offset, len);
        let size = if command == Command::Read { usize::try_from(len).unwrap() } else { 0 };
        self.flying.insert(Flight { reply, buffer: vec![0xee; size] })
    }

    /// Receives whole messages.
    fn hear(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), Fatal> {
        self.input.extend_from_slice(bytes.as_ref());
        while self.message()? {}
        Ok(())
    }

    fn message(&mut self) -> Result<bool, Fatal> {
        let Some((header, mut used)) = parse_reply_header(self.session.mode, &self.input)? else {
            return Ok(false);
        };
        let flight = self.flying.find(header.cookie)?;
        let rest = self.input.split_off(used);
        used = 0;
        match flight.reply.header(&header)? {
            Body::Empty => {}
            Body::Data { length } => {
                let span = flight.reply.data_offset(rest[..8].try_into().unwrap(), length)?;
                used = 8 + usize::try_from(length).unwrap();
                let start = usize::try_from(span.start).unwrap();
                let slot = &mut flight.buffer[start..start + used - 8];
                slot.copy_from_slice(&rest[8..used]);
            }
            Body::SimpleData { length } => {
                used = usize::try_from(length).unwrap();
                flight.buffer.copy_from_slice(&rest[..used]);
            }
            Body::Payload { length } => {
                used = usize::try_from(length).unwrap();
                if let PayloadEffect::Zeroes(span) = flight.reply.payload(&rest[..used])? {
                    let start = usize::try_from(span.start).unwrap();
                    flight.buffer[start..start + usize::try_from(span.length).unwrap()].fill(0);
                }
            }
        }
        if flight.reply.is_complete() {
            let flight = self.flying.remove(header.cookie).unwrap();
            let outcome = flight.reply.outcome().map(|status| (flight.buffer, status));
            self.landed.push((header.cookie, outcome));
        }
        self.input = rest[used..].to_vec();
        Ok(true)
    }

    fn outcome(&mut self, cookie: u64) -> Outcome {
        assert_eq!(self.input, b"", "the stream is in step");
        let at = self.landed.iter().position(|(landed, _)| *landed == cookie).expect("landed");
        self.landed.remove(at).1
    }

    fn protocol(&mut self, cookie: u64) -> PeerMisbehaved {
        match self.outcome(cookie) {
            Err(ReplyError::Protocol(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    fn remote(&mut self, cookie: u64) -> (ErrorCode, String) {
        match self.outcome(cookie) {
            Err(ReplyError::Remote(error)) => (error.code, error.message),
            other => panic!("{other:?}"),
        }
    }
}

fn simple(cookie: u64, error: u32) -> Bytes {
    Bytes::new().u32(0x6744_6698).u32(error).u64(cookie)
}

fn chunk(cookie: u64, flags: u16, kind: u16, payload: impl AsRef<[u8]>) -> Bytes {
    let payload = payload.as_ref();
    Bytes::new()
        .u32(0x668e_33ef)
        .u16(flags)
        .u16(kind)
        .u64(cookie)
        .u32(u32::try_from(payload.len()).unwrap())
        .raw(payload)
}

fn extended(cookie: u64, flags: u16, kind: u16, offset: u64, payload: impl AsRef<[u8]>) -> Bytes {
    let payload = payload.as_ref();
    Bytes::new()
        .u32(0x6e8a_278c)
        .u16(flags)
        .u16(kind)
        .u64(cookie)
        .u64(offset)
        .u64(payload.len() as u64)
        .raw(payload)
}

fn data(offset: u64, bytes: impl AsRef<[u8]>) -> Bytes {
    Bytes::new().u64(offset).raw(bytes)
}

fn hole(offset: u64, length: u32) -> Bytes {
    Bytes::new().u64(offset).u32(length)
}

fn error(code: u32, message: &str) -> Bytes {
    Bytes::new().u32(code).u16(u16::try_from(message.len()).unwrap()).raw(message)
}

fn fatal(reason: PeerMisbehaved) -> Result<(), Fatal> {
    Err(Fatal(reason))
}

#[test]
fn client_check_23_unknown_cookie_is_never_another_request() {
    let mut client = Client::new(Framing::Simple);
    let cookie = client.ask(Command::Flush, 0, 0);
    for wrong in [0, cookie + 1, cookie ^ 1 << 63, u64::MAX, cookie & 0xffff_ffff] {
        let mut client = Client::new(Framing::Simple);
        assert_eq!(client.ask(Command::Flush, 0, 0), cookie);
        assert_eq!(client.hear(simple(wrong, 0)), fatal(PeerMisbehaved::UnknownCookie));
        assert_eq!(client.flying.len(), 1);
    }
}

#[test]
fn client_check_24_second_reply_meets_no_newer_request() {
    let mut client = Client::new(Framing::Simple);
    let first = client.ask(Command::Flush, 0, 0);
    client.hear(simple(first, 0)).unwrap();
    let second = client.ask(Command::Write, 0, 512);
    assert_ne!(first, second);
    assert_eq!(client.hear(simple(first, 0)), fatal(PeerMisbehaved::UnknownCookie));
    assert!(client.flying.find(second).is_ok());
}

#[test]
fn client_check_25_replies_in_reverse_order_find_their_requests() {
    let mut client = Client::new(Framing::Simple);
    let cookies: Vec<u64> = (0..8).map(|at| client.ask(Command::Read, at * 4, 4)).collect();
    for (value, cookie) in (0..8).zip(&cookies).rev() {
        client.hear(simple(*cookie, 0).raw([value; 4])).unwrap();
    }
    for (value, cookie) in (0..8).zip(&cookies) {
        assert_eq!(client.outcome(*cookie).unwrap().0, [value; 4]);
    }
    assert!(client.flying.is_empty());
}

#[test]
fn client_check_26_interleaved_chunks_of_two_reads() {
    let mut client = Client::new(Framing::Structured);
    let (a, b) = (client.ask(Command::Read, 0, 8), client.ask(Command::Read, 100, 8));
    client
        .hear(
            chunk(a, 0, DATA, data(4, [1; 4]))
                .raw(chunk(b, 0, HOLE, hole(100, 6)))
                .raw(chunk(a, 1, DATA, data(0, [2; 4])))
                .raw(chunk(b, 0, DATA, data(106, [3; 2])))
                .raw(chunk(b, 1, NONE, [])),
        )
        .unwrap();
    assert_eq!(client.outcome(a).unwrap().0, [2, 2, 2, 2, 1, 1, 1, 1]);
    assert_eq!(client.outcome(b).unwrap().0, [0, 0, 0, 0, 0, 0, 3, 3]);
}

/// What is said of each reply of the list; twice where the forms differ.
const REASONS: &str = include_str!("replies.txt");

#[test]
fn replies_are_judged_by_the_list() {
    let mut reasons = String::new();
    for (command, replies) in
        [(Command::Read, replies::of_read()), (Command::BlockStatus, replies::of_status())]
    {
        for (reply, mode) in replies.iter().flat_map(|r| r.modes.iter().map(move |mode| (r, *mode)))
        {
            let name = reply.name;
            let mut client = Client::new(match mode {
                Mode::Extended => Framing::Extended,
                Mode::Structured => Framing::Structured,
                Mode::Simple => Framing::Simple,
            });
            client.session.contexts = vec![(replies::CONTEXT, "base:allocation".into())];
            let cookie = client.ask(command, 100, 8);
            let request =
                Seen { flags: 0, command: command as u16, cookie, offset: 100, length: 8 };
            let heard = client.hear(reply.bytes(&request, mode));
            let reason = match (reply.verdict, heard) {
                (Verdict::Ends, Err(Fatal(reason))) => format!("{reason:?}"),
                (Verdict::Fails, Ok(())) => match client.outcome(cookie) {
                    Err(ReplyError::Protocol(reason)) => format!("{reason:?}"),
                    Err(ReplyError::Remote(e)) => format!("{e}"),
                    Ok(_) => panic!("{name} is believed in {mode:?}"),
                },
                (_, heard) => panic!("{name} in {mode:?}: {heard:?}"),
            };
            let line = format!("{name}: {reason}\n");
            if !reasons.ends_with(&line) {
                reasons += &line;
            }
        }
    }
    assert!(reasons == REASONS, "{reasons}");
}

#[test]
fn client_check_30_chunk_beyond_any_honest_length_is_fatal() {
    for (command, kind, length) in [
        (Command::Read, DATA, 17),
        (Command::Read, DATA, u32::MAX),
        (Command::Read, HOLE, 13),
        (Command::Read, ERROR, 70_000),
        (Command::BlockStatus, STATUS, 4 + 8 * (1 << 20) + 8),
        (Command::BlockStatus, STATUS, u32::MAX),
    ] {
        let mut client = Client::new(Framing::Structured);
        let cookie = client.ask(command, 0, 8);
        let head = chunk(cookie, 1, kind, []).0;
        let heard = client.hear(Bytes::new().raw(&head[..16]).u32(length));
        assert_eq!(heard, fatal(PeerMisbehaved::ChunkTooLong));
    }
}

#[test]
fn client_check_31_an_unfinished_reply_is_no_success() {
    let mut client = Client::new(Framing::Structured);
    let cookie = client.ask(Command::Read, 0, 8);
    let other = client.ask(Command::Flush, 0, 0);
    client.hear(chunk(cookie, 0, DATA, data(0, [1; 8]))).unwrap();
    let lost: Vec<Outcome> = client
        .flying
        .drain()
        .map(|flight| flight.reply.outcome().map(|status| (flight.buffer, status)))
        .collect();
    assert_eq!(lost.len(), 2);
    assert!(lost.iter().all(Result::is_err));
    assert!(client.flying.is_empty());
    assert!(client.flying.find(other).is_err() && client.flying.remove(cookie).is_none());
}

#[test]
fn client_check_32_an_error_voids_what_came_before() {
    let mut client = Client::new(Framing::Structured);
    let cookie = client.ask(Command::Read, 0, 8);
    client.hear(chunk(cookie, 0, DATA, data(0, [1; 8]))).unwrap();
    client.hear(chunk(cookie, 0, ERROR_OFFSET, error(5, "bad block").u64(4))).unwrap();
    client.hear(chunk(cookie, 1, NONE, [])).unwrap();
    match client.outcome(cookie) {
        Err(ReplyError::Remote(error)) => {
            assert_eq!((error.code, error.offset), (ErrorCode::EIO, Some(4)));
            let text = "server replied: input/output error (EIO): bad block, at offset 4";
            assert_eq!(error.to_string(), text);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn client_check_32_error_offset_outside_of_the_request_is_not_believed() {
    let mut client = Client::new(Framing::Structured);
    let cookie = client.ask(Command::Read, 0, 8);
    client.hear(chunk(cookie, 1, ERROR_OFFSET, error(5, "").u64(8))).unwrap();
    let Err(ReplyError::Remote(error)) = client.outcome(cookie) else { panic!() };
    assert_eq!(error.offset, None);
}

fn narrow(context: u32, extents: &[(u32, u32)]) -> Bytes {
    let head = Bytes::new().u32(context);
    extents.iter().fold(head, |bytes, (length, flags)| bytes.u32(*length).u32(*flags))
}

fn wide(context: u32, count: u32, extents: &[(u64, u64)]) -> Bytes {
    let head = Bytes::new().u32(context).u32(count);
    extents.iter().fold(head, |bytes, (length, flags)| bytes.u64(*length).u64(*flags))
}

#[test]
fn client_check_35_each_context_is_answered() {
    let mut client = Client::new(Framing::Structured);
    let cookie = client.ask(Command::BlockStatus, 0, 8);
    client.hear(chunk(cookie, 1, STATUS, narrow(1, &[(8, 0)]))).unwrap();
    assert_eq!(client.protocol(cookie), PeerMisbehaved::ContextMissing);
}

/// How many of these chunks the client receives before it gives up.
fn heard_of(command: Command, message: impl Fn(u64) -> Bytes) -> usize {
    let mut client = Client::new(Framing::Structured);
    let cookie = client.ask(command, 0, 1 << 16);
    for n in 0..1 << 20 {
        match client.hear(message(cookie)) {
            Ok(()) => {}
            Err(e) => {
                assert_eq!(Err(e), fatal(PeerMisbehaved::AnswerEndless));
                return n;
            }
        }
    }
    panic!("it would hear for ever")
}

#[test]
fn a_reply_that_never_ends_is_not_followed_for_ever() {
    let error = || Bytes::new().u32(5).u16(0);
    // An honest server may report each sector of a read, and the client accepts that.
    let most = heard_of(Command::Read, |cookie| chunk(cookie, 0, ERROR, error()));
    assert!((32 << 11..1 << 18).contains(&most), "{most}");
    for kind in [ERROR, 0x8007, 0xffff] {
        let many = heard_of(Command::Write, |cookie| chunk(cookie, 0, kind, error()));
        assert!(many < 1 << 18, "{kind}: {many}");
    }
    let twice = heard_of(Command::Read, |cookie| chunk(cookie, 0, HOLE, hole(0, 1 << 16)));
    assert!(twice < 1 << 18, "{twice}");
    let again = |cookie| chunk(cookie, 0, DATA, data(0, vec![1; 1 << 16]));
    let bytes = heard_of(Command::Read, again) << 16;
    assert!(bytes < 8 << 20, "{bytes}");
    let status = |cookie| chunk(cookie, 0, STATUS, narrow(2, &[(8, 0)]));
    let others = heard_of(Command::BlockStatus, status);
    assert!(others < 1 << 18, "{others}");
}

#[test]
fn client_check_35_chunks_of_another_command_are_fatal() {
    let mut client = Client::new(Framing::Structured);
    let cookie = client.ask(Command::Write, 0, 8);
    let heard = client.hear(chunk(cookie, 1, DATA, data(0, [1; 8])));
    assert_eq!(heard, fatal(PeerMisbehaved::ChunkUnexpected));
    let mut client = Client::new(Framing::Structured);
    let cookie = client.ask(Command::Read, 0, 8);
    let heard = client.hear(chunk(cookie, 1, STATUS, narrow(1, &[(8, 0)])));
    assert_eq!(heard, fatal(PeerMisbehaved::BlockStatusWithoutRequest));
}

fn extents(client: &mut Client, cookie: u64) -> Vec<Vec<(u64, u64)>> {
    let pair = |extent: &StatusExtent| (extent.length, extent.flags);
    let statuses = client.outcome(cookie).unwrap().1;
    assert_eq!(statuses.iter().map(|status| status.context).collect::<Vec<_>>(), [1, 9]);
    statuses.iter().map(|status| status.extents.iter().map(pair).collect()).collect()
}

#[test]
fn client_check_36_extents_are_cut_at_the_end_and_may_be_short() {
    let mut client = Client::new(Framing::Structured);
    let size = 1_u64 << 20;
    let cookie = client.ask(Command::BlockStatus, size - 100, 100);
    client.hear(chunk(cookie, 0, STATUS, narrow(9, &[(60, 1), (u32::MAX, 2), (5, 5)]))).unwrap();
    client.hear(chunk(cookie, 1, STATUS, narrow(1, &[(10, 0)]))).unwrap();
    assert_eq!(extents(&mut client, cookie), [vec![(10, 0)], vec![(60, 1), (40, 2)]]);
}

#[test]
fn client_check_36_lengths_that_overflow_are_cut() {
    let mut client = Client::new(Framing::Extended);
    let cookie = client.ask(Command::BlockStatus, 0, 1 << 20);
    let payload = wide(1, 3, &[(10, 0), (u64::MAX, 3), (u64::MAX, 3)]);
    client.hear(extended(cookie, 0, STATUS_EXT, 0, payload)).unwrap();
    let payload = wide(9, 1, &[(u64::MAX, u64::MAX)]);
    client.hear(extended(cookie, 1, STATUS_EXT, 0, payload)).unwrap();
    let expected = [vec![(10, 0), ((1 << 20) - 10, 3)], vec![(1 << 20, u64::MAX)]];
    assert_eq!(extents(&mut client, cookie), expected);
}

#[test]
fn client_check_36_req_one_leaves_one_extent_within_the_range() {
    let mut client = Client::new(Framing::Structured);
    let cookie = client.ask_with(Command::BlockStatus, CommandFlags::REQ_ONE, 0, 50);
    client.hear(chunk(cookie, 0, STATUS, narrow(9, &[(20, 1), (30, 2)]))).unwrap();
    client.hear(chunk(cookie, 1, STATUS, narrow(1, &[(5000, 0)]))).unwrap();
    assert_eq!(extents(&mut client, cookie), [vec![(50, 0)], vec![(20, 1)]]);
}

#[test]
fn client_check_37_unknown_allocation_flags_are_ignored() {
    let mut client = Client::new(Framing::Structured);
    let cookie = client.ask(Command::BlockStatus, 0, 50);
    client.hear(chunk(cookie, 0, STATUS, narrow(1, &[(50, 0xffff_fffe)]))).unwrap();
    client.hear(chunk(cookie, 1, STATUS, narrow(9, &[(50, 0xffff_fffe)]))).unwrap();
    assert_eq!(extents(&mut client, cookie), [vec![(50, 2)], vec![(50, 0xffff_fffe)]]);
}

#[test]
fn client_check_38_unknown_errors_are_einval() {
    let mut client = Client::new(Framing::Structured);
    let cookie = client.ask(Command::Write, 0, 8);
    client.hear(simple(cookie, 999)).unwrap();
    assert_eq!(client.remote(cookie), (ErrorCode::EINVAL, String::new()));
    let cookie = client.ask(Command::Read, 0, 8);
    client.hear(chunk(cookie, 1, ERROR, error(999, "\u{7}bell"))).unwrap();
    assert_eq!(client.remote(cookie), (ErrorCode::EINVAL, "\u{fffd}bell".into()));
}

#[test]
fn replies_to_other_commands_in_either_form() {
    let mut client = Client::new(Framing::Structured);
    for command in [Command::Write, Command::Flush, Command::Trim, Command::WriteZeroes] {
        let cookie = client.ask(command, 0, 8);
        client.hear(simple(cookie, 0)).unwrap();
        client.outcome(cookie).unwrap();
        let cookie = client.ask(command, 0, 8);
        client.hear(chunk(cookie, 1, NONE, [])).unwrap();
        client.outcome(cookie).unwrap();
    }
}
