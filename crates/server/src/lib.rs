//! The NBD server engine.
