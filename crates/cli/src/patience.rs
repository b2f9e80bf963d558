//! How long a verb waits for peers: the options that all verbs share which open disks.

use std::time::Duration;

use clap::{ArgMatches, Command};
use device::{Params, values};
use runtime::Patience;

use crate::arguments::value;
use crate::failure::Failure;

/// The options.
pub(crate) fn arguments(command: Command) -> Command {
    command
        .arg(value("--open-timeout TIME", "How long to keep trying to reach a server at the start"))
        .arg(value("--reconnect-delay TIME", "How long to wait for a lost server to come back"))
        .arg(value("--request-timeout TIME", "How long a server that owes a reply may be silent"))
}

/// What they say.
pub(crate) fn asked(matches: &ArgMatches) -> Result<Patience, Failure> {
    Ok(Patience {
        open: time(matches, "open-timeout")?,
        reconnect: time(matches, "reconnect-delay")?,
        request: time(matches, "request-timeout")?,
    })
}

/// 0 means the default.
fn time(matches: &ArgMatches, id: &str) -> Result<Option<Duration>, Failure> {
    let Some(text) = matches.get_one::<String>(id) else { return Ok(None) };
    let mut params = Params::default();
    params.add(id, text);
    let time = values::duration(&params, id);
    let time = time.map_err(|e| Failure::usage(format!("--{e}")))?;
    Ok(time.filter(|time| !time.is_zero()))
}
