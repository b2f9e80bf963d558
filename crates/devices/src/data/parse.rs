//! The parser of the data language: text to [`Value`].
//!
//! Offsets, sizes and nesting are limited, so no text can take more time or memory than its own
//! length deserves; what the result would cost to write is limited there.

use super::value::Value;

/// How deep groups and variables may be nested.
const MOST_NESTED: usize = 64;
/// The largest offset.
const MOST_SIZE: u64 = i64::MAX.unsigned_abs();
/// Bytes up to this many are joined with those before and after them.
const MOST_SHORT: usize = 4096;
/// Text parsed for one disk at most, with all its variables, in bytes.
const MOST_TEXT: usize = 4 << 20;

/// The variables and files of the language.
pub(crate) trait Environment {
    /// The text of a variable.
    fn variable(&mut self, name: &str) -> Option<String>;
    /// The content of a file, from one byte up to another (or as far as it goes). It may be
    /// shorter.
    fn file(&mut self, path: &str, part: (u64, Option<u64>)) -> Result<Vec<u8>, SyntaxError>;
}

/// An error, and its position in the text.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    at: usize,
    message: String,
}

impl SyntaxError {
    pub(crate) fn new(at: usize, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }

    /// The message with the place it belongs to in `text`.
    pub(crate) fn explain(&self, text: &str) -> String {
        let rest: String = text.chars().skip(self.at).take(12).collect();
        let rest = rest.escape_debug();
        format!("{} (character {}: `{rest}`)", self.message, self.at + 1)
    }
}

type Parsed<T> = Result<T, SyntaxError>;

/// Reads `text`.
pub(crate) fn parse(text: &str, source: &mut dyn Environment) -> Parsed<Value> {
    let mut parser = Parser { source, names: Vec::new(), nested: 0, text: 0 };
    parser.parse_text(text)
}

struct Parser<'a> {
    source: &'a mut dyn Environment,
    /// Names in force, innermost last.
    names: Vec<(String, Value)>,
    nested: usize,
    /// Bytes of text parsed so far.
    text: usize,
}

impl Parser<'_> {
    fn parse_text(&mut self, text: &str) -> Parsed<Value> {
        self.text += text.len();
        if self.text > MOST_TEXT {
            return Err(SyntaxError::new(0, "variables expand to too much text"));
        }
        let chars: Vec<char> = text.chars().collect();
        let mut scan = Scan { chars: &chars, at: 0 };
        let value = self.scope(&mut scan)?;
        if scan.peek().is_some() {
            return Err(scan.fail("`)` without `(`"));
        }
        Ok(value)
    }

    /// Expressions up to the end of the text or a closing parenthesis, which is not consumed.
    fn scope(&mut self, scan: &mut Scan<'_>) -> Parsed<Value> {
        if self.nested >= MOST_NESTED {
            return Err(scan.fail("groups or variables are nested too deep"));
        }
        self.nested += 1;
        let outer = self.names.len();
        let mut row = Row::default();
        loop {
            scan.skip_space();
            match scan.peek() {
                None | Some(')') => break,
                Some('@') => row.offset = offset(scan, row.offset)?,
                Some(_) => {
                    if let Some(value) = self.expression(scan)? {
                        row.push(value).ok_or_else(|| scan.fail("the disk would be too large"))?;
                        continue;
                    }
                }
            }
            row.size = row.size.max(row.offset);
        }
        self.names.truncate(outer);
        self.nested -= 1;
        row.finish().ok_or_else(|| scan.fail("expressions are nested too deep"))
    }

    /// One expression with what follows it; nothing if it was only given a name.
    fn expression(&mut self, scan: &mut Scan<'_>) -> Parsed<Option<Value>> {
        let mut value = self.primary(scan)?;
        loop {
            let before = scan.at;
            scan.skip_space();
            if scan.take("*") {
                scan.skip_space();
                let times = scan.number("how many times?")?;
                value = value.repeat(times).ok_or_else(|| scan.fail("it would be too large"))?;
            } else if scan.take("[") {
                value = slice(scan, &value)?;
            } else if scan.take("->") {
                scan.skip_space();
                if !scan.take("\\") {
                    return Err(scan.fail("a name begins with `\\`"));
                }
                let name = scan.name(&['-', '_'])?;
                self.names.push((name, value));
                return Ok(None);
            } else {
                scan.at = before;
                return Ok(Some(value));
            }
        }
    }

    fn primary(&mut self, scan: &mut Scan<'_>) -> Parsed<Value> {
        let start = scan.at;
        match scan.peek() {
            Some('0'..='9') => byte(scan),
            Some('"') => string(scan),
            Some('l' | 'b') => word(scan),
            Some('(') => {
                scan.at += 1;
                let value = self.scope(scan)?;
                if scan.take(")") {
                    Ok(value)
                } else {
                    Err(SyntaxError::new(start, "`(` without `)`"))
                }
            }
            Some('<') => self.file(scan),
            Some('\\') => {
                scan.at += 1;
                let name = scan.name(&['-', '_'])?;
                let found = self.names.iter().rev().find(|(n, _)| *n == name);
                found
                    .map(|(_, value)| value.clone())
                    .ok_or_else(|| SyntaxError::new(start, format!("there is no `\\{name}` here")))
            }
            Some('$') => {
                scan.at += 1;
                let name = scan.name(&['_'])?;
                let text = self.source.variable(&name).ok_or_else(|| {
                    let what = format!("`${name}` is neither a parameter nor in the environment");
                    SyntaxError::new(start, what)
                })?;
                self.parse_text(&text)
                    .map_err(|f| SyntaxError::new(start, format!("${name}: {}", f.explain(&text))))
            }
            Some('*' | '[' | '-') => Err(scan.fail("this must follow an expression")),
            _ => Err(scan.fail("this is not a byte or anything else that is known")),
        }
    }

    fn file(&mut self, scan: &mut Scan<'_>) -> Parsed<Value> {
        let start = scan.at;
        scan.at += 1;
        if scan.peek() == Some('(') {
            return Err(SyntaxError::new(
                start,
                "`<(script)` is refused: nothing is run to open a disk",
            ));
        }
        let path = scan.while_true(|c| !(c.is_whitespace() || matches!(c, '*' | '[' | ')')));
        if path.is_empty() {
            return Err(SyntaxError::new(start, "which file? write <FILE"));
        }
        // No more is read than is wanted: it may be a file without an end.
        let before = scan.at;
        scan.skip_space();
        let part = if scan.take("[") {
            bounds(scan)?
        } else {
            scan.at = before;
            (0, None)
        };
        if part.1.is_some_and(|to| to < part.0) {
            return Err(SyntaxError::new(start, "a slice [N:M] ends before its beginning"));
        }
        let bytes =
            self.source.file(&path, part).map_err(|f| SyntaxError::new(start, f.message))?;
        Ok(Value::bytes(bytes))
    }
}

/// The values of a scope so far.
#[derive(Default)]
struct Row {
    parts: Vec<(u64, Value)>,
    /// Short bytes that follow each other, to become one part, and where they begin.
    short: Vec<u8>,
    short_at: u64,
    offset: u64,
    size: u64,
}

impl Row {
    /// Puts a value at the offset and moves behind it. `None`: beyond 2^63-1.
    fn push(&mut self, value: Value) -> Option<()> {
        let end = self.offset.checked_add(value.size()).filter(|e| *e <= MOST_SIZE)?;
        match value.as_bytes().filter(|b| b.len() <= MOST_SHORT) {
            Some(bytes) => {
                if self.offset != self.short_at + self.short.len() as u64 {
                    self.end_short();
                }
                if self.short.is_empty() {
                    self.short_at = self.offset;
                }
                self.short.extend_from_slice(bytes);
            }
            None if value.size() > 0 => {
                self.end_short();
                self.parts.push((self.offset, value));
            }
            None => {}
        }
        self.offset = end;
        self.size = self.size.max(end);
        Some(())
    }

    fn end_short(&mut self) {
        if !self.short.is_empty() {
            let bytes = std::mem::take(&mut self.short);
            self.parts.push((self.short_at, Value::bytes(bytes)));
        }
    }

    fn finish(mut self) -> Option<Value> {
        self.end_short();
        Value::row(self.parts, self.size)
    }
}

/// `@N`, `@+N`, `@-N` or `@^N`: the offset after it.
fn offset(scan: &mut Scan<'_>, now: u64) -> Parsed<u64> {
    let start = scan.at;
    scan.at += 1;
    let sign = scan.peek().filter(|c| matches!(c, '+' | '-' | '^'));
    if sign.is_some() {
        scan.at += 1;
        scan.skip_space();
    }
    let n = scan.number("which offset?")?;
    let fail = |message: &str| SyntaxError::new(start, message);
    let new = match sign {
        None => Some(n),
        Some('+') => now.checked_add(n),
        Some('-') => {
            return now.checked_sub(n).ok_or_else(|| fail("this is before the start of the disk"));
        }
        Some(_) if !n.is_power_of_two() => return Err(fail("an alignment is a power of two")),
        Some(_) => now.checked_next_multiple_of(n),
    };
    new.filter(|o| *o <= MOST_SIZE).ok_or_else(|| fail("this is beyond 2^63-1"))
}

/// What follows `[` of a slice, of which an empty one may lie anywhere.
fn slice(scan: &mut Scan<'_>, value: &Value) -> Parsed<Value> {
    let start = scan.at;
    let (from, to) = bounds(scan)?;
    let to = to.unwrap_or(value.size());
    if from == to {
        return Ok(Value::bytes(Vec::new()));
    }
    value.slice(from, to).ok_or_else(|| {
        let size = value.size();
        SyntaxError::new(start, format!("[{from}:{to}] does not lie in these {size} bytes"))
    })
}

/// `N:M]`, either number left out or not.
fn bounds(scan: &mut Scan<'_>) -> Parsed<(u64, Option<u64>)> {
    let end_of = |scan: &mut Scan<'_>, close: &str| {
        scan.skip_space();
        if scan.take(close) {
            return Ok(None);
        }
        let n = scan.number("a slice is [N:M]")?;
        scan.skip_space();
        if scan.take(close) { Ok(Some(n)) } else { Err(scan.fail("a slice is [N:M]")) }
    };
    let from = end_of(scan, ":")?.unwrap_or(0);
    Ok((from, end_of(scan, "]")?))
}

fn byte(scan: &mut Scan<'_>) -> Parsed<Value> {
    let start = scan.at;
    let n = scan.plain_number("a byte?")?;
    let byte = u8::try_from(n).map_err(|_| SyntaxError::new(start, "a byte is 0 to 255"))?;
    Ok(Value::bytes(vec![byte]))
}

/// `le16:N` and its like.
fn word(scan: &mut Scan<'_>) -> Parsed<Value> {
    let start = scan.at;
    for (prefix, size) in [("16:", 2), ("32:", 4), ("64:", 8)] {
        for little in [true, false] {
            scan.at = start;
            if scan.take(if little { "le" } else { "be" }) && scan.take(prefix) {
                let n = scan.plain_number("which number?")?;
                return word_bytes(n, size, little)
                    .ok_or_else(|| SyntaxError::new(start, "the number does not fit"));
            }
        }
    }
    scan.at = start;
    Err(scan.fail("words are le16: le32: le64: be16: be32: be64:"))
}

fn word_bytes(n: u64, size: usize, little: bool) -> Option<Value> {
    let mut bytes = n.to_le_bytes().to_vec();
    if bytes.split_off(size).iter().any(|b| *b != 0) {
        return None;
    }
    if !little {
        bytes.reverse();
    }
    Some(Value::bytes(bytes))
}

fn string(scan: &mut Scan<'_>) -> Parsed<Value> {
    let start = scan.at;
    scan.at += 1;
    let mut bytes = Vec::new();
    loop {
        let c = scan.next().ok_or_else(|| SyntaxError::new(start, "the string does not end"))?;
        match c {
            '"' => return Ok(Value::bytes(bytes)),
            '\\' => escape(scan, &mut bytes)?,
            c => push_char(&mut bytes, c),
        }
    }
}

/// An escape in a string, as in C. Any other character stands for itself.
fn escape(scan: &mut Scan<'_>, bytes: &mut Vec<u8>) -> Parsed<()> {
    let start = scan.at;
    let numeric = |text: String, radix| {
        u8::from_str_radix(&text, radix)
            .map_err(|_| SyntaxError::new(start, "this escape is not a byte"))
    };
    match scan.peek() {
        None => return Err(SyntaxError::new(start, "the string does not end")),
        Some('x') => {
            scan.at += 1;
            let digits = scan.some(2, |c| c.is_ascii_hexdigit());
            bytes.push(numeric(digits, 16)?);
        }
        Some('0'..='7') => {
            let digits = scan.some(3, |c| matches!(c, '0'..='7'));
            bytes.push(numeric(digits, 8)?);
        }
        Some(c) => {
            scan.at += 1;
            match c {
                'a' => bytes.push(7),
                'b' => bytes.push(8),
                't' => bytes.push(9),
                'n' => bytes.push(10),
                'v' => bytes.push(11),
                'f' => bytes.push(12),
                'r' => bytes.push(13),
                'e' => bytes.push(27),
                c => push_char(bytes, c),
            }
        }
    }
    Ok(())
}

fn push_char(bytes: &mut Vec<u8>, c: char) {
    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// A place in a text.
struct Scan<'a> {
    chars: &'a [char],
    at: usize,
}

impl Scan<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek();
        self.at += usize::from(c.is_some());
        c
    }

    fn fail(&self, message: &str) -> SyntaxError {
        SyntaxError::new(self.at, message)
    }

    /// Takes `text`, if that is what comes.
    fn take(&mut self, text: &str) -> bool {
        let n = text.len();
        let comes = self.chars.get(self.at..).unwrap_or_default();
        let is = comes.len() >= n && comes.iter().copied().zip(text.chars()).all(|(a, b)| a == b);
        self.at += if is { n } else { 0 };
        is
    }

    fn while_true(&mut self, good: impl Fn(char) -> bool) -> String {
        self.some(usize::MAX, good)
    }

    fn some(&mut self, most: usize, good: impl Fn(char) -> bool) -> String {
        let rest = self.chars.get(self.at..).unwrap_or_default();
        let text: String = rest.iter().copied().take(most).take_while(|c| good(*c)).collect();
        self.at += text.chars().count();
        text
    }

    /// White space and comments.
    fn skip_space(&mut self) {
        loop {
            self.while_true(char::is_whitespace);
            if self.peek() != Some('#') {
                return;
            }
            self.while_true(|c| c != '\n');
        }
    }

    fn name(&mut self, also: &[char]) -> Parsed<String> {
        let name = self.while_true(|c| c.is_ascii_alphanumeric() || also.contains(&c));
        if name.is_empty() { Err(self.fail("a name is missing")) } else { Ok(name) }
    }

    /// A number: decimal, octal (`0…`) or hexadecimal (`0x…`).
    fn plain_number(&mut self, what: &str) -> Parsed<u64> {
        let start = self.at;
        let n = self.digits(what)?;
        if self.peek().is_some_and(char::is_alphanumeric) {
            return Err(SyntaxError::new(start, format!("{what} this is not a number")));
        }
        Ok(n)
    }

    /// A number that may have a size's suffix: `16`, `0x1fe`, `1M`.
    fn number(&mut self, what: &str) -> Parsed<u64> {
        let start = self.at;
        let n = self.digits(what)?;
        let shift = match self.peek().map(|c| c.to_ascii_lowercase()) {
            Some('b') => 0,
            Some('k') => 10,
            Some('m') => 20,
            Some('g') => 30,
            Some('t') => 40,
            Some('p') => 50,
            Some('e') => 60,
            Some(c) if c.is_alphanumeric() => {
                return Err(SyntaxError::new(start, format!("{what} this is not a number")));
            }
            _ => return Ok(n),
        };
        self.at += 1;
        n.checked_mul(1 << shift).ok_or_else(|| SyntaxError::new(start, "this is beyond 2^64"))
    }

    fn digits(&mut self, what: &str) -> Parsed<u64> {
        let start = self.at;
        let (radix, digits) = if self.take("0x") || self.take("0X") {
            (16, self.while_true(|c| c.is_ascii_hexdigit()))
        } else {
            let digits = self.while_true(|c| c.is_ascii_digit());
            (if digits.len() > 1 && digits.starts_with('0') { 8 } else { 10 }, digits)
        };
        u64::from_str_radix(&digits, radix)
            .map_err(|_| SyntaxError::new(start, format!("{what} this is not a number")))
    }
}
