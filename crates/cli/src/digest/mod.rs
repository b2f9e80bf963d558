//! `diskferry digest`: the digest of what disks hold, in the form of sha256sum.

mod check;
mod lines;
mod reading;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{ArgAction, ArgMatches, Command, ValueHint, value_parser};
use runtime::Context;
use serde_json::{Value, json};
use transfer::digest::read_as;
use transfer::{ContentDigest, ContentProof, DigestKind, Digester};

use crate::arguments::{disk_as, json_flag, value};
use crate::copying::{ProofFiles, ProofWish};
use crate::failure::{ExitResult, Failure, USAGE, say};
use crate::image::{self, Source};
use crate::output;
use crate::progress;
use crate::verb::Verb;

pub(crate) use self::lines::line;
pub(crate) use self::reading::{anew, options, read};

pub(crate) const VERB: Verb = Verb {
    name: "digest",
    summary: "Print the digest of a disk's contents",
    about: "It equals the digest of `nbdcopy --blkhash`: the same contents have the same digest \
            in every format, with or without holes, from a file or a server; zeroes cost nothing. \
            Without -f the formats are guessed.",
    example: "  diskferry digest pattern:8M memory:1G\n  \
              diskferry digest pattern:8M > digests && diskferry digest --check digests\n  \
              diskferry digest --manifest disk.manifest pattern:8M",
    status: "1 also if a disk does not match its digest (--check).",
    usage: USAGE,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let disks = disk_as("disk", "DISK", "A path, URI or DEVICE:ARG?key=value; may be repeated");
    let disks = disks.required(false).required_unless_present("check").num_args(1..);
    let command = command
        .arg(disks.action(ArgAction::Append))
        .arg(image::format_argument("-f, --format", "Format of the disks [default: a guess]"))
        .arg(algorithm())
        .arg(
            file("-c, --check FILE", "Compare the disks that FILE names with the digests in it")
                .conflicts_with_all(["disk", "manifest", "json"]),
        )
        .arg(
            file("--manifest FILE", "Also write a digest for each stretch, which `verify` compares")
                .long_help(
                    "Also write a manifest: a digest for each stretch, with which `verify` names the stretches that differ. \
                     Of one disk only. With - it goes to standard output, line by line, in the place of the digest, which is \
                     in its last line",
                ),
        )
        .arg(
            value("--pad-to SIZE", "Digest a shorter disk as if zeroes followed up to SIZE")
                .conflicts_with("check"),
        )
        .arg(json_flag());
    image::arguments(progress::arguments(command))
}

/// The option for the kind of digest.
fn algorithm() -> clap::Arg {
    value("-a, --algorithm NAME[/SIZE]", "sha256, sha512, sha1, md5 or blake3, over blocks of SIZE")
        .default_value("sha256/64K")
}

/// An option that names a file.
pub(crate) fn file(spelled: &'static str, help: &'static str) -> clap::Arg {
    value(spelled, help).value_parser(value_parser!(PathBuf)).value_hint(ValueHint::FilePath)
}

fn run(matches: &ArgMatches) -> ExitResult {
    image::check_objects(matches)?;
    let kind = DigestKind::parse(image::word(matches, "algorithm").unwrap_or_default())
        .map_err(Failure::usage)?;
    if let Some(list) = matches.get_one::<PathBuf>("check") {
        return check::run(matches, list, kind);
    }
    let names: Vec<&str> = image::words(matches, "disk").collect();
    let sources = names.iter().map(|name| Source::read(matches, name).map(Arc::new));
    let sources = sources.collect::<Result<Vec<_>, _>>()?;
    let manifest = matches.get_one::<PathBuf>("manifest").cloned();
    if manifest.is_some() && sources.len() > 1 {
        return Err(Failure::usage("--manifest: a manifest is of one disk"));
    }
    let streams = manifest.as_deref().is_some_and(|path| path == Path::new(output::STREAM));
    if streams && matches.get_flag("json") {
        return Err(Failure::usage("--json: the manifest goes to standard output"));
    }
    let pad = image::word(matches, "pad-to").map(device::parse_size).transpose();
    let pad = pad.map_err(|e| Failure::usage(format!("--pad-to: {e}")))?.unwrap_or(0);
    let wish = ProofWish { kind, named: true, to: None, manifest, prints: !streams };
    let mut files = Some(ProofFiles::open(&wish)?);
    image::confine(matches, sources.iter().map(|source| &**source))?;
    let context = image::context(matches)?;
    let (mut found, mut failed) = (Vec::new(), None);
    for (name, source) in names.iter().zip(&sources) {
        let files = files.take().map_or_else(|| ProofFiles::open(&wish), Ok)?;
        match one(matches, source, (files, pad), &context) {
            Ok((digest, size)) if matches.get_flag("json") => {
                found.push(in_json(name, kind, &digest, size));
            }
            Ok(_) if streams => {}
            Ok((digest, _)) => drop(print(&digest, name)?),
            Err(failure) if sources.len() == 1 => return Err(failure),
            Err(failure) => {
                say(&failure.line());
                failed = Some(failure.code());
            }
        }
    }
    if matches.get_flag("json") {
        let all = json!({"version": output::VERSION, "digests": found});
        output::text(&format!("{all}\n"))?;
    }
    Ok(failed.map_or(ExitCode::SUCCESS, ExitCode::from))
}

fn one(
    matches: &ArgMatches,
    source: &Arc<Source>,
    (files, pad): (ProofFiles, u64),
    context: &Context,
) -> Result<(ContentDigest, u64), Failure> {
    let opened = source.open(&options(matches), context)?.tell();
    let size = opened.edge.info().size;
    let digested = size.max(pad);
    let proof = ContentProof::begin_as(&files.of_job()?, Some(size), Some(digested))?;
    let found = read(matches, (source, &opened), proof.failed(), context, |options, watched| {
        read_as(&opened.edge, digested, proof.digester(), options, watched, context)
    });
    let failed = |e| Failure::new(format!("--manifest: {e}"));
    match (found, proof.failed().is_cancelled()) {
        (Ok(found), _) => proof.end(digested, &found).map_err(failed).map(|()| (found, digested)),
        // It ended because nothing can be written.
        (Err(_), true) => {
            Err(proof.why_failed().map_or_else(|| Failure::new("--manifest"), failed))
        }
        (Err(failure), false) => Err(failure),
    }
}

fn print(digest: &ContentDigest, name: &str) -> ExitResult {
    output::finish(|out| out.write_all(&line(digest, name)).map(|()| ExitCode::SUCCESS))
}

fn in_json(name: &str, kind: DigestKind, digest: &ContentDigest, size: u64) -> Value {
    json!({
        "filename": device::text::shown(name),
        "size": size,
        "algorithm": kind.algorithm.word(),
        "block": kind.block,
        "digest": digest.to_string(),
    })
}

/// A digester that keeps nothing but the digest.
fn plain(kind: DigestKind) -> Arc<Digester> {
    Arc::new(Digester::new(kind))
}
