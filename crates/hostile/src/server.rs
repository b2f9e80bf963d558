//! The server's side of the wire, fed by a client: handshake and requests.
//!
//! The first byte says what the server is willing to do, the second how the stream is cut. However
//! it is cut, the server sends the same, and our client understands it.

use std::cell::Cell;

use wire::{
    After, Command, ErrorCode, ExportCatalog, ExportOffer, Negotiated, OptionRefusal, ReplyWriter,
    Request, ServerHandshake, ServerPolicy, ServerStep, ServerTls, StatusExtent, TransmissionFlags,
    parse_request,
};

use crate::client;

/// Bytes of an option that a server may hold, with room to grow.
const HELD: usize = 160 << 10;
/// The most bytes that a server may send per byte received.
const TALK: usize = 4 << 10;
const SIZE: u64 = 1 << 40;

pub(crate) fn run(bytes: &[u8]) {
    let Some(([policy, pieces], input)) = bytes.split_first_chunk() else { return };
    let piece = usize::from(*pieces) % 61 + 1;
    let cut = talk(*policy, input, piece);
    // What follows STARTTLS at once is refused, so there it matters.
    if !is_tls(*policy) {
        assert_eq!(talk(*policy, input, usize::MAX), cut);
    }
}

fn is_tls(policy: u8) -> bool {
    policy & 0x60 != 0
}

struct Offer {
    contexts: bool,
    /// How often an export is asked for before it is ready.
    waits: Cell<u32>,
}

impl ExportCatalog for Offer {
    fn list(&self) -> Result<Vec<(String, String)>, OptionRefusal> {
        Ok(vec![("a".into(), "the first".into()), ("b".into(), String::new())])
    }

    fn open(&self, name: &str) -> Result<ExportOffer, OptionRefusal> {
        if name.len() > 3 {
            return Err(OptionRefusal::unknown());
        }
        let contexts =
            if self.contexts { vec!["base:allocation".into(), "x:y".into()] } else { Vec::new() };
        let flags = TransmissionFlags(0xffff).without(TransmissionFlags::READ_ONLY);
        Ok(ExportOffer { name: name.into(), size: SIZE, flags, contexts, ..ExportOffer::default() })
    }

    fn is_ready(&self, _: &str) -> bool {
        let left = self.waits.get();
        self.waits.set(left.saturating_sub(1));
        left == 0
    }

    fn contexts(&self, name: &str) -> Result<Vec<String>, OptionRefusal> {
        self.open(name).map(|offer| offer.contexts)
    }
}

/// All that the server sends, and how it ended.
fn talk(policy: u8, input: &[u8], piece: usize) -> (Vec<u8>, String) {
    let has = |bit: u8| policy & bit != 0;
    let mut server = ServerHandshake::new(ServerPolicy {
        tls: match policy & 0x60 {
            0 => ServerTls::Off,
            0x20 => ServerTls::On,
            _ => ServerTls::Require,
        },
        oldstyle: has(1) && has(2) && has(4),
        fixed_newstyle: !has(1),
        structured: !has(2),
        extended: !has(4),
        meta_contexts: !has(8),
        ..ServerPolicy::default()
    });
    let offer = Offer { contexts: !has(0x80), waits: Cell::new(u32::from(has(0x80))) };
    let mut said = server.greeting();
    let mut rest = input;
    let mut at_once = 0;
    loop {
        let part = &rest[..piece.min(rest.len())];
        let (used, step) = server.advance(part, &offer, &mut said);
        assert!(used <= part.len() && server.held() <= HELD, "{} bytes held", server.held());
        assert!(said.len() <= TALK * (input.len() + 1), "{} bytes said", said.len());
        rest = &rest[used..];
        match step {
            ServerStep::NeedMore if rest.is_empty() => return (said, "more".into()),
            ServerStep::NeedMore => assert_eq!(used, part.len()),
            ServerStep::Wait => {
                at_once += 1;
                assert!(at_once < 100, "it waits for what is ready");
            }
            ServerStep::StartTls => server.tls_established(),
            ServerStep::Close(reason) => return (said, format!("{reason}")),
            ServerStep::Transmit(session) => {
                let end = transmit(&session, rest, &mut said);
                return (said, end);
            }
        }
    }
}

/// Answers requests until the stream ends or cannot be followed.
fn transmit(session: &Negotiated, input: &[u8], said: &mut Vec<u8>) -> String {
    assert!(session.size == SIZE);
    let mut rest = input;
    loop {
        let (request, used) = match parse_request(session.mode, rest) {
            Ok(Some(request)) => (request, wire::request_header_len(session.mode)),
            Ok(None) => return "the end".into(),
            Err(e) => return e.to_string(),
        };
        rest = &rest[used..];
        let checked = session.check(&request);
        if checked.is_err_and(|refusal| refusal.after == After::Disconnect) {
            return "too much".into();
        }
        if request.kind() == Some(Command::Disconnect) {
            return "goodbye".into();
        }
        let Some(payload) =
            usize::try_from(request.payload).ok().and_then(|len| rest.split_at_checked(len))
        else {
            return "half a payload".into();
        };
        rest = payload.1;
        let start = said.len();
        let writer = ReplyWriter::new(session.mode, &request);
        match checked {
            Err(refusal) => writer.refuse(&refusal, said),
            Ok(()) => answer(session, &request, payload.0, &writer, said),
        }
        understood(session, &request, &said[start..]);
        if said.len() > 1 << 20 {
            return "enough".into();
        }
    }
}

fn answer(
    session: &Negotiated,
    request: &Request,
    payload: &[u8],
    writer: &ReplyWriter,
    said: &mut Vec<u8>,
) {
    let (offset, len) = (request.offset, request.length);
    assert!(
        offset <= SIZE && (request.kind() == Some(Command::BlockStatus) || len <= SIZE - offset)
    );
    match request.kind() {
        Some(Command::Read) if len > 0 => match u32::try_from(len) {
            Ok(len) if len <= 4096 => {
                writer.read_data(offset, len, true, said);
                said.resize(said.len() + usize::try_from(len).unwrap(), 7);
            }
            Ok(len) if session.mode != wire::Framing::Simple => {
                writer.read_hole(offset, len - 1, false, said);
                writer.read_hole(offset + u64::from(len) - 1, 1, true, said);
            }
            _ => writer.error(ErrorCode::EIO, "long", said),
        },
        Some(Command::BlockStatus) => match session.status_query(request, payload) {
            Err(refusal) => writer.refuse(&refusal, said),
            Ok(query) => {
                assert!(
                    query.length > 0 && query.length <= SIZE - offset && !query.contexts.is_empty()
                );
                let extents = [query.length / 2, 0, SIZE - offset - query.length / 2];
                let extents = extents.map(|length| StatusExtent { length, flags: length % 4 });
                for (i, context) in query.contexts.iter().enumerate() {
                    let last = i + 1 == query.contexts.len();
                    let covered = writer.block_status(*context, extents, 2, last, said);
                    assert!(covered > 0 && covered <= SIZE - offset);
                }
            }
        },
        _ => writer.done(said),
    }
}

/// A client that has sent this request takes the answer.
fn understood(session: &Negotiated, request: &Request, answer: &[u8]) {
    let Some(command) = request.kind() else { return };
    let mut pending =
        wire::PendingReply::new(session, command, request.flags, request.offset, request.length);
    if command == Command::BlockStatus && request.flags.contains(wire::CommandFlags::PAYLOAD_LEN) {
        return;
    }
    let mut rest = answer;
    while !rest.is_empty() {
        match client::reply(session, &mut pending, &mut rest, request.length) {
            Ok(true) => {}
            other => panic!("{other:?} to {request:?}: {answer:02x?}"),
        }
    }
    assert!(pending.is_complete());
    if let Err(wire::ReplyError::Protocol(reason)) = pending.outcome() {
        panic!("{reason} to {request:?}");
    }
}
