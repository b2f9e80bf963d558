//! `diskferry cache`: shows, drops and loads the pages of files in the page cache.
//!
//! Counts are the system's, in pages. Dirty pages are made durable before they are dropped, because
//! the system keeps them otherwise; nothing is ever lost. Pages that a program has mapped stay.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::PossibleValue;
use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};
use device::residency::pages::{self, PageStates, Pages};
use rustix::fs::{Advice, SeekFrom, fadvise, fdatasync, seek};
use rustix::param::page_size;
use serde_json::{Value, json};

use crate::arguments::{json_flag, size, value};
use crate::failure::{ExitResult, Failure, USAGE};
use crate::output;
use crate::output::VERSION;
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "cache",
    summary: "Show, evict or load files in the page cache",
    about: "`stat` counts the pages of each file that are in memory, and says how many of them \
            are dirty or being written back, and how many the system reclaimed (recently, or at \
            all), with Linux 6.5 or newer. `evict` drops them, after writing back dirty pages. \
            Pages mapped by a program stay. `warm` reads uncached data, except holes. Files are \
            treated as raw bytes. The system gives this information only to the owner of a file \
            and users with write permission.",
    example: "  diskferry copy pattern:8M disk.raw\n  \
              diskferry cache warm disk.raw\n  \
              diskferry cache stat --offset 1M --length 2M disk.raw\n  \
              diskferry cache evict disk.raw",
    status: "",
    usage: USAGE,
    arguments,
    run,
};

/// Bytes read at a time, and bytes asked for ahead of them.
const READ: usize = 1 << 20;
const AHEAD: u64 = 8 << 20;

fn arguments(command: Command) -> Command {
    let actions = [
        PossibleValue::new("stat").help("Count the pages that are in memory"),
        PossibleValue::new("evict").help("Evict them"),
        PossibleValue::new("warm").help("Read the missing pages"),
    ];
    let files = Arg::new("file")
        .value_name("FILE")
        .required(true)
        .num_args(1..)
        .value_parser(value_parser!(PathBuf))
        .value_hint(ValueHint::FilePath)
        .help("Files and block devices");
    command
        .arg(Arg::new("action").value_name("ACTION").required(true).value_parser(actions))
        .arg(files)
        .arg(value("--offset SIZE", "Where the range begins [default: 0]"))
        .arg(value("--length SIZE", "How long it is [default: to the end]"))
        .arg(json_flag())
}

/// A range of an open file.
struct Part {
    file: File,
    name: String,
    size: u64,
    offset: u64,
    len: u64,
}

/// The result of an action on a file.
struct ActionResult {
    part: Part,
    pages: Pages,
    /// The pages that were in memory before an eviction.
    before: Option<Pages>,
}

fn run(matches: &ArgMatches) -> ExitResult {
    let (offset, length) = (size(matches, "offset")?.unwrap_or(0), size(matches, "length")?);
    let action = matches.get_one::<String>("action").map_or("", String::as_str);
    let mut all = Vec::new();
    for path in matches.get_many::<PathBuf>("file").unwrap_or_default() {
        let part = Part::open(path, offset, length)?;
        let failed = |e: io::Error| Failure::new(format!("{}: {action}: {e}", path.display()));
        all.push(act(action, part).map_err(failed)?);
    }
    let json = matches.get_flag("json");
    output::finish(|out| {
        if json {
            let list: Vec<_> = all.iter().map(ActionResult::json).collect();
            writeln!(out, "{}", Value::from(list))?;
        } else {
            for done in &all {
                writeln!(out, "{}", done.line(all.len() > 1))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn act(action: &str, part: Part) -> io::Result<ActionResult> {
    let before = match action {
        "evict" => Some(part.evict()?),
        "warm" => part.warm().map(|()| None)?,
        _ => None,
    };
    Ok(ActionResult { pages: part.count()?, part, before })
}

impl Part {
    fn open(path: &Path, offset: u64, length: Option<u64>) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let failed = |e: io::Error| Failure::new(format!("{name}: open: {e}"));
        // To open a pipe would wait for its other end.
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = opened.map_err(failed)?;
        let kind = file.metadata().map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Failure::new(format!("{name}: is neither a file nor a block device")));
        }
        let size = seek(&file, SeekFrom::End(0)).map_err(|e| failed(e.into()))?;
        if offset > size || length.is_some_and(|length| length > size - offset) {
            let what = format!("{name}: the range ends beyond the end of the file ({size} bytes)");
            return Err(Failure::new(what));
        }
        let len = length.unwrap_or(size - offset);
        Ok(Self { file, name, size, offset, len })
    }

    fn total(&self) -> u64 {
        if self.len == 0 { 0 } else { pages::touched(self.offset, self.len) }
    }

    fn count(&self) -> io::Result<Pages> {
        match self.len {
            0 => Ok(Pages::default()),
            len => pages::count(self.file.as_fd(), self.offset, len),
        }
    }

    /// Drops the pages; returns what was there.
    fn evict(&self) -> io::Result<Pages> {
        let before = self.count()?;
        if before.states.is_none_or(|s| s.dirty > 0 || s.writeback > 0) {
            fdatasync(&self.file)?;
        }
        if let Some(len) = NonZeroU64::new(self.len) {
            // Only whole pages can be dropped: those at the ends include bytes outside of the
            // range.
            let page = page_size() as u64;
            let start = self.offset - self.offset % page;
            let end = self.offset.saturating_add(len.get()).next_multiple_of(page);
            fadvise(&self.file, start, NonZeroU64::new(end - start), Advice::DontNeed)?;
        }
        Ok(before)
    }

    /// Reads the data into memory.
    fn warm(&self) -> io::Result<()> {
        let (mut at, end) = (self.offset, self.offset + self.len);
        let mut buffer = vec![0; READ];
        let mut asked = at;
        while at < end {
            let next = match seek(&self.file, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => break,
                // It has no map.
                Err(_) => at,
            };
            at = next;
            if at >= asked {
                asked = at.saturating_add(AHEAD);
                let _ = fadvise(&self.file, at, NonZeroU64::new(2 * AHEAD), Advice::WillNeed);
            }
            let most = usize::try_from(end.saturating_sub(at)).unwrap_or(READ).min(READ);
            match self.file.read_at(buffer.get_mut(..most).unwrap_or_default(), at)? {
                0 => break,
                n => at += n as u64,
            }
        }
        Ok(())
    }
}

impl ActionResult {
    /// The line for people.
    fn line(&self, named: bool) -> String {
        let Self { part, pages, before } = self;
        let (total, page) = (part.total(), page_size() / 1024);
        let percent = percent(pages.cached, total);
        let mut line = if named { format!("{}: ", part.name) } else { String::new() };
        line += &format!("pages in cache: {}/{total} ({percent})", pages.cached);
        line += &format!(
            "  [filesize={}.{}K, pagesize={page}K]",
            part.size / 1024,
            part.size % 1024 * 10 / 1024
        );
        match before {
            Some(before) => {
                line += &format!("  evicted: {}", before.cached.saturating_sub(pages.cached));
                if let Some(dirty) = before.states.map(|s| s.dirty + s.writeback).filter(|n| *n > 0)
                {
                    line += &format!(", made durable first: {dirty}");
                }
                if pages.cached > 0 {
                    line += &format!(", still in use: {}", pages.cached);
                }
            }
            None => {
                if let Some(PageStates { dirty, writeback, evicted, recently_evicted }) =
                    pages.states
                {
                    line += &format!(
                        "  dirty: {dirty}, writeback: {writeback}, evicted: {evicted}, recently \
                         evicted: {recently_evicted}"
                    );
                }
            }
        }
        line
    }

    fn json(&self) -> Value {
        let Self { part, pages, before } = self;
        let state = |of: fn(PageStates) -> u64| pages.states.map(of);
        let mut all = json!({
            "version": VERSION,
            "filename": part.name,
            "filesize": part.size,
            "pagesize": page_size(),
            "offset": part.offset,
            "length": part.len,
            "pages": part.total(),
            "cached": pages.cached,
            "dirty": state(|s| s.dirty),
            "writeback": state(|s| s.writeback),
            "evicted": state(|s| s.evicted),
            "recently-evicted": state(|s| s.recently_evicted),
        });
        if let (Some(before), Some(object)) = (before, all.as_object_mut()) {
            let dirty = before.states.map(|s| s.dirty + s.writeback);
            object.insert("cached-before".into(), json!(before.cached));
            object.insert("made-durable-first".into(), json!(dirty));
        }
        all
    }
}

/// `n` of `total` in tenths of a percent.
fn percent(n: u64, total: u64) -> String {
    let tenths = u128::from(n) * 1000 / u128::from(total.max(1));
    format!("{}.{}%", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_told_in_tenths_of_a_percent() {
        assert_eq!(percent(7_053_276, 8_388_608), "84.0%");
        assert_eq!(percent(0, 0), "0.0%");
        assert_eq!(percent(3, 3), "100.0%");
        assert_eq!(percent(u64::MAX, u64::MAX), "100.0%");
    }
}
