//! `diskferry convert`: copies an image to an image, with qemu-img's words.

mod arguments;
mod bitmaps;
mod settings;

use std::process::ExitCode;

use clap::ArgMatches;

use crate::failure::ExitResult;
use crate::verb::Verb;
use crate::{copying, failure, image, output};

pub(crate) const VERB: Verb = Verb {
    name: "convert",
    summary: "Convert an image to another format",
    about: "The options are those of `qemu-img convert`; docs/qemu-img.md says what each does \
            here. Several sources are concatenated. Without -f the format of a source is guessed, \
            with a note; without -O the target is raw. The target is created, and a new file gets \
            its name only when it is complete. It is durable when the command ends. Files that an \
            image names (a backing image, say) are opened only with --allow-external.",
    example: "  diskferry convert -f raw -O raw pattern:8M disk.raw\n  \
              diskferry convert -p -n --target-is-zero -O raw disk.raw null:8M",
    status: "130, 143, 129: SIGINT, SIGTERM or SIGHUP stopped it.",
    usage: 1,
    arguments: arguments::arguments,
    run,
};

fn run(matches: &ArgMatches) -> ExitResult {
    if image::asks_for_formats(matches, "target-format") {
        return output::text(&image::formats_to_make());
    }
    if image::asks_for_help(image::words(matches, "options")) {
        let format = disk::format(image::word(matches, "target-format").unwrap_or("raw"))?;
        return output::text(&image::help(format));
    }
    let mut work = settings::resolve(matches)?;
    let bitmaps = bitmaps::BitmapCopy::asked(matches, &mut work)?;
    if let Some(warning) = settings::warning(matches) {
        failure::say(&warning);
    }
    let done = copying::run(&work)?;
    if let (Some(bitmaps), true) = (bitmaps, done == ExitCode::SUCCESS) {
        bitmaps.finish(&work)?;
    }
    Ok(done)
}
