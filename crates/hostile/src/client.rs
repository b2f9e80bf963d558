//! The client's side of the wire, fed by a server: handshake and replies.
//!
//! The first two bytes say what the client wants, the third how the stream is cut. A few requests
//! of each kind are in flight, with known cookies. However the stream is cut, the client sends the
//! same, and accepts content only for the range requested.

use wire::{
    Body, ClientHandshake, ClientPolicy, ClientStep, Command, CommandFlags, Fatal, Framing,
    InFlight, Negotiated, PayloadEffect, PayloadSpan, PendingReply, parse_reply_header,
};

use crate::line;

/// The most bytes that a client may send per byte received.
const TALK: usize = 4 << 10;

pub(crate) fn run(bytes: &[u8]) {
    let Some(([wants, more, pieces], input)) = bytes.split_first_chunk() else { return };
    let piece = usize::from(*pieces) % 61 + 1;
    let policy = policy(*wants, *more);
    let cut = talk(&policy, input, piece);
    // What follows STARTTLS at once is refused, so there it matters.
    if !policy.tls {
        assert_eq!(talk(&policy, input, usize::MAX), cut);
    }
}

fn policy(wants: u8, more: u8) -> ClientPolicy {
    let has = |bit: u8| wants & bit != 0;
    ClientPolicy {
        export: if more & 4 == 0 { String::new() } else { "disk".into() },
        lists: has(2),
        tls: more & 3 == 2,
        structured: !has(4),
        extended: !has(8),
        contexts: if has(0x10) { Vec::new() } else { vec!["base:allocation".into()] },
        all_contexts: has(0x20),
        list_contexts: has(0x40),
    }
}

/// All that the client sends, and how it ended.
fn talk(policy: &ClientPolicy, input: &[u8], piece: usize) -> (Vec<u8>, String) {
    let mut client = ClientHandshake::new(policy.clone());
    let mut said = Vec::new();
    let mut rest = input;
    loop {
        let part = &rest[..piece.min(rest.len())];
        let (used, step) = client.advance(part, &mut said);
        assert!(
            used <= part.len() && said.len() <= TALK * (input.len() + 1),
            "{} bytes said",
            said.len()
        );
        rest = &rest[used..];
        match step {
            ClientStep::NeedMore if rest.is_empty() => return (said, client.closed().to_string()),
            ClientStep::NeedMore => assert_eq!(used, part.len()),
            ClientStep::StartTls => client.tls_established(&mut said),
            ClientStep::Failed(e) => {
                line(&e.to_string());
                return (said, e.to_string());
            }
            ClientStep::Listed(list) => return (said, format!("{list:?}")),
            ClientStep::Ready(session) => {
                let end = receive(&session, rest);
                return (said, end);
            }
        }
    }
}

/// Takes replies to some requests until the stream ends or cannot be followed.
fn receive(session: &Negotiated, input: &[u8]) -> String {
    assert!(i64::try_from(session.size).is_ok() && session.blocks.is_valid());
    let mut requests = InFlight::default();
    let mut sent = Vec::new();
    let asked = [
        (Command::Read, CommandFlags::NONE, 0, 512),
        (Command::Read, CommandFlags::DF, 4096, 4096),
        (Command::BlockStatus, CommandFlags::NONE, 0, 65_536),
        (Command::BlockStatus, CommandFlags::REQ_ONE, 512, 512),
        (Command::Write, CommandFlags::NONE, 0, 512),
        (Command::Flush, CommandFlags::NONE, 0, 0),
    ];
    for (command, flags, offset, length) in asked {
        if session.encode_request(command, flags, 0, offset, length, &mut sent).is_ok() {
            let pending = PendingReply::new(session, command, flags, offset, length);
            requests.insert((pending, length));
        }
    }
    let mut rest = input;
    let mut outcomes = String::new();
    loop {
        let header = match parse_reply_header(session.mode, rest) {
            Ok(Some((header, _))) => header,
            Ok(None) => return outcomes + "the end",
            Err(e) => return outcomes + &e.to_string(),
        };
        let (pending, length) = match requests.find(header.cookie) {
            Ok(found) => found,
            Err(e) => return outcomes + &e.to_string(),
        };
        match reply(session, pending, &mut rest, *length) {
            Err(e) => return outcomes + &e.to_string(),
            Ok(false) => return outcomes + "half a reply",
            Ok(true) => {}
        }
        if !pending.is_complete() {
            continue;
        }
        let Some((pending, length)) = requests.remove(header.cookie) else { return outcomes };
        match pending.outcome() {
            Ok(statuses) => {
                for status in statuses {
                    let covered: u64 = status.extents.iter().map(|extent| extent.length).sum();
                    assert!(covered > 0 && covered <= session.size, "{covered} for {length}");
                    assert!(status.extents.iter().all(|extent| extent.length > 0));
                }
                outcomes += "done, ";
            }
            Err(e) => {
                line(&e.to_string());
                outcomes += "failed, ";
            }
        }
    }
}

/// Takes one header with what belongs to it off `rest`; whether all of it was there. What is
/// content lies in the `length` bytes that were asked for.
pub(crate) fn reply(
    session: &Negotiated,
    pending: &mut PendingReply,
    rest: &mut &[u8],
    length: u64,
) -> Result<bool, Fatal> {
    let inside = |span: PayloadSpan| {
        assert!(span.start <= length && span.length <= length - span.start, "{span:?}")
    };
    let Some((header, used)) = parse_reply_header(session.mode, rest)? else { return Ok(false) };
    let body = &rest[used..];
    let (used, rest_of) = match pending.header(&header)? {
        Body::Empty => (0, body),
        Body::SimpleData { length: data } => {
            assert_eq!((data, session.mode == Framing::Extended), (length, false));
            (size(data), body)
        }
        Body::Data { length: data } => {
            let Some((offset, after)) = body.split_first_chunk() else { return Ok(false) };
            inside(pending.data_offset(*offset, data)?);
            (size(data), after)
        }
        Body::Payload { length: payload } => {
            let Some(payload) = body.get(..size(payload)) else { return Ok(false) };
            if let PayloadEffect::Zeroes(span) = pending.payload(payload)? {
                inside(span);
            }
            (payload.len(), body)
        }
    };
    let Some(after) = rest_of.get(used..) else { return Ok(false) };
    *rest = after;
    Ok(true)
}

fn size(length: u64) -> usize {
    usize::try_from(length).unwrap()
}
