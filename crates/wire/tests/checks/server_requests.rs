//! Checks 46 to 78: requests and replies of the server, in every framing.

use wire::{BlockConstraints, ErrorCode, Framing, TransmissionFlags};

use crate::bytes::{
    Answer, Ask, Bytes, DF, EINVAL, ENOSPC, ENOTSUP, EPERM, FAST_ZERO, FUA, Fields, NO_HOLE,
    REQ_ONE, answers,
};
use crate::model::{BLOCK, Connection, Menu, SIZE, all_flags};

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const ZEROES: u16 = 6;
const STATUS: u16 = 7;

/// A command in the mode's framing, with its payload where it has one.
fn ask(connection: &mut Connection, command: u16, flags: u16, offset: u64, len: u64) -> Answer {
    let extended = connection.session().mode == Framing::Extended;
    let payload_len = if extended && command == WRITE { 32 } else { 0 };
    let flags = flags | payload_len;
    let ask = Ask { extended, flags, command, cookie: 77, offset, length: len };
    let payload = vec![0xaa; if command == WRITE { usize::try_from(len).unwrap() } else { 0 }];
    let answers = connection.ask(ask, &payload);
    assert!(answers.iter().all(|answer| answer.cookie() == 77));
    answers.last().expect("an answer").clone()
}

fn error(connection: &mut Connection, command: u16, flags: u16, offset: u64, len: u64) -> u32 {
    let error = ask(connection, command, flags, offset, len).error();
    assert!(connection.is_alive());
    error
}

const MODES: [Framing; 3] = [Framing::Simple, Framing::Structured, Framing::Extended];

/// Puts the chunks of a read together; asserts that they cover it exactly.
fn assembled(answers: &[Answer], offset: u64, len: usize) -> Vec<u8> {
    let mut data = vec![None; len];
    for (index, answer) in answers.iter().enumerate() {
        let Answer::Chunk { last, kind, payload, .. } = answer else { panic!("simple reply") };
        assert_eq!(*last, index + 1 == answers.len(), "DONE on the last chunk only");
        if *kind == 0 {
            assert!(payload.is_empty());
            continue;
        }
        let mut fields = Fields(payload);
        let at = usize::try_from(fields.u64() - offset).unwrap();
        let bytes = match kind {
            1 => fields.0.to_vec(),
            2 => vec![0; fields.u32().try_into().unwrap()],
            kind => panic!("chunk type {kind}"),
        };
        assert!(!bytes.is_empty());
        for (slot, byte) in data[at..at + bytes.len()].iter_mut().zip(bytes) {
            assert!(slot.replace(byte).is_none(), "content overlaps");
        }
    }
    data.into_iter().map(|byte| byte.expect("all is covered")).collect()
}

#[test]
fn server_check_46_simple_read_gives_the_bytes_and_the_cookie() {
    let mut connection = Connection::transmitting(Framing::Simple);
    let disk = connection.disk.clone();
    for (offset, length) in [(0, 1), (0, 4096), (65_535, 2), (SIZE - 1, 1), (0, SIZE)] {
        let ask = Ask {
            cookie: 0x0123_4567_89ab_cdef,
            offset: offset as u64,
            length: length as u64,
            ..Ask::default()
        };
        let data = disk[offset..offset + length].to_vec();
        let expected = Answer::Simple { error: 0, cookie: 0x0123_4567_89ab_cdef, data };
        assert_eq!(connection.ask(ask, &[]), [expected]);
    }
}

#[test]
fn server_check_47_chunked_read_covers_exactly_with_one_done() {
    for mode in [Framing::Structured, Framing::Extended] {
        let mut connection = Connection::transmitting(mode);
        let extended = mode == Framing::Extended;
        let disk = connection.disk.clone();
        for (offset, length) in [(0, 1), (60_000, 10_000), (0, SIZE)] {
            let range = offset..offset + length;
            let ask =
                Ask { extended, offset: offset as u64, length: length as u64, ..Ask::default() };
            let answers = connection.ask(ask, &[]);
            assert_eq!(assembled(&answers, offset as u64, length), disk[range]);
        }
    }
}

#[test]
fn server_check_48_bad_read_under_structured_replies_fails_in_a_chunk() {
    let mut connection = Connection::transmitting(Framing::Structured);
    for answer in [
        ask(&mut connection, READ, NO_HOLE, 0, 512),
        ask(&mut connection, READ, 0, SIZE as u64, 1),
        ask(&mut connection, STATUS, 0, SIZE as u64, 1),
    ] {
        assert!(answer.is_chunk());
        assert_eq!(answer.error(), EINVAL);
    }
}

#[test]
fn server_check_49_df_gives_one_content_chunk() {
    let mut connection = Connection::transmitting(Framing::Structured);
    let disk = connection.disk.clone();
    let ask = Ask { flags: DF, offset: 32_768, length: 65_536, ..Ask::default() };
    let answers = connection.ask(ask, &[]);
    assert_eq!(answers.len(), 1);
    assert_eq!(assembled(&answers, 32_768, 65_536), disk[32_768..98_304]);
}

#[test]
fn server_check_50_df_without_chunks_is_invalid() {
    let mut connection = Connection::transmitting(Framing::Simple);
    assert_eq!(error(&mut connection, READ, DF, 0, 512), EINVAL);
}

#[test]
fn server_check_51_read_past_the_end_is_invalid() {
    for mode in MODES {
        let mut connection = Connection::transmitting(mode);
        for (offset, length) in [(SIZE as u64 - 1, 2), (u64::MAX, 2), (u64::MAX, 0)] {
            assert_eq!(error(&mut connection, READ, 0, offset, length), EINVAL);
        }
        assert_eq!(error(&mut connection, TRIM, 0, SIZE as u64, 1), EINVAL);
        assert_eq!(error(&mut connection, CACHE, 0, u64::MAX, 1), EINVAL);
    }
}

#[test]
fn server_check_52_write_past_the_end_has_no_space_and_is_drained() {
    for mode in MODES {
        let mut connection = Connection::transmitting(mode);
        assert_eq!(error(&mut connection, WRITE, 0, SIZE as u64 - 10, 11), ENOSPC);
        assert_eq!(error(&mut connection, ZEROES, 0, u64::MAX - 3, 11), ENOSPC);
    }
}

#[test]
fn server_check_53_read_only_comes_before_everything() {
    for mode in MODES {
        let mut connection = Connection::transmitting_with(mode, Menu::default(), "ro");
        for command in [WRITE, TRIM, ZEROES] {
            assert_eq!(error(&mut connection, command, 0, 0, 512), EPERM);
            assert_eq!(error(&mut connection, command, 0, SIZE as u64, 512), EPERM);
        }
    }
}

#[test]
fn server_check_54_write_of_32_mib_is_drained_above_our_maximum() {
    for mode in MODES {
        let mut connection = Connection::transmitting(mode);
        assert_eq!(connection.session().blocks.maximum, 1 << 20);
        assert_eq!(error(&mut connection, WRITE, 0, 0, 32 << 20), ENOSPC);
    }
    let mut connection = Connection::transmitting(Framing::Simple);
    connection.session.as_mut().unwrap().size = 1 << 30;
    assert_eq!(error(&mut connection, WRITE, 0, 0, 32 << 20), EINVAL);
}

#[test]
fn server_check_55_write_of_four_gigabytes_ends_the_connection() {
    let mut connection = Connection::transmitting(Framing::Simple);
    connection.send(Ask { command: WRITE, length: u32::MAX.into(), ..Ask::default() }.bytes());
    assert!(!connection.is_open());
}

#[test]
fn server_check_56_half_a_payload_writes_nothing() {
    let mut connection = Connection::transmitting(Framing::Simple);
    let before = connection.disk.clone();
    let head = Ask { command: WRITE, length: 4096, ..Ask::default() }.bytes();
    assert_eq!(connection.send(head.raw([0xaa; 2048])), b"");
    assert_eq!(connection.disk, before);
}

#[test]
fn server_check_57_unknown_command_is_invalid() {
    for mode in MODES {
        let mut connection = Connection::transmitting(mode);
        for command in [200, 8, 9, u16::MAX] {
            assert_eq!(error(&mut connection, command, 0, 0, 512), EINVAL);
        }
    }
}

#[test]
fn server_check_58_unknown_flag_is_invalid() {
    for mode in MODES {
        let mut connection = Connection::transmitting(mode);
        for command in [READ, WRITE, FLUSH, TRIM, CACHE, ZEROES, STATUS] {
            assert_eq!(error(&mut connection, command, 0x8000, 0, 0), EINVAL);
        }
    }
}

#[test]
fn server_check_59_flags_of_other_commands_are_invalid() {
    for mode in MODES {
        let mut connection = Connection::transmitting(mode);
        for (command, flags) in [
            (READ, NO_HOLE),
            (READ, REQ_ONE),
            (WRITE, REQ_ONE),
            (WRITE, DF),
            (TRIM, FAST_ZERO),
            (CACHE, NO_HOLE),
            (ZEROES, DF),
            (STATUS, NO_HOLE),
        ] {
            assert_eq!(error(&mut connection, command, flags, 0, 4096), EINVAL);
        }
    }
}

#[test]
fn server_check_60_fua_is_accepted_everywhere_once_advertised() {
    let mut connection = Connection::transmitting(Framing::Structured);
    for command in [READ, WRITE, TRIM, CACHE, ZEROES, STATUS] {
        assert_eq!(error(&mut connection, command, FUA, 0, 4096), 0, "command {command}");
    }
    assert_eq!(error(&mut connection, FLUSH, FUA, 0, 0), 0);
}

#[test]
fn server_check_61_fua_unadvertised_is_invalid_and_drained() {
    let flags = all_flags().without(TransmissionFlags::SEND_FUA);
    for mode in MODES {
        let menu = Menu { flags, ..Menu::default() };
        let mut connection = Connection::transmitting_with(mode, menu, "disk");
        assert_eq!(error(&mut connection, WRITE, FUA, 0, 4096), EINVAL);
        assert_ne!(connection.disk[..4], [0xaa; 4]);
    }
}

#[test]
fn server_check_62_wrong_request_magic_ends_the_connection() {
    for (mode, extended) in
        [(Framing::Simple, true), (Framing::Structured, true), (Framing::Extended, false)]
    {
        let mut connection = Connection::transmitting(mode);
        connection.send(Ask { extended, length: 1, ..Ask::default() }.bytes());
        assert!(!connection.is_open());
    }
    for magic in [0x1256_0953, 0, u32::MAX] {
        let mut connection = Connection::transmitting(Framing::Simple);
        connection.send(Bytes::new().u32(magic).raw([0; 24]));
        assert!(!connection.is_open());
    }
}

#[test]
fn server_check_63_misaligned_requests_are_invalid() {
    let blocks = BlockConstraints { minimum: 4096, preferred: 4096, maximum: 1 << 20 };
    let size = SIZE as u64 - 100;
    for command in [READ, WRITE, TRIM, CACHE, ZEROES] {
        let menu = Menu { blocks, size, ..Menu::default() };
        let mut connection = Connection::transmitting_with(Framing::Structured, menu, "disk");
        assert_eq!(ask(&mut connection, command, 0, 512, 4096).error(), EINVAL);
        assert_eq!(ask(&mut connection, command, 0, 0, 512).error(), EINVAL);
        assert_eq!(ask(&mut connection, command, 0, 0, 4096).error(), 0);
        // The tail of an odd export stays within reach.
        assert_eq!(ask(&mut connection, command, 0, SIZE as u64 - 4096, 3996).error(), 0);
    }
}

#[test]
fn server_check_64_zero_length_is_success_but_for_block_status() {
    for mode in MODES {
        let mut connection = Connection::transmitting(mode);
        let before = connection.disk.clone();
        for command in [READ, WRITE, FLUSH, TRIM, CACHE, ZEROES] {
            assert_eq!(error(&mut connection, command, 0, 0, 0), 0);
        }
        assert_eq!(error(&mut connection, READ, 0, SIZE as u64, 0), 0);
        assert_eq!(error(&mut connection, STATUS, 0, 0, 0), EINVAL);
        assert_eq!(connection.disk, before);
    }
}

#[test]
fn server_check_65_flush_with_a_range_is_invalid() {
    let mut connection = Connection::transmitting(Framing::Simple);
    assert_eq!(error(&mut connection, FLUSH, 0, 512, 0), EINVAL);
    assert_eq!(error(&mut connection, FLUSH, 0, 0, 512), EINVAL);
}

#[test]
fn server_check_68_write_zeroes_reads_back_as_zeroes() {
    for flags in [0, NO_HOLE, FUA] {
        let mut connection = Connection::transmitting(Framing::Simple);
        assert_eq!(error(&mut connection, ZEROES, flags, 100, 300), 0);
        assert_eq!(connection.disk[100..400], [0; 300]);
        assert!(connection.disk[99] != 0 && connection.disk[400] != 0);
    }
}

#[test]
fn server_check_69_long_zero_requests_are_no_reason_to_disconnect() {
    let menu = || Menu { size: 1 << 41, ..Menu::default() };
    let mut compact = Connection::transmitting_with(Framing::Simple, menu(), "disk");
    let mut extended = Connection::transmitting_with(Framing::Extended, menu(), "disk");
    for command in [ZEROES, TRIM, CACHE] {
        assert_eq!(error(&mut compact, command, 0, 0, (1 << 32) - 512), 0);
        assert_eq!(error(&mut extended, command, 0, 0, 1 << 40), 0);
    }
}

#[test]
fn server_check_70_fast_zero_is_refused_with_enotsup_and_changes_nothing() {
    for mode in MODES {
        let mut connection = Connection::transmitting(mode);
        let before = connection.disk.clone();
        assert_eq!(error(&mut connection, ZEROES, FAST_ZERO, 0, 4096), ENOTSUP);
        assert_eq!(connection.disk, before);
        assert_eq!(error(&mut connection, ZEROES, 0, 0, 4096), 0);
    }
}

#[test]
fn server_check_71_fast_zero_unadvertised_is_invalid() {
    let flags = all_flags().without(TransmissionFlags::SEND_FAST_ZERO);
    let menu = Menu { flags, ..Menu::default() };
    let mut connection = Connection::transmitting_with(Framing::Structured, menu, "disk");
    assert_eq!(error(&mut connection, ZEROES, FAST_ZERO, 0, 4096), EINVAL);
}

#[test]
fn server_check_71_enotsup_is_for_fast_zero_only() {
    let request = wire::Request {
        flags: wire::CommandFlags::NONE,
        command: ZEROES,
        cookie: 1,
        offset: 0,
        length: 512,
        payload: 0,
    };
    let mut out = Vec::new();
    wire::ReplyWriter::new(Framing::Simple, &request).error(ErrorCode::ENOTSUP, "", &mut out);
    assert_eq!(answers(&out, 0)[0].error(), EINVAL);
}

#[test]
fn server_check_73_cache_changes_nothing_and_needs_advertising() {
    let mut connection = Connection::transmitting(Framing::Structured);
    let before = connection.disk.clone();
    assert_eq!(error(&mut connection, CACHE, 0, 0, 4096), 0);
    assert_eq!(connection.disk, before);
    for (command, flag) in [
        (CACHE, TransmissionFlags::SEND_CACHE),
        (TRIM, TransmissionFlags::SEND_TRIM),
        (ZEROES, TransmissionFlags::SEND_WRITE_ZEROES),
    ] {
        let menu = Menu { flags: all_flags().without(flag), ..Menu::default() };
        let mut connection = Connection::transmitting_with(Framing::Structured, menu, "disk");
        assert_eq!(error(&mut connection, command, 0, 0, 4096), EINVAL);
    }
}

#[test]
fn server_check_74_disconnect_with_a_junk_range_gets_no_reply() {
    let mut connection = Connection::transmitting(Framing::Structured);
    let read = Ask { length: 1, cookie: 5, ..Ask::default() }.bytes();
    let bye = Ask { command: DISC, offset: u64::MAX, length: 99, ..Ask::default() }.bytes();
    let out = connection.send(read.raw(bye));
    assert!(answers(&out, 0).iter().all(|answer| answer.cookie() == 5));
    assert!(!out.is_empty() && !connection.is_open());
}

#[test]
fn server_check_77_requests_with_one_cookie_are_both_answered() {
    let mut connection = Connection::transmitting(Framing::Simple);
    let read = |offset| Ask { offset, length: 4, cookie: 9, ..Ask::default() }.bytes();
    let out = connection.send(read(0).raw(read(8)));
    let answers = answers(&out, 4);
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(|answer| answer.cookie() == 9));
}

#[test]
fn server_check_78_pipelined_requests_keep_their_cookies() {
    let mut connection = Connection::transmitting(Framing::Structured);
    let mut pipeline = Bytes::new();
    for cookie in 0..64 {
        let (offset, length) = (cookie * BLOCK as u64, BLOCK as u64);
        let command = if cookie % 2 == 0 { READ } else { ZEROES };
        pipeline = pipeline.raw(Ask { command, cookie, offset, length, ..Ask::default() }.bytes());
    }
    let out = connection.send(pipeline);
    let mut seen: Vec<u64> = answers(&out, 0).iter().map(Answer::cookie).collect();
    seen.dedup();
    assert_eq!(seen, (0..64).collect::<Vec<u64>>());
}

#[test]
fn server_check_91_shutdown_is_reported_in_every_framing() {
    for (mode, command) in
        [(Framing::Simple, READ), (Framing::Structured, READ), (Framing::Extended, TRIM)]
    {
        let request = wire::Request {
            flags: wire::CommandFlags::NONE,
            command,
            cookie: 1,
            offset: 0,
            length: 512,
            payload: 0,
        };
        let mut out = Vec::new();
        let reply = wire::ReplyWriter::new(mode, &request);
        reply.error(ErrorCode::ESHUTDOWN, "shutting down", &mut out);
        assert_eq!(answers(&out, 0)[0].error(), 108);
    }
}

#[test]
fn messages_stay_below_the_length_that_kills_other_clients() {
    let request = wire::Request {
        flags: wire::CommandFlags::NONE,
        command: READ,
        cookie: 1,
        offset: 0,
        length: 512,
        payload: 0,
    };
    let mut out = Vec::new();
    let reply = wire::ReplyWriter::new(Framing::Structured, &request);
    reply.error_at(ErrorCode::EIO, &"é".repeat(5000), 100, &mut out);
    assert!(out.len() < 1000);
    let Answer::Chunk { payload, kind: 0x8002, .. } = &answers(&out, 0)[0] else { panic!() };
    let mut fields = Fields(payload);
    let (code, len) = (fields.u32(), fields.u16());
    assert!(std::str::from_utf8(fields.take(len.into())).is_ok());
    assert_eq!((code, fields.u64(), fields.0.len()), (5, 100, 0));
}
