//! An event, its line in the log, and its variables for a script. The formats are nbdkit's.

use std::fmt::Write;
use std::time::SystemTime;

use device::{ErrorKind, Extent, ExtentKind, Operation, Outcome, Result, timestamp};

/// The longest text in one variable of a script, in bytes; the system refuses 128 KiB.
const LONGEST: usize = 100 << 10;

/// Whether an operation begins or ends, or the event is a single moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stage {
    Enter,
    Leave,
    Print,
}

/// An event.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) act: &'static str,
    pub(super) stage: Stage,
    pub(super) connection: Option<u64>,
    pub(super) id: Option<u64>,
    pub(super) fields: Fields,
}

/// Names and values.
pub(super) type Fields = Vec<(&'static str, Value)>;

/// A value, and how to write it.
#[derive(Debug)]
pub(super) enum Value {
    /// As it is.
    Plain(String),
    /// In double quotes, with shell characters escaped.
    Quoted(String),
    /// In parentheses.
    List(String),
}

impl Event {
    /// All variables that a script may find set.
    pub(super) const NAMES: &[&str] = &[
        "act",
        "type",
        "connection",
        "id",
        "offset",
        "count",
        "fua",
        "fast",
        "trim",
        "req_one",
        "return",
        "error",
        "extents",
        "status",
        "context",
        "export",
        "tls",
        "size",
        "minsize",
        "prefsize",
        "maxsize",
        "write",
        "flush",
        "rotational",
        "zero",
        "cache",
        "fast_zero",
        "thread_model",
        "transactions",
    ];

    /// The line for the log, at the time `now`, with its end.
    pub(super) fn line(&self, now: SystemTime) -> String {
        let mut line = timestamp(now);
        if let Some(connection) = self.connection {
            let _ = write!(line, " connection={connection}");
        }
        line.push_str(if self.stage == Stage::Leave { " ..." } else { " " });
        line.push_str(self.act);
        if let Some(id) = self.id {
            let _ = write!(line, " id={id}");
        }
        for (name, value) in &self.fields {
            let _ = match value {
                Value::Plain(text) => write!(line, " {name}={text}"),
                Value::Quoted(text) => write!(line, " {name}={}", quoted(text)),
                Value::List(text) => write!(line, " {name}=({text})"),
            };
        }
        line.push_str(if self.stage == Stage::Enter { " ...\n" } else { "\n" });
        line
    }

    /// The variables for a script.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let stage = match self.stage {
            Stage::Enter => "ENTER",
            Stage::Leave => "LEAVE",
            Stage::Print => "PRINT",
        };
        let number = |n: Option<u64>| n.map(|n| n.to_string());
        let head = [
            ("act", Some(self.act.to_owned())),
            ("type", Some(stage.to_owned())),
            ("connection", number(self.connection)),
            ("id", number(self.id)),
        ];
        let fields = self.fields.iter().map(|(name, value)| {
            let (Value::Plain(text) | Value::Quoted(text) | Value::List(text)) = value;
            // No variable can hold a zero byte.
            (*name, Some(text.replace('\0', "")).filter(|text| text.len() <= LONGEST))
        });
        head.into_iter().chain(fields).filter_map(|(name, value)| Some((name, value?)))
    }
}

/// The name of an operation, and its arguments.
pub(super) fn asked(operation: &Operation) -> (&'static str, Fields) {
    let range = |offset: u64, len: u64| vec![("offset", hex(offset)), ("count", hex(len))];
    let with = |mut fields: Fields, flags: &[(&'static str, bool)]| {
        fields.extend(flags.iter().map(|(name, on)| (*name, flag(*on))));
        fields
    };
    match operation {
        Operation::Flush => ("Flush", Vec::new()),
        Operation::Prefetch { offset, len } => ("Cache", range(*offset, *len)),
        Operation::Read { offset, buffer } => ("Read", range(*offset, buffer.len() as u64)),
        Operation::Resolve { offset, len, max } => {
            ("Extents", with(range(*offset, *len), &[("req_one", *max == 1)]))
        }
        Operation::Status { context, offset, len, max } => {
            let mut fields = with(range(*offset, *len), &[("req_one", *max == 1)]);
            fields.push(("context", Value::Quoted(context.to_string())));
            ("Status", fields)
        }
        Operation::Take { offset, len, .. } => ("Take", range(*offset, *len)),
        Operation::Trim { offset, len, fua } => {
            ("Trim", with(range(*offset, *len), &[("fua", *fua)]))
        }
        Operation::Write { offset, data, fua } => {
            ("Write", with(range(*offset, data.len() as u64), &[("fua", *fua)]))
        }
        Operation::Zero { offset, len, flags } => {
            let flags = [("trim", flags.may_unmap), ("fua", flags.fua), ("fast", flags.fast_only)];
            ("Zero", with(range(*offset, *len), &flags))
        }
    }
}

/// The result of an operation.
pub(super) fn answered(result: &Result<Outcome>) -> Fields {
    let plain = |text: &str| Value::Plain(text.to_owned());
    match result {
        Ok(Outcome::Extents(extents)) => {
            vec![("extents", Value::List(list(extents))), ("return", plain("0"))]
        }
        Ok(Outcome::Status(runs)) => {
            let runs = runs.iter().map(|run| format!("{:#x} {:#x}", run.len, run.value));
            let list = runs.collect::<Vec<_>>().join(" ");
            vec![("status", Value::List(list)), ("return", plain("0"))]
        }
        Ok(Outcome::Done | Outcome::Read(_) | Outcome::Taken(_)) => vec![("return", plain("0"))],
        Err(e) => vec![("return", plain("-1")), ("error", plain(code(e.kind())))],
    }
}

pub(super) fn hex(n: u64) -> Value {
    Value::Plain(format!("{n:#x}"))
}

pub(super) fn flag(on: bool) -> Value {
    level(u8::from(on))
}

pub(super) fn level(n: u8) -> Value {
    Value::Plain(n.to_string())
}

fn list(extents: &[Extent]) -> String {
    let mut text = String::new();
    for extent in extents {
        let kind = match extent.kind {
            ExtentKind::Data => "",
            ExtentKind::Hole => "hole,zero",
            ExtentKind::Zero => "zero",
        };
        let gap = if text.is_empty() { "" } else { " " };
        let _ = write!(text, "{gap}{:#x} {:#x} \"{kind}\"", extent.start, extent.len);
    }
    text
}

/// The error for a client, by its name in C.
fn code(kind: ErrorKind) -> &'static str {
    match kind.errno().1 {
        "EROFS" => "EROFS=>EPERM",
        code => code,
    }
}

/// `text` in double quotes, so that a line stays a line and a shell reads it back.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' | '$' | '`' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_name_cannot_break_a_line_nor_its_quotes() {
        assert_eq!(quoted("a\"b\nc$d`e\\\x07"), "\"a\\\"b\\nc\\$d\\`e\\\\\\x07\"");
    }
}
