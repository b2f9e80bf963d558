//! Attacks that others have met, from outside: images of strangers, and a clock that jumps. What else there is, and
//! where it is tested, stands in docs/security.md, which a test here keeps true.

mod clocks;
mod images;
mod page;
mod references;
