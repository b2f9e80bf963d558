//! The client, with scripted servers and real ones.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod asking;
mod growing;
mod hostile;
mod model;
mod proving;
mod proxy;
mod reconnecting;
mod script;
mod unpromised;
