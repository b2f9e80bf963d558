//! Which shards of a plan one of several processes does.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use device::{Error, Result};

use super::plan::FleetPlan;

/// Processes among which a plan is divided, at most.
const MOST: u32 = 1_000_000;

/// A shard of a plan.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ShardNumber {
    /// The number of its disk, from 0 on.
    pub disk: usize,
    /// Its number among those of the disk, from 0 on.
    pub shard: usize,
}

/// One of several equal shares of a plan.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FleetShare {
    index: u32,
    count: u32,
}

impl FleetShare {
    /// All of it.
    pub const ALL: Self = Self { index: 0, count: 1 };

    /// The share `index` of `count`, the first of which is 0.
    ///
    /// # Errors
    /// There is no such one.
    pub fn of(index: u64, count: u64) -> Result<Self> {
        let refuse = |text: String| Err(Error::invalid(text));
        match (u32::try_from(index), u32::try_from(count)) {
            (Ok(index), Ok(count)) if index < count && count <= MOST => Ok(Self { index, count }),
            (_, Ok(count)) if count > 0 && count <= MOST => refuse(format!(
                "shard {index}/{count}: shards are numbered from 0 to {}",
                count - 1
            )),
            _ => refuse(format!("shard {index}/{count}: a plan takes 1 to {MOST} processes")),
        }
    }

    /// Reads `I/N`.
    ///
    /// # Errors
    /// It is not that.
    pub fn parse(text: &str) -> Result<Self> {
        let numbers = text.split_once('/').and_then(|(index, count)| {
            Some((index.parse::<u64>().ok()?, count.parse::<u64>().ok()?))
        });
        let Some((index, count)) = numbers else {
            let why = format!("shard {text}: write I/N, for example 0/4 for the first of four");
            return Err(Error::invalid(why));
        };
        Self::of(index, count)
    }

    /// Its shards. The largest are given out first, each to the share that has least to do, so
    /// every process comes to the same result.
    #[must_use]
    pub fn shards(self, plan: &FleetPlan) -> Vec<ShardNumber> {
        let numbers = plan.disks.iter().enumerate().flat_map(|(disk, planned)| {
            let of = move |(shard, found): (usize, &super::FleetShard)| {
                (Reverse(found.data), ShardNumber { disk, shard })
            };
            planned.shards.iter().enumerate().map(of)
        });
        let mut all: Vec<_> = numbers.collect();
        all.sort_unstable();
        // Beyond the number of shards there is nothing to do.
        let shares = self.count.min(u32::try_from(all.len()).unwrap_or(u32::MAX));
        let mut loads: BinaryHeap<_> = (0..shares).map(|share| Reverse((0u64, share))).collect();
        let mut found = Vec::new();
        for (Reverse(data), number) in all {
            let Some(Reverse((load, share))) = loads.pop() else { break };
            if share == self.index {
                found.push(number);
            }
            // A shard without data takes some time, too.
            loads.push(Reverse((load.saturating_add(data).saturating_add(1), share)));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_refused() {
        assert_eq!(FleetShare::parse("2/4").unwrap(), FleetShare { index: 2, count: 4 });
        for bad in ["", "4/4", "0/0", "-1/2", "1", "1/2/3", "0/1000001", "5000000000/5000000001"] {
            assert!(FleetShare::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shares_are_equal_and_hold_every_shard_once() {
        let plan = super::super::plan::tests::plan(&[5, 1, 9, 3, 3, 7, 0, 2]);
        for count in [1, 2, 3, 8, 20] {
            let shares: Vec<_> =
                (0..count).map(|i| FleetShare::of(i, count).unwrap().shards(&plan)).collect();
            let mut all: Vec<_> = shares.iter().flatten().copied().collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 8);
            assert_eq!(shares.iter().map(Vec::len).sum::<usize>(), 8);
            let work = |share: &Vec<ShardNumber>| -> u64 {
                share.iter().map(|number| plan.disks[number.disk].shards[number.shard].data).sum()
            };
            if count == 3 {
                assert!(shares.iter().all(|share| (9..=11).contains(&work(share))));
            }
        }
    }
}
