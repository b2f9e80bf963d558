//! Many copies as one plan, whose parts any number of processes do on any number of machines.
//!
//! [`FleetJob`] → [`FleetPlan`] → [`FleetRun`] of its shards → [`finish()`]; [`status()`] looks at
//! any time.
//!
//! - A *plan* cuts every disk by its map into *shards* of about equal work, says how each source is
//!   recognised, and has made the targets ready. It is a file, which each process reads.
//! - A *shard* is a range of one disk. It is copied any number of times, anywhere, also by two
//!   processes: what is durable is noted in its journal, with a digest, and is not copied again.
//! - A disk is *finished* when all of its shards are durable and its target holds what their
//!   journals say. From then on nothing writes to it.
//!
//! The journals and the leases of readers lie in the state directory of the plan, which all
//! processes share, or in an object store. There is no server. It prints nothing.

mod caps;
mod check;
mod cut;
mod finish;
mod journal;
mod look;
mod place;
mod plan;
mod prepare;
mod run;
mod share;
mod state;
mod status;
mod stored;

pub use finish::{FinishedDisk, FleetFinish, finish};
pub use place::{FleetState, StoredState};
pub use plan::{FleetDisk, FleetJob, FleetLimits, FleetPlan, FleetShard, WantedDisk};
pub use prepare::FleetPreparation;
pub use run::{FleetRun, ShardOutcome, ShardReport};
pub use share::{FleetShare, ShardNumber};
pub use status::{DiskStatus, FleetStatus, ShardState, status};
