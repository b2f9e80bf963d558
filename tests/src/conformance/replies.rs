//! Checks 22, 23, 27 to 29 and 32 to 35 of a client: what a server may answer to one request, and
//! what the client must make of it.
//!
//! Three drivers: `wire` on bytes alone, the client as a device, and the program.

use crate::index;
use crate::nbd::{Message, alloc, chunk, err};
use crate::rules::Seen;
use crate::session::Mode;

use super::{ALL, CHUNKED};

/// The context that every server of a client check has selected.
pub const CONTEXT: u32 = 0x5a5a_0001;
const EXTENDED: &[Mode] = &[Mode::Extended];
const STRUCTURED: &[Mode] = &[Mode::Structured];
const COMPACT: &[Mode] = &[Mode::Simple, Mode::Structured];
const UNSTRUCTURED: &[Mode] = &[Mode::Simple, Mode::Extended];
const HOLE_ZERO: u64 = alloc::HOLE | alloc::ZERO;

/// What the client makes of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The request fails; the connection goes on.
    Fails,
    /// The connection is at its end.
    Ends,
}
use Verdict::{Ends, Fails};

/// A piece of a reply.
#[derive(Debug, Clone)]
pub enum Part {
    /// A chunk: its type and payload. The last one of a reply is marked as such.
    Chunk(u16, Vec<u8>),
    /// A chunk that more follow.
    More(u16, Vec<u8>),
    /// An extended chunk that names an offset so much further.
    Moved(u64, u16, Vec<u8>),
    /// A simple reply with this error and these bytes.
    Simple(u32, Vec<u8>),
    /// The same in another reply form.
    Form(Mode, Box<Part>),
    /// All of the content, for a cookie with these bits changed.
    Strange(u64),
    /// A reply with this magic.
    Magic(u32),
}
use Part::{Chunk, Form, Magic, More, Moved, Simple, Strange};

impl Part {
    /// As it stands on the wire.
    pub fn bytes(&self, mode: Mode, request: &Seen, is_last: bool) -> Vec<u8> {
        let chunk = |request: &Seen, is_last: bool, kind, payload: &[u8]| {
            crate::fake::chunk_bytes(mode, request, u16::from(is_last), kind, payload)
        };
        match self {
            Chunk(kind, payload) => chunk(request, is_last, *kind, payload),
            More(kind, payload) => chunk(request, false, *kind, payload),
            Moved(by, kind, payload) => {
                let offset = request.offset.wrapping_add(*by);
                chunk(&Seen { offset, ..request.clone() }, is_last, *kind, payload)
            }
            Simple(error, data) => {
                [crate::fake::simple(*error, request.cookie), data.clone()].concat()
            }
            Form(mode, part) => part.bytes(*mode, request, is_last),
            Strange(change) => {
                let request = Seen { cookie: request.cookie ^ change, ..request.clone() };
                whole(mode, &request).bytes(mode, &request, is_last)
            }
            Magic(magic) => Message::new().u32(*magic).bytes(&[0; 64]).0,
        }
    }
}

/// A reply to a request of at least two bytes.
#[derive(Debug, Clone, Copy)]
pub struct Reply {
    /// `client_check_NN_what`.
    pub name: &'static str,
    /// The reply forms in which it can come.
    pub modes: &'static [Mode],
    /// What must become of it.
    pub verdict: Verdict,
    parts: fn(&Seen, Mode) -> Vec<Part>,
}

impl Reply {
    /// Its bytes.
    pub fn bytes(&self, request: &Seen, mode: Mode) -> Vec<u8> {
        let parts = (self.parts)(request, mode);
        let count = parts.len();
        let parts = parts.iter().enumerate();
        parts.flat_map(|(n, part)| part.bytes(mode, request, n + 1 == count)).collect()
    }
}

fn reply(name: &'static str, verdict: Verdict, parts: fn(&Seen, Mode) -> Vec<Part>) -> Reply {
    Reply { name, modes: CHUNKED, verdict, parts }
}

fn data(at: u64, size: u64) -> Part {
    Chunk(chunk::OFFSET_DATA, Message::new().u64(at).bytes(&vec![0xda; index(size)]).0)
}

/// All of the content, in the form of a mode.
fn whole(mode: Mode, request: &Seen) -> Part {
    match mode {
        Mode::Simple => Simple(0, vec![0xda; index(request.length)]),
        _ => data(request.offset, request.length),
    }
}

fn hole(at: u64, size: u32) -> Part {
    Chunk(chunk::OFFSET_HOLE, Message::new().u64(at).u32(size).0)
}

fn none() -> Part {
    Chunk(chunk::NONE, Vec::new())
}

/// An ERROR payload whose fields may lie.
fn error(error: u32, told: u16, message: &[u8]) -> Vec<u8> {
    Message::new().u32(error).u16(told).bytes(message).0
}

/// Replies to a READ.
pub fn of_read() -> Vec<Reply> {
    let one = |name, modes, verdict, parts| Reply { name, modes, verdict, parts };
    vec![
        one("client_check_22_a_magic_of_0", ALL, Ends, |_, _| vec![Magic(0)]),
        one("client_check_22_a_magic_with_its_bytes_swapped", ALL, Ends, |_, _| {
            vec![Magic(0x9674_4668)]
        }),
        one("client_check_22_a_reserved_magic", ALL, Ends, |_, _| vec![Magic(0x1256_0953)]),
        one("client_check_22_a_magic_of_ones", ALL, Ends, |_, _| vec![Magic(u32::MAX)]),
        one("client_check_23_a_cookie_one_off", ALL, Ends, |_, _| vec![Strange(1)]),
        one("client_check_23_a_cookie_far_off", ALL, Ends, |_, _| vec![Strange(1 << 63)]),
        one("client_check_23_a_cookie_of_other_bits", ALL, Ends, |_, _| vec![Strange(u64::MAX)]),
        reply("client_check_27_content_before", Ends, |r, _| {
            vec![data(r.offset.wrapping_sub(512), r.length)]
        }),
        reply("client_check_27_content_one_byte_before", Ends, |r, _| {
            vec![data(r.offset.wrapping_sub(1), 1)]
        }),
        reply("client_check_27_content_one_byte_further", Ends, |r, _| {
            vec![data(r.offset + 1, r.length)]
        }),
        reply("client_check_27_content_past_the_end", Ends, |r, _| {
            vec![data(r.offset + r.length, 1)]
        }),
        reply("client_check_27_content_far_away", Ends, |r, _| {
            vec![data(r.offset ^ 1 << 40, r.length)]
        }),
        reply("client_check_27_content_that_overflows", Ends, |r, _| {
            vec![data(u64::MAX - 1, r.length)]
        }),
        reply("client_check_27_content_too_long", Ends, |r, _| vec![data(r.offset, r.length + 1)]),
        reply("client_check_27_hole_before", Ends, |r, _| {
            vec![hole(r.offset.wrapping_sub(512), 1024)]
        }),
        reply("client_check_27_hole_past_the_end", Ends, |r, _| vec![hole(r.offset + r.length, 1)]),
        reply("client_check_27_hole_too_long", Ends, |r, _| vec![hole(r.offset, u32::MAX)]),
        reply("client_check_27_hole_that_overflows", Ends, |_, _| vec![hole(u64::MAX, u32::MAX)]),
        reply("client_check_28_nothing", Fails, |_, _| vec![none()]),
        reply("client_check_28_the_first_half", Fails, |r, _| {
            vec![data(r.offset, r.length / 2), none()]
        }),
        reply("client_check_28_all_but_the_last", Fails, |r, _| vec![data(r.offset, r.length - 1)]),
        reply("client_check_28_all_but_the_first", Fails, |r, _| {
            vec![data(r.offset + 1, r.length - 1), none()]
        }),
        reply("client_check_28_overlapping_data", Fails, |r, _| {
            let half = r.length / 2;
            vec![data(r.offset, half + 1), data(r.offset + half, r.length - half)]
        }),
        // As many bytes as asked for, but the first half twice and the second never.
        reply("client_check_28_one_half_twice", Fails, |r, _| {
            vec![data(r.offset, r.length / 2), data(r.offset, r.length - r.length / 2)]
        }),
        reply("client_check_28_a_hole_over_data", Fails, |r, _| {
            vec![data(r.offset, r.length), hole(r.offset + r.length - 1, 1)]
        }),
        reply("client_check_29_data_of_0_bytes", Ends, |_, _| {
            vec![Chunk(chunk::OFFSET_DATA, vec![])]
        }),
        reply("client_check_29_data_of_7_bytes", Ends, |_, _| {
            vec![Chunk(chunk::OFFSET_DATA, vec![0; 7])]
        }),
        reply("client_check_29_data_without_a_byte", Ends, |r, _| vec![data(r.offset, 0)]),
        reply("client_check_29_a_hole_of_11_bytes", Fails, |_, _| {
            vec![Chunk(chunk::OFFSET_HOLE, vec![0; 11])]
        }),
        reply("client_check_29_a_hole_of_13_bytes", Ends, |_, _| {
            vec![Chunk(chunk::OFFSET_HOLE, vec![0; 13])]
        }),
        reply("client_check_29_an_empty_hole", Fails, |r, _| vec![hole(r.offset, 0)]),
        reply("client_check_29_none_with_payload", Ends, |_, _| {
            vec![Chunk(chunk::NONE, vec![0; 4])]
        }),
        reply("client_check_29_none_without_done", Ends, |r, _| {
            vec![More(chunk::NONE, vec![]), data(r.offset, r.length)]
        }),
        reply("client_check_29_status_in_answer_to_a_read", Ends, |_, _| {
            vec![Chunk(chunk::BLOCK_STATUS, vec![0; 12])]
        }),
        reply("client_check_32_an_unknown_type", Ends, |_, _| vec![Chunk(77, vec![0; 12])]),
        reply("client_check_32_another_unknown_type", Ends, |_, _| vec![Chunk(0x7fff, vec![])]),
        reply("client_check_32_error_0", Fails, |_, _| {
            vec![Chunk(chunk::ERROR, error(0, 4, b"fine"))]
        }),
        reply("client_check_32_a_message_longer_than_the_chunk", Fails, |_, _| {
            vec![Chunk(chunk::ERROR, error(err::EIO, 100, b"short"))]
        }),
        // nbd-server on little-endian machines.
        reply("client_check_32_a_message_length_in_host_order", Fails, |_, _| {
            vec![Chunk(chunk::ERROR, error(err::EIO, 0x0500, b"swaps"))]
        }),
        reply("client_check_32_a_message_of_64_kib_that_is_not_there", Fails, |_, _| {
            vec![Chunk(chunk::ERROR, error(err::EIO, u16::MAX, b""))]
        }),
        reply("client_check_32_bytes_after_the_message", Fails, |_, _| {
            vec![Chunk(chunk::ERROR, error(err::EIO, 2, b"ab and more"))]
        }),
        reply("client_check_32_no_message_length", Fails, |_, _| {
            vec![Chunk(chunk::ERROR, vec![0, 0, 0, 5])]
        }),
        reply("client_check_32_an_empty_error", Fails, |_, _| vec![Chunk(chunk::ERROR, vec![])]),
        reply("client_check_32_an_offset_that_is_not_there", Fails, |_, _| {
            vec![Chunk(chunk::ERROR_OFFSET, error(err::EIO, 0, b""))]
        }),
        reply("client_check_32_half_an_offset", Fails, |_, _| {
            vec![Chunk(chunk::ERROR_OFFSET, error(err::EIO, 0, &[0; 4]))]
        }),
        reply("client_check_32_an_offset_far_away", Fails, |_, _| {
            vec![Chunk(chunk::ERROR_OFFSET, error(err::EIO, 0, &[0xff; 8]))]
        }),
        reply("client_check_32_an_unknown_error_type", Fails, |_, _| {
            vec![Chunk(0x8007, error(err::EIO, 4, b"what and more"))]
        }),
        reply("client_check_32_an_empty_error_of_unknown_type", Fails, |_, _| {
            vec![Chunk(0xffff, vec![])]
        }),
        reply("client_check_32_a_message_that_is_not_text", Fails, |_, _| {
            vec![Chunk(chunk::ERROR, error(err::EIO, 3, &[0xff, 0, 0x1b]))]
        }),
        reply("client_check_32_an_error_after_all_the_content", Fails, |r, _| {
            vec![data(r.offset, r.length), Chunk(chunk::ERROR, error(err::EIO, 0, b""))]
        }),
        reply("client_check_32_an_error_amid_the_content", Fails, |r, _| {
            let place = error(err::EIO, 0, &(r.offset + 1).to_be_bytes());
            vec![data(r.offset, r.length), Chunk(chunk::ERROR_OFFSET, place), none()]
        }),
        one("client_check_33_a_simple_error", STRUCTURED, Fails, |_, _| {
            vec![Simple(err::EINVAL, vec![])]
        }),
        one("client_check_33_a_simple_success", STRUCTURED, Ends, |_, _| vec![Simple(0, vec![])]),
        one("client_check_33_a_simple_success_with_data", STRUCTURED, Ends, |r, _| {
            vec![Simple(0, vec![1; index(r.length)])]
        }),
        one("client_check_34_a_structured_chunk", UNSTRUCTURED, Ends, |r, _| {
            formed(Mode::Structured, r)
        }),
        one("client_check_34_an_extended_chunk", COMPACT, Ends, |r, _| formed(Mode::Extended, r)),
        one("client_check_34_a_simple_reply", EXTENDED, Ends, |r, _| formed(Mode::Simple, r)),
        one("client_check_34_an_offset_one_further", EXTENDED, Ends, |r, _| moved(r, 1)),
        one("client_check_34_an_offset_512_further", EXTENDED, Ends, |r, _| moved(r, 512)),
        one("client_check_34_an_offset_one_before", EXTENDED, Ends, |r, _| moved(r, u64::MAX)),
    ]
}

/// All of the content, in the form of another mode.
fn formed(mode: Mode, request: &Seen) -> Vec<Part> {
    vec![Form(mode, Box::new(whole(mode, request)))]
}

/// The right content, in a chunk that names an offset so much further.
fn moved(request: &Seen, by: u64) -> Vec<Part> {
    let Chunk(kind, payload) = data(request.offset, request.length) else { unreachable!() };
    vec![Moved(by, kind, payload)]
}

/// A status chunk of a context in the form of a mode.
fn status(mode: Mode, id: u32, extents: &[(u64, u64)]) -> Part {
    let count = u32::try_from(extents.len()).unwrap();
    if mode == Mode::Extended {
        let head = Message::new().u32(id).u32(count);
        let wide = extents.iter().fold(head, |m, (size, flags)| m.u64(*size).u64(*flags));
        return Chunk(chunk::BLOCK_STATUS_EXT, wide.0);
    }
    let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let head = Message::new().u32(id);
    let narrow =
        extents.iter().fold(head, |m, (size, flags)| m.u32(narrow(*size)).u32(narrow(*flags)));
    Chunk(chunk::BLOCK_STATUS, narrow.0)
}

/// The same with a payload that was changed.
fn changed(part: Part, change: impl Fn(&mut Vec<u8>)) -> Part {
    let Chunk(kind, mut payload) = part else { unreachable!() };
    change(&mut payload);
    Chunk(kind, payload)
}

/// A wide status chunk with one extent, that tells of so many.
fn miscounted(request: &Seen, count: u32) -> Vec<Part> {
    vec![changed(status(Mode::Extended, CONTEXT, &[(request.length, HOLE_ZERO)]), |payload| {
        payload[4..8].copy_from_slice(&count.to_be_bytes());
    })]
}

/// Replies to a BLOCK_STATUS of which one context was selected. All of them call data a hole.
pub fn of_status() -> Vec<Reply> {
    let one = |name, modes, verdict, parts| Reply { name, modes, verdict, parts };
    vec![
        reply("client_check_35_no_payload", Fails, |_, m| {
            vec![changed(status(m, 0, &[]), Vec::clear)]
        }),
        reply("client_check_35_only_an_id", Fails, |_, m| {
            vec![changed(status(m, CONTEXT, &[]), |payload| payload.truncate(4))]
        }),
        reply("client_check_35_no_extent", Fails, |_, m| vec![status(m, CONTEXT, &[])]),
        reply("client_check_35_a_byte_too_many", Fails, |r, m| {
            vec![changed(status(m, CONTEXT, &[(r.length, HOLE_ZERO)]), |payload| payload.push(0))]
        }),
        reply("client_check_35_a_byte_too_few", Fails, |r, m| {
            vec![changed(status(m, CONTEXT, &[(r.length, HOLE_ZERO)]), |payload| {
                payload.truncate(payload.len() - 1)
            })]
        }),
        reply("client_check_35_an_empty_extent", Fails, |_, m| {
            vec![status(m, CONTEXT, &[(0, HOLE_ZERO)])]
        }),
        reply("client_check_35_an_empty_extent_amid_others", Fails, |r, m| {
            vec![status(m, CONTEXT, &[(1, 0), (0, HOLE_ZERO), (r.length - 1, HOLE_ZERO)])]
        }),
        reply("client_check_35_another_context", Fails, |r, m| {
            vec![status(m, CONTEXT + 1, &[(r.length, HOLE_ZERO)])]
        }),
        reply("client_check_35_a_context_twice", Ends, |r, m| {
            let whole = status(m, CONTEXT, &[(r.length, HOLE_ZERO)]);
            vec![whole.clone(), whole]
        }),
        reply("client_check_35_success_without_extents", Fails, |_, _| vec![none()]),
        reply("client_check_35_the_other_kind_of_status", Fails, |r, m| {
            let other = if m == Mode::Extended { Mode::Structured } else { Mode::Extended };
            vec![status(other, CONTEXT, &[(r.length, HOLE_ZERO)])]
        }),
        one("client_check_35_no_count", EXTENDED, Fails, |r, _| miscounted(r, 0)),
        one("client_check_35_a_count_of_two", EXTENDED, Fails, |r, _| miscounted(r, 2)),
        one("client_check_35_a_count_of_a_million", EXTENDED, Fails, |r, _| miscounted(r, 1 << 20)),
        one("client_check_35_the_largest_count", EXTENDED, Fails, |r, _| miscounted(r, u32::MAX)),
        one("client_check_35_a_simple_success", STRUCTURED, Fails, |_, _| vec![Simple(0, vec![])]),
    ]
}
