//! What a process in a sandbox cannot do itself: starting other programs, and changing directories.
//!
//! A process starts programs itself until it calls [`hand_over`]: from then on a *helper* does, a
//! process that is forked while there is one thread and before any sandbox. Whatever it is asked,
//! it starts only the programs named to it then, with values for the variables named then. They are
//! still children of the asking process, which waits for them. The process's later sandbox does not
//! confine them; earlier limits do.
//!
//! The same helper makes, replaces and removes files ([`names`]), of names that were granted to it
//! then.
//!
//! Only Linux has the helper, as it has the sandbox; elsewhere [`hand_over`] is an error, and this
//! process does all.
//!
//! This crate has no policy: devices, filters and verbs decide which programs and names there are.

#[cfg_attr(not(target_os = "linux"), path = "helper/absent.rs")]
mod helper;
pub mod names;
mod program;
mod running;
mod system;

pub use helper::hand_over;
pub use names::Grant;
pub use program::{Program, StandardStreams, nothing};
pub use running::Running;

use std::io;

/// Starts a program: here, or by the helper. `values` are for variables that it names; those
/// without a value are not in its environment. Blocks until it has begun.
///
/// # Errors
/// It cannot be started; a variable is not among those of the program; or it was not named when
/// that was handed over.
pub fn start(
    program: &Program,
    values: &[(&str, &str)],
    streams: StandardStreams,
) -> io::Result<Running> {
    let values = program.in_order(values)?;
    match helper::asked() {
        Some(helper) => helper.start(program, &values, &streams),
        None => Running::child(&program.command(&values, streams).spawn()?),
    }
}
