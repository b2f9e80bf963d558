//! nbdkit's plugins, unchanged, as devices.
//!
//! A plugin is a shared library `nbdkit-NAME-plugin.so` with one function, `plugin_init`, that gives a table of callbacks
//! ([`abi`]); it calls back for messages, numbers, extents and the like, which the program has to export ([`host`]). This
//! crate finds it, loads it, gives it its parameters, and is a [`device::Device`] over it: version 2 of the interface, and
//! version 1 for those that were written for that.
//!
//! It promises nbdkit's rules: the thread model that the plugin asks for is kept (by gates, never by a thread that waits), errors
//! are told as nbdkit tells them, and what a plugin cannot do is derived as nbdkit derives it. No callback runs on a reactor: all
//! go to the pool. One library has one set of parameters in a process, since its parameters are its own variables.
//!
//! It never unloads a library: threads that called it may still have something of its to tidy up. And a plugin is the user's own code
//! in our process: what it breaks is broken. One that is not trusted runs in a process of its own.

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

pub use descriptors::keep_low_descriptors;
pub use device::{Wish, open};
pub use library::{find, is_plugin};
pub use plugin::About;
pub use running::{about, end};
