//! The table of filters: their names, parameters, and how to open them.
//!
//! One line per filter. Opening, `--help FILTER`, the manual and shell completion all read it.

use device::{Edge, Error, Params, Result, suggestion};
use runtime::Context;

use crate::FilterKind;

static KINDS: &[FilterKind] = &[
    crate::blocksize::KIND,
    crate::blocksize_policy::KIND,
    crate::bzip2::KIND,
    crate::cache::KIND,
    crate::checkwrite::KIND,
    crate::count::KIND,
    crate::cow::KIND,
    crate::ddrescue::KIND,
    crate::delay::KIND,
    crate::error::KIND,
    crate::evil::KIND,
    crate::exitlast::KIND,
    crate::exitwhen::KIND,
    crate::exportname::KIND,
    crate::ext2::KIND,
    crate::extentlist::KIND,
    crate::fua::KIND,
    crate::gzip::KIND,
    crate::indexed_gzip::KIND,
    crate::ip::KIND,
    crate::limit::KIND,
    crate::log::KIND,
    crate::luks::KIND,
    crate::lzip::KIND,
    crate::map::KIND,
    crate::multi_conn::KIND,
    crate::nocache::KIND,
    crate::noextents::KIND,
    crate::nofilter::KIND,
    crate::noparallel::KIND,
    crate::nozero::KIND,
    crate::offset::KIND,
    crate::openonce::KIND,
    crate::partition::KIND,
    crate::pause::KIND,
    crate::protect::KIND,
    crate::qcow2dec::KIND,
    crate::rate::KIND,
    crate::readahead::KIND,
    crate::readonly::KIND,
    crate::retry::KIND,
    crate::retry_request::KIND,
    crate::rotational::KIND,
    crate::scan::KIND,
    crate::spinning::KIND,
    crate::stats::KIND,
    crate::swab::KIND,
    crate::tar::KIND,
    crate::time_limit::KIND,
    crate::tls_fallback::KIND,
    crate::truncate::KIND,
    crate::xor::KIND,
    crate::xz::KIND,
];

/// All kinds, in display order.
#[must_use]
pub fn kinds() -> &'static [FilterKind] {
    KINDS
}

/// The kind that `word` names.
///
/// # Errors
/// There is none; the error has the nearest word.
pub fn kind(word: &str) -> Result<&'static FilterKind> {
    KINDS.iter().find(|k| k.word == word).ok_or_else(|| {
        let words: Vec<_> = KINDS.iter().map(|k| k.word).collect();
        Error::invalid(format!("there is no filter `{word}`; {}", suggestion(word, &words)))
    })
}

/// Puts the filter `word` over the device of `below`.
///
/// # Errors
/// There is no such filter or parameter, or the filter refuses.
pub fn open(word: &str, params: &Params, below: Edge, context: &Context) -> Result<Edge> {
    let kind = kind(word)?;
    params.check_declared(kind.params, false).map_err(|e| e.on(word))?;
    let pool = below.pool().clone();
    let device = (kind.open)(params, below, context).map_err(|e| e.on(word))?;
    Ok(Edge::new(device, pool))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_and_every_key_is_unique() {
        for (i, kind) in kinds().iter().enumerate() {
            assert!(kinds()[..i].iter().all(|k| k.word != kind.word), "{}", kind.word);
            for (j, p) in kind.params.iter().enumerate() {
                assert!(kind.params[..j].iter().all(|q| q.key != p.key), "{}", p.key);
                let others = kinds()[..i].iter().flat_map(|k| k.params);
                assert!(others.into_iter().all(|q| q.key != p.key), "{} is shared", p.key);
            }
        }
    }

    #[test]
    fn filters_are_shown_in_the_order_of_the_alphabet() {
        assert!(kinds().is_sorted_by_key(|k| k.word));
    }
}
