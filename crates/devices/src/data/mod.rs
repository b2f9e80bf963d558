//! `data`: a small disk written out on the command line, in the language of nbdkit's data plugin,
//! in base64, or as it stands. Writes go to memory.
//!
//! The language: bytes (`1`, `0x55`, `010`), words (`le16:N` … `be64:N`), strings (`"text\n"`),
//! files (`<FILE`), offsets (`@N`, `@+N`, `@-N`, `@^N`), groups (`( … )`), repetition (`*N`),
//! slices (`[N:M]`), names (`… -> \name`, `\name`), variables (`$name`: a parameter or the
//! environment) and comments (`# …`). What is never written is a hole, also when the disk is
//! huge. `<(script)` is refused: this program runs no programs to open a disk.

mod base64;
mod parse;
mod value;

use device::{Blocking, Error, Params, Reach, Result, Use, ZeroFlags};

use crate::OpenOptions;
use crate::memory::Memory;
use device::values;
use parse::{Environment, SyntaxError};
use value::{Sink, Value};

/// The keys that are not variables.
const KEYS: [&str; 5] = ["data", "base64", "raw", "size", "allocator"];

/// Opens `data`.
pub(crate) fn open(params: &Params, options: &OpenOptions) -> Result<Memory> {
    let given: Vec<_> = ["data", "base64", "raw"]
        .into_iter()
        .filter_map(|key| params.get(key).map(|text| (key, text)))
        .collect();
    let [(key, text)] = given[..] else {
        return Err(Error::invalid("give exactly one of `data`, `base64` and `raw`"));
    };
    let mut used = Vec::new();
    let content = match key {
        "data" => {
            let mut source = Variables { params, used: &mut used };
            parse::parse(text, &mut source)
                .map_err(|f| Error::invalid(format!("data: {}", f.explain(text))))?
        }
        "base64" => Value::bytes(base64::decode(text).map_err(|e| values::wrong("base64", e))?),
        _ => Value::bytes(text.as_bytes().to_vec()),
    };
    let known: Vec<_> = KEYS.into_iter().chain(used.iter().map(String::as_str)).collect();
    params.check(&known)?;
    let size = values::size(params, "size")?.unwrap_or(content.size());
    fill(&content, size, options.write)?.kept(params, options)
}

/// What it needs: any file, if there is a `<` in it, since names of files may be built from
/// variables.
pub(crate) fn reaches(params: &Params) -> Reach {
    let reads = params.iter().any(|(_, text)| text.contains('<'));
    if reads { Reach::path("/", Use::Read) } else { Reach::default() }
}

/// The size of the disk that `text` describes, without files and with few variables: see
/// `crate::parsers`.
pub(crate) fn tried(text: &str) -> Result<u64> {
    let content = parse::parse(text, &mut Nothing)
        .map_err(|f| Error::invalid(format!("data: {}", f.explain(text))))?;
    let mut sink = Counted { left: TRIED, at: 0 };
    // More than is written of it is said to be, and no more is wrong.
    let _ = content.emit(content.size(), &mut sink);
    assert!(sink.at <= content.size());
    Ok(content.size())
}

/// Most bytes to write in such a trial.
const TRIED: u64 = 4 << 20;

/// No files, and some variables, of which one leads to itself.
struct Nothing;

impl Environment for Nothing {
    fn variable(&mut self, name: &str) -> Option<String> {
        match name {
            "a" => Some("1 (2 3)*2".into()),
            "b" => Some("$a $b".into()),
            _ => None,
        }
    }

    fn file(
        &mut self,
        path: &str,
        _: (u64, Option<u64>),
    ) -> std::result::Result<Vec<u8>, SyntaxError> {
        if path == "f" { Ok(vec![7; 100]) } else { Err(SyntaxError::new(0, "no files here")) }
    }
}

/// Takes so many bytes, and remembers how far they reach.
struct Counted {
    left: u64,
    at: u64,
}

impl Sink for Counted {
    fn put(&mut self, at: u64, bytes: &[u8]) -> bool {
        self.at = self.at.max(at + bytes.len() as u64);
        self.left = self.left.saturating_sub(bytes.len() as u64);
        self.left > 0
    }

    fn clear(&mut self, at: u64, len: u64) -> bool {
        self.at = self.at.max(at + len);
        true
    }
}

/// A disk of `size` bytes with as much of `content` as it holds.
fn fill(content: &Value, size: u64, write: bool) -> Result<Memory> {
    let disk = Memory::new(format!("data:{size}"), size, write)?;
    let mut sink = Disk { disk: &disk, error: None };
    let wanted = size.min(content.size());
    let done = content.emit(wanted, &mut sink);
    match (sink.error, done) {
        (Some(error), _) => Err(error),
        (None, Err(value::TooMuch)) => Err(Error::new(
            device::ErrorKind::Limit,
            device::Fault::User,
            "data: it is too long for a command line",
        )),
        (None, Ok(())) => Ok(disk),
    }
}

struct Disk<'a> {
    disk: &'a Memory,
    error: Option<Error>,
}

impl Disk<'_> {
    fn keep(&mut self, result: Result<()>) -> bool {
        self.error = result.err();
        self.error.is_none()
    }
}

impl Sink for Disk<'_> {
    fn put(&mut self, at: u64, bytes: &[u8]) -> bool {
        let done = self.disk.write_at(bytes, at, false);
        self.keep(done)
    }

    fn clear(&mut self, at: u64, len: u64) -> bool {
        let done = self.disk.zero(at, len, ZeroFlags::default());
        self.keep(done)
    }
}

/// Where `$name` and `<FILE` are looked up.
struct Variables<'a> {
    params: &'a Params,
    used: &'a mut Vec<String>,
}

impl Environment for Variables<'_> {
    fn variable(&mut self, name: &str) -> Option<String> {
        let param = self.params.get(name).filter(|_| !KEYS.contains(&name));
        if let Some(text) = param {
            self.used.push(name.into());
            return Some(text.into());
        }
        std::env::var(name).ok()
    }

    fn file(
        &mut self,
        path: &str,
        (from, to): (u64, Option<u64>),
    ) -> std::result::Result<Vec<u8>, SyntaxError> {
        use std::io::{Read, Seek, SeekFrom};
        let failed = |e: std::io::Error| SyntaxError::new(0, format!("read `{path}`: {e}"));
        let mut file = std::fs::File::open(path).map_err(failed)?;
        if from > 0 {
            file.seek(SeekFrom::Start(from)).map_err(failed)?;
        }
        let wanted = to.map_or(u64::MAX, |to| to.saturating_sub(from));
        let mut bytes = Vec::new();
        file.take(wanted.min(value::MOST_BYTES + 1)).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > value::MOST_BYTES {
            let most = device::format_size(value::MOST_BYTES);
            return Err(SyntaxError::new(
                0,
                format!("the requested part of `{path}` is longer than {most}"),
            ));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests;
