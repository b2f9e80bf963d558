//! `--sandbox`: a verb that reads strangers' bytes gives up first what it will not need.
//!
//! [`Sandbox::enter`] comes before anything is opened and before there is a second thread; [`Sandbox::shut`] when all that
//! the work needs is open. Programs that a disk starts would be confined with us, so with one of them there is no sandbox.

use std::fmt;

use clap::{Arg, ArgMatches};
use device::Reach;
use sandbox::Files;

use crate::arguments::value;
use crate::failure::Failure;

/// What the user wants.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Wish {
    /// As much as there is.
    #[default]
    Auto,
    /// Files and calls confined, or nothing is done.
    Require,
    /// None.
    Off,
}

/// What holds by now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sandbox {
    wish: Wish,
    /// Connections are made, now and later.
    network: bool,
    files: Files,
    has_programs: bool,
}

/// `--sandbox`.
pub(crate) fn argument() -> Arg {
    value(
        "sandbox",
        "auto|require|off",
        "Open no other file than those named here, start no program, and make no connection that is not named",
    )
    .value_parser(["auto", "require", "off"])
    .hide_possible_values(true)
}

/// What the command line says of it.
pub(crate) fn wish(matches: &ArgMatches) -> Wish {
    match matches.try_get_one::<String>("sandbox").ok().flatten().map(String::as_str) {
        Some("require") => Wish::Require,
        Some("off") => Wish::Off,
        _ => Wish::Auto,
    }
}

impl Sandbox {
    /// From here on only what is in `reach` can be opened.
    pub(crate) fn enter(wish: Wish, reach: &Reach) -> Result<Self, Failure> {
        let Reach { network, programs: has_programs, .. } = *reach;
        let free = Self { wish, network, files: Files::Free, has_programs };
        if wish == Wish::Off || (has_programs && wish == Wish::Auto) {
            return Ok(free);
        }
        if has_programs {
            return Err(Failure::new(
                "--sandbox=require: a program is to be started, and would be in the sandbox too",
            ));
        }
        match (sandbox::confine_files(reach), wish) {
            (Ok(Files::Free), Wish::Require) => Err(Failure::new(
                "--sandbox=require: this kernel cannot confine files (landlock, Linux 5.13)",
            )),
            (Err(e), Wish::Require) => Err(Failure::new(format!("--sandbox=require: {e}"))),
            (Ok(files), _) => Ok(Self { files, ..free }),
            (Err(_), _) => Ok(free),
        }
    }

    /// All is open: from here on no program is started and, where none was named, no connection made.
    pub(crate) fn shut(self) -> Result<Told, Failure> {
        let told = |calls| Told { files: self.files, calls };
        if self.wish == Wish::Off || self.has_programs {
            return Ok(told(false));
        }
        match (sandbox::confine_calls(self.network), self.wish) {
            (Err(e), Wish::Require) => Err(Failure::new(format!("--sandbox=require: {e}"))),
            (done, _) => Ok(told(done.is_ok())),
        }
    }
}

/// What was got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    files: Files,
    calls: bool,
}

impl Told {
    fn words(self) -> (&'static str, &'static str) {
        let files = match self.files {
            Files::Confined => "confined",
            Files::Partly => "partly",
            Files::Free => "free",
        };
        (files, if self.calls { "confined" } else { "free" })
    }

    /// As JSON.
    pub(crate) fn json(self) -> serde_json::Value {
        let (files, calls) = self.words();
        serde_json::json!({ "files": files, "calls": calls })
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, calls) = self.words();
        write!(f, "files {files}, calls {calls}")
    }
}
