//! The value of an expression of the data language: bytes, rows of values at offsets, repetitions
//! and slices, none of them spelt out until they are written.
//!
//! Sizes are exact and at most 2^63-1. Writing costs what is written and no more than the limits
//! here, however large the repetition: runs of zeroes are cleared, not written, and what is
//! repeated is written in large pieces.

use std::sync::Arc;

use runtime::to_usize;

/// Bytes written for one disk at most.
pub(crate) const MOST_BYTES: u64 = if cfg!(test) { 16 << 20 } else { 1 << 30 };
/// Separate pieces written for one disk at most. Each may take a page.
const MOST_PIECES: u32 = 1 << 18;
/// The largest disk.
const MOST_SIZE: u64 = i64::MAX.unsigned_abs();
/// What is repeated is written in pieces of about this many bytes.
const CHUNK: u64 = 256 << 10;

/// Something of a size known in advance. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    size: u64,
    /// How deep it is built; limited, because writing it recurs.
    depth: u32,
    form: Arc<Form>,
}

#[derive(Debug)]
enum Form {
    Bytes(Vec<u8>),
    /// Values at offsets; later ones lie over earlier ones, and between them are zeroes.
    Row(Vec<(u64, Value)>),
    Repeat(Value),
    /// From an offset on.
    Slice(Value, u64),
}

/// More bytes or pieces than the limits.
#[derive(Debug)]
pub(crate) struct TooMuch;

/// How deep values may be built of values.
const MOST_DEPTH: u32 = 200;

/// Takes the bytes of a value, in the order of its parts. Returns false to stop.
pub(crate) trait Sink {
    fn put(&mut self, at: u64, bytes: &[u8]) -> bool;
    fn clear(&mut self, at: u64, len: u64) -> bool;
}

impl Value {
    pub(crate) fn bytes(bytes: Vec<u8>) -> Self {
        Self { size: bytes.len() as u64, depth: 0, form: Arc::new(Form::Bytes(bytes)) }
    }

    /// Values at offsets, `size` bytes long. `None`: built too deep.
    pub(crate) fn row(parts: Vec<(u64, Value)>, size: u64) -> Option<Self> {
        let depth = parts.iter().map(|(_, v)| v.depth + 1).max().unwrap_or(0);
        (depth <= MOST_DEPTH).then(|| Self { size, depth, form: Arc::new(Form::Row(parts)) })
    }

    /// `times` times over. `None`: beyond 2^63-1 bytes, or built too deep.
    pub(crate) fn repeat(&self, times: u64) -> Option<Self> {
        let size = self.size.checked_mul(times).filter(|s| *s <= MOST_SIZE)?;
        self.wrap(size, Form::Repeat(self.clone()))
    }

    /// The bytes from `start` up to `end`. `None`: not inside, or built too deep.
    pub(crate) fn slice(&self, start: u64, end: u64) -> Option<Self> {
        let size = end.checked_sub(start).filter(|_| end <= self.size)?;
        self.wrap(size, Form::Slice(self.clone(), start))
    }

    fn wrap(&self, size: u64, form: Form) -> Option<Self> {
        let depth = self.depth + 1;
        (depth <= MOST_DEPTH).then(|| Self { size, depth, form: Arc::new(form) })
    }

    /// Its bytes, if it is nothing but bytes.
    pub(crate) fn as_bytes(&self) -> Option<&[u8]> {
        match &*self.form {
            Form::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Its length in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Writes its first `len` bytes to the beginning of an empty `sink`. A sink that stops is no
    /// error here.
    pub(crate) fn emit(&self, len: u64, sink: &mut dyn Sink) -> Result<(), TooMuch> {
        let mut budget = Budget { bytes: MOST_BYTES, pieces: MOST_PIECES };
        let mut writer = Writer { sink, touched: 0, budget: &mut budget };
        match writer.value(self, 0, len, 0) {
            Ok(()) | Err(Stop::Sink) => Ok(()),
            Err(Stop::TooMuch) => Err(TooMuch),
        }
    }
}

struct Budget {
    bytes: u64,
    pieces: u32,
}

enum Stop {
    Sink,
    TooMuch,
}

struct Writer<'a> {
    sink: &'a mut dyn Sink,
    /// From here on nothing has been written: it is zero already.
    touched: u64,
    budget: &'a mut Budget,
}

impl Writer<'_> {
    /// Writes the bytes `from..to` of `value` to `at`.
    fn value(&mut self, value: &Value, from: u64, to: u64, at: u64) -> Result<(), Stop> {
        if from >= to {
            return Ok(());
        }
        self.pay_piece()?;
        match &*value.form {
            Form::Bytes(bytes) => {
                let part = bytes.get(to_usize(from)..to_usize(to)).unwrap_or_default();
                self.put(at, part)
            }
            Form::Row(parts) => self.row(parts, from, to, at),
            Form::Repeat(inner) => self.repeat(inner, from, to, at),
            Form::Slice(inner, start) => self.value(inner, start + from, start + to, at),
        }
    }

    fn row(&mut self, parts: &[(u64, Value)], from: u64, to: u64, at: u64) -> Result<(), Stop> {
        self.clear(at, to - from)?;
        for (start, part) in parts {
            self.pay_piece()?;
            let end = start + part.size;
            let (first, last) = (from.max(*start), to.min(end));
            if first < last {
                self.value(part, first - start, last - start, at + (first - from))?;
            }
        }
        Ok(())
    }

    fn repeat(&mut self, inner: &Value, from: u64, to: u64, at: u64) -> Result<(), Stop> {
        let period = inner.size;
        if period > CHUNK || to - from <= period {
            let mut done = from;
            while done < to {
                let within = done % period;
                let n = (period - within).min(to - done);
                self.value(inner, within, within + n, at + (done - from))?;
                done += n;
            }
            return Ok(());
        }
        // Small and repeated: spelt out once, so that the rest is whole chunks.
        let once = self.spell(inner)?;
        if device::is_zero(&once) {
            return self.clear(at, to - from);
        }
        let times = (CHUNK / period + 1).min((to - from).div_ceil(period) + 1);
        let chunk = once.repeat(to_usize(times));
        let whole = (times - 1) * period;
        let mut done = from;
        while done < to {
            let within = to_usize(done % period);
            let n = whole.min(to - done);
            let part = chunk.get(within..within + to_usize(n)).unwrap_or_default();
            self.put(at + (done - from), part)?;
            done += n;
        }
        Ok(())
    }

    /// All bytes of a value of at most a chunk.
    fn spell(&mut self, value: &Value) -> Result<Vec<u8>, Stop> {
        self.budget.bytes = self.budget.bytes.checked_sub(value.size).ok_or(Stop::TooMuch)?;
        let mut page = Page(vec![0; to_usize(value.size)]);
        let mut writer = Writer { sink: &mut page, touched: 0, budget: self.budget };
        writer.value(value, 0, value.size, 0)?;
        Ok(page.0)
    }

    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), Stop> {
        let n = bytes.len() as u64;
        self.pay_piece()?;
        self.budget.bytes = self.budget.bytes.checked_sub(n).ok_or(Stop::TooMuch)?;
        self.touched = self.touched.max(at + n);
        if self.sink.put(at, bytes) { Ok(()) } else { Err(Stop::Sink) }
    }

    fn clear(&mut self, at: u64, len: u64) -> Result<(), Stop> {
        let n = self.touched.saturating_sub(at).min(len);
        if n == 0 || self.sink.clear(at, n) { Ok(()) } else { Err(Stop::Sink) }
    }

    fn pay_piece(&mut self) -> Result<(), Stop> {
        self.budget.pieces = self.budget.pieces.checked_sub(1).ok_or(Stop::TooMuch)?;
        Ok(())
    }
}

/// A sink in a row of bytes.
struct Page(Vec<u8>);

impl Page {
    fn part(&mut self, at: u64, len: usize) -> &mut [u8] {
        let at = to_usize(at);
        self.0.get_mut(at..at.saturating_add(len)).unwrap_or_default()
    }
}

impl Sink for Page {
    fn put(&mut self, at: u64, bytes: &[u8]) -> bool {
        self.part(at, bytes.len()).copy_from_slice(bytes);
        true
    }

    fn clear(&mut self, at: u64, len: u64) -> bool {
        self.part(at, to_usize(len)).fill(0);
        true
    }
}
