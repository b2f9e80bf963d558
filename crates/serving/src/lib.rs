//! What every front end of a process shares, whatever its clients speak: exports and who may use
//! them, who is there, the memory that they may hold, what is logged and counted, and the socket by
//! which all of it is looked at and changed while it runs.
//!
//! A front end (NBD, FUSE, vhost-user) enters its clients here and counts what they ask for;
//! nothing here knows what they speak. Counting never waits, and takes no lock on the way of a
//! request.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod attending;
mod bitmaps;
mod budget;
pub mod control;
mod exports;
mod flow;
mod hub;
mod log;
mod metrics;
mod present;
mod rate;

pub use bitmaps::{BitmapAction, BitmapStatus, LiveBitmaps, USUAL_GRANULARITY};
pub use budget::{MemoryAccount, MemoryBudget, Share};
pub use exports::{Allowed, ClientAccess, Export, Exports, HeldExport};
pub use flow::Flow;
pub use hub::Hub;
pub use log::{LogFormat, ServerLog, Severity, Voice, quoted, stderr_is_journal};
pub use metrics::{Answered, Live, Metrics, Reason, Tally, endpoint};
pub use present::{ClientStatus, Dismiss, PresentClients};
pub use rate::RateLimit;
