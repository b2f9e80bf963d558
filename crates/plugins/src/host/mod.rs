//! What plugins call: the functions of nbdkit that the program exports under their own names.
//!
//! None of them may panic (nothing of ours can be unwound through C), and none waits but `nbdkit_nanosleep`, which is there for that.

mod client;
mod lists;
mod messages;
mod parameters;
mod text;

pub(crate) use lists::{Exports, Extents};

/// Every function, so that a linker that looks for what is used finds them all used.
pub(crate) fn keep() -> usize {
    let all = [
        client::FUNCTIONS,
        lists::FUNCTIONS,
        messages::FUNCTIONS,
        parameters::FUNCTIONS,
        text::FUNCTIONS,
    ];
    std::hint::black_box(all).iter().map(|some| some.len()).sum()
}

/// A function that is exported, whatever its type is.
#[derive(Clone, Copy)]
pub(crate) struct Function(#[expect(dead_code, reason = "it only has to be there")] *const ());

/// The list of a module's exported functions.
macro_rules! functions {
    ($($name:path),* $(,)?) => {
        pub(super) const FUNCTIONS: &[super::Function] = &[$(super::Function($name as *const ())),*];
    };
}
use functions;
