//! Parameters as the tables of devices and filters declare them.

/// A parameter of a device or filter.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// The word before `=`.
    pub key: &'static str,
    /// What stands after `=`, for people: `SIZE`, `on|off|auto`.
    pub value: &'static str,
    /// One line on what it does, with its default.
    pub doc: &'static str,
}

/// A parameter, for a table.
#[must_use]
pub const fn param(key: &'static str, value: &'static str, doc: &'static str) -> Param {
    Param { key, value, doc }
}
