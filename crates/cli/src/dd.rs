//! `diskferry dd`: copies a part of an image to an image, with `qemu-img dd` syntax.

use clap::{Arg, ArgMatches, Command};
use device::{nearest, parse_size};
use disk::{Image, Named, Stack};
use transfer::job::CopyJob;

use crate::copying::{self, CopyRequest};
use crate::failure::{ExitResult, Failure};
use crate::image::{self, Source};
use crate::verb::Verb;
use crate::words::Words;

pub(crate) const VERB: Verb = Verb {
    name: "dd",
    summary: "Copy part of an image to a new image",
    about: "The operands are if=, of=, bs= (512 without it), count= and skip=: count blocks after \
            the first skip blocks of the source are copied to the start of the target, which is \
            created. Without -f the format of the source is guessed; without -O the target is raw.",
    example: "  diskferry dd if=pattern:8M of=disk.raw bs=1M count=2 skip=1",
    status: "130, 143, 129: SIGINT, SIGTERM or SIGHUP stopped it.",
    usage: 1,
    arguments,
    run,
};

/// Operands.
const KEYS: [&str; 5] = ["if", "of", "bs", "count", "skip"];
/// Bytes of a block by default.
const BLOCK: u64 = 512;
/// Connections to each side, where both allow several.
const CONNECTIONS: usize = 4;

fn arguments(command: Command) -> Command {
    let command = command
        .override_usage("diskferry dd [OPTION]... if=SOURCE of=TARGET [bs=SIZE] [count=N] [skip=N]")
        .arg(
            Arg::new("operand")
                .value_name("KEY=VALUE")
                .value_parser(Words::Disk)
                .num_args(1..)
                .required(true)
                .help("if=SOURCE, of=TARGET, bs=SIZE, count=BLOCKS, skip=BLOCKS"),
        )
        .arg(image::format_argument("-f, --format", "Format of the source [default: a guess]"))
        .arg(
            image::target_format_argument(
                "-O, --target-format",
                "Format of the target [default: raw]",
            )
            .alias("output-format"),
        );
    image::arguments(command)
}

fn run(matches: &ArgMatches) -> ExitResult {
    image::check_objects(matches)?;
    copying::run(&work(matches)?)
}

/// What the operands say.
#[derive(Default)]
struct Operands<'a>([Option<&'a str>; 5]);

impl<'a> Operands<'a> {
    fn read(words: impl Iterator<Item = &'a str>) -> Result<Self, Failure> {
        let mut operands = Self::default();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let place = KEYS.iter().zip(&mut operands.0).find(|(known, _)| **known == key);
            match place {
                Some((_, place)) if place.is_none() && !value.is_empty() => *place = Some(value),
                Some(_) => return Err(Failure::usage(format!("{word}: give {key}=VALUE, once"))),
                None => {
                    let hint = nearest(key, &KEYS).unwrap_or("if=, of=, bs=, count=, skip=");
                    let what = format!("there is no operand `{word}`; there is {hint}");
                    return Err(Failure::usage(what));
                }
            }
        }
        Ok(operands)
    }

    fn need(&self, index: usize, key: &str) -> Result<&'a str, Failure> {
        let value = self.0.get(index).copied().flatten();
        value.ok_or_else(|| Failure::usage(format!("{key}= is missing")))
    }

    fn number(&self, index: usize, key: &str) -> Result<Option<u64>, Failure> {
        let value = self.0.get(index).copied().flatten();
        let number = value.map(parse_size).transpose();
        number.map_err(|e| Failure::usage(format!("{key}=: {e}")))
    }
}

fn work(matches: &ArgMatches) -> Result<CopyRequest, Failure> {
    let operands = Operands::read(image::words(matches, "operand"))?;
    let (from, to) = (operands.need(0, "if")?, operands.need(1, "of")?);
    let block = operands.number(2, "bs")?.unwrap_or(BLOCK);
    if block == 0 || block > u64::from(i32::MAX.unsigned_abs()) {
        return Err(Failure::usage("bs=: must be from 1 to 2147483647"));
    }
    let count = operands.number(3, "count")?.map_or(u64::MAX, |count| count.saturating_mul(block));
    let skip = operands.number(4, "skip")?.unwrap_or(0).saturating_mul(block);
    let target = Image::of(image::word(matches, "target-format").unwrap_or("raw"))?;
    image::check_target(&target)?;
    let target = (Named::parse(to)?, Stack::default().over_image(target));
    let request = CopyRequest::new(matches, vec![Source::read(matches, from)?], target)?;
    Ok(request.with(|job| CopyJob {
        window: Some((skip, count)),
        shares: !image::reading(matches).lock,
        connections: CONNECTIONS,
        ..job
    }))
}
