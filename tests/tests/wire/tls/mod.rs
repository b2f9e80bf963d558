//! TLS with other projects' programs, which use GnuTLS: both directions, keys and certificates, and
//! what must not be agreed on.

mod access;
mod calling;
mod certificates;
mod hostile;
mod narrow;
mod nbd_server;
mod serving;
