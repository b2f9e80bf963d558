//! Systems on which nothing is confined: macOS.

use device::Reach;

use crate::{ConfinementError, FileConfinement, Sockets};

fn absent(action: &'static str) -> ConfinementError {
    ConfinementError::new(action, "there is no sandbox on this system")
}

/// Confines nothing.
///
/// # Errors
/// Always.
pub fn confine_files(_: &Reach) -> Result<FileConfinement, ConfinementError> {
    Err(absent("confine files"))
}

/// Confines nothing.
///
/// # Errors
/// Always.
pub fn confine_calls(_: &Sockets) -> Result<(), ConfinementError> {
    Err(absent("confine calls"))
}
