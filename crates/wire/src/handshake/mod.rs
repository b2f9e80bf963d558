//! The two sides of the handshake, and what they share.

pub(crate) mod client;
mod client_options;
pub(crate) mod server;
mod server_options;

/// Longest option data either side buffers, in bytes. Only a context query with a thousand names
/// comes near; any client that can connect may make a server keep so much.
pub(crate) const MAX_OPTION_DATA: u32 = 64 << 10;
/// Longest option data a server reads past without closing, in bytes.
pub(crate) const MAX_DRAINED_OPTION: u32 = 32 << 20;
