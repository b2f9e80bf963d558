//! Checks 1 to 27 and 38: greeting, options, INFO and GO, EXPORT_NAME.

use std::time::Duration;

use blackbox::haggle::{Haggler, option_bytes};
use blackbox::launch::{Serve, Server, needs_ours};
use blackbox::nbd::{
    Cursor, FIXED_NEWSTYLE, IHAVEOPT, Message, NBDMAGIC, NO_ZEROES, go_data, info, opt, rep, tflag,
};
use blackbox::session::Mode;
use blackbox::{MIB, index};

fn memory() -> Server {
    Serve::memory("1M").start()
}

/// Two exports, so that a name can be wrong.
fn named() -> Server {
    Serve::exports(&[("alpha", "memory:1M"), ("beta", "memory:2M")]).start()
}

#[test]
fn server_check_01_greeting_is_18_bytes_and_nothing_more() {
    let server = memory();
    let mut socket = server.connect();
    let greeting = socket.receive(18, "the greeting");
    let mut cursor = Cursor(&greeting);
    assert_eq!(cursor.u64(), NBDMAGIC);
    assert_eq!(cursor.u64(), IHAVEOPT);
    assert_eq!(cursor.u16(), FIXED_NEWSTYLE | NO_ZEROES, "both flags are offered, no other");
    socket.assert_silent(Duration::from_millis(200));
}

#[test]
fn server_check_02_unknown_client_flags_close_the_connection() {
    let server = memory();
    for flags in [4, 7, 1 << 31, u32::MAX] {
        let mut haggler = Haggler::with_flags(server.connect(), flags);
        haggler.socket.offer(&option_bytes(opt::LIST, &[]));
        haggler.socket.assert_closed();
    }
}

#[test]
fn server_check_03_unknown_option_is_skipped_and_refused() {
    let server = memory();
    let mut haggler = server.haggle();
    assert_eq!(haggler.outcome(99, &[0xaa; 1000]), rep::UNSUP);
    assert_eq!(haggler.outcome(4, b"name"), rep::UNSUP, "PEEK_EXPORT was withdrawn");
    assert_eq!(haggler.outcome(u32::MAX, &[]), rep::UNSUP);
    haggler.assert_alive();
}

#[test]
fn server_check_03_unknown_options_of_a_mebibyte_keep_it_in_step() {
    let server = memory();
    let mut haggler = server.haggle();
    let outcome = haggler.outcome(99, &vec![0x49; index(MIB)]);
    assert!([rep::UNSUP, rep::TOO_BIG].contains(&outcome), "{outcome:#x}");
    haggler.assert_alive();
}

#[test]
fn server_check_04_wrong_option_magic_closes() {
    let server = memory();
    let mut haggler = server.haggle();
    haggler.socket.send(&Message::new().u64(NBDMAGIC).u32(opt::LIST).u32(0).0);
    haggler.socket.assert_closed();
}

#[test]
fn server_check_05_option_in_segments_of_one_byte() {
    let server = memory();
    let mut haggler = server.haggle();
    for byte in option_bytes(opt::GO, &go_data(b"", &[info::BLOCK_SIZE])) {
        haggler.socket.send(&[byte]);
        std::thread::sleep(Duration::from_millis(1));
    }
    let replies = haggler.replies(opt::GO);
    assert_eq!(replies.last().unwrap().kind, rep::ACK);
}

#[test]
fn server_check_06_option_of_4_gib_closes_without_allocating() {
    let server = memory();
    for option in [99, opt::GO, opt::EXPORT_NAME, opt::SET_META_CONTEXT, opt::LIST] {
        let before = server.peak_memory();
        let mut haggler = server.haggle();
        haggler.socket.send(&Message::new().u64(IHAVEOPT).u32(option).u32(u32::MAX).0);
        // A server may send the reason first; what counts is that it neither waits nor allocates.
        haggler.socket.drain();
        let grown = server.peak_memory() - before;
        assert!(grown < 16 * MIB, "{grown} bytes for an option of 4 GiB ({option})");
    }
}

#[test]
fn server_check_07_list_names_each_export_then_acks() {
    let server = memory();
    let list = server.haggle().list();
    assert_eq!(list.len(), 1, "{list:?}");
    if needs_ours("list of several exports") {
        return;
    }
    let server = named();
    let names: Vec<String> = server.haggle().list().into_iter().map(|(name, _)| name).collect();
    for name in ["alpha", "beta"] {
        assert!(names.iter().any(|n| n == name), "{name} is not in {names:?}");
    }
    // Whether the default export is listed under its empty name too is the server's choice.
    assert!(names.iter().all(|n| ["alpha", "beta", ""].contains(&n.as_str())), "{names:?}");
}

#[test]
fn server_check_08_list_with_data_is_invalid() {
    let server = memory();
    let mut haggler = server.haggle();
    assert_eq!(haggler.outcome(opt::LIST, &[1, 2, 3, 4]), rep::INVALID);
    haggler.assert_alive();
}

#[test]
fn server_check_09_abort_is_acknowledged_then_closed() {
    let server = memory();
    for data in [&[][..], &[0; 10]] {
        let mut haggler = server.haggle();
        assert_eq!(haggler.outcome(opt::ABORT, data), rep::ACK);
        haggler.socket.assert_closed();
    }
}

#[test]
fn server_check_10_abort_then_reset_is_survived() {
    let server = memory();
    for _ in 0..20 {
        let mut haggler = server.haggle();
        haggler.send(opt::ABORT, &[]);
        haggler.socket.reset();
    }
    server.haggle().assert_alive();
}

#[test]
fn server_check_11_export_name_with_and_without_padding() {
    let server = memory();
    for (flags, padding) in [(3, 0), (1, 124)] {
        let mut haggler = Haggler::with_flags(server.connect(), flags);
        haggler.send(opt::EXPORT_NAME, b"");
        let reply = haggler.socket.receive(10 + padding, "the reply to EXPORT_NAME");
        let mut cursor = Cursor(&reply);
        assert_eq!(cursor.u64(), MIB);
        let export =
            blackbox::haggle::Export { size: MIB, flags: cursor.u16(), ..Default::default() };
        assert!(cursor.0.iter().all(|b| *b == 0), "the padding is zeroes: {reply:02x?}");
        haggler.socket.assert_silent(Duration::from_millis(100));
        let mut session = haggler.into_session(export);
        session.assert_alive();
        session.disconnect();
    }
}

#[test]
fn server_check_12_export_name_that_cannot_be_served_closes() {
    if needs_ours("strict export names") {
        return;
    }
    let server = named();
    for name in [&b"gamma"[..], &[b'a'; 4097], b"al\0pha", b"alpha\0"] {
        let mut haggler = server.haggle();
        haggler.socket.offer(&option_bytes(opt::EXPORT_NAME, name));
        haggler.socket.assert_closed();
    }
    server.session(Mode::Simple, "alpha").assert_alive();
}

#[test]
fn server_check_13_not_fixed_newstyle_may_use_export_name() {
    let server = memory();
    let mut haggler = Haggler::with_flags(server.connect(), 0);
    haggler.send(opt::EXPORT_NAME, b"");
    let reply = haggler.socket.receive(134, "the reply to EXPORT_NAME");
    let mut cursor = Cursor(&reply);
    let export =
        blackbox::haggle::Export { size: cursor.u64(), flags: cursor.u16(), ..Default::default() };
    assert_eq!(export.size, MIB);
    haggler.into_session(export).assert_alive();
}

#[test]
fn server_check_14_not_fixed_newstyle_may_not_list() {
    let server = memory();
    let mut haggler = Haggler::with_flags(server.connect(), 0);
    haggler.socket.send(&option_bytes(opt::LIST, &[]));
    haggler.socket.finish_sending();
    // Closed, or an error reply first: never the list.
    let seen = haggler.socket.drain();
    if !seen.is_empty() {
        let kind = u32::from_be_bytes(seen[12..16].try_into().unwrap());
        assert_ne!(kind & rep::ERROR, 0, "LIST was answered: {seen:02x?}");
    }
}

#[test]
fn server_check_15_empty_name_is_the_default_export() {
    let server = memory();
    let export = server.haggle().export(opt::GO, "", &[]).unwrap();
    assert_eq!(export.size, MIB);
    if needs_ours("default export among several") {
        return;
    }
    let server = named();
    let export = server.haggle().export(opt::GO, "", &[]).unwrap();
    assert_eq!(export.size, MIB, "the first export is the default one");
    let server = Serve::exports(&[("alpha", "memory:1M"), ("beta", "memory:2M")])
        .option("--default-export")
        .option("beta")
        .start();
    assert_eq!(server.haggle().export(opt::GO, "", &[]).unwrap().size, 2 * MIB);
}

#[test]
fn server_check_16_go_without_ids_describes_the_export_and_waits() {
    let server = memory();
    let mut haggler = server.haggle();
    let export = haggler.export(opt::GO, "", &[]).unwrap();
    assert_eq!(export.size, MIB);
    haggler.socket.assert_silent(Duration::from_millis(100));
    haggler.into_session(export).assert_alive();
}

#[test]
fn server_check_17_go_unknown_name_is_refused_without_information() {
    if needs_ours("strict export names") {
        return;
    }
    let server = named();
    for option in [opt::INFO, opt::GO] {
        let mut haggler = server.haggle();
        let replies = haggler.ask(option, &go_data(b"gamma", &[info::BLOCK_SIZE]));
        assert_eq!(replies.len(), 1, "no INFO before the refusal: {replies:02x?}");
        assert_eq!(replies[0].kind, rep::UNKNOWN);
        haggler.assert_alive();
        haggler.go("beta").assert_alive();
    }
}

#[test]
fn server_check_18_malformed_go_is_invalid() {
    let server = memory();
    let mut haggler = server.haggle();
    let cases = [
        ("no data", vec![]),
        ("five bytes", vec![0; 5]),
        ("a name longer than the option", Message::new().u32(1).u16(0).0),
        ("a name of 4 GiB", Message::new().u32(u32::MAX).u16(0).0),
        ("a name that leaves one byte", Message::new().u32(5).bytes(b"abcd").u16(0).0),
        ("fewer ids than told", Message::new().u32(0).u16(2).u16(3).0),
        ("65535 ids that are not there", Message::new().u32(0).u16(u16::MAX).0),
        ("a byte left over", Message::new().u32(0).u16(0).bytes(&[0]).0),
        ("an id left over", Message::new().u32(0).u16(0).u16(3).0),
    ];
    for (what, data) in cases {
        for option in [opt::INFO, opt::GO] {
            assert_eq!(haggler.outcome(option, &data), rep::INVALID, "{what}");
            haggler.assert_alive();
        }
    }
    haggler.go("").assert_alive();
}

#[test]
fn server_check_19_go_with_a_name_too_long_is_an_error() {
    let server = memory();
    let mut haggler = server.haggle();
    for size in [4097, 65536] {
        // Which error is left open: the name may be called invalid, unknown or too big.
        let outcome = haggler.outcome(opt::GO, &go_data(&vec![b'x'; size], &[]));
        assert_ne!(outcome & rep::ERROR, 0, "{outcome:#x}");
        haggler.assert_alive();
    }
}

#[test]
fn server_check_19_names_with_odd_bytes_are_errors() {
    if needs_ours("strict export names") {
        return;
    }
    let server = named();
    let mut haggler = server.haggle();
    for name in [&b"al\0pha"[..], b"\xff\xfe", &[b'n'; 4096], b"../alpha", b"alpha ", b"ALPHA"] {
        let outcome = haggler.outcome(opt::GO, &go_data(name, &[]));
        assert_ne!(outcome & rep::ERROR, 0, "{name:?}: {outcome:#x}");
        haggler.assert_alive();
    }
}

#[test]
fn server_check_20_unknown_information_ids_are_ignored() {
    let server = memory();
    let ids: Vec<u16> = (0xfff0..=0xffff).collect();
    assert_eq!(server.haggle().export(opt::GO, "", &ids).unwrap().size, MIB);
}

#[test]
fn server_check_21_go_sends_name_description_and_block_sizes_once() {
    let server = memory();
    let ids = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE];
    let export = server.haggle().export(opt::GO, "", &ids).unwrap();
    let Some((min, preferred, max)) = export.block_sizes else {
        assert!(needs_ours("block sizes"), "block sizes were asked for");
        return;
    };
    assert!(min.is_power_of_two() && min <= 65536, "minimum {min}");
    assert!(preferred.is_power_of_two() && preferred >= min.max(512), "preferred {preferred}");
    assert!(max >= preferred && u64::from(max) >= MIB, "maximum {max}");
    if max != u32::MAX {
        assert_eq!(max % min, 0, "maximum {max} is a multiple of the minimum {min}");
    }
    // Ours takes any alignment and 32 MiB at once.
    if !needs_ours("documented block sizes") {
        assert_eq!(min, 1);
        assert_eq!(max, 32 << 20);
    }
}

#[test]
fn server_check_21_description_is_sent_when_there_is_one() {
    if needs_ours("descriptions") {
        return;
    }
    let server = Serve::memory("1M").option("--description").option("A disk of ours").start();
    let export = server.haggle().export(opt::GO, "", &[info::DESCRIPTION]).unwrap();
    assert_eq!(export.description.as_deref(), Some("A disk of ours"));
    let list = server.haggle().list();
    assert!(list.iter().any(|(_, text)| text == "A disk of ours"), "{list:?}");
}

#[test]
fn server_check_22_info_then_go_agree() {
    let server = memory();
    let mut haggler = server.haggle();
    let ids = [info::BLOCK_SIZE, info::DESCRIPTION];
    let told = haggler.export(opt::INFO, "", &ids).unwrap();
    assert_eq!(haggler.export(opt::GO, "", &ids).unwrap(), told);
}

#[test]
fn server_check_23_info_does_not_end_the_handshake() {
    let server = memory();
    let mut haggler = server.haggle();
    haggler.export(opt::INFO, "", &[]).unwrap();
    assert!(!haggler.list().is_empty());
    haggler.go("").assert_alive();
}

#[test]
fn server_check_24_structured_reply_agreed_once() {
    let server = memory();
    let mut haggler = server.haggle();
    assert_eq!(haggler.outcome(opt::STRUCTURED_REPLY, &[1]), rep::INVALID);
    haggler.assert_alive();
    assert!(haggler.structured());
    let again = haggler.outcome(opt::STRUCTURED_REPLY, &[]);
    assert!([rep::ACK, rep::INVALID].contains(&again), "{again:#x}");
    haggler.assert_alive();
    haggler.go("").assert_alive();
}

#[test]
fn server_check_24_structured_reply_with_data_agrees_to_nothing() {
    let server = memory();
    let mut haggler = server.haggle();
    assert_eq!(haggler.outcome(opt::STRUCTURED_REPLY, &[1]), rep::INVALID);
    let mut session = haggler.go("");
    assert!(!session.has(tflag::SEND_DF));
    session.assert_alive();
}

#[test]
fn server_check_25_df_is_offered_only_with_structured_replies() {
    let server = memory();
    // `into_session` asserts the absence; here the presence, and that it works.
    server.session(Mode::Simple, "").assert_alive();
    let mut session = server.session(Mode::Structured, "");
    if session.has(tflag::SEND_DF) {
        let read = blackbox::session::Request::new(0, 0, 4096).flags(blackbox::nbd::cflag::DF);
        let answer = session.ask(&read);
        assert_eq!((answer.error, answer.content_chunks()), (0, 1));
    }
}

#[test]
fn server_check_26_extended_headers_rule_out_structured_replies() {
    let server = memory();
    let mut haggler = server.haggle();
    if !haggler.extended() {
        assert!(needs_ours("extended headers"), "ours has extended headers");
        return;
    }
    assert_eq!(haggler.outcome(opt::STRUCTURED_REPLY, &[]), rep::EXT_HEADER_REQD);
    haggler.assert_alive();
    let mut session = haggler.go("");
    session.assert_alive();
}

#[test]
fn server_check_26_extended_headers_with_data_or_after_structured_replies() {
    let server = memory();
    let mut haggler = server.haggle();
    let refused = haggler.outcome(opt::EXTENDED_HEADERS, &[0]);
    assert!([rep::INVALID, rep::UNSUP].contains(&refused), "{refused:#x}");
    assert!(haggler.structured());
    if haggler.extended() {
        haggler.go("").assert_alive();
    } else {
        assert!(needs_ours("extended headers"), "structured replies first is allowed");
    }
}

#[test]
fn server_check_27_export_name_after_extended_headers_closes() {
    let server = memory();
    let mut haggler = server.haggle();
    if !haggler.extended() {
        assert!(needs_ours("extended headers"));
        return;
    }
    haggler.send(opt::EXPORT_NAME, b"");
    haggler.socket.assert_closed();
}

#[test]
fn server_check_38_starttls_without_tls_is_refused() {
    let server = memory();
    let mut haggler = server.haggle();
    let outcome = haggler.outcome(opt::STARTTLS, &[]);
    assert!([rep::POLICY, rep::UNSUP].contains(&outcome), "{outcome:#x}");
    haggler.assert_alive();
    // Nothing was forgotten or begun: the session is plain and works.
    assert!(haggler.structured());
    haggler.go("").assert_alive();
}
