//! What could not be read of a source: how much of it may be, what is said of it, and the mapfile
//! that says it to the next copy.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Arg, ArgMatches, value_parser};
use copy::Report;
use device::{Error, ErrorKind, Fault, format_size};
use runtime::{Mutex, RangeSet};
use transfer::job::{OnUnread, TargetFate};
use transfer::mapfile::{MAGIC, RescueMap};

use super::CopyRequest;
use super::proof::{empty, open};
use crate::arguments::value;
use crate::digest::file;
use crate::failure::{Failure, say};
use crate::progress::{Show, warning};

/// The most places that may be told: `disk::salvage` knows as many of them.
const MOST: u64 = 1_000_000;

/// What cannot be read is copied as zeroes.
#[derive(Clone, Debug)]
pub(crate) struct UnreadWish {
    /// With more places than this the copy ends, and with any it has failed; `None`: it has not,
    /// however many there are.
    pub(crate) most: Option<u64>,
    pub(crate) mapfile: Option<PathBuf>,
}

/// `--max-errors`, and `--mapfile`.
pub(crate) fn arguments() -> [Arg; 2] {
    let most = value("--max-errors N", "Copy up to N places that cannot be read as zeroes");
    let map = file("--mapfile FILE", "Write what could not be read to FILE, as GNU ddrescue does");
    [
        most.value_parser(value_parser!(u64).range(1..=MOST)).long_help(
            "Copy up to N unreadable places of the source as zeroes, and report their offsets; \
             with more, the copy fails. A place is 512 bytes, or the source's smallest readable \
             block. If there was any, the exit status is 1, although the target is complete",
        ),
        map.requires("max-errors").long_help(
            "Record in FILE which parts of the source were copied (+), unreadable (-), or not \
             tried (?), in GNU ddrescue's mapfile format. `--changes FILE` copies everything not \
             marked with +; both may name the same file",
        ),
    ]
}

/// What they say.
pub(crate) fn wish(matches: &ArgMatches) -> Option<UnreadWish> {
    let most = matches.get_one::<u64>("max-errors").copied()?;
    Some(UnreadWish { most: Some(most), mapfile: matches.get_one::<PathBuf>("mapfile").cloned() })
}

/// What was not read in a copy.
pub(super) struct Unread {
    wish: UnreadWish,
    map: Option<File>,
    /// Places, and where they are.
    seen: Arc<Mutex<(u64, RangeSet)>>,
}

impl Unread {
    /// Opens the mapfile, if there is to be one. That of the last copy stays until this one has
    /// ended, if this one is of what it says.
    pub(super) fn begin(wish: &UnreadWish, work: &CopyRequest) -> Result<Self, Failure> {
        let old = |head: &[u8]| head.is_empty() || head.starts_with(MAGIC);
        let map = wish.mapfile.as_deref();
        let map = map.map(|path| open(path, "mapfile", old)).transpose()?;
        if let Some(map) = map.as_ref().filter(|_| work.job.changes.is_none()) {
            empty(map).map_err(|e| Failure::new(format!("--mapfile: {e}")))?;
        }
        Ok(Self { wish: wish.clone(), map, seen: Arc::default() })
    }

    /// Counts and says what cannot be read.
    pub(super) fn hook(&self, work: &CopyRequest) -> Arc<OnUnread> {
        let (warns, is_json) = (work.warns, work.show == Show::Json);
        let (most, seen) = (self.wish.most, self.seen.clone());
        Arc::new(move |place: Range<u64>, e: &Error| {
            let text = format!("error while reading offset {}: {e}", place.start);
            let mut seen = seen.lock();
            if let Some(most) = most.filter(|most| !place.is_empty() && seen.0 >= *most) {
                let action = format!("read: more than {most} places cannot be read: {e}");
                return Err(Error::new(ErrorKind::Io, Fault::File, action));
            }
            seen.0 += u64::from(!place.is_empty());
            seen.1.add(place);
            drop(seen);
            match is_json {
                true => warning(&text),
                false if warns => say(&format!("warning: {text}")),
                false => {}
            }
            Ok(())
        })
    }

    /// The copy has ended: writes the mapfile. `part` is what of the source it was of. Returns how
    /// the copy failed that is otherwise complete.
    pub(super) fn end(
        &self,
        (part, fate): (Range<u64>, Option<TargetFate>),
        report: &Report,
        work: &CopyRequest,
    ) -> Result<(), Failure> {
        let (count, bad) = &*self.seen.lock();
        let whole: RangeSet = std::iter::once(part.clone()).collect();
        let of_source = |range: &Range<u64>| range.start + part.start..range.end + part.start;
        let left = match fate {
            None | Some(TargetFate::Removed | TargetFate::InDoubt) => whole,
            Some(_) => report.left.iter().map(of_source).collect(),
        };
        if let Some(mut file) = self.map.as_ref() {
            let program = concat!("diskferry ", env!("CARGO_PKG_VERSION"));
            let map = RescueMap { part, bad, left: &left };
            let mut text = Vec::new();
            let written = map.write(&mut text, program);
            let written = written.and_then(|()| empty(file));
            let written = written.and_then(|()| file.write_all(&text));
            written.map_err(|e| Failure::new(format!("--mapfile: {e}")))?;
        }
        if *count == 0 || self.wish.most.is_none() || !left.is_empty() {
            return Ok(());
        }
        let (target, bytes) = (&work.job.target, format_size(bad.len()));
        let places = if *count == 1 { "place" } else { "places" };
        Err(Failure::new(format!(
            "{count} {places} of the source ({bytes}) could not be read: {target} has zeroes \
             there, and all other data"
        )))
    }
}
