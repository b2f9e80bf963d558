//! How many bytes a second may be written, in the words of the verbs that copy.

use device::parse_size;
use disk::Stack;

use crate::failure::Failure;

/// The filter that limits writing to this many bytes a second: `10M`, or `10M/s`. `option` is the
/// option that it came from.
pub(crate) fn rate(text: &str, option: &str) -> Result<Stack, Failure> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    let bytes = parse_size(number).map_err(|e| Failure::usage(format!("{option}: {e}")))?;
    let bits = bytes.checked_mul(8).filter(|bits| *bits > 0);
    let bits = bits.ok_or_else(|| {
        Failure::usage(format!("{option}: {text} is not a rate; write for example 100M"))
    })?;
    Ok(Stack::parse([&*format!("rate?rate={bits}")])?)
}
