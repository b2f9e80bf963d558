//! Checks 46 to 65, 74, 77 and 78: commands, flags, ranges and replies.

use blackbox::launch::{Serve, Server, needs_ours, stand_in};
use blackbox::nbd::{EXT_REQUEST, Message, REQUEST, cflag, chunk, cmd, err, tflag};
use blackbox::session::{Mode, Request, Session};
use blackbox::temp::pattern;
use blackbox::{MIB, index};

const MODES: [Mode; 3] = [Mode::Simple, Mode::Structured, Mode::Extended];

/// A session in each mode that the server knows, on a fresh memory export.
pub(super) fn each_mode(size: &str, test: impl Fn(&Server, &mut Session)) {
    for mode in MODES {
        let server = Serve::memory(size).start();
        let Some(mut session) = server.try_session(mode, "") else { continue };
        test(&server, &mut session);
        session.assert_alive();
    }
}

/// Whether the error is one of these; a stand-in may choose any.
#[track_caller]
fn assert_error(error: u32, expected: &[u32], what: &str) {
    assert_ne!(error, 0, "{what} should fail");
    assert!(stand_in().is_some() || expected.contains(&error), "{what}: error {error}");
}

#[test]
fn server_check_46_simple_reads_are_exact() {
    let server = Serve::memory("1M").start();
    let mut session = server.session(Mode::Simple, "");
    let disk = pattern(0, index(MIB));
    session.write(0, &disk);
    for (offset, length) in [(0, 1), (1, 1), (511, 2), (4095, 4098), (MIB - 1, 1), (0, MIB)] {
        let answer = session.ask(&Request::new(cmd::READ, offset, length));
        assert!(answer.simple);
        assert!(answer.data == disk[index(offset)..index(offset + length)], "{length} at {offset}");
    }
    session.disconnect();
}

#[test]
fn server_check_47_structured_reads_cover_the_request_once() {
    // `Session` asserts coverage, no overlap and DONE exactly once.
    let server = Serve::memory("8M").start();
    let mut disk = vec![0; index(8 * MIB)];
    let mut writer = server.session(Mode::Simple, "");
    for offset in [0, 100_000, 3 * MIB, 8 * MIB - 5000] {
        let data = pattern(offset, 5000);
        writer.write(offset, &data);
        disk[index(offset)..index(offset) + 5000].copy_from_slice(&data);
    }
    for mode in [Mode::Structured, Mode::Extended] {
        let Some(mut session) = server.try_session(mode, "") else { continue };
        for (offset, length) in [(0, 8 * MIB), (4999, 2), (MIB, MIB), (99_999, 5002), (77, MIB)] {
            let data = session.read(offset, length).unwrap();
            assert!(data == disk[index(offset)..index(offset + length)], "{length} at {offset}");
        }
    }
}

#[test]
fn server_check_48_read_with_bad_flags_fails_in_a_chunk() {
    let server = Serve::memory("1M").start();
    let mut session = server.session(Mode::Structured, "");
    let answer = session.ask(&Request::new(cmd::READ, 0, 512).flags(0x8000));
    assert_eq!(answer.error, err::EINVAL);
    assert!(!answer.simple);
    session.assert_alive();
}

#[test]
fn server_check_49_df_is_one_chunk_over_data_and_hole() {
    let server = Serve::memory("1M").start();
    for mode in [Mode::Structured, Mode::Extended] {
        let Some(mut session) = server.try_session(mode, "") else { continue };
        if !session.has(tflag::SEND_DF) {
            assert!(stand_in().is_some(), "ours has DF");
            return;
        }
        let data = pattern(0, 32768);
        session.write(0, &data);
        let answer = session.ask(&Request::new(cmd::READ, 0, 65536).flags(cflag::DF));
        assert_eq!((answer.error, answer.content_chunks()), (0, 1));
        assert_eq!(answer.data[..32768], data);
        assert_eq!(answer.data[32768..], [0; 32768]);
        // Only above 64 KiB may it call it too long.
        let answer = session.ask(&Request::new(cmd::READ, 0, 65537).flags(cflag::DF));
        assert!([0, err::EOVERFLOW].contains(&answer.error), "{}", answer.error);
    }
}

#[test]
fn server_check_50_df_without_structured_replies_is_invalid() {
    let server = Serve::memory("1M").start();
    let mut session = server.session(Mode::Simple, "");
    let error = session.error_of(&Request::new(cmd::READ, 0, 512).flags(cflag::DF));
    assert_eq!(error, err::EINVAL);
    session.assert_alive();
}

#[test]
fn server_check_51_reads_past_the_end_are_invalid() {
    each_mode("1M", |_, session| {
        for (offset, length) in
            [(MIB - 1, 2), (MIB, 1), (u64::MAX, 2), (u64::MAX, 1), (1 << 63, 512), (0, MIB + 1)]
        {
            for command in [cmd::READ, cmd::TRIM, cmd::CACHE] {
                let error = session.error_of(&Request::new(command, offset, length));
                assert_eq!(error, err::EINVAL, "command {command}: {length} at {offset}");
                session.assert_alive();
            }
        }
    });
}

#[test]
fn server_check_52_writes_past_the_end_run_out_of_space() {
    each_mode("1M", |_, session| {
        for offset in [MIB - 1, MIB, u64::MAX, u64::MAX - 1, 1 << 63] {
            let error = session.error_of(&Request::write(offset, &[9; 2]));
            assert_error(error, &[err::ENOSPC], "WRITE past the end");
            let error = session.error_of(&Request::new(cmd::WRITE_ZEROES, offset, 2));
            assert_error(error, &[err::ENOSPC], "WRITE_ZEROES past the end");
        }
        let error = session.error_of(&Request::write(MIB - 512, &[9; 4096]));
        assert_error(error, &[err::ENOSPC], "WRITE across the end");
        session.assert_alive();
        assert_eq!(session.read(MIB - 512, 512).unwrap(), [0; 512], "nothing was written");
    });
}

#[test]
fn server_check_53_a_read_only_export_permits_no_change() {
    let server = Serve::memory("1M").option("-r").start();
    for mode in MODES {
        let Some(mut session) = server.try_session(mode, "") else { continue };
        assert!(session.has(tflag::READ_ONLY));
        let expected = &[err::EPERM];
        assert_error(session.error_of(&Request::write(0, &[1; 4096])), expected, "WRITE");
        for command in [cmd::TRIM, cmd::WRITE_ZEROES] {
            assert_error(session.error_of(&Request::new(command, 0, 4096)), expected, "change");
        }
        // Checked before the range.
        assert_error(session.error_of(&Request::write(2 * MIB, &[1])), expected, "WRITE far out");
        session.assert_alive();
        assert_eq!(session.read(0, 4096).unwrap(), [0; 4096]);
    }
}

#[test]
fn server_check_54_a_write_of_32_mib() {
    for mode in MODES {
        let server = Serve::memory("64M").start();
        let Some(mut session) = server.try_session(mode, "") else { continue };
        let data = pattern(0, 32 << 20);
        session.write(MIB + 1, &data);
        assert!(session.read(MIB + 1, 32 << 20).unwrap() == data, "32 MiB differ");
        let after = session.read(MIB + 1 + (32 << 20), 512).unwrap();
        assert_eq!(after, [0; 512]);
    }
}

#[test]
fn server_check_57_unknown_commands_are_invalid() {
    each_mode("1M", |_, session| {
        for command in [8, 9, 200, u16::MAX] {
            let error = session.error_of(&Request::new(command, 0, 512));
            assert_eq!(error, err::EINVAL, "command {command}");
        }
    });
}

#[test]
fn server_check_58_unknown_flags_are_invalid() {
    each_mode("1M", |_, session| {
        for flag in [0x8000, 0x4000, 0x40] {
            for command in [cmd::READ, cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES, cmd::FLUSH] {
                let length = if command == cmd::FLUSH { 0 } else { 512 };
                let error = session.error_of(&Request::new(command, 0, length).flags(flag));
                assert_eq!(error, err::EINVAL, "command {command}, flag {flag:#x}");
            }
            let error = session.error_of(&Request::write(0, &[3; 512]).flags(flag));
            assert_eq!(error, err::EINVAL, "WRITE, flag {flag:#x}");
            session.assert_alive();
        }
        assert_eq!(session.read(0, 512).unwrap(), [0; 512], "nothing was written");
    });
}

#[test]
fn server_check_59_flags_of_other_commands_are_invalid() {
    each_mode("1M", |_, session| {
        let read = Request::new(cmd::READ, 0, 512);
        let trim = Request::new(cmd::TRIM, 0, 512);
        let zero = Request::new(cmd::WRITE_ZEROES, 0, 512);
        let write = Request::write(0, &[3; 512]);
        for request in [
            read.clone().flags(cflag::NO_HOLE),
            read.clone().flags(cflag::REQ_ONE),
            read.flags(cflag::FAST_ZERO),
            write.clone().flags(cflag::REQ_ONE),
            write.clone().flags(cflag::NO_HOLE),
            write.clone().flags(cflag::FAST_ZERO),
            write.flags(cflag::DF),
            trim.clone().flags(cflag::FAST_ZERO),
            trim.flags(cflag::NO_HOLE),
            zero.clone().flags(cflag::DF),
            zero.flags(cflag::REQ_ONE),
        ] {
            let (command, flags) = (request.command, request.flags);
            let error = session.error_of(&request);
            assert_eq!(error, err::EINVAL, "command {command}, flags {flags:#x}");
            session.assert_alive();
        }
        assert_eq!(session.read(0, 512).unwrap(), [0; 512], "nothing was written");
    });
}

#[test]
fn server_check_59_payload_flag_without_extended_headers_is_invalid() {
    // The payload of a WRITE is drained; nothing else has one.
    for mode in [Mode::Simple, Mode::Structured] {
        let server = Serve::memory("1M").start();
        let mut session = server.session(mode, "");
        let error = session.error_of(&Request::write(0, &[3; 512]).flags(cflag::PAYLOAD_LEN));
        assert_eq!(error, err::EINVAL);
        let request = Request::new(cmd::TRIM, 0, 512).flags(cflag::PAYLOAD_LEN);
        assert_eq!(session.error_of(&request), err::EINVAL);
        session.assert_alive();
    }
}

#[test]
fn server_check_60_fua_is_accepted_everywhere() {
    each_mode("1M", |_, session| {
        if !session.has(tflag::SEND_FUA) {
            assert!(needs_ours("FUA"), "our memory export has FUA");
            return;
        }
        let mut requests = vec![
            Request::new(cmd::READ, 0, 512),
            Request::new(cmd::FLUSH, 0, 0),
            Request::new(cmd::TRIM, 0, 512),
            Request::new(cmd::WRITE_ZEROES, 0, 512),
            Request::write(0, &[8; 512]),
        ];
        if session.has(tflag::SEND_CACHE) {
            requests.push(Request::new(cmd::CACHE, 0, 512));
        }
        if session.mode != Mode::Simple {
            requests.push(Request::new(cmd::BLOCK_STATUS, 0, 512));
        }
        for request in requests {
            let command = request.command;
            assert_eq!(session.error_of(&request.flags(cflag::FUA)), 0, "command {command}");
        }
        assert_eq!(session.read(0, 512).unwrap(), [8; 512]);
    });
}

#[test]
fn server_check_62_wrong_request_magic_closes() {
    let server = Serve::memory("1M").start();
    let compact = |magic| Message::new().u32(magic).u16(0).u16(0).u64(1).u64(0).u32(512).0;
    for magic in [0, 0x2560_9514, EXT_REQUEST, REQUEST.swap_bytes(), 0x6744_6698] {
        let mut session = server.session(Mode::Simple, "");
        session.socket.offer(&compact(magic));
        session.socket.assert_closed();
        let mut session = server.session(Mode::Structured, "");
        session.socket.offer(&compact(magic));
        session.socket.assert_closed();
    }
    server.session(Mode::Simple, "").assert_alive();
}

#[test]
fn server_check_64_zero_length_requests_are_answered() {
    each_mode("1M", |_, session| {
        for offset in [0, 1, MIB] {
            let mut commands = vec![cmd::READ, cmd::TRIM, cmd::WRITE_ZEROES];
            if session.has(tflag::SEND_CACHE) {
                commands.push(cmd::CACHE);
            }
            if session.mode != Mode::Extended {
                // An extended WRITE without a byte of payload is malformed: check 89.
                commands.push(cmd::WRITE);
            }
            for command in commands {
                let error = session.error_of(&Request::new(command, offset, 0));
                // Ours: success. Others may refuse.
                assert!(error == 0 || stand_in().is_some(), "command {command}: error {error}");
                session.assert_alive();
            }
            if session.mode != Mode::Simple {
                let error = session.error_of(&Request::new(cmd::BLOCK_STATUS, offset, 0));
                assert_eq!(error, err::EINVAL);
                session.assert_alive();
            }
        }
        // Past the end even nothing is out of range: success or an error, but an answer.
        session.error_of(&Request::new(cmd::READ, MIB + 1, 0));
    });
}

#[test]
fn server_check_65_flush_with_a_range_is_answered() {
    each_mode("1M", |_, session| {
        for (offset, length) in [(1, 0), (0, 512), (u64::MAX, 0), (MIB, 512)] {
            let error = session.error_of(&Request::new(cmd::FLUSH, offset, length));
            assert!([0, err::EINVAL].contains(&error), "{length} at {offset}: error {error}");
            session.assert_alive();
        }
    });
}

#[test]
fn server_check_74_disconnect_after_pending_reads_answers_them() {
    each_mode("16M", |server, _| {
        for mode in MODES {
            let Some(mut session) = server.try_session(mode, "") else { continue };
            let cookies: Vec<u64> =
                (0..8).map(|n| session.send(&Request::new(cmd::READ, n * MIB, MIB))).collect();
            // Offset and length of DISC should be 0: junk there must not matter.
            let junk = Request::new(cmd::DISC, 12345, 678);
            let bytes = session.bytes(&junk, 0xdead);
            session.socket.send(&bytes);
            for cookie in cookies {
                assert_eq!(session.wait(cookie).error, 0);
            }
            session.socket.assert_closed();
        }
    });
}

#[test]
fn server_check_77_duplicate_cookies_are_both_answered() {
    let server = Serve::memory("1M").start();
    let mut session = server.session(Mode::Simple, "");
    session.write(0, &[6; 4096]);
    let request = Request::new(cmd::READ, 0, 4096);
    let mut both = Vec::new();
    for _ in 0..2 {
        session.register_as(&request, 42);
        both.extend(session.bytes(&request, 42));
    }
    session.socket.send(&both);
    for _ in 0..2 {
        assert_eq!(session.wait(42).data, [6; 4096]);
    }
}

#[test]
fn server_check_78_large_and_small_requests_mixed() {
    for mode in MODES {
        let server = Serve::memory("64M").start();
        let Some(mut session) = server.try_session(mode, "") else { continue };
        let disk = pattern(0, index(16 * MIB));
        session.write(0, &disk);
        // Sent in one piece, so that the server finds them all at once.
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for n in 0..40 {
            let (offset, length) = if n % 4 == 0 { (n * 1000, 8 * MIB) } else { (n * 4096, 17) };
            let request = Request::new(cmd::READ, offset, length);
            let cookie = session.register(&request);
            bytes.extend(session.bytes(&request, cookie));
            expected.push((cookie, offset, length));
            let request = Request::new(if n % 2 == 0 { cmd::FLUSH } else { cmd::CACHE }, 0, 0);
            let cookie = session.register(&request);
            bytes.extend(session.bytes(&request, cookie));
        }
        session.socket.send(&bytes);
        for (cookie, offset, length) in expected {
            let answer = session.wait(cookie);
            assert_eq!(answer.error, 0);
            assert!(answer.data == disk[index(offset)..index(offset + length)], "at {offset}");
        }
        while session.outstanding() > 0 {
            session.frame();
        }
    }
}

#[test]
fn server_check_46_requests_split_at_every_byte() {
    let server = Serve::memory("1M").start();
    for mode in MODES {
        let Some(mut session) = server.try_session(mode, "") else { continue };
        let request = Request::write(100, b"split at every byte");
        let cookie = session.register(&request);
        for byte in session.bytes(&request, cookie) {
            session.socket.send(&[byte]);
            std::thread::sleep(std::time::Duration::from_micros(300));
        }
        assert_eq!(session.wait(cookie).error, 0);
        assert_eq!(session.read(100, 19).unwrap(), b"split at every byte");
    }
}

#[test]
fn server_check_46_a_failing_backend_gives_its_error_and_no_bytes() {
    if needs_ours("a device that is always full") {
        return;
    }
    let server = Serve::device(["full", "1M"]).start();
    for mode in MODES {
        let Some(mut session) = server.try_session(mode, "") else { continue };
        assert_eq!(session.error_of(&Request::write(0, &[1; 512])), err::ENOSPC);
        assert_eq!(session.read(0, 512).unwrap(), [0; 512]);
        let last = session.ask(&Request::new(cmd::READ, 0, 512));
        let done = |c: &blackbox::session::Chunk| c.flags & chunk::DONE != 0;
        assert!(last.simple || last.chunks.iter().filter(|c| done(c)).count() == 1);
    }
}
