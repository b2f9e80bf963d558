//! Reading one disk for its digest, and showing how far that is.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use clap::ArgMatches;
use copy::{Anew, Cancel, Options, Progress};
use disk::OpenOptions;
use runtime::Context;
use transfer::{ContentDigest, Digester};

use crate::failure::Failure;
use crate::image::{self, OpenImage, Source};
use crate::progress::{Counting, Display, Show};

/// How the disks are opened.
pub(crate) fn options(matches: &ArgMatches) -> OpenOptions {
    OpenOptions { connections: 8, once: true, ..image::reading(matches) }
}

/// The digest of an open disk.
pub(crate) fn digest(
    matches: &ArgMatches,
    (source, opened): (&Arc<Source>, &OpenImage),
    digester: &Arc<Digester>,
    context: &Context,
) -> Result<ContentDigest, Failure> {
    read(matches, (source, opened), &Cancel::default(), context, |options, watched| {
        transfer::digest::read(&opened.edge, digester, options, watched, context)
    })
}

/// Reads an open disk with `reads`, and shows how far that is.
pub(crate) fn read<T>(
    matches: &ArgMatches,
    (source, opened): (&Arc<Source>, &OpenImage),
    cancel: &Cancel,
    context: &Context,
    reads: impl FnOnce(&Options, (&Progress, &Cancel)) -> device::Result<T>,
) -> Result<T, Failure> {
    let progress = Progress::default();
    let copying = Options { anew: Some(anew(matches, source, context)), ..Options::default() };
    let mut display = Display::new(Show::asked(matches), Counting::Data);
    if opened.edge.info().abilities.extents {
        display.source(&opened.edge);
    }
    let (over, is_over) = channel::<()>();
    let (period, seen) = (display.period(), progress.clone());
    let found = std::thread::scope(|scope| {
        let showing = scope.spawn(move || {
            let wait = period.unwrap_or(Duration::from_secs(1));
            while is_over.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                display.tick(&seen.snapshot());
            }
            display.end();
        });
        let found = reads(&copying, (&progress, cancel));
        drop(over);
        drop(showing.join());
        found
    });
    Ok(found?)
}

/// How a disk is opened once more.
pub(crate) fn anew(matches: &ArgMatches, source: &Arc<Source>, context: &Context) -> Anew {
    let (source, options, context) = (source.clone(), options(matches), context.clone());
    Anew::new(move || Ok(disk::open(&source.disk, &source.stack, &options, &context)?.edge))
}
