//! The arguments of `convert`, resolved: everything that is decided before anything is opened.

use clap::ArgMatches;
use copy::{Flush, Options};
use device::parse_size;
use disk::{Named, Stack};
use transfer::job::CopyJob;

use crate::copying::{self, CopyRequest, UnreadWish};
use crate::failure::Failure;
use crate::formats;
use crate::image::{self, Source};
use crate::output;
use crate::progress::Show;

/// The largest size of zeroes to look for.
const LONGEST: u64 = 16 << 20;

/// What is to be done.
pub(super) fn resolve(matches: &ArgMatches) -> Result<CopyRequest, Failure> {
    image::check_objects(matches)?;
    let (sources, target) = named(matches)?;
    if matches.get_flag("progress") && output::is_named(target) {
        return Err(Failure::usage("-p: the disk goes to standard output; leave out one of them"));
    }
    if matches.get_flag("verify") && output::is_named(target) {
        return Err(Failure::usage("--verify: standard output cannot be read back"));
    }
    let exists = matches.get_flag("no-create");
    // Of QEMU as Proxmox builds it: a disk of zeroes.
    let (target, is_zero) = match target.strip_prefix("zeroinit:") {
        Some(target) => (target, exists),
        None => (target, false),
    };
    let (target, target_stack) = target_of(matches, target)?;
    let target_image = target_stack.image();
    if exists && target_image.format().is_some() && !target_image.options.is_empty() {
        return Err(Failure::usage(
            "-n: the existing image keeps its options and its backing image; leave out -o, -B and -F",
        ));
    }
    let is_overlay = image::check_backing(target_image)?.is_some();
    if is_overlay && sources.len() > 1 {
        return Err(Failure::usage("-B: takes a single source"));
    }
    let (allocated, written) = image::fills(image::preallocation(target_image)?);
    let options = Options { target_is_zero: is_zero, ..Options::default() };
    let options = self::options(matches, options)?;
    let quiet = matches.get_flag("quiet");
    let rate = image::word(matches, "rate-limit");
    let rate = rate.map(|text| copying::rate(text, "-r")).transpose()?;
    let target = (target, target_stack);
    let journal = copying::journal_of(matches);
    let request = CopyRequest::new(matches, sources, target)?.with(|job| CopyJob {
        shares: matches.get_flag("force-share"),
        over_target: rate,
        is_overlay,
        exists,
        // What is there can be gone on with.
        keep_partial: job.keep_partial || journal.is_some(),
        journal,
        verifies: matches.get_flag("verify"),
        options: Options { allocated: allocated || options.allocated, written, ..options },
        ..job
    });
    Ok(CopyRequest {
        salvages: matches.get_flag("salvage").then_some(UnreadWish { most: None, mapfile: None }),
        show: Show::of_image(matches),
        warns: !quiet,
        ..request
    })
}

/// The sources, and the word for the target.
fn named(matches: &ArgMatches) -> Result<(Vec<Source>, &str), Failure> {
    let snapshot = image::word(matches, "snapshot");
    let named: Vec<_> = image::words(matches, "source").collect();
    let (target, sources) = match named.split_last() {
        Some((target, sources)) if !sources.is_empty() => (target, sources),
        _ => return Err(Failure::usage("missing operands: name a source and a target")),
    };
    let sources = sources
        .iter()
        .map(|text| Source::read(matches, text)?.at_snapshot(snapshot))
        .collect::<Result<Vec<_>, Failure>>()?;
    if snapshot.is_some() && sources.len() > 1 {
        return Err(Failure::usage("-l: a snapshot needs a single source"));
    }
    Ok((sources, target))
}

/// What to warn of where the end of the target's name is that of a format, and none was asked for.
pub(super) fn warning(matches: &ArgMatches) -> Option<String> {
    let is_said = image::word(matches, "target-format").is_some();
    if is_said || matches.get_flag("target-image-opts") || matches.get_flag("quiet") {
        return None;
    }
    let target = image::words(matches, "source").last()?;
    if target.contains("://") {
        return None;
    }
    let word = formats::promised(target)?;
    let target = device::text::shown(target);
    Some(format!(
        "warning: {target}: becomes a raw disk; for an image that is {word}, add -O {word}"
    ))
}

fn target_of(matches: &ArgMatches, text: &str) -> Result<(Named, Stack), Failure> {
    let format = image::word(matches, "target-format");
    if matches.get_flag("target-image-opts") {
        if format.is_some() {
            return Err(Failure::usage(
                "--target-image-opts names the format itself; leave out -O",
            ));
        }
        return image::target_of_options(matches, text);
    }
    if text.starts_with("json:") && matches.get_flag("no-create") && format.is_none() {
        return image::target_of_options(matches, text);
    }
    let mut image = image::of_word(format.unwrap_or("raw"))?;
    image.options = image::options(image::words(matches, "options"))?;
    image::resolve_secrets(matches, &mut image.options)?;
    image.compress = matches.get_flag("compress");
    // Which files its backing image may name in turn.
    image.external = image::external(matches);
    for (option, key) in [("backing", "backing_file"), ("backing-format", "backing_fmt")] {
        if let Some(word) = image::word(matches, option) {
            image.options.set(key, word).map_err(|e| Failure::usage(format!("-o: {e}")))?;
        }
    }
    if image.format().is_none() && image.options.contains("backing_file") {
        return Err(Failure::usage("-B: a raw disk has no backing image"));
    }
    image::check_target(&image)?;
    Ok((Named::parse(text)?, Stack::default().over_image(image)))
}

fn options(matches: &ArgMatches, given: Options) -> Result<Options, Failure> {
    let text = image::word(matches, "sparse-size").unwrap_or("0");
    let sparse = parse_size(text).map_err(|e| Failure::usage(format!("-S: {e}")))?;
    if sparse % 512 != 0 || sparse > LONGEST {
        return Err(Failure::usage("-S: must be 0, or a multiple of 512 up to 16M"));
    }
    let full = sparse == 0;
    let options = Options {
        // The next lower power of two.
        sparse: sparse.checked_ilog2().map(|bits| 1 << bits),
        allocated: full,
        no_extents: full,
        target_is_zero: given.target_is_zero || matches.get_flag("target-is-zero"),
        check_zero: true,
        flush: if matches.get_flag("no-flush") { Flush::Never } else { Flush::WhereItCan },
        ..given
    };
    options.check().map_err(Failure::usage)?;
    Ok(options)
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    #[test]
    fn a_name_that_promises_a_format_that_was_not_asked_for_is_warned_of() {
        let of = |words: &[&str]| {
            let command = super::super::arguments::arguments(Command::new("convert"));
            warning(&command.no_binary_name(true).try_get_matches_from(words).unwrap())
        };
        let said = of(&["a", "b/c.qcow2"]).unwrap();
        assert!(said.contains("b/c.qcow2") && said.ends_with("add -O qcow2"), "{said}");
        assert!(of(&["-n", "a", "b", "c.vmdk"]).is_some());
        for words in [
            &["a", "b.raw"][..],
            &["a", "b.img"],
            &["a", "qcow2"],
            &["a.qcow2", "b"],
            &["-q", "a", "b.qcow2"],
            &["-O", "raw", "a", "b.qcow2"],
            &["-O", "qcow2", "a", "b.qcow2"],
            &["a", "nbd://host/b.qcow2"],
        ] {
            assert_eq!(of(words), None, "{words:?}");
        }
    }
}
