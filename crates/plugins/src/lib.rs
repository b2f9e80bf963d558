//! nbdkit's plugins, unchanged, as devices.
//!
//! A plugin is a shared library `nbdkit-NAME-plugin.so` with one function, `plugin_init`, that
//! returns a table of callbacks (`abi`); it calls functions for messages, numbers, extents and the
//! like, which the program has to export (`host`). This crate finds it, loads it, passes its
//! parameters, and presents it as a `device::Device`. It supports versions 1 and 2 of the
//! interface.
//!
//! It keeps nbdkit's rules: the plugin's thread model (by gates, never by a waiting thread),
//! nbdkit's error numbers, and nbdkit's emulation of missing operations. No callback runs on a
//! reactor: all go to the pool. A library has one set of parameters per process, since it keeps
//! them in its own variables.
//!
//! It never unloads a library: threads that called it may still run its destructors. A plugin is
//! the user's code in our process: its bugs can break anything. An untrusted one runs in a process
//! of its own.

mod abi;
mod call;
mod descriptors;
mod device;
mod handle;
mod host;
mod library;
mod numbers;
mod plugin;
mod request_queue;
mod running;
mod system;

pub use descriptors::keep_low_descriptors;
pub use device::{ExportChoice, PluginSpec, open};
pub use library::{directory, find, is_plugin};
pub use plugin::About;
pub use running::{about, end};
