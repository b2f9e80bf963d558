//! The table of formats: how each is recognised, opened and made.
//!
//! One line per format. Opening, `-f` and `-O`, help, the manual and shell completion all read it.

use device::{Error, Result, suggestion};

use crate::{Format, Head};

static FORMATS: &[Format] = &[
    crate::raw::FORMAT,
    crate::qcow2::FORMAT,
    crate::vmdk::FORMAT,
    crate::vdi::FORMAT,
    crate::vpc::FORMAT,
    crate::vhdx::FORMAT,
    crate::parallels::FORMAT,
    crate::qed::FORMAT,
    crate::qcow::FORMAT,
    crate::luks::FORMAT,
    crate::dmg::FORMAT,
    crate::packed::GZ,
    crate::packed::XZ,
    crate::packed::LZ,
    crate::packed::ZSTD,
    crate::packed::BZ2,
    crate::oci::FORMAT,
    crate::tar::FORMAT,
];

/// All formats, in display order.
#[must_use]
pub fn formats() -> &'static [Format] {
    FORMATS
}

/// The format that `word` names.
///
/// # Errors
/// There is none; the error has the nearest word.
pub fn format(word: &str) -> Result<&'static Format> {
    FORMATS.iter().find(|format| format.word == word).ok_or_else(|| {
        let words: Vec<_> = FORMATS.iter().map(|format| format.word).collect();
        let hint = suggestion(word, &words);
        Error::invalid(format!("there is no format `{word}`; {hint}"))
    })
}

/// The format that a container looks like; `None`: raw. A guess, used only for reading, never for
/// writing or serving.
#[must_use]
pub fn recognise(head: &Head) -> Option<&'static Format> {
    FORMATS.iter().find(|format| (format.recognises)(head))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_format_is_refused_with_the_nearest_word() {
        assert!(format("rwa").unwrap_err().to_string().contains("did you mean `raw`?"));
    }

    #[test]
    fn every_word_is_unique_and_only_plain_bytes_look_like_nothing() {
        for (i, format) in formats().iter().enumerate() {
            assert!(formats()[..i].iter().all(|other| other.word != format.word));
        }
    }
}
