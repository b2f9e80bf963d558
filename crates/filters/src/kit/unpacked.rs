//! A packed stream below as the disk that is in it: the formats of that name know how.

use std::sync::Arc;

use device::{Device, Edge, Params, Result};
use formats::{Closed, Opening, format};
use runtime::Context;

/// What is in the stream below, which is one of the format `word`. Nothing is unpacked to a file; a stream that does not say
/// how large it is is unpacked once now, which counts it.
///
/// # Errors
/// It is no such stream, or is damaged.
pub(crate) fn open(word: &str, below: Edge, context: &Context) -> Result<Arc<dyn Device>> {
    let params = Params::default();
    let opening = Opening { params: &params, write: false, files: &Closed, context };
    (format(word)?.open)(below, &opening)
}
