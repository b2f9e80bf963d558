//! `-o KEY=VALUE,...`: what a format takes when it is made.

use device::{Params, between_commas};
use disk::Format;

use crate::failure::Failure;

/// Whether the list of options is asked for.
pub(crate) fn asks_for_help<'a>(texts: impl IntoIterator<Item = &'a str>) -> bool {
    texts.into_iter().flat_map(between_commas).any(|word| word == "help" || word == "?")
}

/// The list of options, as qemu-img prints it.
pub(crate) fn help(format: &Format) -> String {
    let mut text = format!("Supported {} options:\n", format.word);
    for param in format.create.map_or(&[][..], |create| create.options) {
        let word = format!("{}=<{}>", param.key, param.value);
        text += &format!("  {word:<22} - {}\n", param.doc);
    }
    text
}

/// Reads the options. A key on its own is one that is on; `,,` is a comma.
pub(crate) fn read<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Params, Failure> {
    let mut params = Params::default();
    for word in texts.into_iter().flat_map(between_commas) {
        let (key, value) = word.split_once('=').unwrap_or((&word, "on"));
        if key.is_empty() {
            return Err(Failure::usage(format!("-o {word}: which option?")));
        }
        params.set(key, value).map_err(|e| Failure::usage(format!("-o: {e}")))?;
    }
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubled_comma_is_one_and_a_key_alone_is_on() {
        let params = read(["size=1M,lazy_refcounts,backing_file=a,,b", "compat=1.1,"]).unwrap();
        let pairs: Vec<_> = params.iter().collect();
        let wanted =
            [("size", "1M"), ("lazy_refcounts", "on"), ("backing_file", "a,b"), ("compat", "1.1")];
        assert_eq!(pairs, wanted);
        assert!(read(["a=1,a=2"]).is_err());
        assert!(read(["=1"]).is_err());
        assert!(asks_for_help(["help"]) && asks_for_help(["a=1,?"]) && !asks_for_help(["a=help"]));
    }
}
