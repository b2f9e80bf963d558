//! Checks 1 to 20: the client's handshake against servers of every sort.

use wire::{
    BlockConstraints, ClientHandshake, ClientPolicy, ClientStep, ClientTls, Framing, Goal,
    HandshakeError, Negotiated, PeerIncompatible, PeerMisbehaved, Protocol, TransmissionFlags,
};

use crate::checks::bytes::{
    ACK, BLOCK_SIZE_REQD, Bytes, Fields, IHAVEOPT, INFO, INVALID, META, POLICY, SERVER, SHUTDOWN,
    TLS_REQD, UNKNOWN, UNSUP, info, meta, option, option_reply,
};

/// A client, and the bytes that it has sent since the last look.
struct Client {
    handshake: ClientHandshake,
    said: Vec<u8>,
    left: usize,
}

impl Client {
    fn new(policy: ClientPolicy) -> Self {
        Self { handshake: ClientHandshake::new(policy), said: Vec::new(), left: 0 }
    }

    /// A client that has read a greeting with `flags`, and whose client flags have been checked.
    fn greeted(policy: ClientPolicy, flags: u16) -> Self {
        let mut client = Self::new(policy);
        assert_eq!(client.hear(greeting(flags)), ClientStep::NeedMore);
        let said = client.take_said();
        let known = u32::from(flags & 3);
        assert_eq!(said[..4], known.to_be_bytes(), "only what was offered is agreed to");
        client.said = said[4..].to_vec();
        client
    }

    fn hear(&mut self, bytes: impl AsRef<[u8]>) -> ClientStep {
        let bytes = bytes.as_ref();
        let (consumed, step) = self.handshake.advance(bytes, &mut self.said);
        self.left = bytes.len() - consumed;
        step
    }

    fn take_said(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.said)
    }

    /// Asserts that exactly this option was sent.
    fn expect(&mut self, bytes: Bytes) {
        assert_eq!(self.take_said(), bytes.0);
    }

    /// Refuses the option that was just sent, which must be `number`.
    fn refuse(&mut self, number: u32, kind: u32) -> ClientStep {
        assert_eq!(self.said_option(), number);
        self.hear(option_reply(number, kind, "no"))
    }

    /// Acknowledges the option that was just sent, which must be `number`.
    fn agree(&mut self, number: u32) -> ClientStep {
        assert_eq!(self.said_option(), number);
        self.hear(option_reply(number, ACK, []))
    }

    /// The one option that was sent.
    fn said_option(&mut self) -> u32 {
        let said = self.take_said();
        let mut fields = Fields(&said);
        assert_eq!(fields.bytes(8), IHAVEOPT);
        let (number, length) = (fields.u32(), fields.u32());
        assert_eq!(fields.0.len(), length as usize, "one option in flight");
        number
    }
}

fn greeting(flags: u16) -> Bytes {
    Bytes::new().raw(b"NBDMAGICIHAVEOPT").u16(flags)
}

/// Wants nothing but an export.
fn plain() -> ClientPolicy {
    ClientPolicy {
        export: "disk".into(),
        structured: false,
        extended: false,
        block_sizes: false,
        ..ClientPolicy::default()
    }
}

fn export_info(size: u64, flags: u16) -> Bytes {
    option_reply(7, INFO, Bytes::new().u16(0).u64(size).u16(flags))
}

fn ready(step: ClientStep) -> Negotiated {
    match step {
        ClientStep::Ready(session) => *session,
        other => panic!("{other:?}"),
    }
}

fn misbehaved(reason: PeerMisbehaved) -> ClientStep {
    ClientStep::Failed(HandshakeError::PeerMisbehaved(reason))
}

#[track_caller]
fn assert_refused(step: ClientStep, kind: u32) {
    match step {
        ClientStep::Failed(HandshakeError::Refused { reply, message, .. }) => {
            assert_eq!((reply, message.as_str()), (kind, "no"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn client_check_01_greeting_cut_anywhere_is_an_error_at_the_end() {
    let greeting = greeting(3).0;
    for cut in 0..greeting.len() {
        let mut client = Client::new(plain());
        assert_eq!(client.hear(&greeting[..cut]), ClientStep::NeedMore);
        assert_eq!(client.take_said(), b"");
        let error = client.handshake.closed();
        assert_eq!(error.to_string(), "server closed the connection during the greeting");
    }
}

#[test]
fn client_check_01_no_nbd_server_is_told_apart() {
    let mut client = Client::new(plain());
    assert_eq!(client.hear("SSH-2.0-OpenSSH\r\n"), misbehaved(PeerMisbehaved::GreetingBad));
    let mut client = Client::new(plain());
    let step = client.hear("NBDMAGICnonsense");
    assert_eq!(step, misbehaved(PeerMisbehaved::GreetingBad));
    assert_eq!(client.take_said(), b"");
}

#[test]
fn client_check_02_unknown_handshake_bits_are_not_echoed() {
    let mut client = Client::greeted(plain(), 0xffff);
    client.expect(info(7, "disk", &[]));
}

#[test]
fn client_check_03_without_fixed_newstyle_only_export_name_is_sent() {
    for flags in [0, 2] {
        let policy = ClientPolicy { export: "disk".into(), ..ClientPolicy::default() };
        let mut client = Client::greeted(policy, flags);
        client.expect(option(1, "disk"));
        let padding = vec![0; if flags == 0 { 124 } else { 0 }];
        let step = client.hear(Bytes::new().u64(1000).u16(3).raw(padding));
        assert_eq!(ready(step).protocol, Protocol::Newstyle);
    }
}

#[test]
fn client_check_03_required_tls_fails_before_anything_is_sent() {
    let policy = ClientPolicy { tls: ClientTls::Require, ..plain() };
    let mut client = Client::new(policy);
    let step = client.hear(greeting(0));
    assert_eq!(step, ClientStep::Failed(PeerIncompatible::NoTls.into()));
    assert_eq!(client.take_said(), b"");
}

#[test]
fn client_check_03_listing_needs_fixed_newstyle() {
    let mut client = Client::new(ClientPolicy { goal: Goal::List { details: false }, ..plain() });
    let step = client.hear(greeting(0));
    assert_eq!(step, ClientStep::Failed(PeerIncompatible::NoFixedNewstyle.into()));
}

fn oldstyle(flags: u32) -> Bytes {
    Bytes::new().raw(b"NBDMAGIC").u64(0x0000_4202_8186_1253).u64(5000).u32(flags).raw([0; 124])
}

#[test]
fn client_check_04_oldstyle_works_with_the_empty_name_only() {
    let policy = ClientPolicy { export: String::new(), ..plain() };
    let mut client = Client::new(policy.clone());
    let session = ready(client.hear(oldstyle(5).raw([1, 2])));
    assert_eq!((session.size, session.protocol), (5000, Protocol::Oldstyle));
    assert!(session.flags.contains(TransmissionFlags::SEND_FLUSH));
    assert_eq!((client.left, client.take_said()), (2, Vec::new()));

    let named = Client::new(plain()).hear(oldstyle(5));
    assert_eq!(named, ClientStep::Failed(PeerIncompatible::NoExportNames.into()));
    let tls = ClientPolicy { tls: ClientTls::Require, ..policy.clone() };
    let step = Client::new(tls).hear(oldstyle(5));
    assert_eq!(step, ClientStep::Failed(PeerIncompatible::NoTls.into()));
    let step = Client::new(policy).hear(oldstyle(0x1_0005));
    assert_eq!(step, misbehaved(PeerMisbehaved::OldstyleFlags));
}

#[test]
fn client_check_05_zeroes_after_export_name_are_read() {
    let mut client = Client::greeted(plain(), 1);
    client.refuse(7, UNSUP);
    client.expect(option(1, "disk"));
    let reply = Bytes::new().u64(1000).u16(1).raw([0; 124]).0;
    for byte in &reply[..133] {
        assert_eq!(client.hear([*byte]), ClientStep::NeedMore);
    }
    assert_eq!(ready(client.hear([0])).size, 1000);
}

#[test]
fn client_check_06_go_unsupported_falls_back_to_export_name() {
    let policy = ClientPolicy { structured: true, ..plain() };
    let mut client = Client::greeted(policy, 3);
    client.agree(8);
    client.refuse(7, UNSUP);
    client.expect(option(1, "disk"));
    let session = ready(client.hear(Bytes::new().u64(1000).u16(1).raw([9])));
    assert_eq!((session.mode, session.blocks), (Framing::Structured, BlockConstraints::DEFAULT));
    assert_eq!(client.left, 1);
}

#[test]
fn client_check_06_unknown_export_is_final() {
    let mut client = Client::greeted(plain(), 3);
    assert_refused(client.refuse(7, UNKNOWN), UNKNOWN);
    client.expect(option(2, []));
}

#[test]
fn client_check_06_no_fallback_to_export_name_under_extended_headers() {
    let mut client = Client::greeted(ClientPolicy { extended: true, ..plain() }, 3);
    client.agree(11);
    assert_refused(client.refuse(7, UNSUP), UNSUP);
    client.expect(option(2, []));
}

#[test]
fn client_check_07_refused_framings_leave_simple_replies() {
    for kind in [UNSUP, POLICY, INVALID, 0x8000_1234] {
        let policy = ClientPolicy {
            structured: true,
            extended: true,
            contexts: vec!["base:allocation".into()],
            ..plain()
        };
        let mut client = Client::greeted(policy, 3);
        client.refuse(11, kind);
        client.refuse(8, kind);
        client.expect(info(7, "disk", &[]));
        client.hear(export_info(1000, 1));
        let session = ready(client.hear(option_reply(7, ACK, [])));
        assert_eq!((session.mode, session.contexts.len()), (Framing::Simple, 0));
    }
}

#[test]
fn client_check_07_refused_contexts_leave_none() {
    let policy =
        ClientPolicy { extended: true, contexts: vec!["base:allocation".into()], ..plain() };
    let mut client = Client::greeted(policy, 3);
    client.agree(11);
    client.hear(option_reply(10, META, Bytes::new().u32(1).raw("base:allocation")));
    client.refuse(10, POLICY);
    client.hear(export_info(1000, 1));
    assert_eq!(ready(client.agree(7)).contexts, []);
}

#[test]
fn client_check_08_replies_out_of_step_end_the_session() {
    let mut client = Client::greeted(plain(), 3);
    let step = client.hear(option_reply(6, ACK, []));
    assert_eq!(step, misbehaved(PeerMisbehaved::ReplyForOtherOption));
    assert_eq!(client.said_option(), 7, "and no ABORT after it");
    let mut client = Client::greeted(plain(), 3);
    let step = client.hear(Bytes::new().u64(7).u32(7).u32(ACK).u32(0));
    assert_eq!(step, misbehaved(PeerMisbehaved::BadOptionReplyMagic));
    for kind in [SERVER, META, 77] {
        let mut client = Client::greeted(plain(), 3);
        let step = client.hear(option_reply(7, kind, [0; 20]));
        assert_eq!(step, misbehaved(PeerMisbehaved::ReplyUnexpected));
    }
}

#[test]
fn client_check_09_reply_of_four_gigabytes_ends_the_session() {
    for length in [65_537, u32::MAX] {
        let mut client = Client::greeted(plain(), 3);
        let head = option_reply(7, INFO, []).0;
        let step = client.hear(Bytes::new().raw(&head[..16]).u32(length));
        assert_eq!(step, misbehaved(PeerMisbehaved::ReplyTooLong));
    }
}

#[test]
fn client_check_10_endless_replies_are_cut_off() {
    let policies = [
        (plain(), option_reply(7, INFO, [0, 9])),
        (
            ClientPolicy { goal: Goal::List { details: false }, ..plain() },
            option_reply(3, SERVER, Bytes::new().counted("name")),
        ),
        (
            ClientPolicy { list_contexts: true, structured: true, ..plain() },
            option_reply(9, META, Bytes::new().u32(0).raw("base:allocation")),
        ),
    ];
    for (policy, reply) in policies {
        let structured = policy.structured;
        let mut client = Client::greeted(policy, 3);
        if structured {
            assert_eq!(client.hear(option_reply(8, ACK, [])), ClientStep::NeedMore);
        }
        let end = (0..100_000).map(|_| client.hear(&reply)).find(|s| *s != ClientStep::NeedMore);
        assert_eq!(end, Some(misbehaved(PeerMisbehaved::TooManyReplies)));
    }
}

#[test]
fn contexts_are_not_asked_about_without_chunks() {
    let policy = ClientPolicy { list_contexts: true, structured: true, ..plain() };
    let mut client = Client::greeted(policy, 3);
    client.take_said();
    assert_eq!(client.hear(option_reply(8, UNSUP, [])), ClientStep::NeedMore);
    assert_eq!(client.take_said()[8..12], 7_u32.to_be_bytes(), "GO comes next");
}

#[test]
fn all_contexts_that_the_server_has_are_selected_but_no_more_than_a_few_dozen() {
    let policy = ClientPolicy {
        contexts: vec!["base:allocation".into()],
        all_contexts: true,
        structured: true,
        ..plain()
    };
    let mut client = Client::greeted(policy, 3);
    client.hear(option_reply(8, ACK, []));
    for name in (0..1000).map(|i| format!("x-many:{i}")).chain(["base:allocation".into()]) {
        client.hear(option_reply(9, META, Bytes::new().u32(0).raw(&name)));
    }
    client.take_said();
    client.hear(option_reply(9, ACK, []));
    let said = client.take_said();
    assert_eq!(said[8..12], 10_u32.to_be_bytes(), "SET_META_CONTEXT comes next");
    // After the length and the name of the export, `disk`.
    assert_eq!(said[24..28], 65_u32.to_be_bytes());
}

#[test]
fn client_check_10_endless_bytes_are_cut_off() {
    let mut client = Client::greeted(plain(), 3);
    let reply = option_reply(7, INFO, vec![9; 65_536]);
    let end = (0..1000).map(|_| client.hear(&reply)).find(|s| *s != ClientStep::NeedMore);
    assert_eq!(end, Some(misbehaved(PeerMisbehaved::TooManyReplies)));
}

#[test]
fn client_check_11_acknowledgement_with_data_is_rejected() {
    let mut client = Client::greeted(plain(), 3);
    client.hear(export_info(1000, 1));
    let step = client.hear(option_reply(7, ACK, [0]));
    assert_eq!(step, misbehaved(PeerMisbehaved::AckWithData));
}

#[test]
fn client_check_12_export_without_size_or_flags_is_rejected() {
    let mut client = Client::greeted(plain(), 3);
    assert_eq!(client.agree(7), misbehaved(PeerMisbehaved::ExportInfoMissing));
    let mut client = Client::greeted(plain(), 3);
    client.hear(export_info(1000, 0));
    assert_eq!(client.agree(7), misbehaved(PeerMisbehaved::NoTransmissionFlags));
}

#[test]
fn client_check_13_information_of_the_wrong_length_is_rejected() {
    for data in [
        Bytes::new().u16(0).u64(1000),
        Bytes::new().u16(0).u64(1000).u32(1),
        Bytes::new().u16(3).u32(1).u32(4096),
        Bytes::new().u16(3).u32(1).u32(4096).u32(1 << 25).u16(0),
        Bytes::new().raw([0]),
        Bytes::new(),
    ] {
        let mut client = Client::greeted(plain(), 3);
        let step = client.hear(option_reply(7, INFO, data));
        assert_eq!(step, misbehaved(PeerMisbehaved::BadInfoLength));
    }
}

#[test]
fn client_check_13_unknown_information_is_skipped() {
    let mut client = Client::greeted(plain(), 3);
    client.hear(option_reply(7, INFO, Bytes::new().u16(0x7777).raw("whatever")));
    client.hear(export_info(1000, 1));
    assert_eq!(ready(client.agree(7)).size, 1000);
}

#[test]
fn client_check_14_malformed_block_sizes_are_ignored() {
    for (minimum, preferred, maximum) in [
        (0, 4096, 1 << 25),
        (3, 4096, 1 << 25),
        (1 << 17, 1 << 17, 1 << 25),
        (4096, 512, 1 << 25),
        (1, 5000, 1 << 25),
        (1, 256, 1 << 25),
        (1, 4096, 512),
        (0, 0, 0),
    ] {
        let mut client = Client::greeted(plain(), 3);
        let blocks = Bytes::new().u16(3).u32(minimum).u32(preferred).u32(maximum);
        client.hear(option_reply(7, INFO, blocks));
        client.hear(export_info(1000, 1));
        let session = ready(client.agree(7));
        assert_eq!((session.blocks, session.blocks_advertised), (BlockConstraints::DEFAULT, false));
    }
}

#[test]
fn client_check_14_proper_block_sizes_are_taken_over() {
    let mut client = Client::greeted(ClientPolicy { block_sizes: true, ..plain() }, 3);
    client.expect(info(7, "disk", &[3]));
    client.hear(option_reply(7, INFO, Bytes::new().u16(3).u32(512).u32(65_536).u32(u32::MAX)));
    client.hear(export_info(1000, 1));
    let session = ready(client.hear(option_reply(7, ACK, [])));
    assert!(session.blocks_advertised);
    let expected = BlockConstraints { minimum: 512, preferred: 65_536, maximum: u32::MAX };
    assert_eq!(session.blocks, expected);
}

#[test]
fn client_check_15_size_of_two_to_the_63_is_rejected() {
    for size in [1 << 63, u64::MAX] {
        let mut client = Client::greeted(plain(), 3);
        client.hear(export_info(size, 1));
        assert_eq!(client.agree(7), misbehaved(PeerMisbehaved::SizeTooLarge));
    }
    let mut client = Client::greeted(plain(), 3);
    client.hear(export_info((1 << 63) - 1, 1));
    assert_eq!(ready(client.agree(7)).size, (1 << 63) - 1);
}

#[test]
fn client_check_16_listed_name_longer_than_its_reply_is_rejected() {
    for data in [
        Bytes::new().u32(5).raw("four"),
        Bytes::new().u32(u32::MAX).raw("four"),
        Bytes::new().u16(0),
    ] {
        let policy = ClientPolicy { goal: Goal::List { details: false }, ..plain() };
        let mut client = Client::greeted(policy, 3);
        let step = client.hear(option_reply(3, SERVER, data));
        assert_eq!(step, misbehaved(PeerMisbehaved::ReplyTooShort));
    }
}

#[test]
fn client_check_17_contexts_that_were_not_asked_for_are_not_used() {
    let policy =
        ClientPolicy { structured: true, contexts: vec!["base:allocation".into()], ..plain() };
    let mut client = Client::greeted(policy, 3);
    client.agree(8);
    client.expect(meta(10, "disk", &["base:allocation"]));
    for (id, name) in [(1, "qemu:dirty-bitmap:x"), (2, ""), (3, "base:allocation"), (4, "a:b")] {
        client.hear(option_reply(10, META, Bytes::new().u32(id).raw(name)));
    }
    client.hear(option_reply(10, ACK, []));
    client.hear(export_info(1000, 1));
    assert_eq!(ready(client.agree(7)).contexts, [(3, "base:allocation".to_owned())]);
}

#[test]
fn client_check_17_one_id_for_two_contexts_is_rejected() {
    let contexts = ["base:allocation", "qemu:allocation-depth"].map(str::to_owned).to_vec();
    let policy = ClientPolicy { structured: true, contexts, ..plain() };
    let mut client = Client::greeted(policy, 3);
    client.agree(8);
    client.hear(option_reply(10, META, Bytes::new().u32(1).raw("base:allocation")));
    let step =
        client.hear(option_reply(10, META, Bytes::new().u32(1).raw("qemu:allocation-depth")));
    assert_eq!(step, misbehaved(PeerMisbehaved::DuplicateContextId));
}

#[test]
fn client_check_18_tls_required_by_the_server_fails_clearly_without_tls() {
    let policy = ClientPolicy { extended: true, ..plain() };
    let mut client = Client::greeted(policy, 3);
    let step = client.refuse(11, TLS_REQD);
    assert_eq!(step, ClientStep::Failed(PeerIncompatible::TlsRequired.into()));
    client.expect(option(2, []));
}

#[test]
fn client_check_18_tls_is_used_where_it_is_allowed_and_supported() {
    let mut client = Client::greeted(ClientPolicy { tls: ClientTls::Allow, ..plain() }, 3);
    assert_eq!(client.agree(5), ClientStep::StartTls);
    client.handshake.tls_established(&mut client.said);
    client.expect(info(7, "disk", &[]));
    client.hear(export_info(1000, 1));
    assert!(ready(client.hear(option_reply(7, ACK, []))).tls);
}

#[test]
fn client_check_18_clear_text_is_used_where_tls_is_only_allowed() {
    for kind in [UNSUP, POLICY, INVALID] {
        let mut client = Client::greeted(ClientPolicy { tls: ClientTls::Allow, ..plain() }, 3);
        client.refuse(5, kind);
        client.hear(export_info(1000, 1));
        assert!(!ready(client.agree(7)).tls);
    }
}

#[test]
fn client_check_19_required_tls_that_is_refused_fails() {
    for kind in [UNSUP, POLICY, INVALID, TLS_REQD] {
        let mut client = Client::greeted(ClientPolicy { tls: ClientTls::Require, ..plain() }, 3);
        assert_refused(client.refuse(5, kind), kind);
        client.expect(option(2, []));
    }
}

#[test]
fn client_check_19_plain_text_after_the_agreement_is_an_injection() {
    let mut client = Client::greeted(ClientPolicy { tls: ClientTls::Require, ..plain() }, 3);
    assert_eq!(client.said_option(), 5);
    let step = client.hear(option_reply(5, ACK, []).raw(export_info(1000, 1)));
    assert_eq!(step, misbehaved(PeerMisbehaved::DataAfterStartTls));
    let mut client = Client::greeted(ClientPolicy { tls: ClientTls::Require, ..plain() }, 3);
    assert_eq!(client.agree(5), ClientStep::StartTls);
    assert_eq!(client.hear([0]), misbehaved(PeerMisbehaved::DataAfterStartTls));
}

#[test]
fn client_check_20_shutdown_is_answered_with_a_disconnect() {
    let policy = ClientPolicy { extended: true, ..plain() };
    let mut client = Client::greeted(policy, 3);
    assert_refused(client.refuse(11, SHUTDOWN), SHUTDOWN);
    client.expect(option(2, []));
}

#[test]
fn client_check_21_nothing_is_awaited_after_a_disconnect() {
    let mut client = Client::greeted(ClientPolicy { goal: Goal::Info, ..plain() }, 3);
    client.expect(info(6, "disk", &[]));
    client.hear(option_reply(6, INFO, Bytes::new().u16(0).u64(1000).u16(1)));
    assert_eq!(ready(client.hear(option_reply(6, ACK, []))).size, 1000);
    client.expect(option(2, []));
}

#[test]
fn client_check_21_info_by_way_of_export_name_disconnects() {
    let mut client = Client::greeted(ClientPolicy { goal: Goal::Info, ..plain() }, 3);
    client.refuse(6, UNSUP);
    client.expect(option(1, "disk"));
    ready(client.hear(Bytes::new().u64(1000).u16(1)));
    let bye = crate::checks::bytes::Ask { command: 2, ..Default::default() };
    client.expect(bye.bytes());
}

#[test]
fn block_sizes_are_asked_for_when_the_server_insists() {
    let mut client = Client::greeted(plain(), 3);
    client.refuse(7, BLOCK_SIZE_REQD);
    client.expect(info(7, "disk", &[3]));
    let step = client.hear(option_reply(7, BLOCK_SIZE_REQD, "no"));
    assert_refused(step, BLOCK_SIZE_REQD);
}

#[test]
fn a_list_with_details_describes_every_export() {
    let goal = Goal::List { details: true };
    let policy = ClientPolicy { goal, structured: true, block_sizes: true, ..plain() };
    let mut client = Client::greeted(policy, 3);
    client.agree(8);
    client.hear(option_reply(3, SERVER, Bytes::new().counted("a").raw("first")));
    client.hear(option_reply(3, SERVER, Bytes::new().counted("b")));
    client.agree(3);
    client.expect(info(6, "a", &[1, 2, 3]));
    client.hear(option_reply(6, INFO, Bytes::new().u16(0).u64(7000).u16(0x81)));
    client.hear(option_reply(6, INFO, Bytes::new().u16(2).raw("first\x1b[2J")));
    client.hear(option_reply(6, ACK, []));
    client.expect(meta(9, "a", &[]));
    client.hear(option_reply(9, META, Bytes::new().u32(0).raw("base:allocation")));
    client.hear(option_reply(9, ACK, []));
    let ClientStep::Listed(listed) = client.refuse(6, POLICY) else { panic!("a list") };
    client.expect(option(2, []));
    assert_eq!(listed.len(), 2);
    let first = listed[0].details.as_ref().unwrap().as_ref().unwrap();
    assert_eq!((first.size, listed[0].description.as_str()), (7000, "first"));
    assert_eq!(first.available_contexts, Some(vec!["base:allocation".to_owned()]));
    assert_eq!(first.description.as_deref(), Some("first\u{fffd}[2J"), "no terminal tricks");
    assert!(matches!(listed[1].details, Some(Err(HandshakeError::Refused { .. }))));
}

#[test]
fn names_that_cannot_be_sent_are_the_callers_fault() {
    for export in ["x".repeat(4097), "a\0b".to_owned()] {
        let mut client = Client::new(ClientPolicy { export, ..plain() });
        let step = client.hear(greeting(3));
        assert!(matches!(step, ClientStep::Failed(HandshakeError::Ours(_))));
        assert_eq!(client.take_said(), b"");
    }
}
