//! Check 40: what a client must never send.

use wire::{
    BlockConstraints, Command, CommandFlags, ErrorCode, Framing, Negotiated, StatusQuery,
    TransmissionFlags, encode_request,
};

use crate::checks::bytes::Ask;
use crate::checks::model::ALL_FLAGS;

fn session(mode: Framing) -> Negotiated {
    Negotiated {
        mode,
        size: 1 << 40,
        flags: ALL_FLAGS,
        blocks: BlockConstraints { minimum: 512, preferred: 4096, maximum: 1 << 20 },
        contexts: vec![(1, "base:allocation".into()), (2, "test:numbers".into())],
        ..Negotiated::default()
    }
}

#[track_caller]
fn assert_unsent(session: &Negotiated, command: Command, flags: CommandFlags, at: u64, len: u64) {
    let mut out = Vec::new();
    assert!(session.encode_request(command, flags, 1, at, len, &mut out).is_err());
    assert_eq!(out, b"");
}

const NONE: CommandFlags = CommandFlags::NONE;

#[test]
fn client_check_40_unadvertised_commands_and_flags_are_not_sent() {
    for (command, flag) in [
        (Command::Flush, TransmissionFlags::SEND_FLUSH),
        (Command::Trim, TransmissionFlags::SEND_TRIM),
        (Command::Cache, TransmissionFlags::SEND_CACHE),
        (Command::WriteZeroes, TransmissionFlags::SEND_WRITE_ZEROES),
    ] {
        let mut session = session(Framing::Structured);
        session.flags = session.flags.without(flag);
        let length = if command == Command::Flush { 0 } else { 512 };
        assert_unsent(&session, command, NONE, 0, length);
    }
    assert_unsent(&session(Framing::Structured), Command::Resize, NONE, 0, 512);
    for (command, flags, needed) in [
        (Command::Write, CommandFlags::FUA, TransmissionFlags::SEND_FUA),
        (Command::Read, CommandFlags::DF, TransmissionFlags::SEND_DF),
        (Command::WriteZeroes, CommandFlags::FAST_ZERO, TransmissionFlags::SEND_FAST_ZERO),
    ] {
        let mut session = session(Framing::Structured);
        session.flags = session.flags.without(needed);
        assert_unsent(&session, command, flags, 0, 512);
    }
}

#[test]
fn client_check_40_nothing_is_written_to_a_read_only_export() {
    let mut session = session(Framing::Structured);
    session.flags = session.flags.with(TransmissionFlags::READ_ONLY);
    for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
        assert_unsent(&session, command, NONE, 0, 512);
    }
}

#[test]
fn client_check_40_ranges_stay_inside_aligned_and_within_the_maximum() {
    let session = session(Framing::Extended);
    for command in [Command::Read, Command::Write, Command::Trim, Command::BlockStatus] {
        assert_unsent(&session, command, NONE, 1 << 40, 512);
        assert_unsent(&session, command, NONE, u64::MAX - 511, 512);
        assert_unsent(&session, command, NONE, 100, 512);
        assert_unsent(&session, command, NONE, 0, 100);
    }
    for command in [Command::Read, Command::Write] {
        assert_unsent(&session, command, NONE, 0, (1 << 20) + 512);
    }
}

#[test]
fn client_check_40_long_requests_need_extended_headers() {
    let mut out = Vec::new();
    for mode in [Framing::Simple, Framing::Structured] {
        let refusal = session(mode)
            .encode_request(Command::WriteZeroes, NONE, 1, 0, 1 << 32, &mut out)
            .unwrap_err();
        assert_eq!((refusal.error, out.len()), (ErrorCode::EOVERFLOW, 0));
    }
    let extended = session(Framing::Extended);
    extended.encode_request(Command::WriteZeroes, NONE, 1, 0, 1 << 39, &mut out).unwrap();
    assert_eq!(out.len(), 32);
}

#[test]
fn client_check_40_the_payload_flag_goes_with_extended_writes_only() {
    for (mode, flags) in [(Framing::Simple, 0), (Framing::Structured, 0), (Framing::Extended, 32)] {
        let mut out = Vec::new();
        let session = session(mode);
        session.encode_request(Command::Write, NONE, 7, 4096, 512, &mut out).unwrap();
        let expected = Ask {
            extended: mode == Framing::Extended,
            flags,
            command: 1,
            cookie: 7,
            offset: 4096,
            length: 512,
        };
        assert_eq!(out, expected.bytes().0);
        let mut raw = Vec::new();
        encode_request(mode, Command::Write, NONE, 7, 4096, 512, &mut raw).unwrap();
        assert_eq!(raw, out);
        if mode != Framing::Extended {
            assert_unsent(&session, Command::Write, CommandFlags::PAYLOAD_LEN, 0, 512);
        }
        assert_unsent(&session, Command::Read, CommandFlags::PAYLOAD_LEN, 0, 512);
        assert_unsent(&session, Command::BlockStatus, CommandFlags::PAYLOAD_LEN, 0, 512);
    }
}

#[test]
fn client_check_40_block_status_needs_contexts() {
    let mut without = session(Framing::Structured);
    without.contexts.clear();
    assert_unsent(&without, Command::BlockStatus, NONE, 0, 512);
    let mut simple = session(Framing::Simple);
    simple.mode = Framing::Simple;
    assert_unsent(&simple, Command::BlockStatus, NONE, 0, 512);
}

#[test]
fn client_check_40_status_by_payload_names_selected_contexts_once() {
    let session = session(Framing::Extended);
    let send = |session: &Negotiated, contexts: &[u32]| {
        let mut out = Vec::new();
        let query = StatusQuery { length: 4096, contexts: contexts.to_vec() };
        session.encode_status_request(NONE, 1, 0, &query, &mut out).map(|()| out)
    };
    assert_eq!(send(&session, &[2]).unwrap().len(), 32 + 12);
    for bad in [&[][..], &[3], &[1, 1], &[1, 2, 1]] {
        assert!(send(&session, bad).is_err());
    }
    let mut lacking = session.clone();
    lacking.flags = lacking.flags.without(TransmissionFlags::BLOCK_STATUS_PAYLOAD);
    assert!(send(&lacking, &[2]).is_err());
}
