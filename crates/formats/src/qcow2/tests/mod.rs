//! Images laid out by hand, read over devices that answer at once and that do not.

mod broken;
mod laid;
mod reading;
mod writing;
