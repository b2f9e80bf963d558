//! `rotational`: sets whether clients see a rotational disk, whose seeks cost time. Bytes pass as
//! if the filter were not there.

use device::{Filter, Filtered, Over, Passes, param, values};

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "rotational",
    summary: "advertises the disk as rotational or not",
    keeps_disk: false,
    params: &[param("rotational", "true|false", "whether seeking costs time (default true)")],
    example: "serve --filter=rotational memory 1M --run 'nbdinfo --is rotational \"$uri\"'",
    open: |params, below, _| {
        let rotational = values::flag(params, "rotational")?.unwrap_or(true);
        Ok(Filtered::device(Rotational(rotational), below))
    },
    ..FilterKind::PLAIN
};

struct Rotational(bool);

impl Filter for Rotational {
    fn describe(&self, over: &mut Over) {
        over.info.abilities.rotational = self.0;
        over.passes = Passes::ALL;
    }
}

#[cfg(test)]
mod tests {

    use crate::kit::tested::{blank, put};

    #[test]
    fn the_rotational_flag_is_what_the_user_sets_whatever_the_disk_is() {
        let told = |device, words: &[&str]| {
            put("rotational", device, words).unwrap().info().abilities.rotational
        };
        let still = || blank(512);
        assert!(!still().info().abilities.rotational);
        assert!(told(still(), &[]));
        let spinning = put("rotational", still(), &["rotational=on"]).unwrap();
        assert!(!told(spinning.device().clone(), &["rotational=false"]));
    }
}
