//! What lies on a disk: copies, images and files, on every filesystem, and the program's messages
//! and documentation about them.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod archives;
mod attach;
mod attach_vhost;
mod bench;
mod changes;
mod cli_errors;
mod completions;
mod containers;
mod copies;
mod copy_safety;
mod digests;
mod disk_errors;
mod docs;
mod drawn;
mod examples;
mod far;
mod filters;
mod filters_partition;
mod filters_store;
mod fleet;
mod formats;
mod habits;
mod help;
mod messages;
mod model;
mod nbd_names;
mod page_cache;
mod plan;
mod prealloc;
mod qemu_img;
mod rates;
mod resume;
mod sandbox;
mod security;
mod shortcuts;
mod target_zero;
mod tracing;
mod unread;
mod words;
mod zero_and_trim;
