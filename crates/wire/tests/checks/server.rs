//! Checks of the server: the list of `blackbox::conformance`, and what only this side of it can
//! show.

use blackbox::conformance::{Check, Host, NAMED, check, disk, options, requests, run, session};
use blackbox::haggle::option_bytes;
use blackbox::nbd::{Message, cflag, cmd, context_data, err, go_data, info, opt, rep, tflag};
use blackbox::session::{Mode, Request as Ask};
use wire::{
    CommandFlags, ErrorCode, Framing, ReplyWriter, Request, ServerHandshake, ServerPolicy,
    ServerStep, ServerTls, StatusExtent,
};

use crate::checks::bytes::Fields;
use crate::checks::model::{Menu, Model};

const MIB: u64 = 1 << 20;
const ALL: &[Mode] = &[Mode::Simple, Mode::Structured, Mode::Extended];
const BASE: &[&str] = &["base:allocation"];
const THREE: &[&str] = &["base:allocation", "test:numbers", "test:other"];

fn model(tls: ServerTls) -> Model {
    Model::new(ServerPolicy { tls, ..ServerPolicy::default() })
}

fn kept(list: &[Check]) {
    run(list, &Model::new(ServerPolicy::default()));
}

#[test]
fn options_are_answered_by_the_list() {
    kept(&options::checks());
}

#[test]
fn contexts_are_chosen_by_the_list() {
    kept(&options::contexts());
}

#[test]
fn requests_are_answered_by_the_list() {
    kept(&requests::checks());
}

#[test]
fn zeroes_trims_and_caches_are_done_by_the_list() {
    kept(&requests::zeroing());
}

#[test]
fn extents_are_told_by_the_list() {
    kept(&requests::extents_of_disks());
}

#[test]
fn extended_headers_are_kept_by_the_list() {
    kept(&requests::extended());
}

/// Checks 61, 63, 71 and 73, and what of 12, 15, 37 and 54 is of this crate.
#[test]
fn what_is_not_offered_is_refused() {
    let lacks = |flag| Host { without: flag, ..disk(MIB) };
    let coarse = Host { blocks: (4096, 1 << 20), ..disk(MIB - 100) };
    let small = Host { blocks: (1, 1 << 20), ..disk(64 * MIB) };
    let one = |command| Ask::new(command, 0, 4096);
    let zero = || one(cmd::WRITE_ZEROES);
    let invalid = &[err::EINVAL];
    let list = [
        check("server_check_61_fua_unadvertised_is_invalid_and_drained")
            .on(lacks(tflag::SEND_FUA))
            .modes(ALL)
            .ask(Ask::write(0, &[0xaa; 4096]).flags(cflag::FUA), invalid),
        check("server_check_63_misaligned_requests_are_invalid").on(coarse).code(|server| {
            for command in [cmd::READ, cmd::WRITE, cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES] {
                let mut session = session(server, Mode::Structured, "");
                // The tail of an odd export stays within reach.
                for (offset, length, error) in
                    [(512, 4096, 22), (0, 512, 22), (0, 4096, 0), (MIB - 4096, 3996, 0)]
                {
                    let payload = vec![1; if command == cmd::WRITE { length } else { 0 }];
                    let length = length as u64;
                    let ask = Ask { command, offset, length, payload, ..Ask::default() };
                    assert_eq!(session.error_of(&ask), error, "{command}: {length} at {offset}");
                }
            }
        }),
        check("server_check_71_fast_zero_unadvertised_is_invalid")
            .on(lacks(tflag::SEND_FAST_ZERO))
            .modes(ALL)
            .ask(zero().flags(cflag::FAST_ZERO), invalid),
        check("server_check_73_cache_needs_advertising")
            .on(lacks(tflag::SEND_CACHE))
            .modes(ALL)
            .ask(one(cmd::CACHE), invalid),
        check("server_check_73_trim_needs_advertising")
            .on(lacks(tflag::SEND_TRIM))
            .modes(ALL)
            .ask(one(cmd::TRIM), invalid),
        check("server_check_73_zeroes_need_advertising")
            .on(lacks(tflag::SEND_WRITE_ZEROES | tflag::SEND_FAST_ZERO))
            .modes(ALL)
            .ask(zero(), invalid),
        check("server_check_54_write_of_32_mib_is_drained_above_our_maximum")
            .on(small)
            .modes(ALL)
            .ask(Ask::write(0, &vec![1; 32 << 20]), invalid)
            .ask(Ask::write(40 * MIB, &vec![1; 32 << 20]), &[err::ENOSPC]),
        check("server_check_37_endless_options_end_the_connection")
            .haggle(|haggler| {
                let unknown = option_bytes(99, &[]);
                let sent = (0..10_000).take_while(|_| haggler.socket.offer(&unknown)).count();
                assert!((20..100).contains(&sent), "{sent}");
            })
            .flags(3),
        check("server_check_37_a_list_leaves_room_to_ask_about_every_export")
            .on(NAMED)
            .haggle(|h| {
                h.list();
                for _ in 0..90 {
                    assert_eq!(h.outcome(99, &[]), rep::UNSUP);
                }
                let list = option_bytes(opt::LIST, &[]);
                assert!((0..100).any(|_| !h.socket.offer(&list)), "further lists grant nothing");
            })
            .flags(3),
        check("server_check_56_half_a_payload_writes_nothing").code(|server| {
            let open = || session(server, Mode::Simple, "");
            let mut session = open();
            let bytes = session.bytes(&Ask::write(0, &[0xaa; 4096]), 1);
            session.socket.send(&bytes[..28 + 2048]);
            session.socket.assert_silent(std::time::Duration::ZERO);
            assert_eq!(open().read(0, 4096).unwrap(), [0; 4096]);
        }),
        check("server_check_15_a_size_beyond_signed_offsets_is_not_advertised")
            .on(disk(1 << 63))
            .refused(opt::GO, go_data(b"", &[]), &[rep::PLATFORM]),
        check("server_check_21_every_information_is_sent_once").haggle(|haggler| {
            let ids =
                [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, info::BLOCK_SIZE, info::NAME];
            let told: Vec<_> =
                haggler.ask(opt::INFO, &go_data(b"", &ids)).into_iter().map(|r| r.data).collect();
            let texts: Vec<&[u8]> = told[1..3].iter().map(|data| &data[2..]).collect();
            assert_eq!((told.len(), texts), (5, vec![&b""[..], b"a disk for tests"]));
        }),
    ];
    run(&list, &model(ServerTls::Off));
    let bare = ServerPolicy { no_zeroes: false, extended: false, ..ServerPolicy::default() };
    let list = [
        check("server_check_02_what_was_not_offered_is_not_taken")
            .hangs_up(3, option_bytes(opt::LIST, &[])),
        check("server_check_26_extended_headers_may_be_unknown")
            .flags(1)
            .refused(opt::EXTENDED_HEADERS, [], &[rep::UNSUP])
            .structured(),
    ];
    run(&list, &Model::new(bare));
}

fn with_three() -> Model {
    Model { contexts: THREE.iter().map(|name| (*name).to_owned()).collect(), ..Model::default() }
}

/// A check on two connections of every chunked form, with three contexts selected.
fn of_three(name: &'static str, code: fn(&mut blackbox::session::Session, &[u32])) -> Check {
    check(name).code(move |server| {
        for extended in [false, true] {
            let mut haggler = blackbox::haggle::Haggler::new(server.connect());
            assert!(if extended { haggler.extended() } else { haggler.structured() });
            let ids: Vec<u32> = haggler.set_contexts("", THREE).iter().map(|(id, _)| *id).collect();
            let mut session = haggler.go("");
            session.write(0, &[1; 100_000]);
            code(&mut session, &ids);
        }
    })
}

/// Checks 29, 30, 35, 79 and 87, where a disk has several contexts.
#[test]
fn several_contexts_are_told_apart() {
    let list = [
        check("server_check_29_listing_without_queries_names_all").structured().listed(&[], THREE),
        check("server_check_30_a_namespace_is_a_wildcard_for_listing_only")
            .structured()
            .listed(&["base:"], BASE)
            .listed(&["test:"], &THREE[1..])
            .selected("", &["base:", "test:"], &[]),
        of_three("server_check_35_ids_are_unique", |_, ids| {
            assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
        }),
        of_three("server_check_79_one_chunk_for_each_context_with_honest_sums", |session, ids| {
            for (offset, length) in [(0, MIB), (4096, 1), (60_000, 100_000)] {
                let told = session.status(offset, length, 0).unwrap();
                assert_eq!(told.keys().copied().collect::<Vec<_>>(), ids);
                for extents in told.values() {
                    let covered: u64 = extents.iter().map(|(len, _)| len).sum();
                    assert!((length..=MIB - offset).contains(&covered), "{extents:?}");
                }
            }
        }),
        of_three("server_check_87_status_for_one_context_by_payload", |session, ids| {
            if session.mode == Mode::Extended {
                let payload = Message::new().u64(5000).u32(ids[1]).0;
                let flags = cflag::PAYLOAD_LEN;
                let (command, length) = (cmd::BLOCK_STATUS, 12);
                let answer = session.ask(&Ask { flags, command, offset: 0, length, payload });
                assert_eq!(answer.extents.keys().copied().collect::<Vec<_>>(), [ids[1]]);
            }
        }),
    ];
    run(&list, &with_three());
}

/// Checks 38 to 44, as far as they need no TLS: what each side may send before and after it.
#[test]
fn tls_is_asked_for_and_kept() {
    let secret = || go_data(b"secret", &[]);
    let starts = |c: Check| c.option(opt::STARTTLS, [], &[rep::ACK]);
    let off = [check("server_check_38_without_tls_it_is_never_required")
        .refused(opt::STARTTLS, [], &[rep::POLICY])
        .refused(opt::GO, secret(), &[rep::POLICY])
        .go("")];
    run(&off, &model(ServerTls::Off));
    let options = [
        (opt::LIST, vec![]),
        (opt::INFO, go_data(b"", &[])),
        (opt::GO, go_data(b"nope", &[])),
        (opt::STRUCTURED_REPLY, vec![]),
        (opt::EXTENDED_HEADERS, vec![]),
        (opt::SET_META_CONTEXT, context_data("", &[])),
        (99, vec![1; 100]),
        (99, vec![1; (1 << 20) + 1]),
    ];
    let required = [
        check("server_check_39_where_tls_is_required_every_other_option_is_refused")
            .each(options, |c, (number, data)| c.refused(number, data, &[rep::TLS_REQD]))
            .hangs_up(3, option_bytes(opt::EXPORT_NAME, b""))
            .option(opt::ABORT, [], &[rep::ACK]),
        starts(check("server_check_43_inside_tls_every_option_is_answered"))
            .refused(opt::STARTTLS, [], &[rep::INVALID])
            .refused(99, [], &[rep::UNSUP])
            .option(opt::INFO, secret(), &[rep::INFO, rep::ACK])
            .go(""),
    ];
    run(&required, &model(ServerTls::Require));
    let offered = [
        starts(check("server_check_40_starttls_with_data_is_invalid").refused(
            opt::STARTTLS,
            [0],
            &[rep::INVALID],
        )),
        starts(
            check("server_check_41_starttls_forgets_what_was_negotiated")
                .structured()
                .selected("", BASE, BASE),
        )
        // That DF is not offered, and that a reply is simple, is asserted on the way.
        .go("")
        .ask(Ask::new(cmd::READ, 0, 1), &[0])
        .ask(Ask::new(cmd::BLOCK_STATUS, 0, 512), &[err::EINVAL]),
        check("server_check_42_plain_text_after_starttls_ends_the_connection_unanswered")
            .send([option_bytes(opt::STARTTLS, &[]), option_bytes(opt::LIST, &[])].concat())
            .closed(),
        check("server_check_44_selective_tls_guards_some_exports")
            .refused(opt::GO, secret(), &[rep::TLS_REQD])
            .refused(opt::INFO, secret(), &[rep::TLS_REQD])
            .hangs_up(3, option_bytes(opt::EXPORT_NAME, b"secret"))
            .go(""),
    ];
    run(&offered, &model(ServerTls::On));
}

#[test]
fn server_check_42_plain_text_while_tls_starts_ends_the_connection() {
    let policy = ServerPolicy { tls: ServerTls::On, ..ServerPolicy::default() };
    let mut handshake = ServerHandshake::new(policy);
    let menu = Menu { host: disk(MIB), contexts: Vec::new(), tls: false };
    let mut out = Vec::new();
    handshake.advance(&[0, 0, 0, 3], &menu, &mut out);
    handshake.advance(&option_bytes(opt::STARTTLS, &[]), &menu, &mut out);
    out.clear();
    let (_, step) = handshake.advance(&option_bytes(opt::LIST, &[]), &menu, &mut out);
    assert!(matches!(step, ServerStep::Close(_)));
    assert_eq!(out, b"");
}

#[test]
fn an_oldstyle_greeting_is_the_default_export_and_requests_follow_at_once() {
    let old = |tls| Model::new(ServerPolicy { oldstyle: true, tls, ..ServerPolicy::default() });
    let greets = check("an_oldstyle_greeting").code(|server| {
        let mut socket = server.connect();
        let greeting = socket.receive(152, "the greeting");
        let mut fields = Fields(&greeting);
        assert_eq!(fields.bytes(8), b"NBDMAGIC");
        assert_eq!((fields.u64(), fields.u64()), (0x0000_4202_8186_1253, MIB));
        // Clients refuse handshake flags, and there is nothing to fragment.
        let flags = fields.u32();
        assert_eq!(flags & !0x0d6d, 0, "flags {flags:#x}");
        assert!(fields.0.iter().all(|byte| *byte == 0));
        let flags = u16::try_from(flags).unwrap();
        let export = blackbox::haggle::Export { size: MIB, flags, ..Default::default() };
        let mut session = blackbox::session::Session::new(socket, Mode::Simple, export, Vec::new());
        session.assert_alive();
    });
    run(&[greets], &old(ServerTls::Off));
    let silent = check("an_oldstyle_server_that_requires_tls_sends_nothing")
        .code(|server| server.connect().assert_closed());
    run(&[silent], &old(ServerTls::Require));
}

fn request(command: u16, length: u64) -> Request {
    Request { flags: CommandFlags::NONE, command, cookie: 1, offset: 0, length, payload: 0 }
}

/// The payload of the one chunk that was written.
fn payload(framing: Framing, out: &[u8]) -> &[u8] {
    let (magic, head) = match framing {
        Framing::Extended => (0x6e8a_278c, 32),
        _ => (0x668e_33ef, 20),
    };
    let mut fields = Fields(out);
    assert_eq!((fields.u32(), fields.u16()), (magic, 1), "a chunk, and the last one");
    let length = u32::from_be_bytes(out[head - 4..head].try_into().unwrap());
    assert_eq!(out.len() - head, length as usize);
    &out[head..]
}

/// The extents of the one status chunk that was written.
fn extents(framing: Framing, out: &[u8]) -> Vec<(u64, u64)> {
    let is_wide = framing == Framing::Extended;
    let mut fields = Fields(&payload(framing, out)[if is_wide { 8 } else { 4 }..]);
    let mut extents = Vec::new();
    while !fields.0.is_empty() {
        extents.push(match is_wide {
            true => (fields.u64(), fields.u64()),
            false => (fields.u32().into(), fields.u32().into()),
        });
    }
    extents
}

#[test]
fn server_check_71_enotsup_is_for_fast_zero_only() {
    let mut out = Vec::new();
    let reply = ReplyWriter::new(Framing::Simple, &request(cmd::WRITE_ZEROES, 512));
    reply.error(ErrorCode::ENOTSUP, "", &mut out);
    assert_eq!(out[4..8], err::EINVAL.to_be_bytes());
}

#[test]
fn server_check_81_a_hole_above_four_gigabytes_is_cut_to_an_aligned_length() {
    let told = [(5 << 32, 3), (4096, 0)].map(|(length, flags)| StatusExtent { length, flags });
    for framing in [Framing::Structured, Framing::Extended] {
        let mut out = Vec::new();
        let request = request(cmd::BLOCK_STATUS, u32::MAX.into());
        ReplyWriter::new(framing, &request).block_status(1, told, 100, true, &mut out);
        // Nothing follows an extent that was cut.
        let extents = extents(framing, &out);
        assert_eq!(extents.len(), 1);
        assert!(extents[0].0 > 4_000_000_000 && extents[0].0.is_multiple_of(65_536), "{extents:?}");
    }
}

#[test]
fn server_check_84_dense_fragmentation_is_cut_off() {
    let endless = (0..).map(|index| StatusExtent { length: 512, flags: index % 2 });
    for (limit, expected) in [(1000, 1000), (usize::MAX, 1 << 20)] {
        let mut out = Vec::new();
        let reply =
            ReplyWriter::new(Framing::Structured, &request(cmd::BLOCK_STATUS, u32::MAX.into()));
        let covered = reply.block_status(1, endless.clone(), limit, true, &mut out);
        assert_eq!(extents(Framing::Structured, &out).len(), expected);
        assert_eq!(covered, 512 * expected as u64);
    }
}

#[test]
fn server_check_84_no_extent_means_nothing_is_sent() {
    let mut out = b"before".to_vec();
    let empty = [StatusExtent { length: 0, flags: 0 }];
    let reply = ReplyWriter::new(Framing::Extended, &request(cmd::BLOCK_STATUS, 4096));
    assert_eq!(reply.block_status(1, empty, 10, true, &mut out), 0);
    assert_eq!(out, b"before");
}

#[test]
fn server_check_91_shutdown_is_reported_in_every_framing() {
    for (framing, command) in [
        (Framing::Simple, cmd::READ),
        (Framing::Structured, cmd::READ),
        (Framing::Extended, cmd::TRIM),
    ] {
        let mut out = Vec::new();
        let reply = ReplyWriter::new(framing, &request(command, 512));
        reply.error(ErrorCode::ESHUTDOWN, "shutting down", &mut out);
        let error = match framing {
            Framing::Simple => &out[4..8],
            _ => &payload(framing, &out)[..4],
        };
        assert_eq!(error, err::ESHUTDOWN.to_be_bytes());
    }
}

#[test]
fn server_check_48_an_error_is_below_the_length_that_kills_other_clients() {
    let mut out = Vec::new();
    let reply = ReplyWriter::new(Framing::Structured, &request(cmd::READ, 512));
    reply.error(ErrorCode::EIO, &"é".repeat(5000), &mut out);
    assert!(out.len() < 1000);
    assert_eq!(out[6..8], 0x8001_u16.to_be_bytes());
    let mut fields = Fields(payload(Framing::Structured, &out));
    let (code, len) = (fields.u32(), fields.u16());
    assert!(std::str::from_utf8(fields.bytes(len.into())).is_ok());
    assert_eq!((code, fields.0.len()), (5, 0));
}
