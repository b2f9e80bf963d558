//! A journal of a copy: what has become durable, so that the same copy goes on where it was
//! stopped.
//!
//! It is a file of JSON lines that only grows. The first says which copy it is of:
//! `{"journal":1,"source":{…},"target":{…}}`. Others list ranges of the target that are durable,
//! each `[first byte, bytes]`: `{"durable":[[0,4194304]]}`; a line is written when what it says is
//! true, so one that is lost costs a second copy of its ranges and nothing else. Where a digest is
//! wanted, the first line has its kind (`"digest":"sha256/64K"`), and others have the digests of
//! the blocks of a durable stretch, one after the other: `{"digested":[0,4194304,"…"]}`, or of
//! several stretches of zeroes: `{"digested":[0,8388608]}`. A last one,
//! `{"done":true}`, says that all is. A line that is cut off, or is no JSON, ends what counts; what
//! follows is cut off when the copy goes on.
//!
//! Whether the two ends are still those of the journal is known by [`DiskIdentity`]: size, samples
//! of the bytes, and of a file its node and when it was last written.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, Write};
use std::iter::once;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use device::{Edge, Error, ErrorKind, Fault, Result};
use runtime::{Mutex, RangeSet};
use serde_json::{Value, json};

use crate::digest::DigestKind;
use crate::identity::{DiskIdentity, PLACES, SAMPLE, bytes};
use crate::witness::DurableStretch;

/// The version of the form.
const VERSION: u64 = 1;
/// Bytes in the longest line.
const LINE: u64 = 1 << 20;
/// Ranges in a line.
const RANGES: usize = 1024;

/// The journal of one copy, open and locked.
#[derive(Debug)]
pub struct CopyJournal {
    name: String,
    file: Mutex<File>,
    /// Where that ended which was found.
    end: u64,
    /// What the file said when it was opened.
    found: Option<Found>,
}

#[derive(Debug)]
struct Found {
    head: Value,
    durable: RangeSet,
    digested: RangeSet,
    done: bool,
}

/// Where a copy goes on.
#[derive(Debug, Eq, PartialEq)]
pub enum Progressed {
    /// It has just begun.
    Begun,
    /// These ranges are in the target, and durable.
    Has(RangeSet),
    /// All of it is.
    Done,
}

impl CopyJournal {
    /// Opens a journal, or begins one. Nothing is written to it yet.
    ///
    /// # Errors
    /// Another copy uses it, or it is not a journal.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let failed = |what, e| Error::os(what, e).on(&name);
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let mut file = file.map_err(|e| failed("open the journal", e))?;
        if let Err(e) = file.try_lock() {
            let action = match e {
                std::fs::TryLockError::WouldBlock => "lock the journal: another copy uses it",
                std::fs::TryLockError::Error(e) => return Err(failed("lock the journal", e)),
            };
            return Err(Error::new(ErrorKind::Locked, Fault::User, action).on(&name));
        }
        let (found, end) = read(&file).map_err(|e| e.on(&name))?;
        file.set_len(end).map_err(|e| failed("truncate the journal", e))?;
        file.seek(std::io::SeekFrom::End(0)).map_err(|e| failed("seek in the journal", e))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = File::open(parent.unwrap_or(Path::new(".")));
        parent.and_then(|dir| dir.sync_all()).map_err(|e| failed("sync the directory of", e))?;
        Ok(Self { name, file: Mutex::new(file), end, found })
    }

    /// What a journal says is durable of a disk of `size` bytes, without a change of it; nothing
    /// where there is none yet.
    ///
    /// # Errors
    /// It cannot be read, or is a file that holds something else.
    pub(crate) fn look(path: &Path, size: u64) -> Result<RangeSet> {
        let on = |e: Error| e.on(path.display().to_string());
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(RangeSet::default()),
            Err(e) => return Err(on(Error::os("open the journal", e))),
        };
        Ok(match read(&file).map_err(on)?.0 {
            Some(Found { done: true, .. }) => once(0..size).filter(|all| !all.is_empty()).collect(),
            Some(found) => found.durable,
            None => RangeSet::default(),
        })
    }

    /// The stretches of which it has digests of this kind.
    ///
    /// # Errors
    /// It has none, or of another kind.
    pub(crate) fn digested(&self, kind: DigestKind) -> Result<RangeSet> {
        let Some(found) = &self.found else { return Ok(RangeSet::default()) };
        let kept = found.head.get("digest").and_then(Value::as_str);
        if kept == Some(&*kind.to_string()) {
            return Ok(found.digested.clone());
        }
        let kept = kept.map_or("has no digests".to_owned(), |kept| format!("has digests {kept}"));
        let action = format!(
            "resume the copy: its journal {kept}, and {kind} is asked for; nothing was changed: \
             leave the digest out \
             (`digest TARGET` afterwards), or remove the journal to start over"
        );
        Err(Error::new(ErrorKind::InvalidInput, Fault::User, action).on(&self.name))
    }

    /// Calls `each` with the first byte, the end and the digests of the blocks of all these
    /// stretches, in the order in which they became durable. None: they are zero.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn each_digested(
        &self,
        mut each: impl FnMut(Range<u64>, Option<&[u8]>),
    ) -> Result<()> {
        let file = self.file.lock();
        let mut from = BufReader::new(PlacedRead { file: &file, at: 0, end: self.end });
        let mut line = Vec::new();
        loop {
            line.clear();
            let n = from.read_until(b'\n', &mut line);
            if n.map_err(|e| Error::os("read the journal", e).on(&self.name))? == 0 {
                return Ok(());
            }
            let value = serde_json::from_slice::<Value>(&line).unwrap_or_default();
            if let Some((range, blocks)) = digested(&value) {
                each(range, blocks.as_deref());
            }
        }
    }

    /// Whether it is of a copy that has begun.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.found.is_some()
    }

    /// Relates the copy to the journal: begins it, or says where it goes on.
    ///
    /// # Errors
    /// `Changed`: the journal is of another copy, with what differs.
    pub fn relate(
        &self,
        (source, from): (&DiskIdentity, &Edge),
        (target, to): (&DiskIdentity, &Edge),
        digest: Option<DigestKind>,
    ) -> Result<Progressed> {
        let Some(found) = &self.found else {
            let mut head =
                json!({"journal": VERSION, "source": source.json(), "target": target.json()});
            if let Some(kind) = digest {
                head["digest"] = kind.to_string().into();
            }
            self.write(&[head])?;
            return Ok(Progressed::Begun);
        };
        let null = Value::Null;
        for (what, now) in [("source", source), ("target", target)] {
            if let Some(differs) = now.differs(found.head.get(what).unwrap_or(&null)) {
                return Err(self.refuse(&format!("is of another {what}: {differs}")));
            }
        }
        let all = once(0..from.info().size).filter(|all| !all.is_empty()).collect();
        let durable = if found.done { &all } else { &found.durable };
        self.compare(from, to, durable)?;
        match found.done {
            true => Ok(Progressed::Done),
            false => Ok(Progressed::Has(found.durable.clone())),
        }
    }

    /// Compares samples of what is said to be in the target.
    fn compare(&self, from: &Edge, to: &Edge, durable: &RangeSet) -> Result<()> {
        let step = (durable.len() / PLACES).max(SAMPLE);
        let (mut passed, mut next) = (0, 0);
        for range in durable.iter() {
            let len = range.end - range.start;
            while next < passed + len {
                let at = range.start + (next - passed);
                let place = at..range.end.min(at + SAMPLE);
                if place.end > to.info().size || bytes(from, &place)? != bytes(to, &place)? {
                    let what = format!(
                        "says that the target holds the source at {at}, and it does not: another \
                         program wrote to the target, or the target lost durable data"
                    );
                    return Err(self.refuse(&what));
                }
                next += step;
            }
            passed += len;
        }
        Ok(())
    }

    /// These ranges of the target are durable.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn durable(&self, ranges: &RangeSet) -> Result<()> {
        self.durable_with(ranges, &[])
    }

    /// The same, and with them these stretches.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn durable_with(
        &self,
        ranges: &RangeSet,
        stretches: &[DurableStretch],
    ) -> Result<()> {
        let all: Vec<_> =
            ranges.iter().map(|range| json!([range.start, range.end - range.start])).collect();
        let lines = all.chunks(RANGES).map(|some| json!({"durable": some}));
        let stretches = stretches.iter().map(|DurableStretch { range, blocks }| {
            let Range { start, end } = range.range;
            match range.digest {
                Some(_) => json!({"digested": [start, end - start, hex(blocks)]}),
                None => json!({"digested": [start, end - start]}),
            }
        });
        self.write(&lines.chain(stretches).collect::<Vec<_>>())
    }

    /// All of the copy is.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn done(&self) -> Result<()> {
        self.write(&[json!({"done": true})])
    }

    fn write(&self, lines: &[Value]) -> Result<()> {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let mut file = self.file.lock();
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        written.map_err(|e| Error::os("write the journal", e).on(&self.name))
    }

    fn refuse(&self, why: &str) -> Error {
        let action = format!(
            "resume the copy: its journal {why}; nothing was changed: remove the journal to start \
             over"
        );
        Error::new(ErrorKind::Changed, Fault::User, action).on(&self.name)
    }
}

/// What a journal says, and where that ends.
fn read(file: &File) -> Result<(Option<Found>, u64)> {
    let mut from = BufReader::new(file);
    let (mut found, mut end) = (None::<Found>, 0);
    loop {
        let mut line = Vec::new();
        let n = std::io::Read::take(&mut from, LINE).read_until(b'\n', &mut line);
        let n = n.map_err(|e| Error::os("read the journal", e))?;
        let value = line.ends_with(b"\n").then(|| serde_json::from_slice::<Value>(&line).ok());
        let value = value.flatten();
        let is_taken = match (&mut found, &value) {
            (Some(found), Some(line)) => found.take(line).is_some(),
            (Some(_), None) => false,
            (None, _) if is_cut_head(&line) => false,
            (None, value) => {
                found = Some(Found::new(value.as_ref())?);
                true
            }
        };
        if !is_taken {
            return Ok((found, end));
        }
        end += n as u64;
    }
}

/// Whether the first line was not written to its end: nothing has begun.
fn is_cut_head(line: &[u8]) -> bool {
    is_cut(line, b"{\"journal\":")
}

/// Whether a line that begins like this was not written to its end.
pub(crate) fn is_cut(line: &[u8], begins: &[u8]) -> bool {
    let there = line.get(..begins.len()).unwrap_or(line);
    !line.ends_with(b"\n") && begins.starts_with(there)
}

impl Found {
    /// Of the first line.
    fn new(line: Option<&Value>) -> Result<Self> {
        let version = |line: &&Value| line.get("journal").and_then(Value::as_u64) == Some(VERSION);
        let head = line.filter(version).cloned().ok_or_else(|| {
            let action = "open the journal: the file is not a journal; nothing was changed";
            Error::new(ErrorKind::InvalidInput, Fault::User, action)
        })?;
        let (durable, digested) = (RangeSet::default(), RangeSet::default());
        Ok(Self { head, durable, digested, done: false })
    }

    /// Takes a line; `None` if it says nothing.
    fn take(&mut self, line: &Value) -> Option<()> {
        if line.get("done").and_then(Value::as_bool) == Some(true) {
            self.done = true;
            return Some(());
        }
        if line.get("digested").is_some() {
            self.digested.add(digested(line)?.0);
            return Some(());
        }
        let range = |range: &Value| {
            let [start, len] = range.as_array()?.as_slice() else { return None };
            let (start, len) = (start.as_u64()?, len.as_u64()?);
            Some(start..start.checked_add(len)?)
        };
        // All of the line, or nothing of it.
        let ranges = line.get("durable")?.as_array()?.iter().map(range);
        self.durable.add_all(&ranges.collect::<Option<RangeSet>>()?);
        Some(())
    }
}

/// What a line says of a stretch: the digests of its blocks, or that it is zero.
fn digested(line: &Value) -> Option<(Range<u64>, Option<Vec<u8>>)> {
    let (start, len, blocks) = match line.get("digested")?.as_array()?.as_slice() {
        [start, len] => (start, len, None),
        [start, len, blocks] => (start, len, Some(bytes_of(blocks.as_str()?)?)),
        _ => return None,
    };
    let start = start.as_u64()?;
    Some((start..start.checked_add(len.as_u64()?)?, blocks))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let (digits, rest) = hex.as_bytes().as_chunks::<2>();
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let bytes = digits.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    bytes.collect::<Option<Vec<_>>>().filter(|_| rest.is_empty())
}

/// Reads a file from its beginning, whatever its own position is.
struct PlacedRead<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl std::io::Read for PlacedRead<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let room = left.min(buffer.len());
        let n = self.file.read_at(buffer.get_mut(..room).unwrap_or_default(), self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges are what is compared")]
mod tests {
    use std::sync::Arc;

    use device::Blocking as _;
    use device::model::Model;
    use disk::Named;
    use runtime::WorkPool;

    use super::*;

    struct Ends {
        from: Edge,
        to: Edge,
        source: DiskIdentity,
        target: DiskIdentity,
    }

    fn disk(byte: u8) -> Edge {
        let model = Model::new(1 << 20);
        model.write_at(&vec![byte; 1 << 20], 0, false).unwrap();
        device::Simple::shared_edge(Arc::new(model), &WorkPool::undivided(1))
    }

    fn ends(byte: u8) -> Ends {
        let named = |word| Named::parse(word).unwrap();
        let (from, to) = (disk(byte), disk(byte));
        let source = DiskIdentity::of_source(&named("memory:1M"), &from, None).unwrap();
        Ends { from, to, source, target: DiskIdentity::of_target(&named("null:")) }
    }

    impl Ends {
        fn relate(&self, journal: &CopyJournal) -> Result<Progressed> {
            journal.relate((&self.source, &self.from), (&self.target, &self.to), None)
        }
    }

    fn set(ranges: &[Range<u64>]) -> RangeSet {
        ranges.iter().cloned().collect()
    }

    #[test]
    fn a_journal_that_is_cut_off_anywhere_says_what_was_whole() {
        let scratch = trial::Scratch::new(std::env::temp_dir());
        let journal_file = scratch.path("journal");
        let ends = ends(7);
        let journal = CopyJournal::open(&journal_file).unwrap();
        assert_eq!(ends.relate(&journal).unwrap(), Progressed::Begun);
        journal.durable(&set(&[0..4096, 8192..12288])).unwrap();
        let first = std::fs::read(&journal_file).unwrap();
        journal.durable(&set(&[4096..8192])).unwrap();
        let second = std::fs::read(&journal_file).unwrap();
        journal.done().unwrap();
        drop(journal);
        let whole = std::fs::read(&journal_file).unwrap();
        let head = first.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for len in 0..=whole.len() {
            std::fs::write(&journal_file, &whole[..len]).unwrap();
            let journal = CopyJournal::open(&journal_file).unwrap();
            let wanted = match len {
                len if len == whole.len() => Progressed::Done,
                len if len >= second.len() => Progressed::Has(set(&[0..12288])),
                len if len >= first.len() => Progressed::Has(set(&[0..4096, 8192..12288])),
                len if len >= head => Progressed::Has(RangeSet::default()),
                _ => Progressed::Begun,
            };
            assert_eq!(ends.relate(&journal).unwrap(), wanted, "{len}");
            // It goes on behind what counted.
            journal.durable(&set(&[20480..24576])).unwrap();
            drop(journal);
            let again = ends.relate(&CopyJournal::open(&journal_file).unwrap()).unwrap();
            match (again, wanted) {
                (Progressed::Done, Progressed::Done) => {}
                (Progressed::Has(now), Progressed::Has(then)) => {
                    assert_eq!(now.len(), then.len() + 4096, "{len}");
                }
                (Progressed::Has(now), Progressed::Begun) => assert_eq!(now.len(), 4096),
                other => panic!("{len}: {other:?}"),
            }
        }
        let mut torn = second.clone();
        torn.extend(b"\0\0\0\0");
        std::fs::write(&journal_file, torn).unwrap();
        let found = ends.relate(&CopyJournal::open(&journal_file).unwrap()).unwrap();
        assert_eq!(found, Progressed::Has(set(&[0..12288])));
    }

    #[test]
    fn another_disk_is_refused_with_what_differs() {
        let scratch = trial::Scratch::new(std::env::temp_dir());
        let journal_file = scratch.path("journal");
        let ours = ends(7);
        let journal = CopyJournal::open(&journal_file).unwrap();
        ours.relate(&journal).unwrap();
        assert_eq!(CopyJournal::open(&journal_file).unwrap_err().kind(), ErrorKind::Locked);
        journal.durable(&set(&[0..1 << 20])).unwrap();
        drop(journal);
        let refused = |ends: &Ends| {
            let e = ends.relate(&CopyJournal::open(&journal_file).unwrap()).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Changed);
            e.to_string()
        };
        assert!(refused(&ends(8)).contains("another source: its content has changed"));
        let target = DiskIdentity::of_target(&Named::parse("null:?size=1").unwrap());
        let other = Ends { target, ..ends(7) };
        assert!(refused(&other).contains("another target: its name was null"));
        let lost = Ends { to: disk(0), ..ends(7) };
        assert!(refused(&lost).contains("says that the target holds the source at 0"));
        assert!(ours.relate(&CopyJournal::open(&journal_file).unwrap()).is_ok());
    }

    #[test]
    fn a_file_that_is_no_journal_is_left_alone() {
        let scratch = trial::Scratch::new(std::env::temp_dir());
        let journal_file = scratch.path("journal");
        for text in ["x", "{}\n", "{\"journal\":2}\n", "{\"journal\"\n", "\0"] {
            std::fs::write(&journal_file, text).unwrap();
            assert!(CopyJournal::open(&journal_file).is_err(), "{text:?}");
            assert_eq!(std::fs::read_to_string(&journal_file).unwrap(), text);
        }
    }
}
