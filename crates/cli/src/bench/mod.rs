//! `diskferry bench`: how many requests a disk or a server answers, and within which times.
//!
//! It reads, unless it is told to write; then what the disk held is gone. Requests are sent and
//! harvested by [`load`]; [`shown`] prints what was found.

mod load;
mod order;
mod shown;

use std::time::Duration;

use clap::{ArgMatches, Command, value_parser};
use device::{Edge, parse_size};
use disk::{OpenOptions, Stack};

use self::load::{Amount, Bytes, Load};
use self::order::PlaceOrder;
use self::shown::Shown;
use crate::arguments::{disk, flag, json_flag, size, value};
use crate::failure::{ExitResult, Failure, USAGE};
use crate::image::{self, Source};
use crate::verb::Verb;
use crate::{force, names};

pub(crate) const VERB: Verb = Verb {
    name: "bench",
    summary: "Benchmark a disk or a server",
    about: "Reads at random places, by 4 KiB and 256 KiB, one request at a time and 32, for two seconds each; prints \
            requests and bytes a second, and within which time half of them, 99 of 100 and 999 of 1000 were \
            answered. The server's time and this program's are not told apart. --write destroys what the disk holds.",
    example: "  diskferry bench --seconds 0.1 memory:256M\n  \
              diskferry serve memory:256M --run 'diskferry bench -c 999 \"$uri\"'\n  \
              diskferry create disk.raw 64M\n  \
              diskferry bench -w -f raw --verify -c 1000 disk.raw",
    status: "1 also if --verify read different bytes than were written.",
    usage: USAGE,
    arguments,
    run,
};

/// Bytes that all requests in flight may have.
const MOST_IN_FLIGHT: u64 = 1 << 30;
/// Bytes of one request.
const LONGEST: u64 = 32 << 20;
/// What qemu-img does where it is not told.
const OF_QEMU_IMG: (u64, u64, &str) = (75_000, 64, "4096");

fn arguments(command: Command) -> Command {
    let command = command
        .arg(disk())
        .arg(image::format_argument("-f, --format", "Format of the disk [default: a guess]"))
        .arg(flag("-w, --write", "Write instead, which destroys the disk's contents"))
        .arg(
            value("--mix PERCENT", "With --write: the percentage of reads")
                .value_parser(value_parser!(u64).range(0..=99))
                .requires("write"),
        )
        .arg(
            flag("--verify", "With --write: read all of it afterwards and compare")
                .requires("write")
                .conflicts_with("pattern"),
        )
        .arg(
            value("--pattern BYTE", "With --write: write this byte [default: random bytes]")
                .value_parser(value_parser!(u8))
                .requires("write"),
        )
        .arg(
            value("-d, --depth N,...", "Requests in flight on each connection [default: 1,32]")
                .value_delimiter(',')
                .value_parser(value_parser!(u64).range(1..=4096)),
        )
        .arg(
            value("-s, --request-size SIZE,...", "Bytes of a request [default: 4K,256K]")
                .alias("buffer-size")
                .value_delimiter(','),
        )
        .arg(value(
            "-S, --step-size SIZE",
            "Advance by SIZE from request to request, instead of \
            at random",
        ))
        .arg(value("-o, --offset SIZE", "The first byte to use [default: 0]"))
        .arg(
            value("-C, --connections N", "Connections to a server [default: 1]")
                .value_parser(value_parser!(u16).range(1..=64)),
        )
        .arg(value("--seconds SECONDS", "How long to measure each [default: 2]"))
        .arg(
            value("-c, --count N", "Send N requests instead")
                .value_parser(value_parser!(u64).range(1..))
                .conflicts_with("seconds"),
        )
        .arg(
            flag("--svg", "Draw the times as an SVG document")
                .conflicts_with_all(["json", "quiet"]),
        )
        .arg(
            value("-t, --target-cache MODE", "Ignored")
                .alias("cache")
                .value_parser(image::CACHES)
                .hide_possible_values(true),
        )
        .arg(value("-i, --aio WAY", "Ignored"))
        .arg(flag("-n, --native", "Ignored"))
        .arg(flag("-q, --quiet", "Print nothing but errors"))
        .arg(force::argument())
        .arg(json_flag());
    image::arguments(command)
}

fn run(matches: &ArgMatches) -> ExitResult {
    image::check_objects(matches)?;
    let named = image::word(matches, "disk").unwrap_or_default();
    let works = works(matches)?;
    let amount = amount(matches)?;
    let connections = matches.get_one::<u16>("connections").map_or(1, |n| usize::from(*n));
    let edge = open(matches, named, connections)?;
    let loads = loads(matches, &edge, &works, amount)?;
    let mut shown = Shown::new(named, &edge, matches);
    for load in loads {
        shown.begin(&load)?;
        let measured = load::measure(&edge, &load, connections)?;
        let verified = matches
            .get_flag("verify")
            .then(|| load::verify(&edge, &load, measured.whole))
            .transpose()?;
        shown.end(load, measured, verified)?;
    }
    shown.finish()
}

/// Opens the disk; for writing only where its format is named.
fn open(matches: &ArgMatches, named: &str, connections: usize) -> Result<Edge, Failure> {
    let options = OpenOptions { connections, ..image::reading(matches) };
    if !matches.get_flag("write") {
        let source = Source::read(matches, named)?;
        image::confine(matches, [&source])?;
        return Ok(source.open(&options, &image::context(matches)?)?.tell().edge);
    }
    let (disk, image) = Source::written(matches, named)?;
    let options = OpenOptions { write: true, force: force::asked(matches), ..options };
    force::refuse_used(&disk, options.force)?;
    let stack = Stack::default().over_image(image);
    image::confine_to_change(matches, &disk, &stack)?;
    Ok(disk::open(&disk, &stack, &options, &image::context(matches)?)?.edge)
}

/// The depths and sizes that are asked for, each with each.
fn works(matches: &ArgMatches) -> Result<Vec<(u64, u64)>, Failure> {
    let as_theirs = names::is_qemu_img();
    let depths: Vec<u64> = match matches.get_many::<u64>("depth") {
        Some(depths) => depths.copied().collect(),
        None if as_theirs => vec![OF_QEMU_IMG.1],
        None => vec![1, 32],
    };
    let sizes: Vec<&str> = match matches.get_many::<String>("request-size") {
        Some(sizes) => sizes.map(String::as_str).collect(),
        None if as_theirs => vec![OF_QEMU_IMG.2],
        None => vec!["4K", "256K"],
    };
    let connections = matches.get_one::<u16>("connections").map_or(1, |n| u64::from(*n));
    let mut works = Vec::new();
    for size in sizes {
        let size = parse_size(size).map_err(|e| Failure::usage(format!("--request-size: {e}")))?;
        if size == 0 || size > LONGEST {
            return Err(Failure::usage("--request-size: from 1 byte to 32M"));
        }
        for depth in &depths {
            if size.saturating_mul(*depth).saturating_mul(connections) > MOST_IN_FLIGHT {
                let what = "more than 1 GiB would be in flight: take a smaller --depth, --request-size or --connections";
                return Err(Failure::usage(what));
            }
            works.push((size, *depth));
        }
    }
    Ok(works)
}

fn amount(matches: &ArgMatches) -> Result<Amount, Failure> {
    match (matches.get_one::<u64>("count"), image::word(matches, "seconds")) {
        (Some(count), _) => Ok(Amount::Requests(*count)),
        (None, None) if names::is_qemu_img() => Ok(Amount::Requests(OF_QEMU_IMG.0)),
        (None, text) => seconds(text.unwrap_or("2")).map(Amount::Time),
    }
}

/// What is to be measured of a disk.
fn loads(
    matches: &ArgMatches,
    edge: &Edge,
    works: &[(u64, u64)],
    amount: Amount,
) -> Result<Vec<Load>, Failure> {
    let (from, disk) = (size(matches, "offset")?.unwrap_or(0), edge.info().size);
    let step = size(matches, "step-size")?.or_else(|| names::is_qemu_img().then_some(0));
    let bytes = match matches.get_one::<u8>("pattern") {
        Some(byte) => Bytes::All(*byte),
        None if matches.get_flag("verify") => Bytes::OfPlace,
        None => Bytes::Random,
    };
    let reads = match (matches.get_flag("write"), matches.get_one::<u64>("mix")) {
        (false, _) => 100,
        (true, reads) => reads.copied().unwrap_or(0),
    };
    let load = |&(size, depth): &(u64, u64)| {
        if from > disk || size > disk - from {
            let what = format!("{}: too small for a request of {size} bytes", edge.info().name);
            return Err(Failure::new(what));
        }
        let order = match step {
            Some(0) => PlaceOrder::steps(from..disk, size, size),
            Some(step) => PlaceOrder::steps(from..disk, size, step),
            None => PlaceOrder::random(from..disk, size),
        };
        Ok(Load { size, depth, order, reads, bytes, amount })
    };
    works.iter().map(load).collect()
}

fn seconds(text: &str) -> Result<Duration, Failure> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| {
        Failure::usage("--seconds: a number of seconds from 0.01 to 86400, for example 0.5")
    })
}
