//! Attacks that other programs have met, from outside: untrusted images, and a clock that jumps.
//! The other attacks, and where they are tested, are in docs/security.md, which a test here keeps
//! true.

mod clocks;
mod images;
mod page;
mod references;
mod takeover;
