//! The functions that plugins call: nbdkit's, which the program exports under the same names.
//!
//! None of them may panic (Rust cannot unwind through C), and only `nbdkit_nanosleep` waits.

mod client;
mod lists;
mod messages;
mod parameters;
mod text;

pub(crate) use lists::{NbdkitExports, NbdkitExtents};

/// A list of all functions, so that the linker keeps them.
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

/// An exported function, whatever its type.
#[derive(Clone, Copy)]
pub(crate) struct Function(#[expect(dead_code, reason = "it only has to be there")] *const ());

/// The list of a module's exported functions.
macro_rules! functions {
    ($($name:path),* $(,)?) => {
        pub(super) const FUNCTIONS: &[super::Function] = &[$(super::Function($name as *const ())),*];
    };
}
use functions;
