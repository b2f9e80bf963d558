//! `nocache`: sets what happens to prefetch requests.
//!
//! For tests of clients. It changes no data; `emulate` reads the range and discards the bytes.

use device::{
    Buffer, Done, Edge, Filter, Filtered, Operation, Outcome, Over, Params, Passes, Result, param,
    values,
};
use runtime::to_usize;

use crate::FilterKind;
use crate::kit::below;

/// Bytes of one read of `emulate`.
const PIECE: u64 = 256 << 10;
/// Reads of one request that are in flight at a time.
const WIDTH: usize = 4;

const MODES: &str = "none|emulate|nop";

pub(crate) const KIND: FilterKind = FilterKind {
    word: "nocache",
    summary: "controls prefetch requests: hidden, emulated by reading, or ignored",
    keeps_disk: false,
    params: &[
        param("cachemode", MODES, "what to do (default none: not offered)"),
        param("cache-mode", MODES, "the same"),
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
    let modes = [Mode::None, Mode::Emulate, Mode::Nop];
    let short = values::meaning(params, "cachemode", MODES, modes)?;
    Ok(values::meaning(params, "cache-mode", MODES, modes)?.or(short).unwrap_or(Mode::None))
}

struct NoCache(Mode);

async fn read_and_drop(below: Edge, offset: u64, len: u64) -> Result<Outcome> {
    let reads = (0..len.div_ceil(PIECE)).map(|i| {
        let buffer = Buffer::zeroed(to_usize(PIECE.min(len - i * PIECE)));
        Operation::Read { offset: offset + i * PIECE, buffer }
    });
    below::ask_all(&below, reads, WIDTH).await.map(|()| Outcome::Done)
}

impl Filter for NoCache {
    fn describe(&self, over: &mut Over) {
        over.info.abilities.prefetch = self.0 != Mode::None;
        over.passes = Passes::ALL;
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        match (operation, self.0) {
            (Operation::Prefetch { offset, len }, Mode::Emulate) => {
                let below = over.below.clone();
                below::complete(done, async move { read_and_drop(below, offset, len).await });
            }
            (Operation::Prefetch { .. }, Mode::None | Mode::Nop) => done(Ok(Outcome::Done)),
            (other, _) => over.below.submit(other, done),
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
