//! `nocache`: sets what happens to prefetch requests.
//!
//! For tests of clients. It changes no data; `emulate` reads the range and discards the bytes.

use device::{
    Buffer, Done, Edge, Filter, Filtered, Operation, Outcome, Over, Params, Passes, Result, param,
    values,
};

use crate::FilterKind;

/// Bytes of one read of `emulate`.
const PIECE: u64 = 256 << 10;
/// Reads of one request that are in flight at a time.
const WIDTH: usize = 4;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "nocache",
    summary: "how requests to prefetch appear: not at all, done by reading, or ignored",
    keeps_disk: false,
    params: &[
        param("cachemode", "none|emulate|nop", "what to do (default none: not offered)"),
        param("cache-mode", "none|emulate|nop", "the same"),
    ],
    example: "serve --filter=nocache memory 1M cachemode=nop \
              --run 'nbdinfo --can cache \"$uri\"'",
    open: |params, below, _| Ok(Filtered::device(NoCache(mode(params)?), below)),
    ..FilterKind::PLAIN
};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mode {
    None,
    Emulate,
    Nop,
}

fn mode(params: &Params) -> Result<Mode> {
    let words = ["none", "emulate", "nop"];
    let short = values::choice(params, "cachemode", &words)?;
    Ok(match values::choice(params, "cache-mode", &words)?.or(short) {
        Some(1) => Mode::Emulate,
        Some(2) => Mode::Nop,
        _ => Mode::None,
    })
}

struct NoCache(Mode);

fn read_and_drop(below: &Edge, offset: u64, len: u64, done: Done) {
    let reads = (0..len.div_ceil(PIECE)).filter_map(move |i| {
        let at = i * PIECE;
        let n = usize::try_from(PIECE.min(len - at)).ok()?;
        Some((Operation::Read { offset: offset + at, buffer: Buffer::zeroed(n) }, None))
    });
    below.submit_all(reads, WIDTH, |result| done(result.map(|()| Outcome::Done)));
}

impl Filter for NoCache {
    fn describe(&self, over: &mut Over) {
        over.info.abilities.prefetch = self.0 != Mode::None;
        over.passes = Passes::ALL;
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        match operation {
            Operation::Prefetch { offset, len } => match self.0 {
                Mode::Emulate => read_and_drop(&over.below, offset, len, done),
                Mode::None | Mode::Nop => done(Ok(Outcome::Done)),
            },
            other @ (Operation::Flush
            | Operation::Read { .. }
            | Operation::Resolve { .. }
            | Operation::Status { .. }
            | Operation::Take { .. }
            | Operation::Trim { .. }
            | Operation::Write { .. }
            | Operation::Zero { .. }) => over.below.submit(other, done),
        }
    }
}

#[cfg(test)]
mod tests {
    use trial::TestDevice;

    use crate::kit::tested::put;

    #[test]
    fn prefetching_is_hidden_or_ignored_or_done_by_reading() {
        for (word, offered, reads) in [
            ("cachemode=none", false, 0),
            ("cachemode=nop", true, 0),
            ("cache-mode=emulate", true, 3),
        ] {
            let below = TestDevice::new(1 << 20);
            let disk = put("nocache", below.clone(), &[word]).unwrap();
            assert_eq!(disk.info().abilities.prefetch, offered, "{word}");
            disk.prefetch(10, (512 << 10) + 1).unwrap();
            let asked = below.asked();
            assert!(asked.len() == reads && asked.iter().all(|what| what.starts_with("read")));
        }
    }
}
