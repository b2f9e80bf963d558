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

/// A name and its value.
pub(super) type Field = (&'static str, Value);

/// Most fields of a request or an answer.
const FEW: usize = 5;

/// The fields of an event. Those of requests take no memory of their own.
#[derive(Debug)]
pub(super) struct Fields {
    few: [Option<Field>; FEW],
    more: Vec<Field>,
}

impl Fields {
    pub(super) fn few<const N: usize>(fields: [Field; N]) -> Self {
        const { assert!(N <= FEW) };
        let mut fields = fields.into_iter();
        Self { few: std::array::from_fn(|_| fields.next()), more: Vec::new() }
    }

    pub(super) fn many(fields: Vec<Field>) -> Self {
        Self { few: Default::default(), more: fields }
    }

    fn iter(&self) -> impl Iterator<Item = &Field> {
        self.few.iter().flatten().chain(&self.more)
    }
}

/// A value, and how to write it.
#[derive(Debug)]
pub(super) enum Value {
    Hex(u64),
    Decimal(u64),
    Word(&'static str),
    /// In double quotes, with shell characters escaped.
    Quoted(String),
    /// In parentheses.
    List(String),
}

impl Value {
    fn text(&self) -> &str {
        match self {
            Self::Hex(_) | Self::Decimal(_) => "",
            Self::Word(word) => word,
            Self::Quoted(text) | Self::List(text) => text,
        }
    }
}

/// Without quotes and parentheses.
impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hex(n) => write!(f, "{n:#x}"),
            Self::Decimal(n) => write!(f, "{n}"),
            Self::Word(_) | Self::Quoted(_) | Self::List(_) => f.write_str(self.text()),
        }
    }
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

    /// The memory that it takes, in bytes.
    pub(super) fn weight(&self) -> usize {
        let texts = self.fields.iter().map(|(_, value)| value.text().len());
        texts.fold(size_of::<Self>(), usize::saturating_add)
    }

    /// Appends the line for the log, with its end, to `line`: it happened at the time `at`.
    pub(super) fn write(&self, at: SystemTime, line: &mut String) {
        line.push_str(&timestamp(at));
        if let Some(connection) = self.connection {
            let _ = write!(line, " connection={connection}");
        }
        line.push_str(if self.stage == Stage::Leave { " ..." } else { " " });
        line.push_str(self.act);
        if let Some(id) = self.id {
            let _ = write!(line, " id={id}");
        }
        for (name, value) in self.fields.iter() {
            let _ = match value {
                Value::Quoted(text) => write!(line, " {name}={}", quoted(text)),
                Value::List(text) => write!(line, " {name}=({text})"),
                plain => write!(line, " {name}={plain}"),
            };
        }
        line.push_str(if self.stage == Stage::Enter { " ...\n" } else { "\n" });
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
            // No variable can hold a zero byte.
            let text = value.to_string().replace('\0', "");
            (*name, Some(text).filter(|text| text.len() <= LONGEST))
        });
        head.into_iter().chain(fields).filter_map(|(name, value)| Some((name, value?)))
    }
}

/// The name of an operation, and its arguments.
pub(super) fn asked(operation: &Operation) -> (&'static str, Fields) {
    let (offset, len) = operation.range().unwrap_or_default();
    let (offset, count) = (("offset", Value::Hex(offset)), ("count", Value::Hex(len)));
    match operation {
        Operation::Flush => ("Flush", Fields::few([])),
        Operation::Prefetch { .. } => ("Cache", Fields::few([offset, count])),
        Operation::Read { .. } => ("Read", Fields::few([offset, count])),
        Operation::Resolve { max, .. } => {
            ("Extents", Fields::few([offset, count, ("req_one", flag(*max == 1))]))
        }
        Operation::Status { context, max, .. } => {
            let context = ("context", Value::Quoted(context.to_string()));
            ("Status", Fields::few([offset, count, ("req_one", flag(*max == 1)), context]))
        }
        Operation::Take { .. } => ("Take", Fields::few([offset, count])),
        Operation::Trim { fua, .. } => ("Trim", Fields::few([offset, count, ("fua", flag(*fua))])),
        Operation::Write { fua, .. } => {
            ("Write", Fields::few([offset, count, ("fua", flag(*fua))]))
        }
        Operation::Zero { flags, .. } => {
            let [trim, fua, fast] =
                [("trim", flags.may_unmap), ("fua", flags.fua), ("fast", flags.fast_only)]
                    .map(|(name, on)| (name, flag(on)));
            ("Zero", Fields::few([offset, count, trim, fua, fast]))
        }
    }
}

/// The result of an operation.
pub(super) fn answered(result: &Result<Outcome>) -> Fields {
    const GOOD: Field = ("return", Value::Word("0"));
    match result {
        Ok(Outcome::Extents(extents)) => {
            Fields::few([("extents", Value::List(list(extents))), GOOD])
        }
        Ok(Outcome::Status(runs)) => {
            let runs = runs.iter().map(|run| format!("{:#x} {:#x}", run.len, run.value));
            Fields::few([("status", Value::List(runs.collect::<Vec<_>>().join(" "))), GOOD])
        }
        Ok(Outcome::Done | Outcome::Read(_) | Outcome::Taken(_)) => Fields::few([GOOD]),
        Err(e) => {
            Fields::few([("return", Value::Word("-1")), ("error", Value::Word(code(e.kind())))])
        }
    }
}

pub(super) fn flag(on: bool) -> Value {
    Value::Decimal(on.into())
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
