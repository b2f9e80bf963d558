//! `rotational`: sets whether clients see a rotational disk, whose seeks cost time. Bytes pass as if the filter were
//! not there.

use device::{
    Admission, Client, Done, Edge, Filter, Filtered, Info, Operation, Params, Passes, Result,
    param, values,
};

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "rotational",
    summary: "tells clients that the disk spins, or that it does not",
    reads_only: false,
    keeps_disk: false,
    params: &[param("rotational", "true|false", "whether seeking costs time (default true)")],
    reaches: device::Reach::nothing,
    example: "serve --filter=rotational memory 1M --run 'nbdinfo --is rotational \"$uri\"'",
    open: |params, below, _| Ok(Filtered::device(Rotational::new(is_rotational(params)?, below))),
};

fn is_rotational(params: &Params) -> Result<bool> {
    Ok(values::flag(params, "rotational")?.unwrap_or(true))
}

struct Rotational {
    info: Info,
    below: Edge,
}

impl Rotational {
    fn new(rotational: bool, below: Edge) -> Self {
        let mut info = Info::over(&below);
        info.abilities.rotational = rotational;
        Self { info, below }
    }
}

impl Filter for Rotational {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> &Edge {
        &self.below
    }

    fn run(&self, operation: Operation, done: Done) {
        // Whatever it is.
        self.below.submit(operation, done);
    }

    fn for_client(&self, below: Edge, _client: &Client, _admission: Admission) -> Self {
        Self::new(self.info.abilities.rotational, below)
    }

    fn passes(&self) -> Passes {
        Passes::ALL
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::model::Model;

    use crate::kit::tested::{put, simple};

    #[test]
    fn the_rotational_flag_is_what_the_user_sets_whatever_the_disk_is() {
        let told = |device, words: &[&str]| {
            put("rotational", device, words).unwrap().info().abilities.rotational
        };
        let still = || simple(Arc::new(Model::new(512)));
        assert!(!still().info().abilities.rotational);
        assert!(told(still(), &[]));
        let spinning = put("rotational", still(), &["rotational=on"]).unwrap();
        assert!(!told(spinning.device().clone(), &["rotational=false"]));
        assert!(put("rotational", still(), &["rotational=7200"]).is_err());
    }
}
