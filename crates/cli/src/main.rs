//! `diskferry`: serves, copies and inspects disks.
//!
//! One file a verb, and one table that names them; help, man pages and completions come from it.
//! Exit status: 0 success, 1 failure, 2 wrong usage; a verb that has more says so in its help.
//!
//! On systems that are not Linux the verbs that serve, and what only they use, are left out.
#![cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, unused_imports, reason = "what only the verbs use that are left out")
)]

mod amend;
mod archive;
mod arguments;
#[cfg(target_os = "linux")]
mod attached;
mod bench;
mod bitmap;
mod bracket;
#[cfg(target_os = "linux")]
mod cache;
mod check;
mod colors;
mod commit;
mod compare;
mod completions;
mod convert;
mod copy;
mod copying;
mod create;
mod ctl;
mod dd;
mod describe;
#[cfg(target_os = "linux")]
mod detach;
mod digest;
mod elsewhere;
mod failure;
mod fleet;
mod force;
mod formats;
mod formatting;
mod headings;
mod help;
mod image;
mod info;
mod inspect;
mod list;
mod man;
mod map;
mod measure;
mod misread;
mod names;
mod output;
mod page;
mod patience;
mod prealloc;
mod progress;
mod range;
mod rebase;
mod resize;
mod sandbox;
#[cfg(target_os = "linux")]
mod serve;
mod shell;
mod signals;
mod snapshot;
mod top;
mod topics;
mod trim;
mod verb;
mod verbs;
mod verify;
mod words;
mod zero;

use std::process::ExitCode;

fn main() -> ExitCode {
    disk::begin();
    signals::outlive_file_size_limit();
    signals::hear_how_programs_end();
    let run = |called| match called {
        names::Called::Verb(words) => {
            if names::is_qemu_img() {
                signals::outlive_questions();
            }
            verbs::dispatch(words)
        }
        names::Called::Says(text) => output::text(&text),
    };
    let code = match names::called(std::env::args_os().collect()).and_then(run) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    };
    // A connection that is still being made in the background keeps the server that was started for
    // it.
    disk::abandon();
    code
}
