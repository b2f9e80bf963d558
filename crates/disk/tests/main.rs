//! Disks, their formats, and the arrows between the crates.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod arrows;
mod blocks;
mod blocks_written;
mod images_below;
mod luks;
mod luks_keyslots;
mod new_qcow2;
mod opening;
mod qcow2_kept;
mod qcow2_of_qemu;
mod qcow2_repaired;
mod qcow2_stopped;
mod qcow2_written;
mod rebased;
mod support;
mod vmdk;
