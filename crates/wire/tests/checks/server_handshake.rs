//! Checks 1 to 37: the server's handshake in plain text.

use wire::{Framing, ServerHandshake, ServerPolicy, TransmissionFlags};

use crate::bytes::{
    ACK, Ask, Bytes, EINVAL, EXT_REQD, Fields, INFO, INVALID, META, SERVER, TOO_BIG, UNKNOWN,
    UNSUP, go, info, kinds, meta, option, option_replies,
};
use crate::model::{Connection, Menu, SIZE};

/// Whether the connection is still in the handshake.
fn negotiates(connection: &mut Connection) -> bool {
    connection.is_open() && kinds(&connection.send(option(99, []))) == [UNSUP]
}

fn flags_of(info: &[u8]) -> TransmissionFlags {
    let mut fields = Fields(info);
    assert_eq!((fields.u16(), fields.u64()), (0, SIZE as u64));
    let flags = fields.u16();
    assert!(fields.0.is_empty());
    TransmissionFlags(flags)
}

#[test]
fn server_check_01_greeting_is_eighteen_bytes() {
    let greeting = ServerHandshake::new(ServerPolicy::default()).greeting();
    assert_eq!(greeting, Bytes::new().raw(b"NBDMAGICIHAVEOPT").u16(3).0);
}

#[test]
fn server_check_02_client_flags_that_were_not_advertised_end_the_connection() {
    for flags in [4, 7, 0x1_0000, u32::MAX] {
        let mut connection = Connection::raw(ServerPolicy::default());
        assert_eq!(connection.send(Bytes::new().u32(flags)), b"");
        assert!(!connection.is_open(), "flags {flags:x}");
    }
    let mut masked = Connection::raw(ServerPolicy { no_zeroes: false, ..ServerPolicy::default() });
    masked.send(Bytes::new().u32(3));
    assert!(!masked.is_open());
}

#[test]
fn server_check_03_unknown_option_is_skipped_and_unsupported() {
    let mut connection = Connection::new();
    let replies = option_replies(&connection.send(option(99, [7; 1000])));
    assert_eq!((replies[0].0, replies[0].1, replies.len()), (99, UNSUP, 1));
    assert!(negotiates(&mut connection));
}

#[test]
fn server_check_04_wrong_option_magic_ends_the_connection() {
    let mut connection = Connection::new();
    connection.send(Bytes::new().raw(b"IHAVEOPS").u32(3).u32(0));
    assert!(!connection.is_open());
}

#[test]
fn server_check_05_option_in_segments_of_one_byte() {
    let mut connection = Connection::new();
    let mut out = Vec::new();
    let message = info(7, "disk", &[3]);
    for (index, byte) in message.0.iter().enumerate() {
        assert_eq!(out, b"", "nothing is answered before byte {index}");
        out.extend(connection.send([*byte]));
    }
    assert_eq!(kinds(&out), [INFO, INFO, ACK]);
}

#[test]
fn server_check_06_option_length_of_four_gigabytes_ends_the_connection() {
    let mut connection = Connection::new();
    connection.send(Bytes::new().raw(b"IHAVEOPT").u32(99).u32(u32::MAX));
    assert!(!connection.is_open());
}

#[test]
fn server_check_06_option_above_the_buffer_is_drained_and_too_big() {
    let mut connection = Connection::new();
    let len = 2 << 20;
    connection.send(Bytes::new().raw(b"IHAVEOPT").u32(10).u32(len));
    for _ in 0..len / 65536 - 1 {
        assert_eq!(connection.send([0; 65536]), b"");
    }
    assert_eq!(kinds(&connection.send([0; 65536])), [TOO_BIG]);
    assert!(negotiates(&mut connection));
}

#[test]
fn server_check_07_list_names_every_export() {
    let mut connection = Connection::new();
    let replies = option_replies(&connection.send(option(3, [])));
    let kinds: Vec<u32> = replies.iter().map(|reply| reply.1).collect();
    assert_eq!(kinds, [SERVER, SERVER, SERVER, ACK]);
    assert_eq!(replies[1].2, Bytes::new().counted("disk").raw("about disk").0);
    assert!(replies[3].2.is_empty());
}

#[test]
fn server_check_08_list_with_data_is_invalid() {
    let mut connection = Connection::new();
    assert_eq!(kinds(&connection.send(option(3, [0; 4]))), [INVALID]);
    assert!(negotiates(&mut connection));
}

#[test]
fn server_check_09_abort_is_acknowledged_and_closes() {
    for data in [&[][..], &[1, 2, 3]] {
        let mut connection = Connection::new();
        assert_eq!(kinds(&connection.send(option(2, data))), [ACK]);
        assert!(connection.aborted);
    }
}

#[test]
fn server_check_11_export_name_with_and_without_zeroes() {
    for (flags, length) in [(3, 10), (1, 134), (0, 134), (2, 10)] {
        let mut connection = Connection::raw(ServerPolicy::default());
        connection.send(Bytes::new().u32(flags));
        let reply = connection.send(option(1, "disk"));
        assert_eq!(reply.len(), length, "client flags {flags}");
        assert_eq!(Fields(&reply).u64(), SIZE as u64);
        assert!(reply[10..].iter().all(|byte| *byte == 0));
        assert!(connection.is_alive());
    }
}

#[test]
fn server_check_12_export_name_that_cannot_be_served_closes() {
    let long = "x".repeat(4097);
    for name in ["nope", long.as_str(), "di\0sk"] {
        let mut connection = Connection::new();
        assert_eq!(connection.send(option(1, name)), b"");
        assert!(!connection.is_open());
    }
    let mut connection = Connection::new();
    assert_eq!(connection.send(option(1, [0xff, 0xfe])), b"");
    assert!(!connection.is_open());
}

#[test]
fn server_check_13_export_name_without_fixed_newstyle() {
    let mut connection = Connection::raw(ServerPolicy::default());
    connection.send(Bytes::new().u32(0));
    assert_eq!(connection.send(option(1, "")).len(), 134);
    assert!(connection.is_alive());
}

#[test]
fn server_check_14_list_without_fixed_newstyle_closes() {
    let mut connection = Connection::raw(ServerPolicy::default());
    connection.send(Bytes::new().u32(0));
    assert_eq!(connection.send(option(3, [])), b"");
    assert!(!connection.is_open());
}

#[test]
fn server_check_15_go_with_an_empty_name_is_the_default_export() {
    let mut connection = Connection::new();
    assert_eq!(kinds(&connection.send(go(""))), [INFO, ACK]);
    assert_eq!(connection.session().canonical_name.as_deref(), Some("disk"));
}

#[test]
fn server_check_16_go_without_ids_sends_the_size_and_nothing_after_the_ack() {
    let mut connection = Connection::new();
    let replies = option_replies(&connection.send(go("disk")));
    assert_eq!((replies[0].2.len(), replies[1].1, replies.len()), (12, ACK, 2));
    flags_of(&replies[0].2);
    assert_eq!(connection.send([]), b"");
}

#[test]
fn server_check_17_go_for_an_unknown_name_leaves_the_session_negotiating() {
    let mut connection = Connection::new();
    assert_eq!(kinds(&connection.send(go("nope"))), [UNKNOWN]);
    assert_eq!(kinds(&connection.send(go("disk"))), [INFO, ACK]);
    assert!(connection.is_alive());
}

#[test]
fn server_check_18_go_with_lengths_that_do_not_fit_is_invalid() {
    let mut connection = Connection::new();
    for data in [
        Bytes::new(),
        Bytes::new().u32(0),
        Bytes::new().u32(5).raw("disk").u16(0),
        Bytes::new().u32(u32::MAX).raw("disk").u16(0),
        Bytes::new().counted("disk").u16(1),
        Bytes::new().counted("disk").u16(0).u16(3),
        Bytes::new().counted("disk").u16(1).raw([3]),
    ] {
        assert_eq!(kinds(&connection.send(option(7, data))), [INVALID]);
    }
    assert!(negotiates(&mut connection));
}

#[test]
fn server_check_19_go_with_a_name_too_long_is_an_error() {
    let mut connection = Connection::new();
    let reply = kinds(&connection.send(go(&"x".repeat(4097))));
    assert!(reply == [TOO_BIG] || reply == [INVALID]);
    assert_eq!(kinds(&connection.send(go("d\0"))), [INVALID]);
    assert!(negotiates(&mut connection));
}

#[test]
fn server_check_20_unknown_info_ids_are_ignored() {
    let mut connection = Connection::new();
    assert_eq!(kinds(&connection.send(info(7, "disk", &[0xfff0]))), [INFO, ACK]);
}

#[test]
fn server_check_21_every_information_comes_once_and_is_well_formed() {
    let mut connection = Connection::new();
    let replies = option_replies(&connection.send(info(7, "", &[1, 2, 3, 3, 1])));
    let infos: Vec<_> = replies.iter().filter(|reply| reply.1 == INFO).collect();
    let ids: Vec<u16> = infos.iter().map(|reply| Fields(&reply.2).u16()).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
    assert_eq!(infos[1].2[2..], *b"disk");
    assert_eq!(infos[2].2[2..], *b"a disk for tests");
    let mut blocks = Fields(&infos[3].2[2..]);
    let (minimum, preferred, maximum) = (blocks.u32(), blocks.u32(), blocks.u32());
    assert!(blocks.0.is_empty());
    assert!(minimum.is_power_of_two() && preferred.is_power_of_two());
    assert!(minimum <= preferred && preferred >= 512 && maximum >= preferred);
}

#[test]
fn server_check_22_info_and_the_same_go_agree() {
    let mut connection = Connection::new();
    let asked = option_replies(&connection.send(info(6, "disk", &[1, 2, 3])));
    let went = option_replies(&connection.send(info(7, "disk", &[1, 2, 3])));
    let data = |replies: Vec<(u32, u32, Vec<u8>)>| -> Vec<_> {
        replies.into_iter().map(|reply| (reply.1, reply.2)).collect()
    };
    assert_eq!(data(asked), data(went));
}

#[test]
fn server_check_23_after_info_the_handshake_goes_on() {
    let mut connection = Connection::new();
    assert_eq!(kinds(&connection.send(info(6, "disk", &[]))), [INFO, ACK]);
    assert_eq!(kinds(&connection.send(option(3, []))).last(), Some(&ACK));
    assert!(negotiates(&mut connection));
}

#[test]
fn server_check_24_structured_replies_once_and_without_data() {
    let mut connection = Connection::new();
    assert_eq!(kinds(&connection.send(option(8, [0]))), [INVALID]);
    assert_eq!(kinds(&connection.send(option(8, []))), [ACK]);
    assert_eq!(kinds(&connection.send(option(8, []))), [INVALID]);
    assert!(negotiates(&mut connection));
}

#[test]
fn server_check_25_df_is_advertised_with_chunks_only() {
    let simple = Connection::transmitting(Framing::Simple);
    assert!(!simple.session().flags.contains(TransmissionFlags::SEND_DF));
    for mode in [Framing::Structured, Framing::Extended] {
        let chunked = Connection::transmitting(mode);
        assert!(chunked.session().flags.contains(TransmissionFlags::SEND_DF));
    }
}

#[test]
fn server_check_25_flags_on_the_wire_are_those_of_the_session() {
    for agree in [None, Some(8), Some(11)] {
        let mut connection = Connection::new();
        if let Some(agree) = agree {
            connection.send(option(agree, []));
        }
        let replies = option_replies(&connection.send(go("ro")));
        let flags = flags_of(&replies[0].2);
        assert_eq!(flags, connection.session().flags);
        assert!(flags.contains(TransmissionFlags::HAS_FLAGS.with(TransmissionFlags::READ_ONLY)));
        assert!(!flags.contains(TransmissionFlags::SEND_TRIM));
        assert!(!flags.contains(TransmissionFlags::SEND_FAST_ZERO));
        let payload = flags.contains(TransmissionFlags::BLOCK_STATUS_PAYLOAD);
        assert_eq!(payload, agree == Some(11));
    }
}

#[test]
fn server_check_26_structured_replies_are_refused_under_extended_headers() {
    let mut connection = Connection::new();
    assert_eq!(kinds(&connection.send(option(11, [0]))), [INVALID]);
    assert_eq!(kinds(&connection.send(option(11, []))), [ACK]);
    assert_eq!(kinds(&connection.send(option(8, []))), [EXT_REQD]);
    assert_eq!(kinds(&connection.send(option(11, []))), [INVALID]);
    let mut without = Connection::with(ServerPolicy { extended: false, ..ServerPolicy::default() });
    assert_eq!(kinds(&without.send(option(11, []))), [UNSUP]);
    assert_eq!(kinds(&without.send(option(8, []))), [ACK]);
}

#[test]
fn server_check_27_export_name_under_extended_headers_closes() {
    let mut connection = Connection::new();
    connection.send(option(11, []));
    assert_eq!(connection.send(option(1, "disk")), b"");
    assert!(!connection.is_open());
}

#[test]
fn server_check_28_selecting_contexts_needs_chunks() {
    let mut connection = Connection::new();
    let reply = kinds(&connection.send(meta(10, "disk", &["base:allocation"])));
    assert_eq!(reply, [INVALID]);
    assert!(negotiates(&mut connection));
}

#[test]
fn server_check_29_listing_contexts_without_queries_names_all() {
    let mut connection = Connection::new();
    connection.send(option(8, []));
    let replies = option_replies(&connection.send(meta(9, "disk", &[])));
    assert_eq!(replies[0].1, META);
    assert_eq!(replies[0].2, Bytes::new().u32(0).raw("base:allocation").0);
    assert_eq!(replies.len(), 4);
    assert_eq!(replies[3].1, ACK);
}

#[test]
fn server_check_30_a_namespace_is_a_wildcard_for_listing_only() {
    let mut connection = Connection::new();
    connection.send(option(8, []));
    let listed = kinds(&connection.send(meta(9, "disk", &["base:"])));
    assert_eq!(listed, [META, ACK]);
    assert_eq!(kinds(&connection.send(meta(9, "disk", &["test:"]))), [META, META, ACK]);
    assert_eq!(kinds(&connection.send(meta(10, "disk", &["base:"]))), [ACK]);
}

#[test]
fn server_check_31_unknown_contexts_are_left_out() {
    let mut connection = Connection::new();
    connection.send(option(8, []));
    let queries = ["base:allocation", "foo:bar", "base:nope", "nocolon", ""];
    assert_eq!(kinds(&connection.send(meta(10, "disk", &queries))), [META, ACK]);
}

#[test]
fn server_check_32_context_queries_that_lie_about_their_lengths() {
    let mut connection = Connection::new();
    connection.send(option(8, []));
    for data in [
        Bytes::new().counted("disk").u32(1).u32(100).raw("base:"),
        Bytes::new().counted("disk").u32(u32::MAX),
        Bytes::new().counted("disk").u32(2).counted("base:allocation"),
        Bytes::new().counted("disk").u32(0).raw("more"),
        Bytes::new().u32(u32::MAX).raw("disk"),
        Bytes::new().u32(4).raw("disk"),
    ] {
        assert_eq!(kinds(&connection.send(option(10, data))), [INVALID]);
    }
    let many = vec![""; 2000];
    assert_eq!(kinds(&connection.send(meta(10, "disk", &many))), [TOO_BIG]);
    assert!(negotiates(&mut connection));
}

fn block_status_error(connection: &mut Connection) -> u32 {
    let answers = connection.ask(Ask { command: 7, length: 4096, ..Ask::default() }, &[]);
    assert!(answers[0].is_chunk());
    answers[0].error()
}

#[test]
fn server_check_33_a_failed_selection_forgets_the_earlier_one() {
    for failing in [
        option(10, Bytes::new().counted("disk").u32(9)),
        option(10, vec![0; (1 << 20) + 1]),
        meta(10, "disk", &vec![""; 2000]),
    ] {
        let mut connection = Connection::new();
        connection.send(option(8, []));
        connection.send(meta(10, "disk", &["base:allocation"]));
        connection.send(failing);
        connection.send(go("disk"));
        assert_eq!(block_status_error(&mut connection), EINVAL);
    }
}

#[test]
fn server_check_34_a_selection_holds_for_its_own_export_only() {
    let mut connection = Connection::new();
    connection.send(option(8, []));
    connection.send(meta(10, "disk", &["base:allocation"]));
    connection.send(go(""));
    assert_eq!(block_status_error(&mut connection), EINVAL);
}

#[test]
fn server_check_35_a_query_that_comes_twice_selects_once() {
    let mut connection = Connection::new();
    connection.send(option(8, []));
    let twice = ["base:allocation", "base:allocation"];
    assert_eq!(kinds(&connection.send(meta(10, "disk", &twice))), [META, ACK]);
}

#[test]
fn server_check_35_ids_are_unique_and_belong_to_the_session() {
    let connection = Connection::transmitting(Framing::Structured);
    let contexts = &connection.session().contexts;
    let mut ids: Vec<u32> = contexts.iter().map(|(id, _)| *id).collect();
    ids.dedup();
    assert_eq!((contexts.len(), ids.len()), (3, 3));
}

#[test]
fn server_check_37_endless_options_end_the_connection() {
    let mut connection = Connection::new();
    let mut answered = 0;
    for _ in 0..10_000 {
        answered += usize::from(!connection.send(option(99, [])).is_empty());
    }
    assert!(!connection.is_open());
    assert!(answered < 100);
}

#[test]
fn server_check_37_a_list_leaves_room_to_ask_about_every_export() {
    let mut connection = Connection::new();
    assert_eq!(kinds(&connection.send(option(3, []))).len(), 4);
    for _ in 0..96 {
        assert!(negotiates(&mut connection));
    }
    for _ in 0..100 {
        connection.send(option(3, []));
    }
    assert!(!connection.is_open(), "further lists grant nothing");
}

#[test]
fn an_export_too_large_for_signed_offsets_is_not_advertised() {
    let mut connection = Connection::new();
    connection.menu = Menu { size: 1 << 63, ..Menu::default() };
    assert_eq!(kinds(&connection.send(go("disk"))), [0x8000_0004]);
    assert!(negotiates(&mut connection));
}

#[test]
fn an_oldstyle_greeting_is_the_default_export_and_requests_follow_at_once() {
    let oldstyle = ServerPolicy { oldstyle: true, ..ServerPolicy::default() };
    assert_eq!(ServerHandshake::new(oldstyle.clone()).greeting(), b"");
    let mut connection = Connection::raw(oldstyle);
    let greeting = connection.send([]);
    assert_eq!(greeting.len(), wire::constants::OLDSTYLE_GREETING_LEN);
    let mut fields = Fields(&greeting[8..]);
    assert_eq!(&greeting[..8], b"NBDMAGIC");
    assert_eq!(fields.u64(), 0x0000_4202_8186_1253);
    assert_eq!(fields.u64(), SIZE as u64);
    let flags = fields.u32();
    assert_eq!(flags >> 16, 0, "clients refuse handshake flags");
    let session = connection.session();
    assert_eq!((session.mode, session.protocol), (Framing::Simple, wire::Protocol::Oldstyle));
    assert_eq!(flags, u32::from(session.flags.0));
    assert!(!session.flags.contains(TransmissionFlags::SEND_DF), "there is nothing to fragment");
    assert!(fields.0.iter().all(|byte| *byte == 0));
    assert!(connection.is_alive());
}

#[test]
fn an_oldstyle_server_that_requires_tls_sends_nothing() {
    let tls = wire::ServerTls::Require;
    let mut connection =
        Connection::raw(ServerPolicy { oldstyle: true, tls, ..ServerPolicy::default() });
    assert_eq!(connection.send([]), b"");
    assert!(!connection.is_open());
}
