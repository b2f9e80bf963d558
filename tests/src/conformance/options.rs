//! Checks 1 to 38: greeting, options, INFO and GO, EXPORT_NAME, metadata contexts.

use std::time::Duration;

use super::{ALL, CHUNKED, Check, NAMED, READ_ONLY, check, named, option, queries, session};
use crate::haggle::Haggler;
use crate::nbd::{BASE_ALLOCATION, IHAVEOPT, Message, cmd, err, info, opt, rep, tflag};
use crate::session::{Mode, Request};
use crate::{MIB, index};

const BOTH: u32 = 3;
const CHEAP: u64 = 16 * MIB;

/// Checks 1 to 27, and 38.
pub fn checks() -> Vec<Check> {
    let silence = Duration::from_millis(100);
    let (info, go, ack) = (rep::INFO, opt::GO, rep::ACK);
    let head = |number, length| Message::new().u64(IHAVEOPT).u32(number).u32(length).0;
    let list = || option(opt::LIST, &[]);
    vec![
        check("server_check_01_greeting_is_18_bytes_and_nothing_more").code(move |server| {
            let mut socket = server.connect();
            assert_eq!(socket.receive(18, "the greeting"), b"NBDMAGICIHAVEOPT\0\x03");
            socket.assert_silent(silence);
        }),
        check("server_check_02_unknown_client_flags_close_the_connection")
            .each([4, 7, 1 << 16, 1 << 31, u32::MAX], |c, flags| c.hangs_up(flags, list())),
        check("server_check_03_unknown_option_is_skipped_and_refused")
            .refused(99, [0xaa; 1000], &[rep::UNSUP])
            .refused(4, "PEEK_EXPORT was withdrawn", &[rep::UNSUP])
            .refused(u32::MAX, [], &[rep::UNSUP]),
        check("server_check_03_unknown_options_of_mebibytes_keep_it_in_step")
            .refused(99, vec![0x49; index(MIB)], &[rep::UNSUP, rep::TOO_BIG])
            .refused(99, vec![0x49; index(2 * MIB)], &[rep::UNSUP, rep::TOO_BIG]),
        check("server_check_04_wrong_option_magic_closes")
            .each([*b"NBDMAGIC", *b"IHAVEOPS", [0; 8]], |c, magic| {
                c.hangs_up(BOTH, Message::new().bytes(&magic).u32(opt::LIST).u32(0).0)
            }),
        check("server_check_05_option_in_segments_of_one_byte")
            .haggle(|haggler| {
                for byte in option(opt::GO, &named("", &[info::BLOCK_SIZE])) {
                    haggler.socket.send(&[byte]);
                }
                let kinds: Vec<u32> = haggler.replies(opt::GO).iter().map(|r| r.kind).collect();
                assert_eq!(kinds, [rep::INFO, rep::INFO, rep::ACK]);
            })
            .flags(BOTH),
        check("server_check_06_option_of_4_gib_closes_without_allocating").memory(CHEAP).each(
            [99, opt::GO, opt::EXPORT_NAME, opt::SET_META_CONTEXT, opt::LIST],
            move |c, number| {
                // The reason may come first; what counts is that it neither waits nor allocates.
                c.flags(BOTH)
                    .send(head(number, u32::MAX))
                    .haggle(|h| drop(h.socket.drain()))
                    .flags(BOTH)
            },
        ),
        check("server_check_06_option_above_the_buffer_is_drained_and_too_big").refused(
            opt::SET_META_CONTEXT,
            vec![0; 2 << 20],
            &[rep::TOO_BIG],
        ),
        check("server_check_07_list_names_each_export_then_acks").option(
            opt::LIST,
            [],
            &[rep::SERVER, ack],
        ),
        check("server_check_07_list_names_several_exports").on(NAMED).haggle(|haggler| {
            let names: Vec<String> = haggler.list().into_iter().map(|(name, _)| name).collect();
            assert!(
                ["alpha", "beta"].iter().all(|name| names.contains(&(*name).to_owned())),
                "{names:?}"
            );
            // Whether the default export is listed under its empty name too is the server's choice.
            assert!(names.iter().all(|n| ["alpha", "beta", ""].contains(&n.as_str())), "{names:?}");
        }),
        check("server_check_08_list_with_data_is_invalid").refused(
            opt::LIST,
            [1, 2, 3, 4],
            &[rep::INVALID],
        ),
        check("server_check_09_abort_is_acknowledged_then_closed")
            .each([&[][..], &[0; 10]], |c, data| c.option(opt::ABORT, data, &[ack])),
        check("server_check_11_export_name_with_and_without_padding").each(
            [(BOTH, 0), (1, 124), (2, 0), (0, 124)],
            move |c, (flags, zeroes)| {
                c.flags(flags).export_name("", zeroes).session(move |session| {
                    assert_eq!(session.export.size, MIB);
                    session.socket.assert_silent(silence / 4);
                    session.assert_alive();
                })
            },
        ),
        check("server_check_12_export_name_that_cannot_be_served_closes").on(NAMED).each(
            [&b"gamma"[..], &[b'a'; 4097], b"al\0pha", b"alpha\0", b"\xff\xfe"],
            |c, name| c.hangs_up(BOTH, option(opt::EXPORT_NAME, name)),
        ),
        check("server_check_13_not_fixed_newstyle_may_use_export_name")
            .flags(0)
            .export_name("", 124),
        check("server_check_14_not_fixed_newstyle_may_not_list").flags(0).send(list()).closed(),
        check("server_check_15_empty_name_is_the_default_export").on(NAMED).go("").session(|s| {
            assert_eq!(s.export.size, MIB, "the first export is the default one");
        }),
        check("server_check_16_go_without_ids_describes_the_export_and_waits").go("").session(
            move |session| {
                assert_eq!(session.export.size, MIB);
                session.socket.assert_silent(silence);
            },
        ),
        check("server_check_17_go_unknown_name_is_refused_without_information").on(NAMED).each(
            [opt::INFO, opt::GO],
            |c, number| {
                let gamma = named("gamma", &[info::BLOCK_SIZE]);
                c.flags(BOTH).refused(number, gamma, &[rep::UNKNOWN]).go("beta").session(
                    |session| {
                        assert_eq!(session.export.size, 2 * MIB);
                        session.assert_alive();
                    },
                )
            },
        ),
        check("server_check_18_malformed_go_is_invalid").each([opt::INFO, opt::GO], |c, number| {
            let name = |length: u32| Message::new().u32(length);
            c.flags(BOTH)
                .each(
                    [
                        vec![],
                        name(0).0,
                        vec![0; 5],
                        name(1).u16(0).0,
                        name(u32::MAX).u16(0).0,
                        name(u32::MAX).bytes(b"disk").u16(0).0,
                        name(5).bytes(b"abcd").u16(0).0,
                        name(0).u16(1).0,
                        name(0).u16(2).u16(3).0,
                        name(0).u16(1).bytes(&[3]).0,
                        name(0).u16(u16::MAX).0,
                        name(0).u16(0).bytes(&[0]).0,
                        name(0).u16(0).u16(3).0,
                    ],
                    |c, data| c.refused(number, data, &[rep::INVALID]),
                )
                .go("")
        }),
        // Which error is left open: the name may be called invalid, unknown or too big.
        check("server_check_19_go_with_a_name_too_long_is_an_error").each(
            [4097, 65536],
            |c, size| {
                c.refused(opt::GO, named(&"x".repeat(size), &[]), &[rep::TOO_BIG, rep::INVALID])
            },
        ),
        check("server_check_19_names_with_odd_bytes_are_errors")
            .on(NAMED)
            .each([&b"al\0pha"[..], b"\xff\xfe"], |c, name| {
                c.refused(go, crate::nbd::go_data(name, &[]), &[rep::INVALID])
            })
            .each([&"n".repeat(4096), "../alpha", "alpha ", "ALPHA"], |c, name| {
                c.refused(go, named(name, &[]), &[rep::UNKNOWN])
            }),
        check("server_check_20_unknown_information_ids_are_ignored").option(
            go,
            named("", &(0xfff0..=0xffff).collect::<Vec<_>>()),
            &[info, ack],
        ),
        check("server_check_21_go_sends_name_description_and_block_sizes_once")
            .haggle(|haggler| {
                let ids =
                    [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, info::BLOCK_SIZE, info::NAME];
                // That each comes once is asserted there.
                let export = haggler.export(opt::GO, "", &ids).unwrap();
                // Any alignment, and 32 MiB at once.
                let (min, preferred, max) = export.block_sizes.expect("block sizes were asked for");
                assert_eq!((min, max), (1, 32 << 20));
                assert!(preferred.is_power_of_two() && preferred >= 512, "preferred {preferred}");
            })
            .flags(BOTH),
        check("server_check_22_info_then_go_agree")
            .haggle(|haggler| {
                let ids = [info::NAME, info::BLOCK_SIZE, info::DESCRIPTION];
                let told = haggler.export(opt::INFO, "", &ids).unwrap();
                assert_eq!(haggler.export(opt::GO, "", &ids).unwrap(), told);
            })
            .flags(BOTH),
        check("server_check_23_info_does_not_end_the_handshake")
            .option(opt::INFO, named("", &[]), &[info, ack])
            .option(opt::LIST, [], &[rep::SERVER, ack])
            .go(""),
        check("server_check_24_structured_reply_agreed_once")
            .refused(opt::STRUCTURED_REPLY, [1], &[rep::INVALID])
            .structured()
            .refused(opt::STRUCTURED_REPLY, [], &[rep::INVALID])
            .go(""),
        // That DF is not offered is asserted at GO.
        check("server_check_24_structured_reply_with_data_agrees_to_nothing")
            .refused(opt::STRUCTURED_REPLY, [1], &[rep::INVALID])
            .go(""),
        check("server_check_25_df_is_offered_with_structured_replies").modes(CHUNKED).session(
            |s| {
                assert!(s.has(tflag::SEND_DF));
                assert_eq!(s.has(tflag::BLOCK_STATUS_PAYLOAD), s.mode == Mode::Extended);
            },
        ),
        check("server_check_25_a_read_only_export_offers_no_change")
            .on(READ_ONLY)
            .modes(ALL)
            .session(|session| {
                assert!(session.has(tflag::READ_ONLY));
                for flag in [tflag::SEND_TRIM, tflag::SEND_WRITE_ZEROES, tflag::SEND_FAST_ZERO] {
                    assert!(!session.has(flag), "flag {flag:#x}");
                }
            }),
        check("server_check_26_extended_headers_rule_out_structured_replies")
            .extended()
            .refused(opt::STRUCTURED_REPLY, [], &[rep::EXT_HEADER_REQD])
            .refused(opt::EXTENDED_HEADERS, [], &[rep::INVALID])
            .go(""),
        check("server_check_26_extended_headers_with_data_or_after_structured_replies")
            .refused(opt::EXTENDED_HEADERS, [0], &[rep::INVALID])
            .structured()
            .extended()
            .go(""),
        check("server_check_27_export_name_after_extended_headers_closes")
            .extended()
            .send(option(opt::EXPORT_NAME, b""))
            .closed(),
        check("server_check_38_starttls_without_tls_is_refused")
            .refused(opt::STARTTLS, [], &[rep::POLICY, rep::UNSUP])
            // Nothing was forgotten or begun: the session is plain and works.
            .structured()
            .go(""),
    ]
}

/// Checks 28 to 35: which metadata contexts are listed, selected and forgotten.
pub fn contexts() -> Vec<Check> {
    let base = &[BASE_ALLOCATION][..];
    let status = || Request::new(cmd::BLOCK_STATUS, 0, MIB);
    let unknown = &["foo:bar", "base:nope", "base:allocation2", "base", "nocolon", ""];
    vec![
        check("server_check_28_contexts_need_structured_replies").refused(
            opt::SET_META_CONTEXT,
            queries(base),
            &[rep::INVALID],
        ),
        check("server_check_29_list_without_queries_lists_all").structured().listed(&[], base),
        check("server_check_30_a_namespace_lists_but_does_not_select")
            .structured()
            .listed(&["base:"], base)
            .selected("", &["base:"], &[]),
        check("server_check_31_unknown_contexts_are_passed_over")
            .structured()
            .selected("", unknown, &[])
            .selected("", &[base, unknown].concat(), base)
            .go("")
            .ask(status(), &[0]),
        check("server_check_32_malformed_queries_are_refused_cheaply").memory(CHEAP).each(
            [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT],
            |c, number| {
                let name = || Message::new().u32(0);
                let cases = [
                    vec![],
                    name().0,
                    Message::new().u32(u32::MAX).u32(0).0,
                    Message::new().u32(4).bytes(b"disk").0,
                    name().u32(1).0,
                    name().u32(2).counted(b"base:allocation").0,
                    name().u32(u32::MAX).0,
                    name().u32(1).u32(100).bytes(b"base:").0,
                    name().u32(1).u32(u32::MAX).bytes(b"base:").0,
                    name().u32(0).bytes(b"more").0,
                    name().u32(1).counted(b"base:allocation").bytes(b"x").0,
                ];
                c.flags(BOTH)
                    .structured()
                    .each(cases, |c, data| c.refused(number, data, &[rep::INVALID, rep::TOO_BIG]))
            },
        ),
        check("server_check_32_thousands_of_queries_cost_little").memory(CHEAP).structured().each(
            [2000, 10_000],
            |c, count| {
                c.refused(
                    opt::SET_META_CONTEXT,
                    queries(&vec!["base:nope"; count]),
                    &[rep::TOO_BIG],
                )
            },
        ),
        check("server_check_33_a_failed_selection_forgets_the_earlier_one").each(
            [
                vec![0xff; 8],
                vec![0; (1 << 20) + 1],
                queries(&[""; 2000]),
                Message::new().u32(0).u32(9).0,
            ],
            |c, failing| {
                c.flags(BOTH)
                    .structured()
                    .selected("", base, base)
                    .refused(opt::SET_META_CONTEXT, failing, &[rep::INVALID, rep::TOO_BIG])
                    .haggle(|haggler| haggler.contexts.clear())
                    .go("")
                    .ask(status(), &[err::EINVAL])
            },
        ),
        check("server_check_33_an_empty_selection_forgets_the_earlier_one")
            .structured()
            .selected("", base, base)
            .selected("", &[], &[])
            .go("")
            .ask(status(), &[err::EINVAL]),
        // "" and "alpha" are the same export here, but not the same name.
        check("server_check_34_a_selection_for_another_name_does_not_count").on(NAMED).each(
            ["beta", ""],
            |c, name| {
                c.flags(BOTH)
                    .structured()
                    .selected("alpha", base, base)
                    .go(name)
                    .ask(status(), &[err::EINVAL])
            },
        ),
        check("server_check_34_contexts_of_an_unknown_export_are_not_usable")
            .on(NAMED)
            .structured()
            .haggle(|haggler: &mut Haggler| {
                // qemu replies UNKNOWN, nbdkit acknowledges and forgets: both are allowed.
                let set = haggler.contexts(opt::SET_META_CONTEXT, "gamma", &[BASE_ALLOCATION]);
                assert!(set.is_ok() || set == Err(rep::UNKNOWN), "{set:?}");
            })
            .go("beta")
            .ask(status(), &[err::EINVAL]),
        check("server_check_35_a_query_twice_selects_once")
            .structured()
            .selected("", &[base, base].concat(), base)
            .go("")
            .ask(status(), &[0]),
        check("server_check_35_contexts_are_of_the_session").code(|server| {
            let mut session = session(server, Mode::Structured, "");
            let extents = session.status(0, MIB, 0).unwrap();
            assert!(extents.contains_key(&session.context(BASE_ALLOCATION)));
        }),
    ]
}
