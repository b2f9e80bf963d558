//! `blocksize-policy`: sets the block sizes that clients are told, and what happens to requests
//! that break them.
//!
//! For tests of clients. A refused request never reaches the device below. The filter judges
//! requests as the client sent them, before anything is split or widened.

use device::{
    BlockSizes, Done, Error, ErrorKind, Fault, Filter, Filtered, Info, Operation, Outcome, Over,
    Params, Passes, Result, param, values,
};

use crate::FilterKind;

const POLICIES: &str = "allow|error|strict-error";

pub(crate) const KIND: FilterKind = FilterKind {
    word: "blocksize-policy",
    summary: "sets the advertised block sizes, and the handling of requests that ignore them",
    keeps_disk: false,
    params: &[
        param("blocksize-minimum", "SIZE", "a power of two up to 64K (default the device's)"),
        param("blocksize-preferred", "SIZE", "a power of two, 512 to 32M (default the device's)"),
        param("blocksize-maximum", "SIZE", "longest read or write (default the device's)"),
        param("blocksize-error-policy", POLICIES, "what to do with others (default allow)"),
        param("blocksize-write-disconnect", "SIZE", "drop a client that writes more at once"),
    ],
    example: "serve --filter=blocksize-policy memory 1M blocksize-preferred=64K \
              --run 'nbdinfo \"$uri\" | grep preferred'",
    open: |params, below, _| {
        Ok(Filtered::device(BlockSizePolicy::read(params, below.info())?, below))
    },
    ..FilterKind::PLAIN
};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Policy {
    Allow,
    /// A short block at the end of the disk is allowed.
    Error,
    /// A short block at the end of the disk is refused too.
    StrictError,
}

struct BlockSizePolicy {
    sizes: BlockSizes,
    policy: Policy,
    /// Bytes of the longest write that a client survives.
    write_disconnect: Option<u64>,
}

impl BlockSizePolicy {
    fn read(params: &Params, below: &Info) -> Result<Self> {
        let policies = [Policy::Allow, Policy::Error, Policy::StrictError];
        let policy = values::meaning(params, "blocksize-error-policy", POLICIES, policies)?;
        let policy = policy.unwrap_or(Policy::Allow);
        let write_disconnect = values::size(params, "blocksize-write-disconnect")?;
        let write_disconnect = write_disconnect.filter(|n| *n > 0);
        Ok(Self { sizes: sizes(params, below)?, policy, write_disconnect })
    }

    /// Whether requests are checked.
    fn judges(&self) -> bool {
        self.policy != Policy::Allow || self.write_disconnect.is_some()
    }

    /// Refuses a request; `data` says whether it carries data.
    fn check_request(
        &self,
        what: &str,
        offset: u64,
        len: u64,
        data: bool,
        size: u64,
    ) -> Result<()> {
        let block = u64::from(self.sizes.minimum);
        let to_the_end = self.policy == Policy::Error && offset.checked_add(len) == Some(size);
        let why = if self.policy == Policy::Allow {
            return Ok(());
        } else if !offset.is_multiple_of(block) {
            format!("the offset is not a multiple of the block of {block}")
        } else if !len.is_multiple_of(block) && !to_the_end {
            format!("the length is not a multiple of the block of {block}")
        } else if data && len > u64::from(self.sizes.maximum) {
            format!("the longest is {}", self.sizes.maximum)
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!("{what} of {len} bytes refused: {why}")).at(offset))
    }

    /// Disconnects a client whose write is too long.
    fn check_write(&self, len: u64) -> Result<()> {
        match self.write_disconnect {
            Some(longest) if len > longest => {
                let action = format!("write of {len} bytes: the client is dropped");
                Err(Error::new(ErrorKind::Dropped, Fault::User, action))
            }
            _ => Ok(()),
        }
    }
}

/// The sizes to advertise: those given, else the device's.
fn sizes(params: &Params, below: &Info) -> Result<BlockSizes> {
    let told = below.advertised.unwrap_or(BlockSizes {
        minimum: 1,
        preferred: below.blocks.preferred.max(below.blocks.minimum),
        maximum: BlockSizes::ANY.maximum,
    });
    let size = |key: &str, range: std::ops::RangeInclusive<u32>, power: bool| -> Result<_> {
        let Some(n) = values::size(params, key)?.filter(|n| *n > 0) else { return Ok(None) };
        match u32::try_from(n) {
            Ok(n) if range.contains(&n) && (n.is_power_of_two() || !power) => Ok(Some(n)),
            _ => {
                let kind = if power { "a power of two" } else { "a size" };
                let (from, to) = (range.start(), range.end());
                Err(values::wrong(key, format!("{n} is not {kind} from {from} to {to}")))
            }
        }
    };
    let minimum = size("blocksize-minimum", 1..=64 << 10, true)?.unwrap_or(told.minimum);
    let preferred = size("blocksize-preferred", 512..=32 << 20, true)?;
    let maximum = size("blocksize-maximum", 1..=u32::MAX, false)?;
    if maximum.is_some_and(|n| n != u32::MAX && !n.is_multiple_of(minimum)) {
        let why = format!("it is not a multiple of the block of {minimum}");
        return Err(values::wrong("blocksize-maximum", why));
    }
    // A given value overrides a default.
    let preferred = preferred.unwrap_or_else(|| {
        let most = maximum.map_or(u32::MAX, |n| 1 << n.ilog2());
        told.preferred.min(most).max(minimum)
    });
    let maximum = maximum.unwrap_or_else(|| told.maximum.max(preferred));
    if minimum > preferred || preferred > maximum || preferred < 512 {
        let action = format!(
            "block sizes of {minimum}, {preferred} and {maximum} (minimum, preferred, maximum): \
             they must rise, and the preferred one must be at least 512"
        );
        return Err(Error::invalid(action));
    }
    Ok(BlockSizes { minimum, preferred, maximum })
}

impl BlockSizePolicy {
    /// Refuses an operation on a disk of `size` bytes.
    fn check(&self, operation: &Operation, size: u64) -> Result<()> {
        let Some((offset, len)) = operation.range() else { return Ok(()) };
        let (what, data) = match operation {
            Operation::Resolve { .. } | Operation::Status { .. } => ("block status", false),
            Operation::Read { .. } => ("read", true),
            Operation::Write { .. } => {
                self.check_write(len)?;
                ("write", true)
            }
            Operation::Flush
            | Operation::Prefetch { .. }
            | Operation::Take { .. }
            | Operation::Trim { .. }
            | Operation::Zero { .. } => (operation.kind().name(), false),
        };
        self.check_request(what, offset, len, data, size)
    }
}

impl Filter for BlockSizePolicy {
    fn describe(&self, over: &mut Over) {
        let info = &mut over.info;
        info.advertised = Some(self.sizes);
        if self.sizes.minimum > info.blocks.minimum {
            // Answers in whole blocks, to clients that were told of larger ones, are for the map
            // only.
            info.contexts.clear();
        }
        if self.judges() {
            // Requests arrive unsplit.
            info.blocks = BlockSizes { minimum: 1, maximum: u32::MAX, ..info.blocks };
        } else {
            over.passes = Passes::ALL;
        }
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        if let (Operation::Take { .. }, true) = (&operation, self.judges()) {
            // The write that replaces it is checked.
            return done(Ok(Outcome::Taken(0)));
        }
        match self.check(&operation, over.info.size) {
            Ok(()) => over.below.submit(operation, done),
            Err(e) => done(Err(e.on(&over.info.name))),
        }
    }
}

#[cfg(test)]
mod tests {

    use device::ZeroFlags;

    use trial::TestDevice;

    use super::*;
    use crate::kit::tested::{blank, put};

    fn told(words: &[&str]) -> Result<(u32, u32, u32)> {
        let disk = put("blocksize-policy", blank(1000), words)?;
        let b = disk.info().advertised.unwrap();
        Ok((b.minimum, b.preferred, b.maximum))
    }

    #[test]
    fn the_requested_sizes_are_advertised() {
        assert_eq!(told(&[]).unwrap(), (1, 4096, 32 << 20));
        assert_eq!(told(&["blocksize-minimum=8K"]).unwrap(), (8192, 8192, 32 << 20));
        assert_eq!(told(&["blocksize-preferred=64K"]).unwrap(), (1, 65536, 32 << 20));
        assert_eq!(told(&["blocksize-maximum=1000"]).unwrap(), (1, 512, 1000));
        let all = ["blocksize-minimum=512", "blocksize-preferred=512", "blocksize-maximum=1536"];
        assert_eq!(told(&all).unwrap(), (512, 512, 1536));
        assert_eq!(told(&["blocksize-maximum=4294967295"]).unwrap().2, u32::MAX);
    }

    #[test]
    fn requests_that_do_not_keep_to_the_sizes_are_refused_and_never_reach_the_device() {
        for (policy, size, tail) in [("error", 1000, true), ("strict-error", 1000, false)] {
            let below = TestDevice::new(size);
            let words = [
                "blocksize-minimum=128",
                "blocksize-preferred=512",
                "blocksize-maximum=512",
                &format!("blocksize-error-policy={policy}"),
            ];
            let disk = put("blocksize-policy", below.clone(), &words).unwrap();
            let (zero, mut buf) = (ZeroFlags::default(), [0; 1000]);
            for refused in [
                disk.read(&mut buf[..100], 0),
                disk.read(&mut buf[..128], 100),
                disk.read(&mut buf[..640], 0),
                disk.write(&[0; 640], 0, false),
                disk.write(&[0; 100], 128, false),
                disk.zero(128, 100, zero),
                disk.trim(10, 128, false),
                disk.prefetch(0, 10),
                disk.resolve(0, 10, 1, &mut Vec::new()),
            ] {
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput, "{policy}");
            }
            assert!(below.asked().is_empty());
            // The end of the disk is not the end of a block.
            assert_eq!(disk.read(&mut buf[..104], 896).is_ok(), tail, "{policy}");
            assert_eq!(disk.zero(0, 1000, zero).is_ok(), tail, "{policy}");
            disk.write(&[1; 512], 384, false).unwrap();
            disk.zero(0, 896, zero).unwrap();
            disk.flush().unwrap();
        }
    }
}
