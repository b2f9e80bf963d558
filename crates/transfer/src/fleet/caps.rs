//! How many read from a source host at the same time, over all processes: each reader holds the
//! lock of one of so many files in the state directory. The lock ends with its process, so nothing
//! is left of one that was killed, and no clocks are compared. In a store each holds one of so many
//! leases instead. Where the rate is limited too, each reader may read its part of it, so that all
//! together never read more.

use std::fs::{File, TryLockError};

use device::{Error, Result};

use super::place::FleetState;
use super::plan::{FleetLimits, FleetPlan};
use super::state::lease_in;
use super::stored::Lease;

/// Readers of a source host whose rate is limited, where their number is not.
const READERS: u16 = 4;

/// The right to read from a source host, until it is dropped.
#[derive(Debug)]
pub(super) enum ReaderLease {
    /// Any number may read.
    Unlimited,
    /// The lock of a file.
    Locked { _file: File },
    /// A lease in a store.
    Leased(Lease),
}

impl FleetLimits {
    /// Readers of a source host; `None`: any number.
    pub(super) fn readers(&self) -> Option<u16> {
        self.readers.or(self.rate.map(|_| READERS))
    }

    /// Bytes a second that one reader may read.
    pub(super) fn rate_of_reader(&self) -> Option<u64> {
        let readers = u64::from(self.readers().unwrap_or(1).max(1));
        self.rate.map(|rate| (rate / readers).max(1))
    }
}

impl ReaderLease {
    /// A lease for a source host, by its number; `None`: as many read already as may.
    pub(super) fn of(plan: &FleetPlan, host: usize) -> Result<Option<Self>> {
        let Some(readers) = plan.limits.readers() else { return Ok(Some(Self::Unlimited)) };
        let state = match &plan.state {
            FleetState::Directory(state) => state,
            FleetState::Store(stored) => {
                return Ok(stored.reader(host, readers)?.map(Self::Leased));
            }
        };
        for reader in 0..readers {
            let path = lease_in(state, host, reader);
            let failed = |e| Error::os("lock the lease of a reader", e).on(path.display());
            let file = File::options().read(true).write(true).open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => return Ok(Some(Self::Locked { _file: file })),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(failed(e)),
            }
        }
        Ok(None)
    }

    /// `lost` is called when it does not hold any more, which only a lease in a store can do.
    pub(super) fn when_lost(&self, lost: impl Fn() + Send + 'static) {
        if let Self::Leased(lease) = self {
            lease.when_lost(lost);
        }
    }

    /// Whether it is still ours.
    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self::Unlimited | Self::Locked { .. } => Ok(()),
            Self::Leased(lease) => lease.check(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_read_as_may_and_share_the_rate() {
        let scratch = trial::Scratch::new(std::env::temp_dir());
        let mut plan = super::super::plan::tests::plan(&[1, 2, 3]);
        let state = scratch.path("");
        plan.state = FleetState::Directory(state.clone());
        plan.disks[2].host = "other".into();
        plan.limits.rate = Some(1000);
        for (host, reader) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            std::fs::write(lease_in(&state, host, reader), "").unwrap();
        }
        assert_eq!(plan.hosts(), ["files", "other"]);
        let lease = |host| ReaderLease::of(&plan, host).unwrap();
        let (first, second) = (lease(0), lease(0));
        assert!(first.is_some() && second.is_some() && lease(0).is_none());
        assert!(lease(1).is_some());
        drop(first);
        assert!(lease(0).is_some());
        assert_eq!(plan.limits.rate_of_reader(), Some(500));
        plan.limits.readers = None;
        assert_eq!(plan.limits.rate_of_reader(), Some(250));
        plan.limits.rate = None;
        assert!(ReaderLease::of(&plan, 0).unwrap().is_some());
    }
}
