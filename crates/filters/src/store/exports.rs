//! One of something for each export, shared by all clients of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::{Error, ErrorKind, Fault, Result};

/// Export names are the clients' choice: so many at most.
const LIMIT: usize = 1024;

/// One `T` for each export.
#[derive(Debug)]
pub(crate) struct Exports<T>(Mutex<HashMap<String, Arc<T>>>);

impl<T> Default for Exports<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Exports<T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses an export that would be one too many.
    ///
    /// # Errors
    /// `Limit`.
    pub(crate) fn admit(&self, export: &str) -> Result<()> {
        let made = self.lock();
        if made.len() < LIMIT || made.contains_key(export) {
            return Ok(());
        }
        let action = format!("there are {LIMIT} exports with changes of their own already");
        Err(Error::new(ErrorKind::Limit, Fault::User, action))
    }

    /// That of `export`, made if there is none.
    pub(crate) fn get(&self, export: &str, make: impl FnOnce() -> T) -> Arc<T> {
        self.lock().entry(export.to_owned()).or_insert_with(|| Arc::new(make())).clone()
    }

    /// All that were made.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.lock().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_has_one_and_there_are_not_too_many() {
        let exports = Exports::default();
        for i in 0..LIMIT {
            exports.admit(&i.to_string()).unwrap();
            exports.get(&i.to_string(), || i);
        }
        assert_eq!(*exports.get("7", || 0), 7);
        exports.admit("7").unwrap();
        assert_eq!(exports.admit("one more").unwrap_err().kind(), ErrorKind::Limit);
    }
}
