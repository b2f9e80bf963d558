//! Every limit for clients of a server, in one table.
//!
//! Help, the report of SIGUSR1 and docs/limits.md print this table, and the options of the command
//! line are made from it. The numbers themselves are where they are enforced.

use std::fmt::Write as _;

/// A limit.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimit {
    /// What is limited.
    pub what: &'static str,
    /// The option that sets it, without its dashes, and how its value is written.
    pub option: Option<(&'static str, ValueForm)>,
    /// The default limit. `none`: there is none.
    pub limit: &'static str,
    /// What happens at the limit.
    pub then: &'static str,
}

/// How the value of an option is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ValueForm {
    /// A number from 1 on.
    Number,
    /// Seconds, or with a unit.
    Time,
    /// Bytes, or with a unit.
    Size,
}

impl ServerLimit {
    /// The default of the option, if it has one.
    #[must_use]
    pub fn default(&self) -> Option<&'static str> {
        let value = self.limit.split(' ').next().unwrap_or_default();
        Some(value).filter(|value| *value != "none")
    }
}

const fn set(
    what: &'static str,
    option: (&'static str, ValueForm),
    limit: &'static str,
    then: &'static str,
) -> ServerLimit {
    ServerLimit { what, option: Some(option), limit, then }
}

const fn fixed(what: &'static str, limit: &'static str, then: &'static str) -> ServerLimit {
    ServerLimit { what, option: None, limit, then }
}

/// The table.
pub const LIMITS: &[ServerLimit] = &[
    set("Clients at a time", ("max-connections", ValueForm::Number), "1000", "more are refused"),
    set(
        "Clients of one address or user at a time",
        ("max-connections-per-address", ValueForm::Number),
        "none",
        "more are refused",
    ),
    set(
        "How long a client may negotiate",
        ("handshake-timeout", ValueForm::Time),
        "10 s",
        "then the server closes the connection; the opening of an export does not count",
    ),
    set(
        "How long a client may be idle",
        ("idle-timeout", ValueForm::Time),
        "none",
        "then the server closes the connection, if it owes the client nothing",
    ),
    set(
        "How long a client may leave replies unread, once the server stops",
        ("stop-timeout", ValueForm::Time),
        "5 s",
        "then the server closes the connection",
    ),
    set(
        "Requests a second of one connection",
        ("max-requests", ValueForm::Number),
        "none",
        "more wait; the requests of a tenth of a second may arrive at once",
    ),
    set(
        "Bytes of requests in flight, of all clients",
        ("memory-limit", ValueForm::Size),
        "512M",
        "more wait; at most half of it is for one address or user",
    ),
    set(
        "Threads for requests that wait",
        ("threads", ValueForm::Number),
        "32",
        "more requests wait; at most half of them are for one disk",
    ),
    fixed("Bytes of requests in flight, of one connection", "48 MiB", "no more is read from it"),
    fixed(
        "Payload of a request",
        "32 MiB",
        "READ: EINVAL; WRITE: the server closes the connection",
    ),
    fixed("Extents in one block status reply", "2048", "the client continues from there"),
    fixed("Replies that a client does not read", "4 MiB", "no more of its requests are read"),
    fixed(
        "Bytes that a client must send or read while any are outstanding",
        "4 KiB in 300 s",
        "the server closes the connection",
    ),
    fixed(
        "The same while memory is short",
        "an eighth of what it holds in 10 s",
        "the server closes the connection",
    ),
    fixed(
        "Options in a handshake",
        "32, and 32 for each listed export",
        "the server closes the connection",
    ),
    fixed("Data of an option", "64 KiB", "skipped; beyond 32 MiB the server closes the connection"),
    fixed("Readers of the metrics at a time", "4", "more are refused"),
    fixed(
        "The request of a reader of the metrics",
        "8 KiB, and 5 s with its answer",
        "the server closes the connection",
    ),
    fixed("Export names in the metrics", "1000", "others count together"),
    fixed("Clients of the control socket at a time", "8", "more are refused"),
    fixed(
        "A line from a client of the control socket",
        "64 KiB, and 10 s, as for its reply",
        "the server closes the connection",
    ),
    fixed("Exports, with those that `ctl` adds", "10 000", "more are refused"),
    fixed("Bitmaps that `ctl` adds to an export", "64, each of 64 MiB", "more are refused"),
    fixed("Stopping", "30 s", "the program ends with status 1"),
];

/// The table in Markdown, as docs/limits.md has it.
#[must_use]
pub fn markdown() -> String {
    let mut text = "| what | limit | option | then |\n|---|---|---|---|\n".to_owned();
    for ServerLimit { what, option, limit, then } in LIMITS {
        let option = option.map_or("–".to_owned(), |(name, _)| format!("`--{name}`"));
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {what} | {limit} | {option} | {then} |");
    }
    text
}

/// The limits that no option sets, a line each.
#[must_use]
pub fn fixed_lines() -> String {
    let fixed = LIMITS.iter().filter(|limit| limit.option.is_none());
    fixed.fold(String::new(), |mut text, ServerLimit { what, limit, then, .. }| {
        let _ = writeln!(text, "  {what}: {limit}; {then}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_limits_has_this_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/limits.md");
        let page = std::fs::read_to_string(path).unwrap();
        assert!(page.contains(&markdown()), "docs/limits.md should have:\n{}", markdown());
    }
}
