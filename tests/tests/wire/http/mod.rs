//! The `http` device and nginx, with its habits and with those that others have.

mod habits;
mod hostile;
mod letting_in;
mod memory;
pub(crate) mod nginx;
mod verbs;
