//! What formats share: asking the disk below without holding a thread, and computing where there is
//! time for it.

mod below;
mod layer;
pub(crate) mod numbers;

pub(crate) use below::{confused, flush, read, resolve, take, write};
pub(crate) use layer::{Layer, Layered, at_once};
