//! All of the source at once: a target that lies in a file, as the source does, refers to the same
//! blocks from then on (a reflink). One request, whatever the size; holes stay holes.
//!
//! Only where no option asks for more: all of both disks as they are in their files, and the target
//! known to be zero. What cannot be shared in this way is left to the workers.

use device::{Error, Extent, Info, Order, Place, Result};

use crate::pair::Pair;
use crate::progress::{Cancel, Moved, Progress};
use crate::{Options, Reflink};

/// How many extents are counted as data or holes at a time, and how often.
const EXTENTS: usize = 1024;
const QUESTIONS: usize = 8;

/// Shares all of the source with the target, if that was asked for or is allowed. Returns whether
/// it did.
///
/// # Errors
/// It was asked for, and is not possible.
pub(crate) fn all(
    pair: &Pair,
    options: &Options,
    progress: &Progress,
    cancel: &Cancel,
) -> Result<bool> {
    let must = options.reflink == Reflink::Always;
    let known = options.target_is_zero && !options.check_zero;
    // With a witness all of it is read, by the workers, each of which shares what it has read.
    let may = known && options.witness.is_none();
    if options.reflink == Reflink::Never || options.wipe || !(may || must) {
        return Ok(false);
    }
    let refuse = |why: &str| {
        let action = format!("share all blocks of {}: {why}", pair.source.info().name);
        Err(Error::unsupported(action).on(&pair.target.info().name))
    };
    let from = match place(pair, options) {
        Ok(from) => from,
        Err(why) if must => return refuse(why),
        Err(_) => return Ok(false),
    };
    if pair.size == 0 {
        return Ok(true);
    }
    cancel.check()?;
    let touch = progress.touching();
    let taken = pair.target.take(0, pair.size, from, true)?;
    if taken == 0 {
        touch.was_nothing();
    }
    if taken == pair.size {
        for (how, len) in kinds(pair) {
            progress.add(how, len);
        }
        return Ok(true);
    }
    if must { refuse("their file systems do not support it") } else { Ok(false) }
}

/// The place of the source, if all of it can be shared as it is; or why not.
fn place(pair: &Pair, options: &Options) -> std::result::Result<Place, &'static str> {
    let (source, target) = (pair.source.info(), pair.target.info());
    let begins = |info: &Info| info.flat.clone().filter(|place| place.offset() == 0);
    if options.allocated {
        return Err("blocks that are shared are not allocated");
    }
    if source.size != target.size {
        return Err("they differ in size");
    }
    if !target.abilities.take || target.order != Order::Any || begins(target).is_none() {
        return Err("the target is not stored unchanged in a file");
    }
    begins(source).ok_or("the source is not stored unchanged in a file")
}

/// How many bytes are data and how many are not, by a few queries of the map once all is shared:
/// most file systems share nothing, and then the queries would be in vain. The rest, and what
/// cannot be queried, counts as data.
fn kinds(pair: &Pair) -> [(Moved, u64); 2] {
    let (mut at, mut holes) = (0, 0);
    for _ in 0..QUESTIONS {
        if at >= pair.size {
            break;
        }
        let mut extents: Vec<Extent> = Vec::new();
        if pair.source.resolve(at, pair.size - at, EXTENTS, &mut extents).is_err() {
            break;
        }
        for extent in &extents {
            holes += if extent.kind.reads_zero() { extent.len } else { 0 };
            at = extent.end();
        }
    }
    [(Moved::Copied, pair.size.saturating_sub(holes)), (Moved::Skipped, holes)]
}
