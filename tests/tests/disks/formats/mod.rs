//! Image formats from outside: what qemu-img makes is read as qemu-img reads it, what we make is
//! what qemu-img takes it for, and nothing that is cut off, damaged, killed or refused leaves more
//! than a clear error.
//!
//! `disks` has the bytes, `recipes` every image that is made here. See `blackbox::dice` for the
//! long form.

mod chain_kills;
mod chains;
mod crashes;
mod disks;
mod ground;
mod hostile;
mod luks;
mod made_by_qemu;
mod made_by_us;
mod recipes;
mod returning;
mod served;
mod served_kills;
mod written;
