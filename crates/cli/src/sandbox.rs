//! `--sandbox`: a verb that reads untrusted bytes first gives up what it will not need.
//!
//! [`Sandbox::enter`] is called before anything is opened and before there is a second thread;
//! [`Sandbox::shut`] when all that the work needs is open. Programs that are started would be
//! confined with this process, so a helper that was forked before starts them. It also makes,
//! replaces and removes files: see [`programs::names`].

use std::fmt;

use clap::{Arg, ArgMatches};
use device::Reach;
use sandbox::{FileConfinement, Sockets};

use crate::arguments::value;
use crate::failure::{Failure, say};

/// What the user wants.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Wish {
    /// As much as the kernel offers.
    #[default]
    Auto,
    /// Files and calls confined, or nothing is done.
    Require,
    /// None.
    Off,
}

/// What is in force.
#[derive(Clone, Debug)]
pub(crate) struct Sandbox {
    wish: Wish,
    /// What is done with sockets, now and later.
    sockets: Sockets,
    files: FileConfinement,
    /// Whether anything is confined.
    is_off: bool,
    /// Why it is not, unless the user wanted that.
    why: Option<&'static str>,
}

/// It is not known what a plugin will need.
const FOREIGN: &str = "a plugin that runs in this process may need anything, so there is no \
                       sandbox; with isolate=true it runs in a separate process";

/// Not on Linux.
const ABSENT: &str =
    "there is no sandbox on this system: what reads an image may do all that its user may";

/// `--sandbox`.
pub(crate) fn argument() -> Arg {
    value(
        "--sandbox auto|require|off",
        "Restrict the process to the files, programs and \
        connections named here",
    )
    .value_parser(["auto", "require", "off"])
    .hide_possible_values(true)
}

/// The value on the command line.
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
        let (accepts, listens) = (!reach.sockets.is_empty(), !reach.privates.is_empty());
        let sockets = Sockets { connects: reach.network.clone(), accepts, listens };
        let files = FileConfinement::Free;
        let free = Self { wish, sockets, files, is_off: true, why: None };
        if wish == Wish::Off {
            return Ok(free);
        }
        if !sandbox::EXISTS {
            return match wish {
                Wish::Require => Err(Failure::new(format!("--sandbox=require: {ABSENT}"))),
                Wish::Auto | Wish::Off => {
                    say(&format!("{ABSENT}; --sandbox=off leaves this line out"));
                    Ok(Self { why: Some(ABSENT), ..free })
                }
            };
        }
        if reach.anything {
            return match wish {
                Wish::Require => Err(Failure::new(format!("--sandbox=require: {FOREIGN}"))),
                Wish::Auto | Wish::Off => Ok(Self { why: Some(FOREIGN), ..free }),
            };
        }
        // Nobody may ask for keys when calls are confined, and images are opened after that.
        device::keep_keys(&reach.keys);
        let grants = reach.grants();
        if !(reach.programs.is_empty() && grants.is_empty())
            && let Err(e) = programs::hand_over(reach.programs.clone(), grants)
        {
            // Programs would be confined with this process.
            return match wish {
                Wish::Require => Err(Failure::new(format!(
                    "--sandbox=require: start the helper outside of it: {e}"
                ))),
                _ => Ok(free),
            };
        }
        let free = Self { is_off: false, ..free };
        match (sandbox::confine_files(reach), wish) {
            (Ok(FileConfinement::Free), Wish::Require) => Err(Failure::new(
                "--sandbox=require: this kernel cannot confine files (landlock, Linux 5.13)",
            )),
            (Err(e), Wish::Require) => Err(Failure::new(format!("--sandbox=require: {e}"))),
            (Ok(files), _) => Ok(Self { files, ..free }),
            (Err(_), _) => Ok(free),
        }
    }

    /// The same of a process that accepts connections, at sockets that are open when it is shut.
    #[must_use]
    pub(crate) fn accepting(mut self) -> Self {
        self.sockets.accepts = true;
        self
    }

    /// Why nothing is confined, unless the user wanted that.
    pub(crate) fn why_off(&self) -> Option<&'static str> {
        self.why
    }

    /// All is open: from here on the system refuses to start programs and, if no server was named,
    /// to connect.
    pub(crate) fn shut(&self) -> Result<Told, Failure> {
        let told = |calls| Told { files: self.files, calls };
        if self.is_off {
            return Ok(told(false));
        }
        match (sandbox::confine_calls(&self.sockets), self.wish) {
            (Err(e), Wish::Require) => Err(Failure::new(format!("--sandbox=require: {e}"))),
            (done, _) => Ok(told(done.is_ok())),
        }
    }
}

/// What is confined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    files: FileConfinement,
    calls: bool,
}

impl Told {
    fn words(self) -> (&'static str, &'static str) {
        let files = match self.files {
            FileConfinement::Confined => "confined",
            FileConfinement::Partly => "partly",
            FileConfinement::Free => "free",
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
