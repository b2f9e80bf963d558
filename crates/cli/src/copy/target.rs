//! Opening the two ends.
//!
//! Nothing is made or changed before the source is open and the two are known to differ, as far as
//! their names tell. What this process made is removed again when the copy fails, unless it
//! shall be kept; what was there before never is, nor is it emptied: it is written over, and a
//! file gets its length at the end. Under a filter it keeps its length: a filter may show only a
//! part of it.

use copy::{Ends, Flush};
use device::format_size;
use disk::{Created, Creation, Named, OpenOptions, Opened, Relation, Storage};
use runtime::Context;

use super::settings::Settings;
use crate::failure::Failure;
use crate::progress::Show;

/// Opens the source.
pub(super) fn open_source(settings: &Settings, context: &Context) -> Result<Opened, Failure> {
    let options = OpenOptions {
        connections: settings.connections,
        map: !settings.options.no_extents,
        ..OpenOptions::read_only()
    };
    let source = disk::open(&settings.source, &settings.source_filters, &options, context)?;
    if settings.show != Show::Json {
        crate::formats::warn(&settings.source, &source.below);
    }
    Ok(source)
}

/// Opens the target for a source of `size` bytes, with its filters over it; makes a file that is
/// missing. Also says what it has to do with the source.
pub(super) fn open(
    settings: &Settings,
    size: u64,
    context: &Context,
) -> Result<(Created, Ends), Failure> {
    let ends = relate(&settings.source, &settings.target)?;
    let connections = settings.connections;
    let creation = Creation {
        size,
        grows: false,
        appears: false,
        whole: true,
        write_back: settings.options.flush != Flush::Never,
        options: OpenOptions { connections, ..OpenOptions::read_write() },
    };
    let filters = &settings.target_filters;
    let target = disk::create(&settings.target, filters, &creation, context)?;
    let seen = target.edge.info();
    if filters.is_empty() || seen.size >= size {
        return Ok((target, ends));
    }
    if let Some(made) = &target.made {
        made.remove();
    }
    let words: Vec<_> = filters.kinds().map(|kind| kind.word).collect();
    Err(Failure::new(format!(
        "{}: target is too small: seen through --target-filter={} it has {} bytes ({}), the source \
         has {size} bytes ({}); it was not written",
        seen.name,
        words.join(","),
        seen.size,
        format_size(seen.size),
        format_size(size)
    )))
}

/// What the names tell of the two ends. Where both are files or block devices, a copy that would
/// write over what it reads is refused; of servers it is done, with care.
fn relate(source: &Named, target: &Named) -> Result<Ends, Failure> {
    let kept = target.storage();
    let on_disk = matches!(kept, Storage::Spans(_));
    match source.storage().relation(&kept) {
        Relation::Apart => Ok(Ends::Apart),
        Relation::Unknown => Ok(Ends::Unknown),
        Relation::Same if on_disk => Err(Failure::new(format!(
            "{target}: is the source itself ({source}); nothing was changed"
        ))),
        Relation::Overlapping if on_disk => Err(Failure::new(format!(
            "{target}: holds bytes of the source ({source}), at other offsets; nothing was changed"
        ))),
        Relation::Same | Relation::Overlapping => Ok(Ends::Same),
    }
}
