//! The arguments of `copy`, resolved: everything that is decided before anything is opened.

use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;
use copy::{Flush, Options, Reflink};
use device::Name;
use disk::{Allocation, Image, Named};
use transfer::DigestKind;
use transfer::job::CopyJob;

use crate::arguments::{filters, size};
use crate::copying::{self, CopyRequest, PlanForm, ProofWish, TargetPromise};
use crate::failure::{Failure, USAGE};
use crate::image::{self, Source};
use crate::output;
use crate::prealloc as preallocation;
use crate::progress::Show;
use crate::words::to_read;

const SOURCE: &str = "source";

/// What is to be done.
pub(super) fn resolve(matches: &ArgMatches) -> Result<CopyRequest, Failure> {
    let source_image = image::image(matches, "source-format")?;
    let is_image = source_image.format().is_some();
    let text = match matches.get_one::<String>(SOURCE).map_or("", String::as_str) {
        // There is nothing in it.
        "/dev/null" if !is_image => "null:0",
        text => to_read(text),
    };
    let (source, source_image) = disk::named(text, source_image)?;
    image::warn_of_unfinished(matches, &source);
    let promise = match image::word(matches, "target-format") {
        Some(_) => TargetPromise::Kept,
        None if is_image => TargetPromise::OfImage,
        None => TargetPromise::OfBytes,
    };
    let target = target(matches)?;
    promise.check_name(&target)?;
    source_image.check()?;
    let options = options(matches)?;
    let connections = matches.get_one::<u16>("connections").map_or(8, |n| usize::from(*n));
    let format = image::word(matches, "source-format");
    let source = Source {
        disk: source,
        stack: filters(matches, "source-filter")?.over_image(source_image),
        unsaid: format.is_none(),
        read_only: false,
    };
    let mut target_image = image::image(matches, "target-format")?;
    target_image.options = image::options(image::words(matches, "options"))?;
    target_image.compress = matches.get_flag("compress");
    image::check_target(&target_image)?;
    let (allocated, written) = image::fills(allocation(matches, &target_image)?);
    let options = Options { allocated: allocated || options.allocated, written, ..options };
    let show = Show::asked(matches);
    let is_verbose = matches.get_flag("verbose");
    let show = if is_verbose && show == Show::Nothing && !matches.get_flag("quiet") {
        Show::Summary
    } else {
        show
    };
    let (window, at) = range(matches, &target_image)?;
    let journal = copying::journal_of(matches);
    let rate = copying::rate_of(matches)?;
    let target_stack = filters(matches, "target-filter")?.over_image(target_image);
    let request = CopyRequest::new(matches, vec![source], (target, target_stack))?;
    let verifies = matches.get_flag("verify");
    if verifies && image::word(matches, "target").is_some_and(output::is_named) {
        return Err(Failure::usage("--verify: standard output cannot be read back"));
    }
    let changes = copying::changes_of(matches)?;
    let request = request.with(|job| CopyJob {
        // What is there can be gone on with.
        keep_partial: job.keep_partial || journal.is_some(),
        journal,
        window,
        at,
        is_new: matches.get_flag("no-clobber"),
        over_target: rate,
        connections,
        options,
        changes,
        verifies,
        ..job
    });
    Ok(CopyRequest {
        proof: proof(matches)?,
        salvages: copying::unread_wish(matches),
        is_verbose,
        plans: image::word(matches, "plan").map(|form| match form {
            "json" => PlanForm::Json,
            _ => PlanForm::Text,
        }),
        promise,
        warns: show != Show::Json,
        show,
        usage: USAGE,
        ..request
    })
}

/// What is to be said of the contents.
fn proof(matches: &ArgMatches) -> Result<Option<ProofWish>, Failure> {
    let word = |id| image::word(matches, id);
    let (blkhash, digest) = (word("blkhash"), word("digest"));
    let manifest = matches.get_one::<PathBuf>("manifest").cloned();
    let Some(kind) = blkhash.or(digest).or(manifest.as_ref().map(|_| "sha256")) else {
        return Ok(None);
    };
    let kind = DigestKind::parse(kind).map_err(Failure::usage)?;
    let to = matches.get_one::<PathBuf>("blkhash-file").cloned();
    let prints = blkhash.is_some() || digest.is_some();
    if prints && to.is_none() && word("target").is_some_and(output::is_named) {
        return Err(Failure::usage(
            "the copy goes to standard output, and its digest cannot: add --blkhash --blkhash-file=FILE",
        ));
    }
    if manifest.as_deref().is_some_and(|path| path == Path::new(output::STREAM))
        && (prints && to.is_none() || word("target").is_some_and(output::is_named))
    {
        return Err(Failure::usage(
            "--manifest: something else goes to standard output: name a file",
        ));
    }
    Ok(Some(ProofWish { kind, named: digest.is_some(), to, manifest, prints }))
}

type SourceRange = Option<(u64, u64)>;

/// Which bytes of the source are copied, and where in the target they go, if that is not all of it
/// to its beginning.
fn range(matches: &ArgMatches, target: &Image) -> Result<(SourceRange, Option<u64>), Failure> {
    let size = |id| size(matches, id);
    let (start, len, at) = (size("offset")?, size("length")?, size("target-offset")?);
    if start.is_none() && len.is_none() && at.is_none() {
        return Ok((None, None));
    }
    if target.format().is_some() {
        return Err(Failure::usage(
            "--offset, --length, --target-offset: a range goes into an existing raw target; an image is created as a whole",
        ));
    }
    let start = start.unwrap_or(0);
    Ok((Some((start, len.unwrap_or(u64::MAX))), Some(at.unwrap_or(start))))
}

/// How all of the target is to be allocated.
fn allocation(matches: &ArgMatches, target: &Image) -> Result<Option<Allocation>, Failure> {
    let asked = preallocation::mode(matches, "preallocate");
    match (asked, image::preallocation(target)?) {
        (Some(_), _) if target.format().is_some() => Err(Failure::usage(
            "--preallocate is for raw targets; an image has -o preallocation=falloc|full",
        )),
        (Some(_), Some(_)) => Err(Failure::usage(
            "--preallocate and -o preallocation are the same option; give one of them",
        )),
        (asked, option) => Ok(asked.or(option)),
    }
}

fn target(matches: &ArgMatches) -> Result<Named, Failure> {
    let text = matches.get_one::<String>("target").map_or("", String::as_str);
    let name = Name::parse(text).map_err(|e| Failure::usage(format!("TARGET: {e}")))?;
    Ok(Named::of(&name)?)
}

fn options(matches: &ArgMatches) -> Result<Options, Failure> {
    let size = |id| size(matches, id);
    let one = matches.get_flag("synchronous").then_some(1);
    let requests = matches.get_one::<u32>("requests");
    let threads = matches.get_one::<u16>("threads").map(|n| usize::from(*n));
    let options = Options {
        requests: one.or(requests.map(|n| usize::try_from(*n).unwrap_or(usize::MAX))),
        request_size: size("request-size")?.unwrap_or(0),
        bulk: matches.value_source("request-size") != Some(ValueSource::CommandLine),
        threads: one.or(threads),
        sparse: size("sparse")?.filter(|s| *s > 0),
        allocated: matches.get_flag("allocated"),
        target_is_zero: matches.get_flag("target-is-zero"),
        check_zero: true,
        wipe: matches.get_flag("wipe"),
        reflink: match image::word(matches, "reflink") {
            Some("always") => Reflink::Always,
            Some("never") => Reflink::Never,
            _ => Reflink::Auto,
        },
        flush: match (matches.get_flag("flush"), matches.get_flag("no-flush")) {
            (true, _) => Flush::Must,
            (_, true) => Flush::Never,
            _ => Flush::WhereItCan,
        },
        no_extents: matches.get_flag("no-extents"),
        queue_size: size("queue-size")?,
        ..Options::default()
    };
    options.check().map_err(Failure::usage)?;
    Ok(options)
}
