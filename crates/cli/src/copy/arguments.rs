//! What `copy` takes, in nbdcopy's words, with its defaults.

use clap::{Command, value_parser};

use crate::arguments::{disk_as, filter_argument, flag, value};
use crate::copying;
use crate::digest::file;
use crate::image::{external_argument, format_argument, options_option, target_format_argument};
use crate::patience;
use crate::progress;
use crate::sandbox;

pub(super) fn arguments(command: Command) -> Command {
    progress::arguments(patience::arguments(proof(writing(load(ends(command))))))
}

/// What is copied, from where to where.
fn ends(command: Command) -> Command {
    command
        .arg(disk_as("source", "SOURCE", "A path, URI, DEVICE:ARG?key=value or [ CMD ARGS ]; -: standard input"))
        .arg(disk_as("target", "TARGET", "The same; -: standard output; null: discards everything"))
        .arg(
            filter_argument("source-filter", "Apply a filter to the source; may be repeated, the \
                first is nearest the copier"),
        )
        .arg(filter_argument("target-filter", "Apply a filter to the target"))
        .arg(
            format_argument("-f, --source-format", "Format of the source [default: raw]")
                .long_help(
                    "Format of the source. Without this option its bytes are the disk; the format is not guessed",
                ),
        )
        .arg(
            target_format_argument("-O, --target-format", "Format of the target, which is created"),
        )
        .arg(options_option(
            "Options of the target's format; `convert -o help -O FORMAT` lists them",
        ))
        .arg(flag("-c, --compress", "Compress the target"))
        .arg(value("--offset SIZE", "Copy from this byte of the source on").long_help(
            "Copy from this byte of the source on, to the same offset in the target; the rest of the \
             target stays as it is",
        ))
        .arg(value("--length SIZE", "Copy this many bytes [default: to the end of the source]"))
        .arg(value("--target-offset SIZE", "Copy to this byte of the target instead"))
        .args(copying::rates())
        .arg(external_argument())
        .arg(sandbox::argument())
}

fn load(command: Command) -> Command {
    command
        .arg(
            value("-C, --connections N", "Most connections to each side; as many are used as help")
                .value_parser(value_parser!(u16).range(1..=1024))
                .default_value("8"),
        )
        .arg(
            value("-R, --requests N", "Requests in flight per thread [default: adaptive]")
                .value_parser(value_parser!(u32).range(1..=65536)),
        )
        .arg(value("--request-size SIZE", "Bytes in a request").default_value("256K"))
        .arg(
            value("-T, --threads N", "Threads [default: one per processor]")
                .value_parser(value_parser!(u16).range(1..=1024)),
        )
        .arg(value("--queue-size SIZE", "Bytes in flight in each thread [default: 36M for all]"))
}

/// What becomes of the target.
fn writing(command: Command) -> Command {
    command
        .arg(
            value("-S, --sparse SIZE", "Zeroes of this length become holes; 0: never look")
                .default_value("4K"),
        )
        .arg(flag("--allocated", "Create no holes in the target"))
        .arg(
            crate::prealloc::mode_argument("preallocate")
                .help("Allocate all of the target: sparse, unwritten or written"),
        )
        .arg(
            flag("--target-is-zero", "Trust that the target reads as zeroes throughout")
                .long_help(
                    "Assume that the whole target reads as zeroes: write only data. Samples are \
                     read first; if one is not zero, the copy fails",
                )
                .visible_alias("destination-is-zero"),
        )
        .arg(
            flag(
                "--wipe",
                "Write every byte as data, including zeroes, whatever the target \
                contains",
            )
            .conflicts_with("target-is-zero"),
        )
        .arg(
            value("--reflink WHEN", "Share blocks between files instead of copying them")
                .long_help(
                    "Share blocks between files on one file system instead of copying them: if \
                     possible (auto), all of them or fail (always), or never",
                )
                .value_parser(["auto", "always", "never"])
                .default_value("auto"),
        )
        .arg(flag("--no-extents", "Read everything; do not ask where the data is"))
        .arg(flag("--flush", "Fail if the target cannot be made durable"))
        .arg(
            flag("--no-flush", "Do not make the target durable (for benchmarks)")
                .conflicts_with("flush"),
        )
        .arg(crate::force::argument())
        .arg(copying::journal().conflicts_with_all([
            "no-flush",
            "no-clobber",
            "wipe",
            "offset",
            "length",
            "target-offset",
            "max-errors",
        ]))
        .arg(copying::verify())
        .arg(copying::changes())
        .args(copying::unread())
        .arg(flag("--no-clobber", "Fail if the target exists already"))
        .arg(flag("--keep-partial", "Keep a file that the copy created when it fails"))
        .arg(flag("--synchronous", "One thread and one request at a time, whatever else is said"))
        .arg(
            value("--plan FORM", "Copy nothing; print what would be done, as text or json")
                .long_help(
                    "Dry run: create neither target nor journal, and print the amount of data, \
                     the number of stretches, how much remains with a journal or --changes, \
                     whether the target matches at sampled places, and the estimated time to read \
                     the source, from a sample of a few MiB",
                )
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("text")
                .value_parser(["text", "json"])
                .conflicts_with_all(["max-errors", "manifest", "digest", "blkhash", "verify"]),
        )
        .arg(flag("-v, --verbose", "Say what both ends are, and at the end what was done"))
}

/// What is said of the contents.
fn proof(command: Command) -> Command {
    let digest = |spelled, help| {
        let option = value(spelled, help).num_args(0..=1).require_equals(true);
        option.default_missing_value("sha256/64K")
    };
    command
        .arg(
            digest("--blkhash NAME[/SIZE]", "Print the digest of what was copied, as nbdcopy does")
                .long_help(
                    "Print the digest of what was copied, as nbdcopy does: sha256, sha512, sha1, md5 or blake3 over blocks of \
                     SIZE, 64K without it. It is that of the disk, whatever the formats are",
                ),
        )
        .arg(file("--blkhash-file FILE", "Print it to FILE").requires("blkhash"))
        .arg(
            digest("--digest NAME[/SIZE]", "The same with the name of the target, for `digest --check`")
                .conflicts_with("blkhash"),
        )
        .arg(file("--manifest FILE", "Write a digest for each stretch, which `verify` compares"))
}
