//! nbdkit, and the tools of libnbd: our verbs have their options.

use std::ffi::OsString;

use super::{Called, verb, version};
use crate::arguments::{long_names, short_names};
use crate::failure::Failure;
use crate::verbs;

/// The versions whose options and output ours are like.
pub(crate) const NBDKIT: &str = "1.48.0";
const LIBNBD: &str = "1.24.0";

pub(super) fn nbdkit(words: &[OsString]) -> Result<Called, Failure> {
    Ok(verb("serve", words))
}

pub(super) fn nbdcopy(words: &[OsString]) -> Result<Called, Failure> {
    Ok(of_libnbd("nbdcopy", "copy", words))
}

pub(super) fn nbdinfo(words: &[OsString]) -> Result<Called, Failure> {
    Ok(of_libnbd("nbdinfo", "info", words))
}

pub(super) fn nbdsh(words: &[OsString]) -> Result<Called, Failure> {
    Ok(of_libnbd("nbdsh", "shell", words))
}

fn of_libnbd(name: &str, ours: &str, words: &[OsString]) -> Called {
    match words {
        [one, ..] if one == "-V" || one == "--version" => {
            Called::Says(version(name, LIBNBD) + &format!("libnbd {LIBNBD}\n"))
        }
        [one, ..] if one == "--short-options" => {
            Called::Says(verbs::options(ours, short_names) + "-V\n")
        }
        [one, ..] if one == "--long-options" => {
            Called::Says(verbs::options(ours, long_names) + "--help\n--version\n")
        }
        _ => verb(ours, words),
    }
}
