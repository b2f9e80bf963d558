//! The map of an image, in qemu-img's keys and columns.
//!
//! Entries are printed as they come; neighbours of one kind are one entry.

use std::io::Write;

use device::{Edge, Extent, ExtentKind, Stored};

use super::Stop;

/// Extents asked for at a time.
const MANY: usize = 16 << 10;

/// What is to be shown.
pub(super) struct Shown<'a> {
    /// The disk.
    pub(super) disk: &'a Edge,
    /// Whether its bytes are those of the file.
    pub(super) is_plain: bool,
    /// Whether the disk ends with a whole sector, as qemu-img counts.
    pub(super) in_sectors: bool,
    /// Whether it counts as an image without a backing image.
    pub(super) is_lone: bool,
    /// The file's name, and those of its backing images.
    pub(super) names: Vec<String>,
    /// First byte, and one after the last.
    pub(super) range: (u64, u64),
}

/// An entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Entry {
    start: u64,
    len: u64,
    kind: ExtentKind,
    depth: u16,
    present: bool,
    compressed: bool,
    offset: Option<u64>,
}

impl Entry {
    /// Merges the two, if the next one continues this one.
    fn joins(&mut self, next: &Self) -> bool {
        let follows = match (self.offset, next.offset) {
            (Some(at), Some(then)) => at.checked_add(self.len) == Some(then),
            (None, None) => true,
            _ => false,
        };
        let same = |entry: &Self| (entry.kind, entry.depth, entry.present, entry.compressed);
        if !follows || same(self) != same(next) {
            return false;
        }
        self.len += next.len;
        true
    }
}

impl Shown<'_> {
    fn entry(&self, extent: &Extent) -> Entry {
        let plain = extent.home.filter(|home| home.stored == Stored::Plain);
        let packed = extent.home.is_some_and(|home| matches!(home.stored, Stored::Packed { .. }));
        Entry {
            start: extent.start,
            len: extent.len,
            kind: extent.kind,
            depth: if self.is_lone { 0 } else { extent.depth },
            present: extent.present,
            compressed: packed,
            offset: if self.is_plain { Some(extent.start) } else { plain.map(|home| home.offset) },
        }
    }

    fn walk(&self, mut tell: impl FnMut(&Entry) -> Result<(), Stop>) -> Result<(), Stop> {
        let (mut at, end) = self.range;
        let mut now: Option<Entry> = None;
        let mut extents = Vec::new();
        while at < end {
            let found = self.disk.resolve(at, end - at, MANY, &mut extents);
            found.map_err(|e| Stop::Device(e.at(at)))?;
            for extent in extents.drain(..) {
                at = extent.end();
                let entry = self.entry(&extent);
                if now.as_mut().is_some_and(|now| now.joins(&entry)) {
                    continue;
                }
                if let Some(done) = now.replace(entry) {
                    tell(&done)?;
                }
            }
        }
        let rest = self.rest_of_sector().filter(|_| end == self.disk.info().size);
        if let Some(rest) = rest
            && !now.as_mut().is_some_and(|now| now.joins(&rest))
            && let Some(done) = now.replace(rest)
        {
            tell(&done)?;
        }
        now.map_or(Ok(()), |last| tell(&last))
    }

    /// What is beyond the end in the last sector.
    fn rest_of_sector(&self) -> Option<Entry> {
        let start = self.disk.info().size;
        let len = start.checked_next_multiple_of(512)? - start;
        let kind = ExtentKind::Hole;
        let (offset, present) = (Some(start), true);
        let rest = Entry { start, len, kind, depth: 0, present, compressed: false, offset };
        (self.in_sectors && len > 0).then_some(rest)
    }

    /// As a list in JSON.
    pub(super) fn json(&self, out: &mut dyn Write) -> Result<(), Stop> {
        let mut separator = "[";
        self.walk(|entry| {
            let Entry { start, len, depth, present, compressed, .. } = entry;
            let (zero, data) = (entry.kind.reads_zero(), entry.kind == ExtentKind::Data);
            write!(
                out,
                "{separator}{{ \"start\": {start}, \"length\": {len}, \"depth\": {depth}, \
                 \"present\": {present}, \"zero\": {zero}, \"data\": {data}, \
                 \"compressed\": {compressed}"
            )?;
            if let Some(offset) = entry.offset {
                write!(out, ", \"offset\": {offset}")?;
            }
            write!(out, "}}")?;
            separator = ",\n";
            Ok(())
        })?;
        out.write_all(if separator == "[" { b"[]\n" } else { b"]\n" })?;
        Ok(())
    }

    /// As a table: data, and where it is.
    pub(super) fn table(&self, out: &mut dyn Write) -> Result<(), Stop> {
        writeln!(out, "{:<16}{:<16}{:<16}File", "Offset", "Length", "Mapped to")?;
        self.walk(|entry| {
            if entry.kind != ExtentKind::Data {
                return Ok(());
            }
            let (start, len) = (hex(entry.start), hex(entry.len));
            match entry.offset.map(hex) {
                Some(offset) => {
                    let name = self.names.get(usize::from(entry.depth)).map_or("?", String::as_str);
                    writeln!(out, "{start:<16}{len:<16}{offset:<16}{name}")?;
                }
                None => return Err(Stop::Scattered(entry.start)),
            }
            Ok(())
        })
    }
}

/// A number as the table has it.
fn hex(number: u64) -> String {
    if number == 0 { "0".to_owned() } else { format!("{number:#x}") }
}
