//! `digest --check`: the disks that a list names still have the digests in it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::ArgMatches;
use device::text;
use runtime::Context;
use transfer::digest::DigestAlgorithm;
use transfer::{ContentDigest, DigestKind};

use super::{lines, plain, reading};
use crate::failure::{ExitResult, Failure, say};
use crate::image::{self, Source};
use crate::output;

/// Bytes of the longest list.
const LONGEST: u64 = 64 << 20;

struct DigestLine {
    digest: ContentDigest,
    name: String,
    source: Arc<Source>,
}

pub(super) fn run(matches: &ArgMatches, list: &Path, kind: DigestKind) -> ExitResult {
    let listed = read(matches, list)?;
    image::confine(matches, listed.iter().map(|listed| &*listed.source))?;
    let context = image::context(matches)?;
    let (mut other, mut unread) = (0, 0);
    for DigestLine { digest, name, source } in &listed {
        let word = match one(matches, source, kind_of(kind, digest)?, &context) {
            Ok(found) if found == *digest => "OK",
            Ok(_) => {
                other += 1;
                "FAILED"
            }
            Err(failure) => {
                say(&failure.line());
                unread += 1;
                "FAILED open or read"
            }
        };
        output::text(&format!("{}: {word}\n", text::shown(name)))?;
    }
    if unread > 0 {
        say(&format!("warning: {unread} of {} disks could not be read", listed.len()));
    }
    if other > 0 {
        say(&format!("warning: {other} of {} disks do not match their digest", listed.len()));
    }
    Ok(ExitCode::from(u8::from(other + unread > 0)))
}

fn one(
    matches: &ArgMatches,
    source: &Arc<Source>,
    kind: DigestKind,
    context: &Context,
) -> Result<ContentDigest, Failure> {
    let opened = source.open(&reading::options(matches), context)?.tell();
    reading::digest(matches, (source, &opened), &plain(kind), context)
}

/// The kind of a digest in a list: what the command line says, unless it cannot be that.
fn kind_of(said: DigestKind, digest: &ContentDigest) -> Result<DigestKind, Failure> {
    let length = digest.bytes().len();
    if said.algorithm.length() == length {
        return Ok(said);
    }
    let by_length = [DigestAlgorithm::Md5, DigestAlgorithm::Sha1, DigestAlgorithm::Sha512];
    let algorithm = by_length.into_iter().find(|known| known.length() == length);
    let algorithm = algorithm.ok_or_else(|| {
        Failure::usage("--check: which algorithm? add `-a sha256` or `-a blake3`")
    })?;
    Ok(DigestKind { algorithm, ..said })
}

fn read(matches: &ArgMatches, list: &Path) -> Result<Vec<DigestLine>, Failure> {
    let failed = |e| Failure::new(format!("--check {}: {e}", list.display()));
    let from: Box<dyn Read> = match list.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(File::open(list).map_err(failed)?),
    };
    let mut listed = Vec::new();
    for (at, line) in BufReader::new(from.take(LONGEST)).split(b'\n').enumerate() {
        let line = line.map_err(failed)?;
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let (digest, name) = lines::parse(&line).ok_or_else(|| {
            let list = list.display();
            Failure::new(format!("--check {list}: line {} is not `DIGEST  NAME`", at + 1))
        })?;
        listed.push(DigestLine { source: Source::read(matches, &name)?.into(), digest, name });
    }
    match listed.is_empty() {
        true => Err(Failure::new(format!("--check {}: contains no digest", list.display()))),
        false => Ok(listed),
    }
}
