//! What a client must never do (client check 40), watched by the fake server while it serves.
//!
//! Every violation is noted as a sentence; `Fake::finish` fails the test when there is one, so
//! each client test also checks the client's manners.

use crate::nbd::{cflag, cmd, tflag};

/// What the server advertised to a client about the export, and so binds it.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Size in bytes.
    pub size: u64,
    /// Transmission flags.
    pub flags: u16,
    /// Minimum and maximum block size in bytes, when the client asked for them in GO.
    pub block_sizes: Option<(u32, u32)>,
    /// Whether extended headers were agreed.
    pub extended: bool,
    /// Whether a context was selected.
    pub contexts: bool,
}

/// A request as it came, without its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Command flags.
    pub flags: u16,
    /// Command.
    pub command: u16,
    /// Cookie.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Length on the wire, in bytes.
    pub length: u64,
}

/// The sentences about what is wrong with a request.
pub fn violations(request: &Seen, terms: &Terms) -> Vec<String> {
    let mut found = Vec::new();
    let mut rule = |broken: bool, what: &str| {
        if broken {
            found.push(format!("{what}: {request:?} under {terms:?}"));
        }
    };
    let has = |flag| terms.flags & flag != 0;
    let is = |command| request.command == command;
    let flag = |flag| request.flags & flag != 0;

    rule(is(cmd::FLUSH) && !has(tflag::SEND_FLUSH), "FLUSH was not offered");
    rule(is(cmd::TRIM) && !has(tflag::SEND_TRIM), "TRIM was not offered");
    rule(is(cmd::CACHE) && !has(tflag::SEND_CACHE), "CACHE was not offered");
    rule(is(cmd::WRITE_ZEROES) && !has(tflag::SEND_WRITE_ZEROES), "WRITE_ZEROES was not offered");
    rule(is(cmd::BLOCK_STATUS) && !terms.contexts, "BLOCK_STATUS without a context");
    rule(request.command > cmd::BLOCK_STATUS, "an unknown command");
    let changes = is(cmd::WRITE) || is(cmd::TRIM) || is(cmd::WRITE_ZEROES);
    rule(changes && has(tflag::READ_ONLY), "a change of a read-only export");

    rule(flag(cflag::FUA) && !has(tflag::SEND_FUA), "FUA was not offered");
    rule(flag(cflag::DF) && !(is(cmd::READ) && has(tflag::SEND_DF)), "DF was not offered");
    rule(flag(cflag::NO_HOLE) && !is(cmd::WRITE_ZEROES), "NO_HOLE of something else");
    rule(flag(cflag::REQ_ONE) && !is(cmd::BLOCK_STATUS), "REQ_ONE of something else");
    let fast = is(cmd::WRITE_ZEROES) && has(tflag::SEND_FAST_ZERO);
    rule(flag(cflag::FAST_ZERO) && !fast, "FAST_ZERO was not offered");
    rule(flag(cflag::PAYLOAD_LEN) && !terms.extended, "PAYLOAD_LEN without extended headers");
    let payload = is(cmd::WRITE) && terms.extended;
    rule(payload && !flag(cflag::PAYLOAD_LEN), "an extended WRITE without PAYLOAD_LEN");
    rule(request.flags & 0xffc0 != 0, "an unknown flag");

    if is(cmd::DISC) || is(cmd::FLUSH) {
        rule(request.offset != 0 || request.length != 0, "a range where there is none");
    } else {
        let outside = request.offset > terms.size || request.length > terms.size - request.offset;
        rule(outside, "a request past the end");
        rule(request.length == 0, "a request for nothing");
        let (min, max) = terms.block_sizes.unwrap_or((1, 32 << 20));
        let (min, max) = (u64::from(min), u64::from(max));
        let end = request.offset.saturating_add(request.length);
        let aligned = request.offset.is_multiple_of(min)
            && (request.length.is_multiple_of(min) || end == terms.size);
        rule(!aligned, "a misaligned request");
        let moves = is(cmd::READ) || is(cmd::WRITE);
        rule(moves && request.length > max, "more bytes than the maximum");
    }
    found
}
