//! What the arguments of `copy` come to: everything decided before anything is opened.

use clap::ArgMatches;
use copy::{Flush, Options};
use device::{Name, parse_size};
use disk::{Named, Stack};

use crate::arguments::filters;
use crate::failure::Failure;
use crate::progress::Show;

/// The resolved command line.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) source: Named,
    pub(super) target: Named,
    pub(super) source_filters: Stack,
    pub(super) target_filters: Stack,
    pub(super) connections: usize,
    pub(super) options: Options,
    pub(super) keep_partial: bool,
    pub(super) show: Show,
}

impl Settings {
    pub(super) fn resolve(matches: &ArgMatches) -> Result<Self, Failure> {
        let options = options(matches)?;
        let connections = matches.get_one::<u16>("connections").map_or(4, |n| usize::from(*n));
        Ok(Self {
            source: named(matches, "source")?,
            target: named(matches, "target")?,
            source_filters: filters(matches, "source-filter")?,
            target_filters: filters(matches, "target-filter")?,
            // More connections than threads would have nobody to use them.
            connections: options.threads.map_or(connections, |t| t.min(connections)),
            options,
            keep_partial: matches.get_flag("keep-partial"),
            show: Show::asked(matches),
        })
    }
}

fn named(matches: &ArgMatches, id: &str) -> Result<Named, Failure> {
    let text = matches.get_one::<String>(id).map_or("", String::as_str);
    if text == "-" {
        return Err(Failure::usage("copying from and to a pipe (`-`) is not supported yet"));
    }
    let name = Name::parse(text);
    let name = name.map_err(|e| Failure::usage(format!("{}: {e}", id.to_uppercase())))?;
    Ok(Named::of(&name)?)
}

fn options(matches: &ArgMatches) -> Result<Options, Failure> {
    let size = |id: &str| -> Result<u64, Failure> {
        let text = matches.get_one::<String>(id).map_or("0", String::as_str);
        parse_size(text).map_err(|e| Failure::usage(format!("--{id}: {e}")))
    };
    let options = Options {
        requests: matches
            .get_one::<u32>("requests")
            .map_or(64, |n| usize::try_from(*n).unwrap_or(usize::MAX)),
        request_size: size("request-size")?,
        threads: Some(matches.get_one::<u16>("threads").map_or_else(processors, |n| (*n).into())),
        sparse: Some(size("sparse")?).filter(|s| *s > 0),
        allocated: matches.get_flag("allocated"),
        target_is_zero: matches.get_flag("target-is-zero"),
        flush: match (matches.get_flag("flush"), matches.get_flag("no-flush")) {
            (true, _) => Flush::Must,
            (_, true) => Flush::Never,
            _ => Flush::WhereItCan,
        },
        no_extents: matches.get_flag("no-extents"),
        queue_size: size("queue-size")?,
        ..Options::default()
    };
    options.check().map_err(Failure::usage)?;
    Ok(options)
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
