//! Code that filters share; nothing here is a filter.

pub(crate) mod chance;
pub(crate) mod changed;
pub(crate) mod compare;
pub(crate) mod kind;
pub(crate) mod listing;
pub(crate) mod outlet;
pub(crate) mod params;
pub(crate) mod store;
#[cfg(test)]
pub(crate) mod tested;
pub(crate) mod unpacked;
pub(crate) mod waiting;

pub(crate) use device::below;
