//! `diskferry commit`: puts what an overlay holds into its backing image.

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use copy::{Cancel, CopyPlan, ListedRange, Options, Progress, RangeFate};
use device::{Edge, Extent};
use disk::OpenOptions;
use runtime::{Context, OperatorLog};

use crate::arguments::{disk_as, flag, value};
use crate::failure::{ExitResult, Failure, say};
use crate::image::Source;
use crate::progress::percent;
use crate::verb::Verb;
use crate::{copying, image, output};

pub(crate) const VERB: Verb = Verb {
    name: "commit",
    summary: "Merge an overlay into its backing image",
    about: "The options are those of `qemu-img commit`. The bytes are durable in the backing image before the \
            overlay is emptied; with -d it stays as it is, and with -b, which puts what the overlay and the images \
            between hold into one further down in the chain: those between then read otherwise. A backing image \
            that is shorter grows first. The format of the overlay (-f) is not guessed, nor is that of the backing \
            image, which the image over it has to name. All of them are locked against others. Needs \
            --allow-external, for the backing image is opened.",
    example: "  diskferry create -q -f raw base.raw 1M\n  \
              diskferry create -q -f qcow2 -b base.raw -F raw over.qcow2\n  \
              diskferry commit -f qcow2 --allow-external chain over.qcow2",
    status: "",
    usage: 1,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .arg(disk_as("disk", "FILE", "A path, or DEVICE:ARG?key=value"))
        .arg(image::format_argument("-f, --format", "Format of FILE"))
        .arg(value(
            "-b, --base BASE",
            "Merge into this image of the chain, named as in the overlay above it",
        ))
        .arg(flag("-d, --keep", "Do not empty FILE afterwards").alias("drop"))
        .arg(value("-r, --rate-limit BYTES", "Write at most this many bytes a second"))
        .arg(flag("-p, --progress", "Show how much is done on standard output"))
        .arg(flag("-q, --quiet", "Print errors only"))
        .arg(
            value("-t, --target-cache MODE", "Ignored: the result is durable in the end")
                .alias("cache")
                .value_parser(image::CACHES)
                .hide_possible_values(true),
        )
        .arg(image::image_opts())
        .arg(image::external_argument())
        .arg(image::object())
}

fn run(matches: &ArgMatches) -> ExitResult {
    image::check_objects(matches)?;
    let name = image::word(matches, "disk").unwrap_or_default();
    let (disk, image) = Source::written(matches, name)?;
    let rate = image::word(matches, "rate-limit");
    let rate = rate.map(|text| copying::rate(text, "-r")).transpose()?;
    let log = OperatorLog::new(|line| say(&line.to_string()));
    let context = Context::default().with_log(log);
    let quiet = matches.get_flag("quiet");
    let shows = matches.get_flag("progress") && !quiet;
    let mut copy = |source: &Edge, base: &Edge, held: Vec<Extent>| {
        let base = match &rate {
            Some(rate) => rate.over(base.clone(), &context)?,
            None => base.clone(),
        };
        if shows {
            percent(0, 1, '\r');
        }
        let (progress, cancel) = (Progress::default(), Cancel::default());
        let plan = CopyPlan::List(held.iter().map(listed).collect());
        copy::run(source, &base, &plan, &Options::default(), &progress, &cancel)
            .map(drop)
            .map_err(|failed| failed.error)
    };
    let empties = !matches.get_flag("keep");
    let options = OpenOptions::read_write();
    let into = (image::word(matches, "base"), empties);
    let done = disk::commit(&disk, &image, into, &options, &context, &mut copy);
    context.control.end();
    let complaint = context.control.take_complaints().into_iter().next();
    done?;
    if let Some(complaint) = complaint {
        return Err(Failure::new(complaint.to_string()));
    }
    if shows {
        percent(1, 1, '\n');
    }
    if quiet { Ok(ExitCode::SUCCESS) } else { output::text("Image committed.\n") }
}

fn listed(extent: &Extent) -> ListedRange {
    let kind = if extent.kind.reads_zero() { RangeFate::Zero } else { RangeFate::Data };
    ListedRange { range: extent.start..extent.end(), kind }
}
