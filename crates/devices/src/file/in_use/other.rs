//! Systems on which block devices are not used here: there is nothing to tell.

use device::Params;

use crate::inspection::Facts;

/// None.
pub(crate) fn users(_: &Params) -> Vec<String> {
    Vec::new()
}

/// None.
pub(crate) fn facts(_: &Params) -> Facts {
    Facts::new()
}
