//! What `convert` takes, in qemu-img's words.

use clap::Command;

use crate::arguments::{disk_as, flag, value};
use crate::{copying, image};

pub(super) fn arguments(command: Command) -> Command {
    image::arguments(ignored(writing(ends(command))))
}

/// What is copied into what.
fn ends(command: Command) -> Command {
    command
        .override_usage("diskferry convert [OPTION]... SOURCE... TARGET")
        .arg(
            disk_as(
                "source",
                "SOURCE... TARGET",
                "Paths, URIs or DEVICE:ARG?key=value; the last one is the target",
            )
            .required(false)
            .num_args(1..),
        )
        .arg(
            image::format_argument("-f, --format", "Format of the sources [default: a guess]")
                .visible_alias("source-format"),
        )
        .arg(image::target_format_argument(
            "-O, --target-format",
            "Format of the target [default: raw]",
        ))
        .arg(image::options_option("Options of the target's format; -o help lists them"))
        .arg(flag("-c, --compress", "Compress the target"))
        .arg(value("-B, --backing FILE", "The target's backing image").short_alias('b'))
        .arg(value("-F, --backing-format FORMAT", "Format of the backing image"))
}

fn writing(command: Command) -> Command {
    command
        .arg(flag("-n, --no-create", "Write into an existing target"))
        .arg(
            flag(
                "--target-is-zero",
                "Assume that the target reads as zeroes, after checking samples; with -n",
            )
            .requires("no-create"),
        )
        .arg(
            value("-S, --sparse-size SIZE", "Zeroes of this length become holes; 0: none at all")
                .default_value("4k"),
        )
        .arg(value("-l, --snapshot SNAPSHOT", "Copy an internal snapshot of the source"))
        .arg(flag("--bitmaps", "Also copy the source's dirty bitmaps; runs without a sandbox"))
        .arg(flag("--skip-broken-bitmaps", "Leave out those that were in use; with --bitmaps"))
        .arg(value("-r, --rate-limit BYTES", "Write at most this many bytes a second"))
        .arg(flag("--salvage", "Replace unreadable data with zeroes and report each gap"))
        .arg(copying::verify())
        .arg(copying::journal().conflicts_with_all(["no-flush", "compress", "bitmaps"]))
        .arg(flag("--no-flush", "Do not make the target durable (for benchmarks)"))
        .arg(crate::force::argument())
        .arg(flag("--keep-partial", "Keep a file that the command created when it fails"))
        .arg(flag("-p, --progress", "Show how much is done on standard output"))
        .arg(flag("-q, --quiet", "Print errors only"))
        .arg(
            flag("--target-image-opts", "TARGET is a list of QEMU's options; with -n")
                .requires("no-create"),
        )
}

/// What is taken for qemu-img's sake.
fn ignored(command: Command) -> Command {
    let cache =
        |spelled, help| value(spelled, help).value_parser(image::CACHES).hide_possible_values(true);
    command
        .arg(
            value("-m, --parallel N", "Ignored: the number of requests in flight adapts itself")
                .value_parser(clap::value_parser!(u16).range(1..=16)),
        )
        .arg(flag("-W, --oob-writes", "Ignored: writes are in any order"))
        .arg(
            flag("-C, --copy-range-offloading", "Ignored: the system shares or moves bytes anyway")
                .conflicts_with_all(["compress", "salvage"]),
        )
        .arg(cache(
            "-t, --target-cache MODE",
            "Ignored: the result is durable in the end, and the page cache is not filled with it",
        ))
        .arg(cache("-T, --source-cache MODE", "Ignored"))
}
