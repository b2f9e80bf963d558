//! Other programs: which are named, how one is started, and how it ends.
//!
//! A process starts programs itself until it gives that up with [`hand_over`]: from then on a *helper* does, a process that is
//! forked while there is one thread and before any sandbox. It starts what was named to it then, with values for the
//! variables that were named too, and nothing else, whatever it is asked. What it starts is a child of ours all the same: we wait for it,
//! and it sees us as its parent. It is neither confined with us nor freed of what held us before.
//!
//! Nothing here has a policy: what is named is a device's, a filter's or a verb's affair.

mod helper;
mod program;
mod running;

pub use helper::hand_over;
pub use program::{Program, Streams, nothing};
pub use running::Running;

use std::io;

/// Starts a program: here, or by the helper. `values` are for variables that it names; those without a value are not in its
/// environment. Blocks until it has begun.
///
/// # Errors
/// It cannot be started; a variable is not among those of the program; or it was not named when that was handed over.
pub fn start(program: &Program, values: &[(&str, &str)], streams: Streams) -> io::Result<Running> {
    let values = program.in_order(values)?;
    match helper::asked() {
        Some(helper) => helper.start(program, &values, &streams),
        None => Running::child(&program.command(&values, streams).spawn()?),
    }
}
