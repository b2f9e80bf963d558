//! Comparing by digests, where a disk is on another machine: each side reads its disk once, both at
//! the same time, and the digests of stretches are all that goes between.

use std::sync::Arc;

use clap::ArgMatches;
use copy::Options;
use device::Reach;
use runtime::Context;
use transfer::digest::{DigestStep, DiskSteps, StepForm, first_difference};

use super::Watch;
use super::far::{FarDigests, FarDisk};
use super::{DIFFER, NOT_OPEN, NOT_READ};
use crate::digest::{anew, options};
use crate::failure::{ExitResult, Failure};
use crate::image::{self, OpenImage, Source};
use crate::output;
use crate::progress::Show;
use crate::sandbox::{self, Sandbox};

/// One of the two.
enum CompareEnd {
    Near(Arc<Source>),
    Far(FarDisk),
}

/// What a comparison found.
struct Found {
    /// The stretch that differs.
    at: Option<u64>,
    stretch: u64,
    sizes: (u64, u64),
}

/// Whether one of the disks is on another machine.
pub(super) fn are_needed(matches: &ArgMatches) -> bool {
    let names = ["source", "target"].into_iter().filter_map(|id| image::word(matches, id));
    names.map(FarDisk::named).any(|far| far.is_some())
}

/// Compares.
pub(super) fn run(matches: &ArgMatches) -> ExitResult {
    if matches.get_flag("strict") {
        return Err(Failure::usage("--strict: the map of a disk at ssh:// is not available here"));
    }
    if image::is_given(matches, "image-opts") {
        return Err(Failure::usage("--image-opts: for a disk at ssh:// give its path, and -f"));
    }
    let first = CompareEnd::named(matches, "source", "format")?;
    let second = CompareEnd::named(matches, "target", "second-format")?;
    let reach = first.reach().and(second.reach());
    let wish = sandbox::wish(matches);
    Sandbox::enter(wish, &reach)?.shut()?;
    let context = image::context(matches)?;
    let show = Show::of_image(matches);
    let found = match (&first, &second) {
        (CompareEnd::Near(near), CompareEnd::Far(far)) => {
            Near::open(matches, near, &context)?.compare(far, show)?
        }
        (CompareEnd::Far(far), CompareEnd::Near(near)) => {
            Near::open(matches, near, &context)?.compare(far, show)?
        }
        (CompareEnd::Far(first), CompareEnd::Far(second)) => far_from_far((first, second), show)?,
        (CompareEnd::Near(_), CompareEnd::Near(_)) => {
            return Err(Failure::new("compare: neither disk is at ssh://; this is a defect"));
        }
    };
    tell(&found, matches.get_flag("quiet"))
}

impl CompareEnd {
    fn named(matches: &ArgMatches, id: &str, format: &str) -> Result<Self, Failure> {
        let name = image::word(matches, id).unwrap_or_default();
        match FarDisk::named(name) {
            Some(rest) => Ok(Self::Far(FarDisk::of(matches, rest, format)?)),
            None => Ok(Self::Near(Arc::new(Source::of(matches, name, format)?))),
        }
    }

    fn reach(&self) -> Reach {
        match self {
            Self::Near(source) => source.reach(),
            Self::Far(far) => Reach { programs: vec![far.program().clone()], ..Reach::default() },
        }
    }
}

/// The disk here, open.
struct Near<'a> {
    opened: OpenImage,
    options: Options,
    context: &'a Context,
}

impl<'a> Near<'a> {
    fn open(
        matches: &ArgMatches,
        source: &Arc<Source>,
        context: &'a Context,
    ) -> Result<Self, Failure> {
        let opened = source.open(&options(matches), context);
        let opened = opened.map_err(|failure| failure.with_code(NOT_OPEN))?;
        let opened = if matches.get_flag("quiet") { opened } else { opened.tell() };
        let options = Options { anew: Some(anew(matches, source, context)), ..Options::default() };
        Ok(Self { opened, options, context })
    }

    fn compare(&self, far: &FarDisk, show: Show) -> Result<Found, Failure> {
        let size = self.opened.edge.info().size;
        let mut far = far.start(size)?;
        let sizes = (size, far.size);
        let all = size.max(far.size);
        let (kind, stretch) = (far.kind(), far.steps.stretch());
        let form = StepForm { kind, stretch, size: all };
        let (mut near, reads) = DiskSteps::of(&self.opened.edge, form, &self.options, self.context);
        let name = self.opened.edge.info().name.clone();
        let next = move || {
            near.step().map_err(|e| {
                Failure::new(format!("Error while reading {name}: {e}")).with_code(NOT_READ)
            })
        };
        let at = std::thread::scope(|scope| {
            scope.spawn(reads);
            watched((next, || far.step()), all, show)
        })?;
        Ok(Found { at, stretch, sizes })
    }
}

/// Compares two disks that are both elsewhere.
fn far_from_far((first, second): (&FarDisk, &FarDisk), show: Show) -> Result<Found, Failure> {
    let mut a = first.start(0)?;
    let mut b = second.start(a.size)?;
    if b.size > a.size {
        drop(a);
        a = first.start(b.size)?;
    }
    let form = |far: &FarDigests<'_>| (far.kind(), far.steps.stretch());
    if form(&a) != form(&b) {
        let what = "the programs on the two hosts use different stretches: their versions differ";
        return Err(
            Failure::new(format!("{}, {}: {what}", first.name, second.name)).with_code(NOT_OPEN)
        );
    }
    let (sizes, stretch) = ((a.size, b.size), a.steps.stretch());
    let at = watched((|| a.step(), || b.step()), sizes.0.max(sizes.1), show)?;
    Ok(Found { at, stretch, sizes })
}

/// Where they first differ, while it is shown how far that is known.
fn watched(
    (first, second): (
        impl FnMut() -> Result<DigestStep, Failure>,
        impl FnMut() -> Result<DigestStep, Failure>,
    ),
    size: u64,
    show: Show,
) -> Result<Option<u64>, Failure> {
    let mut watch = Watch::new(show, size);
    let found = first_difference(first, second, |at| watch.passed(at));
    watch.end();
    found
}

fn tell(Found { at, stretch, sizes }: &Found, quiet: bool) -> ExitResult {
    let same_size = sizes.0 == sizes.1;
    let shorter = sizes.0.min(sizes.1);
    let beyond = at.is_none_or(|at| at >= shorter);
    let status = if at.is_some() { DIFFER } else { 0 };
    output::verdict(status, |out| {
        if quiet {
            return Ok(());
        }
        if beyond && !same_size {
            writeln!(out, "Warning: Image size mismatch!")?;
        }
        match at {
            None => writeln!(out, "Images are identical."),
            Some(at) => {
                let end = (at + stretch).min(sizes.0.max(sizes.1));
                writeln!(out, "Content mismatch at offset {at}, or behind it up to {end}!")
            }
        }
    })
}
