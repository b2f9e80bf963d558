//! Parameters as the tables of devices and filters declare them.

use crate::{Params, Result};

/// A parameter of a device or filter.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// The word before `=`.
    pub key: &'static str,
    /// The value, for people: `SIZE`, `on|off|auto`.
    pub value: &'static str,
    /// One line on what it does, with its default.
    pub doc: &'static str,
    /// Whether it may be given more than once.
    pub repeats: bool,
}

/// A parameter, for a table.
#[must_use]
pub const fn param(key: &'static str, value: &'static str, doc: &'static str) -> Param {
    Param { key, value, doc, repeats: false }
}

/// A parameter that may be given more than once, and whose order counts, for a table.
#[must_use]
pub const fn repeated(key: &'static str, value: &'static str, doc: &'static str) -> Param {
    Param { key, value, doc, repeats: true }
}

impl Params {
    /// Refuses a key that is not declared, unless `any` may be given, and one that is given more
    /// often than declared.
    ///
    /// # Errors
    /// The first key that is wrong.
    pub fn check_declared(&self, declared: &[Param], any: bool) -> Result<()> {
        if !any {
            let known: Vec<_> = declared.iter().map(|p| p.key).collect();
            self.check(&known)?;
        }
        let repeatable: Vec<_> = declared.iter().filter(|p| p.repeats).map(|p| p.key).collect();
        self.check_once(&repeatable)
    }

    /// Refuses a declared key that is given too often; all others are for another program to check.
    ///
    /// # Errors
    /// The first such key.
    pub fn check_own(&self, declared: &[Param]) -> Result<()> {
        let own = |key: &str| declared.iter().any(|param| param.key == key && !param.repeats);
        let others: Vec<_> = self.iter().map(|(key, _)| key).filter(|key| !own(key)).collect();
        self.check_once(&others)
    }
}
