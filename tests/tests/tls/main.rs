//! TLS with other projects' programs, which use GnuTLS: both directions, keys and certificates, and
//! what must not be agreed on.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod access;
mod calling;
mod certificates;
mod checks;
mod hostile;
mod nbd_server;
mod serving;
