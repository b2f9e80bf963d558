//! Properties: what one side encodes the other understands, and no reply writes outside of its
//! request. That no bytes make a parser panic, and that it does not matter how they are cut, is
//! shown by the targets of `hostile`.

use proptest::prelude::*;
use wire::{
    Body, Command, CommandFlags, ErrorCode, Framing, Negotiated, PayloadEffect, PendingReply,
    ReplyError, ReplyWriter, Request, StatusExtent, TransmissionFlags, encode_request,
    parse_reply_header, parse_request, request_header_len,
};

fn mode() -> impl Strategy<Value = Framing> {
    prop_oneof![Just(Framing::Simple), Just(Framing::Structured), Just(Framing::Extended)]
}

fn chunked() -> impl Strategy<Value = Framing> {
    prop_oneof![Just(Framing::Structured), Just(Framing::Extended)]
}

fn command() -> impl Strategy<Value = Command> {
    (0_u16..8).prop_map(|value| Command::from_wire(value).unwrap_or(Command::Read))
}

fn session(mode: Framing, size: u64) -> Negotiated {
    Negotiated {
        mode,
        size,
        flags: TransmissionFlags(0xffff).without(TransmissionFlags::READ_ONLY),
        contexts: vec![(4, "base:allocation".into()), (5, "test:x".into())],
        ..Negotiated::default()
    }
}

/// Feeds one whole reply to a pending one; returns the data that it puts into `buffer`.
fn receive(mode: Framing, reply: &mut PendingReply, bytes: &[u8], buffer: &mut [u8]) {
    let mut rest = bytes;
    while let Some((header, used)) = parse_reply_header(mode, rest).unwrap() {
        rest = &rest[used..];
        let used = match reply.header(&header).unwrap() {
            Body::Empty => 0,
            Body::SimpleData { length } => {
                let length = usize::try_from(length).unwrap();
                buffer.copy_from_slice(&rest[..length]);
                length
            }
            Body::Data { length } => {
                let span = reply.data_offset(rest[..8].try_into().unwrap(), length).unwrap();
                let (start, length) =
                    (usize::try_from(span.start).unwrap(), usize::try_from(length).unwrap());
                buffer[start..start + length].copy_from_slice(&rest[8..8 + length]);
                8 + length
            }
            Body::Payload { length } => {
                let length = usize::try_from(length).unwrap();
                if let PayloadEffect::Zeroes(span) = reply.payload(&rest[..length]).unwrap() {
                    let start = usize::try_from(span.start).unwrap();
                    buffer[start..start + usize::try_from(span.length).unwrap()].fill(0);
                }
                length
            }
        };
        rest = &rest[used..];
    }
    assert!(rest.is_empty() && reply.is_complete());
}

proptest! {
    #[test]
    fn requests_survive_the_trip(
        mode in mode(), command in command(), flags: u16, cookie: u64, offset: u64, length: u32,
    ) {
        let flags = CommandFlags(flags & !CommandFlags::PAYLOAD_LEN.0);
        let mut bytes = Vec::new();
        encode_request(mode, command, flags, cookie, offset, length.into(), &mut bytes).unwrap();
        prop_assert_eq!(bytes.len(), request_header_len(mode));
        for cut in 0..bytes.len() {
            prop_assert_eq!(parse_request(mode, &bytes[..cut]), Ok(None));
        }
        let parsed = parse_request(mode, &bytes).unwrap().unwrap();
        let write = command == Command::Write;
        let framed = write && mode == Framing::Extended;
        let flags = if framed { flags.with(CommandFlags::PAYLOAD_LEN) } else { flags };
        let payload = if write { length.into() } else { 0 };
        let expected =
            Request { flags, command: command.to_wire(), cookie, offset, length: length.into(), payload };
        prop_assert_eq!(parsed, expected);
    }

    #[test]
    fn what_a_client_sends_a_server_accepts(
        mode in mode(), command in command(), flags in 0_u16..32, offset in 0_u64..10_000,
        length in 0_u64..10_000,
    ) {
        let session = session(mode, 8192);
        let mut bytes = Vec::new();
        let sent =
            session.encode_request(command, CommandFlags(flags), 1, offset, length, &mut bytes);
        if sent.is_ok() {
            let request = parse_request(mode, &bytes).unwrap().unwrap();
            prop_assert_eq!(session.check(&request), Ok(()));
        } else {
            prop_assert!(bytes.is_empty());
        }
    }

    #[test]
    fn reads_survive_in_any_pieces(
        mode in mode(), offset in 0_u64..1 << 40, pieces in prop::collection::vec((any::<bool>(), 1_u32..50), 1..20),
        order: u64,
    ) {
        let length: u32 = pieces.iter().map(|(_, length)| length).sum();
        let session = session(mode, 1 << 41);
        let none = CommandFlags::NONE;
        let request = Request { flags: none, command: 0, cookie: 1, offset, length: length.into(), payload: 0 };
        let writer = ReplyWriter::new(mode, &request);
        let mut expected = Vec::new();
        let mut chunks = Vec::new();
        for (index, (data, length)) in pieces.iter().enumerate() {
            let at = offset + expected.len() as u64;
            let byte = u8::try_from(index + 1).unwrap();
            let mut chunk = Vec::new();
            if *data || mode == Framing::Simple {
                writer.read_data(at, *length, false, &mut chunk);
                chunk.extend(vec![byte; *length as usize]);
                expected.extend(vec![byte; *length as usize]);
            } else {
                writer.read_hole(at, *length, false, &mut chunk);
                expected.extend(vec![0; *length as usize]);
            }
            chunks.push(chunk);
        }
        let mut bytes = Vec::new();
        if mode == Framing::Simple {
            writer.read_data(offset, length, true, &mut bytes);
            bytes.extend_from_slice(&expected);
        } else {
            let turn = usize::try_from(order % chunks.len() as u64).unwrap();
            chunks.rotate_left(turn);
            bytes = chunks.concat();
            writer.done(&mut bytes);
        }
        let mut pending = PendingReply::new(&session, Command::Read, none, offset, length.into());
        let mut buffer = vec![0xee; expected.len()];
        receive(mode, &mut pending, &bytes, &mut buffer);
        prop_assert_eq!(pending.outcome(), Ok(Vec::new()));
        prop_assert_eq!(buffer, expected);
    }

    #[test]
    fn statuses_survive_and_keep_their_promises(
        mode in chunked(),
        offset in 0_u64..1 << 20,
        length in 1_u64..1 << 33,
        extents in prop::collection::vec((0_u64..1 << 34, 0_u64..4), 1..50),
        one: bool,
        most in 1_usize..60,
    ) {
        let length = if mode == Framing::Structured { length.min(u32::MAX.into()) } else { length };
        let flags = if one { CommandFlags::REQ_ONE } else { CommandFlags::NONE };
        let extents: Vec<_> =
            extents.into_iter().map(|(length, flags)| StatusExtent { length, flags }).collect();
        let size = offset + extents.iter().map(|e| e.length).sum::<u64>().max(length);
        let session = session(mode, size);
        let request = Request { flags, command: 7, cookie: 1, offset, length, payload: 0 };
        let writer = ReplyWriter::new(mode, &request);
        let mut bytes = Vec::new();
        let first = writer.block_status(4, extents.iter().copied(), most, false, &mut bytes);
        let second = writer.block_status(5, extents.iter().copied(), most, true, &mut bytes);
        prop_assert_eq!(first, second);
        prop_assume!(first != 0);
        let mut pending = PendingReply::new(&session, Command::BlockStatus, flags, offset, length);
        receive(mode, &mut pending, &bytes, &mut []);
        let statuses = pending.outcome().unwrap();
        prop_assert_eq!(statuses.len(), 2);
        // What arrived is a prefix of what was sent, and covers what the server believes it covers.
        let received = &statuses[1].extents;
        prop_assert!(received.len() <= most);
        let covered: u64 = received.iter().map(|extent| extent.length).sum();
        prop_assert_eq!(covered, second);
        let said = extents.iter().filter(|extent| extent.length != 0);
        for (index, (got, said)) in received.iter().zip(said).enumerate() {
            prop_assert_eq!(got.flags, said.flags);
            let last = index + 1 == received.len();
            prop_assert!(got.length == said.length || (last && got.length < said.length));
        }
        if one {
            prop_assert!(received.len() == 1 && covered <= length);
        }
    }

    #[test]
    fn errors_survive(mode in mode(), command in command(), message in ".{0,300}", code in 0_u32..120) {
        prop_assume!(command != Command::Disconnect);
        let session = session(mode, 1 << 20);
        let none = CommandFlags::NONE;
        let request = Request { flags: none, command: command.to_wire(), cookie: 1, offset: 0, length: 8, payload: 0 };
        let mut bytes = Vec::new();
        ReplyWriter::new(mode, &request).error(ErrorCode(code), &message, &mut bytes);
        prop_assert!(bytes.len() < 400);
        let mut pending = PendingReply::new(&session, command, none, 0, 8);
        receive(mode, &mut pending, &bytes, &mut []);
        let Err(ReplyError::Remote(error)) = pending.outcome() else { panic!("an error") };
        let known = ErrorCode(code).known();
        let expected = if known == ErrorCode::ENOTSUP { ErrorCode::EINVAL } else { known };
        prop_assert_eq!(error.code, expected);
    }

    #[test]
    fn no_reply_makes_a_pending_request_panic_or_write_outside(
        mode in chunked(), command in command(), flags in 0_u16..32, offset in 0_u64..1000,
        length in 0_u64..1000, chunks in prop::collection::vec(
            (any::<u16>(), 0_u16..9, prop::collection::vec(any::<u8>(), 0..40)), 0..20),
    ) {
        let session = session(mode, 2000);
        let mut pending = PendingReply::new(&session, command, CommandFlags(flags), offset, length);
        for (flags, kind, payload) in chunks {
            let kind = if kind > 6 { 0x8000 | kind } else { kind };
            let echoed = (mode == Framing::Extended).then_some(offset);
            let chunk = wire::ReplyKind::Chunk { flags, chunk: kind, length: payload.len() as u64, offset: echoed };
            let header = wire::ReplyHeader { kind: chunk, cookie: 1 };
            let inside = |span: wire::PayloadSpan| span.start <= length && span.length <= length - span.start;
            match pending.header(&header) {
                Err(_) => break,
                Ok(Body::Data { length: data }) => {
                    let at = payload[..8].try_into().unwrap();
                    match pending.data_offset(at, data) {
                        Ok(span) => prop_assert!(inside(span)),
                        Err(_) => break,
                    }
                }
                Ok(Body::Payload { .. }) => match pending.payload(&payload) {
                    Ok(PayloadEffect::Zeroes(span)) => prop_assert!(inside(span)),
                    Ok(PayloadEffect::Noted) => {}
                    Err(_) => break,
                },
                Ok(_) => {}
            }
        }
        if let Ok(statuses) = pending.outcome() {
            for status in statuses {
                let covered: u64 = status.extents.iter().map(|extent| extent.length).sum();
                prop_assert!(covered > 0 && covered <= 2000 - offset);
            }
        }
    }
}
