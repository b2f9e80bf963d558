//! `diskferry rebase`: puts an overlay over another backing image.

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use disk::{NewBacking, OpenOptions};
use runtime::{Context, OperatorLog};

use crate::arguments::{disk_as, flag, value};
use crate::failure::{ExitResult, Failure, say};
use crate::image::{self, Source};
use crate::progress::percent;
use crate::verb::Verb;
use crate::words::Words;

pub(crate) const VERB: Verb = Verb {
    name: "rebase",
    summary: "Change the backing image of an overlay",
    about: "The options are those of `qemu-img rebase`. The disk's contents stay the same: \
            differences between the old and the new backing image are written to the overlay, and \
            are durable before its header changes. With -u only the header changes. -b '' removes \
            the backing image. The formats of the overlay (-f) and the backing image (-F) are \
            never guessed. The old chain is opened only with --allow-external.",
    example: "  diskferry create -q -f raw base.raw 1M\n  \
              diskferry create -q -f qcow2 -b base.raw -F raw over.qcow2\n  \
              diskferry rebase -f qcow2 --allow-external chain -b '' over.qcow2",
    status: "",
    usage: 1,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let cache =
        |spelled, help| value(spelled, help).value_parser(image::CACHES).hide_possible_values(true);
    command
        .arg(disk_as("disk", "FILE", "A path, or DEVICE:ARG?key=value"))
        .arg(image::format_argument("-f, --format", "Format of FILE"))
        .arg(
            value("-b, --backing FILE", "The new backing image; '' for none")
                .value_parser(Words::Disk),
        )
        .arg(
            image::format_argument("-F, --backing-format", "Format of the new backing image")
                .short_alias('B'),
        )
        .arg(flag("-u, --backing-unsafe", "Change only the header; the disk's contents may change"))
        .arg(flag(
            "-c, --compress",
            "Compress data written to the overlay, if that makes it smaller",
        ))
        .arg(flag("-p, --progress", "Show how much is done on standard output"))
        .arg(flag("-q, --quiet", "Print errors only"))
        .arg(
            cache("-t, --target-cache MODE", "Ignored: the result is durable in the end")
                .alias("cache"),
        )
        .arg(cache("-T, --source-cache MODE", "Ignored").alias("backing-cache"))
        .arg(image::image_opts())
        .arg(image::external_argument())
        .arg(image::object())
}

fn run(matches: &ArgMatches) -> ExitResult {
    image::check_objects(matches)?;
    let name = image::word(matches, "disk").unwrap_or_default();
    let (disk, image) = Source::written(matches, name)?;
    let is_trusted = matches.get_flag("backing-unsafe");
    let compress = matches.get_flag("compress");
    let backing = image::word(matches, "backing");
    if backing.is_none() && !is_trusted {
        return Err(Failure::usage("Must specify backing file (-b) or use unsafe mode (-u)"));
    }
    let format = image::word(matches, "backing-format");
    let backing = match (backing.filter(|name| !name.is_empty()), format) {
        (None, _) => None,
        (Some(name), Some(format)) => Some((name, disk::format(format)?.word)),
        (Some(name), None) => {
            return Err(Failure::usage(format!(
                "Could not change the backing file to '{}': backing format must be specified (-F)",
                device::text::shown(name)
            )));
        }
    };
    let log = OperatorLog::new(|line| say(&line.to_string()));
    let context = Context::default().with_log(log);
    let shows = matches.get_flag("progress") && !matches.get_flag("quiet");
    let mut tell = |done, total| {
        if shows {
            percent(done, total, if done < total { '\r' } else { '\n' });
        }
    };
    let new = NewBacking { backing, is_trusted, compress };
    let options = OpenOptions::read_write();
    let done = disk::rebase(&disk, &image, new, &options, &context, &mut tell);
    context.control.end();
    let complaint = context.control.take_complaints().into_iter().next();
    done?;
    match complaint {
        Some(complaint) => Err(Failure::new(complaint.to_string())),
        None => Ok(ExitCode::SUCCESS),
    }
}
