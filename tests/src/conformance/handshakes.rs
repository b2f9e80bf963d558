//! Checks 1 to 21 of a client: what a server may say in the handshake, and what the client must
//! make of it. What a row leaves out an honest server says.
//!
//! Two drivers: `wire` on bytes alone, and the program.

use crate::MIB;
use crate::fake::{ALL_FLAGS, greeting, option_reply};
use crate::nbd::{
    BASE_ALLOCATION, Cursor, Message, NBDMAGIC, NO_ZEROES, OLDSTYLE, OPTION_REPLY, info, opt, rep,
    tflag,
};

use super::replies::CONTEXT;

/// What the client is after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// To use an export.
    Use,
    /// To learn about an export.
    Inform,
    /// To learn which exports there are.
    List,
}
use Goal::{Inform, List, Use};

/// What becomes of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The client has what it is after.
    Works,
    /// It fails.
    Fails,
}
use Verdict::{Fails, Works};

/// What the server does once it has said something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It waits for the client.
    Waits,
    /// It closes the connection.
    Closes,
    /// It says the same again, without end.
    Repeats,
}
use Then::{Closes, Repeats, Waits};

type Answer = Box<dyn Fn(u32) -> Vec<u8> + Send + Sync>;

/// A server's side of a handshake.
pub struct Handshake {
    /// `client_check_NN_what`.
    pub name: &'static str,
    /// What the client is after.
    pub goal: Goal,
    /// What must become of it.
    pub verdict: Verdict,
    /// The greeting. One that is cut or strange is followed by the close.
    pub greeting: Vec<u8>,
    /// The export that the client wants.
    pub export: &'static str,
    /// Whether the client insists on TLS.
    pub tls: bool,
    /// Size of the export, in bytes.
    pub size: u64,
    /// Options that the client must send.
    pub sends: Vec<u32>,
    /// Options that it must not send.
    pub never: Vec<u32>,
    /// What a user is told.
    pub says: &'static str,
    answers: Vec<(u32, Then, Answer)>,
}

impl std::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// A handshake with a server of fixed newstyle, to use the default export of 1 MiB.
fn handshake(name: &'static str, verdict: Verdict) -> Handshake {
    Handshake {
        name,
        goal: Use,
        verdict,
        greeting: greeting(3),
        export: "",
        tls: false,
        size: MIB,
        sends: Vec::new(),
        never: Vec::new(),
        says: "",
        answers: Vec::new(),
    }
}

impl Handshake {
    /// What this server says to an option in place of an honest answer. INFO gets what GO gets.
    pub fn answer(&self, option: u32) -> Option<(Vec<u8>, Then)> {
        let asked = if option == opt::INFO { opt::GO } else { option };
        let (_, then, bytes) = self.answers.iter().find(|(number, ..)| *number == asked)?;
        Some((bytes(option), *then))
    }

    /// What an honest server says to an option, after the client's flags.
    pub fn honest(&self, option: u32, flags: u32) -> Vec<u8> {
        let context = Message::new().u32(CONTEXT).bytes(BASE_ALLOCATION.as_bytes()).0;
        let first = match option {
            opt::EXPORT_NAME => {
                let zeroes = if flags & u32::from(NO_ZEROES) == 0 { 124 } else { 0 };
                return Message::new().u64(self.size).u16(ALL_FLAGS).bytes(&vec![0; zeroes]).0;
            }
            opt::LIST => server(option, b"fake"),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
                option_reply(option, rep::META_CONTEXT, &context)
            }
            opt::INFO | opt::GO => export(option, self.size, ALL_FLAGS),
            _ => Vec::new(),
        };
        [first, ack(option)].concat()
    }

    /// Whether some answer has no end.
    pub fn answers_without_end(&self) -> bool {
        self.answers.iter().any(|(_, then, _)| *then == Repeats)
    }

    /// Whether the server goes on after its greeting.
    pub fn goes_on(&self) -> bool {
        self.greeting.starts_with(b"NBDMAGICIHAVEOPT") && self.greeting.len() == 18
            || self.is_oldstyle()
    }

    /// Whether the greeting is the whole handshake.
    pub fn is_oldstyle(&self) -> bool {
        self.greeting.len() == 152
    }

    fn goal(mut self, goal: Goal) -> Self {
        self.goal = goal;
        self
    }

    fn greets(mut self, greeting: impl AsRef<[u8]>) -> Self {
        self.greeting = greeting.as_ref().to_vec();
        self
    }

    fn wants(mut self, export: &'static str) -> Self {
        self.export = export;
        self
    }

    fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    fn size(mut self, size: u64) -> Self {
        self.size = size;
        self
    }

    fn sends(mut self, options: &[u32]) -> Self {
        self.sends = options.to_vec();
        self
    }

    fn never(mut self, options: &[u32]) -> Self {
        self.never = options.to_vec();
        self
    }

    fn says(mut self, words: &'static str) -> Self {
        self.says = words;
        self
    }

    fn at(mut self, option: u32, answer: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) -> Self {
        self.answers.push((option, Waits, Box::new(answer)));
        self
    }

    /// What follows the last answer.
    fn then(mut self, then: Then) -> Self {
        self.answers.last_mut().expect("an answer").1 = then;
        self
    }

    fn refuses(self, options: &[u32], kind: u32) -> Self {
        options.iter().fold(self, |row, option| {
            row.at(*option, move |option| option_reply(option, kind, b"no"))
        })
    }

    /// Leaves structured replies at most.
    fn compact(self) -> Self {
        self.refuses(&[opt::EXTENDED_HEADERS], rep::UNSUP)
    }
}

const FORMS: [u32; 2] = [opt::EXTENDED_HEADERS, opt::STRUCTURED_REPLY];

fn ack(option: u32) -> Vec<u8> {
    option_reply(option, rep::ACK, &[])
}

fn inform(option: u32, data: &[u8]) -> Vec<u8> {
    option_reply(option, rep::INFO, data)
}

fn export(option: u32, size: u64, flags: u16) -> Vec<u8> {
    inform(option, &Message::new().u16(info::EXPORT).u64(size).u16(flags).0)
}

fn server(option: u32, name: &[u8]) -> Vec<u8> {
    option_reply(option, rep::SERVER, &Message::new().counted(name).0)
}

/// An honest answer to GO with something before it.
fn told(option: u32, before: &[u8]) -> Vec<u8> {
    [before, &export(option, MIB, ALL_FLAGS), &ack(option)].concat()
}

fn block_sizes((minimum, preferred, maximum): (u32, u32, u32)) -> Vec<u8> {
    Message::new().u16(info::BLOCK_SIZE).u32(minimum).u32(preferred).u32(maximum).0
}

fn oldstyle(high: u32) -> Vec<u8> {
    let flags = u32::from(tflag::HAS_FLAGS | tflag::SEND_FLUSH) | high << 16;
    Message::new().u64(NBDMAGIC).u64(OLDSTYLE).u64(MIB).u32(flags).bytes(&[0; 124]).0
}

/// Checks 1 to 5: greetings.
pub fn greetings() -> Vec<Handshake> {
    let (info, mut rows) = (|name| handshake(name, Works).goal(Inform), Vec::new());
    rows.extend((0..18).map(|cut| {
        let row = handshake("client_check_01_a_greeting_cut_at_any_byte", Fails);
        row.goal(Inform).greets(&greeting(3)[..cut])
    }));
    let strange: [&[u8]; 5] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"NBDMAGICnonsense",
        &[0; 200],
        &[0xff; 200],
    ];
    for goal in [Use, List] {
        rows.extend(strange.map(|bytes| {
            let row = handshake("client_check_01_a_greeting_of_something_else", Fails);
            row.goal(goal).greets(bytes)
        }));
    }
    for option in [opt::EXTENDED_HEADERS, opt::STRUCTURED_REPLY, opt::SET_META_CONTEXT, opt::GO] {
        rows.extend([0, 1, 8, 19].map(|cut| {
            let row = handshake("client_check_01_a_server_that_hangs_up_after_any_option", Fails);
            let row = if option == opt::EXTENDED_HEADERS { row } else { row.compact() };
            row.at(option, move |option| ack(option)[..cut].to_vec()).then(Closes)
        }));
    }
    let cut = |at: usize| {
        let row = handshake("client_check_04_oldstyle_cut_at_any_byte", Fails).goal(Inform);
        row.greets(&oldstyle(0)[..at])
    };
    rows.extend([17, 24, 27, 28, 100, 151].map(cut));
    rows.extend([
        handshake("client_check_02_unknown_handshake_bits_are_not_echoed", Works)
            .greets(greeting(0xffff)),
        handshake("client_check_03_without_fixed_newstyle_only_export_name", Works)
            .greets(greeting(0))
            .sends(&[opt::EXPORT_NAME]),
        info("client_check_03_without_padding").greets(greeting(2)),
        handshake("client_check_03_there_is_no_way_to_list", Fails).greets(greeting(0)).goal(List),
        handshake("client_check_03_tls_wanted_but_not_fixed_newstyle", Fails)
            .greets(greeting(0))
            .tls()
            .never(&[opt::EXPORT_NAME]),
        handshake("client_check_04_oldstyle_works_without_a_name", Works).greets(oldstyle(0)),
        handshake("client_check_04_oldstyle_has_no_names", Fails).greets(oldstyle(0)).wants("name"),
        handshake("client_check_04_oldstyle_has_no_tls", Fails).greets(oldstyle(0)).tls(),
        handshake("client_check_04_oldstyle_has_no_list", Fails).greets(oldstyle(0)).goal(List),
        // As qemu and libnbd do: the high bits must be zero.
        handshake("client_check_04_oldstyle_with_unknown_bits_is_refused", Fails)
            .greets(oldstyle(0x8000)),
    ]);
    // GO is unknown, so the size comes with EXPORT_NAME, and 124 bytes of padding with 1.
    rows.extend([1, 3].map(|flags| {
        handshake("client_check_05_zeroes_after_export_name_are_read", Works)
            .greets(greeting(flags))
            .compact()
            .refuses(&[opt::GO], rep::UNSUP)
            .sends(&[opt::EXPORT_NAME])
    }));
    rows
}

/// Checks 6 to 12: what was refused, and replies that are none.
pub fn refusals() -> Vec<Handshake> {
    let mut rows = vec![
        handshake("client_check_06_go_unsupported_falls_back_to_export_name", Works)
            .refuses(&FORMS, rep::UNSUP)
            .refuses(&[opt::GO], rep::UNSUP)
            .sends(&[opt::EXPORT_NAME]),
        handshake("client_check_06_no_fallback_under_extended_headers", Fails)
            .refuses(&[opt::GO], rep::UNSUP)
            .sends(&[opt::ABORT])
            .never(&[opt::EXPORT_NAME]),
        handshake("client_check_06_an_unknown_export_is_final", Fails)
            .wants("wanted")
            .refuses(&[opt::GO], rep::UNKNOWN)
            .says("wanted")
            .sends(&[opt::ABORT])
            .never(&[opt::EXPORT_NAME]),
        handshake("client_check_11_an_ack_with_data_is_rejected", Fails).at(opt::GO, |option| {
            [export(option, MIB, ALL_FLAGS), option_reply(option, rep::ACK, &[0; 4])].concat()
        }),
        handshake("client_check_12_go_without_information_is_rejected", Fails).at(opt::GO, ack),
        handshake("client_check_12_transmission_flags_of_zero_are_rejected", Fails)
            .at(opt::GO, |option| [export(option, MIB, 0), ack(option)].concat()),
    ];
    let kinds = [rep::POLICY, rep::INVALID, rep::BLOCK_SIZE_REQD, rep::SHUTDOWN, 0xffff_0000];
    rows.extend(kinds.map(|kind| {
        handshake("client_check_06_a_refused_export_is_final", Fails)
            .refuses(&[opt::GO], kind)
            .sends(&[opt::ABORT])
            .never(&[opt::EXPORT_NAME])
    }));
    rows.extend([rep::UNSUP, rep::POLICY, rep::INVALID, rep::PLATFORM, 0x8000_1234].map(|kind| {
        handshake("client_check_07_refused_reply_forms_mean_simple_replies", Works)
            .refuses(&FORMS, kind)
            .never(&[opt::SET_META_CONTEXT])
    }));
    for is_compact in [false, true] {
        let kinds = [rep::UNSUP, rep::POLICY, rep::INVALID, rep::UNKNOWN, rep::TOO_BIG];
        rows.extend(kinds.map(|kind| {
            let row = handshake("client_check_07_refused_contexts_mean_no_block_status", Works)
                .refuses(&[opt::SET_META_CONTEXT], kind);
            if is_compact { row.compact() } else { row }
        }));
    }
    rows.push(handshake("client_check_07_a_context_before_the_refusal_is_none", Works).at(
        opt::SET_META_CONTEXT,
        |option| {
            let context = Message::new().u32(1).bytes(BASE_ALLOCATION.as_bytes()).0;
            let first = option_reply(option, rep::META_CONTEXT, &context);
            [first, option_reply(option, rep::POLICY, b"no")].concat()
        },
    ));
    let out_of_step = [
        Message::new().u64(OPTION_REPLY + 1).u32(opt::GO).u32(rep::ACK).u32(0).0,
        Message::new().u64(OPTION_REPLY + 1).u32(opt::INFO).u32(rep::ACK).u32(0).0,
        option_reply(opt::LIST, rep::ACK, &[]),
        option_reply(0, rep::ACK, &[]),
        vec![0; 20],
        vec![0xff; 20],
    ];
    rows.extend(out_of_step.map(|bytes| {
        handshake("client_check_08_a_reply_with_a_wrong_magic_or_option", Fails)
            .at(opt::GO, move |_| bytes.clone())
            .never(&[opt::ABORT])
    }));
    rows.extend([rep::SERVER, rep::META_CONTEXT, 77].map(|kind| {
        handshake("client_check_08_a_reply_of_another_type", Fails)
            .at(opt::GO, move |option| option_reply(option, kind, &[0; 20]))
            .never(&[opt::ABORT])
    }));
    rows.extend(
        [(rep::ACK, u32::MAX), (rep::INFO, u32::MAX), (rep::INFO, 65_537), (77, u32::MAX)]
            .into_iter()
            .chain([(rep::UNSUP, u32::MAX)])
            .map(|(kind, length)| {
                handshake("client_check_09_a_reply_of_4_gib_is_not_believed", Fails)
                    .at(opt::GO, move |option| {
                        let head = Message::new().u64(OPTION_REPLY).u32(option).u32(kind);
                        head.u32(length).bytes(&[0; 65_536]).0
                    })
                    .then(Repeats)
            }),
    );
    for (id, size) in [(info::NAME, 100), (info::DESCRIPTION, 100), (0x7777, 100), (9, 65_534)] {
        let data = Message::new().u16(id).bytes(&vec![b'x'; size]).0;
        rows.push(
            handshake("client_check_10_endless_information_is_capped", Fails)
                .at(opt::GO, move |option| inform(option, &data))
                .then(Repeats),
        );
    }
    rows.extend([
        handshake("client_check_10_endless_lists_are_capped", Fails)
            .goal(List)
            .at(opt::LIST, |option| server(option, b"export"))
            .then(Repeats),
        handshake("client_check_10_endless_contexts_are_capped", Fails)
            .at(opt::SET_META_CONTEXT, |option| {
                let data = Message::new().u32(1).bytes(BASE_ALLOCATION.as_bytes()).0;
                option_reply(option, rep::META_CONTEXT, &data)
            })
            .then(Repeats),
        handshake("client_check_10_endless_lists_of_contexts_are_capped", Fails)
            .goal(Inform)
            .at(opt::LIST_META_CONTEXT, |option| {
                let data = Message::new().u32(0).bytes(BASE_ALLOCATION.as_bytes()).0;
                option_reply(option, rep::META_CONTEXT, &data)
            })
            .then(Repeats),
    ]);
    rows
}

/// Checks 13 to 21: descriptions, lists, contexts, TLS that does not begin, and ends.
pub fn descriptions() -> Vec<Handshake> {
    let (whole, sizes) = (
        Message::new().u16(info::EXPORT).u64(MIB).u16(ALL_FLAGS).0,
        block_sizes((1, 4096, 1 << 25)),
    );
    let longer = |bytes: &[u8]| [bytes, &[0]].concat();
    let wrong = [
        vec![],
        whole[..1].to_vec(),
        whole[..2].to_vec(),
        whole[..11].to_vec(),
        longer(&whole),
        sizes[..2].to_vec(),
        sizes[..13].to_vec(),
        longer(&sizes),
    ];
    let mut rows = wrong
        .map(|data| {
            handshake("client_check_13_information_of_a_wrong_length_is_rejected", Fails)
                .goal(Inform)
                .at(opt::GO, move |option| told(option, &inform(option, &data)))
        })
        .into_iter()
        .collect::<Vec<_>>();
    let malformed = [
        (0, 0, 0),
        (0, 4096, 1 << 25),
        (3, 4096, 1 << 25),
        (4096, 512, 1 << 25),
        (1, 0, 1 << 25),
        (1, 256, 1 << 25),
        (1, 4096, 0),
        (1, 4096, 1),
        (1, 4096, 512),
        (4096, 4096, 512),
        (1 << 31, 1 << 31, u32::MAX),
        (u32::MAX, u32::MAX, u32::MAX),
        (131_072, 131_072, 1 << 25),
        (1, 5000, 1 << 25),
        (1, 1 << 31, 1 << 31),
        (512, 4096, 1_000_001),
    ];
    let sized = |name, sizes| {
        handshake(name, Works)
            .at(opt::GO, move |option| told(option, &inform(option, &block_sizes(sizes))))
    };
    rows.extend(
        malformed.map(|sizes| sized("client_check_14_malformed_block_sizes_are_ignored", sizes)),
    );
    rows.push(sized("client_check_14_proper_block_sizes_are_taken_over", (512, 65_536, u32::MAX)));
    rows.extend([1 << 63, u64::MAX, (1 << 63) + 12_345].map(|size| {
        handshake("client_check_15_sizes_of_2_to_the_63_and_more_are_rejected", Fails).size(size)
    }));
    let short = [
        Message::new().u32(5).bytes(b"four").0,
        Message::new().u32(u32::MAX).bytes(b"four").0,
        vec![0, 0],
        vec![],
    ];
    rows.extend(short.map(|data| {
        handshake("client_check_16_a_name_longer_than_its_reply_is_rejected", Fails)
            .goal(List)
            .at(opt::LIST, move |option| {
                [option_reply(option, rep::SERVER, &data), ack(option)].concat()
            })
    }));
    // One without a name, too.
    let contexts: [&[u8]; 4] = [b"foo:bar", b"", b"base:allocation2", b"qemu:dirty-bitmap:x"];
    rows.extend(contexts.map(|name| {
        let data = Message::new().u32(9).bytes(name).0;
        handshake("client_check_17_contexts_that_were_not_asked_for_are_not_used", Works)
            .at(opt::SET_META_CONTEXT, move |option| {
                [option_reply(option, rep::META_CONTEXT, &data), ack(option)].concat()
            })
    }));
    let every = [opt::EXTENDED_HEADERS, opt::STRUCTURED_REPLY, opt::LIST, opt::GO];
    rows.extend([Use, List].map(|goal| {
        handshake("client_check_18_a_server_that_requires_tls_is_told_apart", Fails)
            .goal(goal)
            .refuses(&every, rep::TLS_REQD)
            .says("TLS")
            .sends(&[opt::ABORT])
    }));
    rows.extend([rep::UNSUP, rep::POLICY, rep::INVALID, rep::TLS_REQD].map(|kind| {
        handshake("client_check_19_required_tls_that_is_refused_fails", Fails)
            .tls()
            .refuses(&[opt::STARTTLS], kind)
            .sends(&[opt::STARTTLS, opt::ABORT])
            .never(&[opt::GO, opt::INFO, opt::EXPORT_NAME, opt::EXTENDED_HEADERS])
    }));
    rows.extend([
        handshake("client_check_19_plain_text_after_the_agreement_is_an_injection", Fails)
            .tls()
            .at(opt::STARTTLS, |option| [ack(option), export(opt::GO, MIB, ALL_FLAGS)].concat())
            .never(&[opt::GO, opt::EXTENDED_HEADERS]),
        handshake("client_check_13_unknown_information_is_skipped", Works).at(opt::GO, |option| {
            let strange = [4, 100, 0x7777, 0xffff]
                .map(|id| inform(option, &Message::new().u16(id).bytes(b"who knows").0));
            told(option, &strange.concat())
        }),
        handshake("client_check_15_one_less_is_a_size_like_any_other", Works)
            .goal(Inform)
            .size((1 << 63) - 1),
        handshake("client_check_16_names_that_would_harm_a_terminal_are_not_printed_raw", Works)
            .goal(List)
            .at(opt::LIST, |option| {
                let data = Message::new().counted(b"\x1b[2Jevil").bytes(b"\x07\x1b]0;title\x07").0;
                [option_reply(option, rep::SERVER, &data), ack(option)].concat()
            }),
        handshake("client_check_17_a_context_without_an_id_is_rejected", Fails)
            .at(opt::SET_META_CONTEXT, |option| {
                [option_reply(option, rep::META_CONTEXT, &[0, 0]), ack(option)].concat()
            }),
        handshake("client_check_20_a_server_that_shuts_down_is_left_politely", Fails)
            .refuses(&[opt::EXTENDED_HEADERS, opt::GO], rep::SHUTDOWN)
            .sends(&[opt::ABORT]),
        handshake("client_check_21_information_by_way_of_export_name_disconnects", Works)
            .goal(Inform)
            .compact()
            .refuses(&[opt::GO], rep::UNSUP)
            .sends(&[opt::EXPORT_NAME]),
        handshake("client_check_21_a_server_that_closes_on_abort_is_no_error", Works)
            .goal(List)
            .at(opt::ABORT, |_| Vec::new())
            .then(Closes)
            .sends(&[opt::ABORT]),
    ]);
    rows
}

/// The number of an option at the front of what a client sent, with what follows it.
pub fn option_of(bytes: &[u8]) -> (u32, &[u8]) {
    let mut cursor = Cursor(bytes);
    assert_eq!(cursor.bytes(8), b"IHAVEOPT");
    let (option, size) = (cursor.u32(), cursor.u32());
    cursor.bytes(usize::try_from(size).unwrap());
    (option, cursor.0)
}
