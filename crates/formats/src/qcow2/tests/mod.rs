//! Images laid out by hand, read over devices that answer at once and that do not.

mod amending;
mod astray;
mod bitmaps;
mod broken;
mod laid;
mod reading;
mod rebasing;
mod repairing;
mod resizing;
mod snapshots;
mod writing;
