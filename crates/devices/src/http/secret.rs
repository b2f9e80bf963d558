//! Secrets as parameters name them (`device::secret`), or as they are.

use device::{Params, Result, secret};

use super::credentials::Secret;

pub(super) use device::secret::reach;

/// The value of `key` as a secret. Errors do not show it.
///
/// # Errors
/// As of [`named`].
pub(super) fn secret(params: &Params, key: &str) -> Result<Option<Secret>> {
    params.get(key).map(|word| named(word, key)).transpose()
}

/// The secret that a word is, or names, as the value of `key`.
///
/// # Errors
/// The file, descriptor, variable or key cannot be read, or there is no terminal.
pub(super) fn named(word: &str, key: &str) -> Result<Secret> {
    secret::named(word, key).map(|mut text| Secret(std::mem::take(&mut *text)))
}
