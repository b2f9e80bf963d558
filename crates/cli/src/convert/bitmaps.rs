//! `--bitmaps`: what was copied gets the dirty bitmaps of its source, too.
//!
//! They are made when the target is complete and durable: all of them, or an error says which of
//! them the target lacks. Until then it is an image without bitmaps.

use clap::ArgMatches;
use disk::{BitmapChange, Described, Image, OpenOptions};
use runtime::Context;

use crate::copying::CopyRequest;
use crate::failure::{Failure, say};
use crate::image;
use crate::sandbox::{Wish, wish};

/// What is to be copied of the bitmaps.
pub(super) struct BitmapCopy {
    source: Described,
    bitmaps: Vec<CopiedBitmap>,
    target: Image,
    context: Context,
}

/// A bitmap that can be relied on.
struct CopiedBitmap {
    name: String,
    granularity: u64,
    is_enabled: bool,
}

impl BitmapCopy {
    /// What was asked for, if it was. Nothing is changed yet.
    pub(super) fn asked(
        matches: &ArgMatches,
        work: &mut CopyRequest,
    ) -> Result<Option<Self>, Failure> {
        let skips = matches.get_flag("skip-broken-bitmaps");
        if !matches.get_flag("bitmaps") {
            let needs = || Failure::usage("--skip-broken-bitmaps: needs --bitmaps");
            return if skips { Err(needs()) } else { Ok(None) };
        }
        let [from] = &*work.sources else {
            return Err(Failure::usage("--bitmaps: takes a single source"));
        };
        if wish(matches) == Wish::Require {
            // The target is opened once more when all else is done.
            return Err(Failure::usage(
                "--bitmaps: is not done in a sandbox; leave out one of them",
            ));
        }
        let wanted = work.job.target_stack.image();
        let word = wanted.format().map_or("raw", |format| format.word);
        let format = disk::format(word)?;
        let none = |of: &str| Failure::new(format!("--bitmaps: {of} has no bitmaps"));
        if format.upkeep.bitmap.is_none() {
            return Err(none(&format!("an image of the format {word}")));
        }
        let context = image::context(matches)?;
        let options = image::reading(matches);
        let source = disk::describe(&from.disk, from.image()?, &options, &context)?;
        let source = source.refuse_unknown()?;
        let Some(stored) = &source.description.bitmaps else {
            return Err(none("the source"));
        };
        let of = (source.format, &source.container);
        if disk::measure_bitmaps(format, &wanted.options, of, &context)?.is_none() {
            return Err(none("a target with these options"));
        }
        let specific = source.description.specific.get("bitmaps");
        let flags = specific.and_then(|found| found.as_array()).into_iter().flatten();
        let mut bitmaps = Vec::new();
        for (found, about) in stored.iter().zip(flags) {
            let has = |flag: &str| {
                let all = about.get("flags").and_then(|flags| flags.as_array());
                all.is_some_and(|all| all.iter().any(|one| one.as_str() == Some(flag)))
            };
            let shown = device::text::shown(&found.name);
            if !has("in-use") {
                let (name, granularity) = (found.name.clone(), found.granularity);
                bitmaps.push(CopiedBitmap { name, granularity, is_enabled: has("auto") });
            } else if skips {
                say(&format!("warning: the bitmap `{shown}` is inconsistent, and is not copied"));
            } else {
                return Err(Failure::new(format!(
                    "--bitmaps: the bitmap `{shown}` is inconsistent: add --skip-broken-bitmaps, or \
                     remove it with diskferry bitmap --remove"
                )));
            }
        }
        let mut target = Image::of(word)?;
        target.external = image::external(matches);
        work.sandbox = Wish::Off;
        Ok(Some(Self { source, bitmaps, target, context }))
    }

    /// Makes them in the target, which has all bytes.
    pub(super) fn finish(&self, work: &CopyRequest) -> Result<(), Failure> {
        for bitmap in &self.bitmaps {
            self.add(bitmap, work).map_err(|e| {
                let shown = device::text::shown(&bitmap.name);
                let what = "all bytes were copied, but not all bitmaps";
                Failure::because(&e, format!("the bitmap `{shown}`: {e}; {what}"))
            })?;
        }
        Ok(())
    }

    fn add(&self, bitmap: &CopiedBitmap, work: &CopyRequest) -> device::Result<()> {
        let CopiedBitmap { name, granularity, is_enabled } = bitmap;
        let mut changes = vec![
            BitmapChange::Add(Some(*granularity)),
            BitmapChange::Merge(name, Some(&self.source.container)),
        ];
        changes.extend((!is_enabled).then_some(BitmapChange::Disable));
        // The copy has let go of the target: a disk is closed when its last answer is there.
        let options = OpenOptions::read_only();
        let kept = disk::keep(&work.job.target, &self.target, &options, &self.context)?;
        let none = "images of this format have no bitmaps";
        kept.change(none, kept.format.upkeep.bitmap, |run, container, opening| {
            run(container, opening, name, &changes)
        })
    }
}
