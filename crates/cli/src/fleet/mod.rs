//! Many copies by many processes: `plan`, `run`, `finish`, `status`, around the library
//! `transfer::fleet`. They are four verbs, and not words of one, because the table of verbs, and so
//! help, manual pages and completions, knows the options of each verb by itself.

mod finish;
mod job;
mod page;
mod plan;
mod run;
mod share;
mod status;

use std::path::PathBuf;

use clap::{Arg, ArgMatches, ValueHint, value_parser};
use device::ErrorKind;
use runtime::{Context, OperatorLog};
use transfer::fleet::FleetPlan;

pub(crate) use self::finish::VERB as FINISH;
pub(crate) use self::plan::VERB as PLAN;
pub(crate) use self::run::VERB as RUN;
pub(crate) use self::status::VERB as STATUS;
use crate::failure::{Failure, say};
use crate::patience;

/// The argument that names a file.
fn file(id: &'static str, name: &'static str, help: &'static str) -> Arg {
    let path = value_parser!(PathBuf);
    let file = Arg::new(id).value_name(name).required(true).value_parser(path);
    file.value_hint(ValueHint::FilePath).help(help)
}

/// The argument that names a plan.
fn plan_file() -> Arg {
    file("plan", "PLAN", "A plan that `diskferry plan` wrote")
}

/// The plan on the command line.
fn plan_of(matches: &ArgMatches) -> Result<FleetPlan, Failure> {
    let path = matches.get_one::<PathBuf>("plan").ok_or_else(|| Failure::usage("which plan?"))?;
    FleetPlan::read(path).map_err(|e| match e.kind() {
        // No other try, and no other process, will do better with it.
        ErrorKind::Corrupt | ErrorKind::Limit => Failure::usage(e),
        _ => e.into(),
    })
}

/// A context whose lines go to standard error.
fn context(matches: &ArgMatches) -> Result<Context, Failure> {
    let log = OperatorLog::new(|line| say(&line.to_string()));
    Ok(Context::default().with_log(log).with_patience(patience::asked(matches)?))
}
