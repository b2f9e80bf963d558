//! Checks 1 to 20 of a client: the list of `blackbox::conformance`, and what only other wishes than
//! the program's show.

use blackbox::conformance::handshakes::{self, Goal, Handshake, Then, Verdict, option_of};
use wire::{ClientHandshake, ClientPolicy, ClientStep, HandshakeError, Negotiated, PeerMisbehaved};

use crate::checks::bytes::{
    ACK, Bytes, Fields, IHAVEOPT, INFO, META, POLICY, SERVER, UNSUP, info, meta, option,
    option_reply,
};

/// What a client says in a handshake of the list, and how that ends for it.
#[derive(Debug, PartialEq)]
struct Ended {
    flags: u32,
    options: Vec<u32>,
    outcome: Result<String, String>,
}

/// A client in a handshake of the list.
struct Listener<'a> {
    row: &'a Handshake,
    handshake: ClientHandshake,
    /// How many bytes arrive at once.
    piece: usize,
    said: Vec<u8>,
    ended: Ended,
}

impl Listener<'_> {
    /// Hears what the server says, until the client is at its end.
    fn hear(&mut self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        let mut step = ClientStep::NeedMore;
        while !rest.is_empty() && matches!(step, ClientStep::NeedMore | ClientStep::StartTls) {
            let arrived = &rest[..rest.len().min(self.piece)];
            let (consumed, next) = self.handshake.advance(arrived, &mut self.said);
            let is_left = next == ClientStep::StartTls && consumed < arrived.len();
            assert!(!is_left, "{}: clear text is taken for TLS", self.row.name);
            (rest, step) = (&rest[consumed..], next);
        }
        self.ended.outcome = match step {
            ClientStep::NeedMore => return false,
            ClientStep::StartTls => {
                self.handshake.tls_established(&mut self.said);
                return false;
            }
            ClientStep::Failed(error) => Err(error.to_string()),
            ClientStep::Listed(listed) => Ok(format!("{} exports", listed.len())),
            ClientStep::Ready(session) => {
                let Negotiated { protocol, mode, size, flags, contexts, blocks, .. } = *session;
                let blocks = (blocks.minimum, blocks.preferred, blocks.maximum);
                let count = contexts.len();
                let flags = flags.0;
                Ok(format!("{protocol:?} {mode:?} {size} {flags:#x} {blocks:?} {count} contexts"))
            }
        };
        true
    }

    /// What the client has said since the last look: its flags first, and the last option.
    fn option(&mut self, is_first: bool) -> Option<u32> {
        let said = std::mem::take(&mut self.said);
        let mut rest = &said[..];
        if is_first && !said.is_empty() {
            let mut fields = Fields(&said);
            self.ended.flags = fields.u32();
            rest = fields.0;
        }
        let begun = self.ended.options.len();
        while !rest.is_empty() {
            let (option, after) = option_of(rest);
            self.ended.options.push(option);
            rest = after;
        }
        let new = &self.ended.options[begun..];
        assert!(new.len() <= 1, "{}: options in one go: {new:?}", self.row.name);
        new.first().copied()
    }

    fn run(mut self) -> Ended {
        let mut answer = (self.row.greeting.clone(), Then::Waits);
        if !self.row.goes_on() {
            answer.1 = Then::Closes;
        }
        for round in 0.. {
            let (bytes, then) = answer;
            let mut is_over = self.hear(&bytes);
            for _ in 0..if then == Then::Repeats { (64 << 20) / bytes.len() } else { 0 } {
                is_over = is_over || self.hear(&bytes);
            }
            let option = self.option(round == 0);
            if !is_over && then != Then::Waits {
                self.ended.outcome = Err(self.handshake.closed().to_string());
                is_over = true;
            }
            if is_over {
                break;
            }
            let option = option.expect("the client waits for nothing");
            answer = self
                .row
                .answer(option)
                .unwrap_or_else(|| (self.row.honest(option, self.ended.flags), Then::Waits));
        }
        self.ended
    }
}

fn ended(row: &Handshake, piece: usize) -> Ended {
    let policy = ClientPolicy {
        export: row.export.to_owned(),
        lists: row.goal == Goal::List,
        tls: row.tls,
        contexts: vec!["base:allocation".to_owned()],
        list_contexts: row.goal == Goal::Inform,
        ..ClientPolicy::default()
    };
    let handshake = ClientHandshake::new(policy);
    let ended = Ended { flags: 0, options: Vec::new(), outcome: Err(String::new()) };
    Listener { row, handshake, piece, said: Vec::new(), ended }.run()
}

/// The options that a client sends in each handshake of the list, and how that ends; not again
/// where it is as before.
const ENDS: &str = include_str!("handshakes.txt");

#[test]
fn handshakes_end_as_the_list_says() {
    let mut ends = String::new();
    let rows = [handshakes::greetings(), handshakes::refusals(), handshakes::descriptions()];
    for row in rows.iter().flatten() {
        let whole = ended(row, usize::MAX);
        let is_endless = row.answers_without_end();
        assert!(is_endless || whole == ended(row, 1), "{}: it depends on the pieces", row.name);
        let (Ended { flags, options, outcome }, name) = (whole, row.name);
        assert_eq!(flags & !3, 0, "{name}: flags that mean nothing are echoed");
        assert_eq!(outcome.is_ok(), row.verdict == Verdict::Works, "{name}: {outcome:?}");
        assert!(row.sends.iter().all(|option| options.contains(option)), "{name}: {options:?}");
        assert!(!row.never.iter().any(|option| options.contains(option)), "{name}: {options:?}");
        let end = outcome.unwrap_or_else(|error| error);
        let line = format!("{name}: {options:?} {end}\n");
        if !ends.ends_with(&line) {
            ends += &line;
        }
    }
    assert!(ends == ENDS, "{ends}");
}

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
fn client_check_18_what_is_negotiated_under_tls_is_known_to_be() {
    let mut client = Client::greeted(ClientPolicy { tls: true, ..plain() }, 3);
    assert_eq!(client.agree(5), ClientStep::StartTls);
    client.handshake.tls_established(&mut client.said);
    client.expect(info(7, "disk", &[1, 2, 3]));
    client.hear(export_info(1000, 1));
    assert!(ready(client.hear(option_reply(7, ACK, []))).tls);
}

#[test]
fn a_list_with_details_describes_every_export() {
    let policy = ClientPolicy { lists: true, structured: true, ..plain() };
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

#[test]
fn what_comes_behind_the_handshake_is_left() {
    let policy = ClientPolicy { export: String::new(), ..plain() };
    let oldstyle = Bytes::new().raw(b"NBDMAGIC").u64(0x0000_4202_8186_1253).u64(5000).u32(5);
    let mut client = Client::new(policy.clone());
    ready(client.hear(oldstyle.raw([0; 124]).raw([1, 2])));
    assert_eq!((client.left, client.take_said()), (2, Vec::new()));
    let mut client = Client::greeted(policy, 3);
    client.refuse(7, UNSUP);
    ready(client.hear(Bytes::new().u64(1000).u16(1).raw([9])));
    assert_eq!(client.left, 1);
}
