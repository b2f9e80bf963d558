//! `truncate`: shows a disk that is shorter or longer than the one below.
//!
//! The range beyond the end of the disk below is a hole and reads as zeroes; only zeroes may be
//! written there. A write with anything else there is refused as a whole, before any of it is
//! written.

use device::{
    BlockSizes, Buffer, Done, Edge, Error, ErrorKind, Extent, ExtentKind, Fault, Filter, Filtered,
    Operation, Outcome, Over, Params, Passes, Result, Slice, is_zero, merge_extent, param, values,
};

use runtime::to_usize;

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "truncate",
    summary: "makes the disk appear shorter or longer",
    params: &[
        param("truncate", "SIZE", "the size to show (default the disk's own)"),
        param("round-up", "SIZE", "round the size up to a multiple of this"),
        param("round-down", "SIZE", "round the size down to a multiple of this"),
    ],
    example: "serve --filter=truncate memory 1000 round-up=512 --run 'nbdinfo --size \"$uri\"'",
    open: |params, below, _| {
        Ok(Filtered::device(Truncate(size(params, below.info().size)?), below))
    },
    ..FilterKind::PLAIN
};

fn size(params: &Params, own: u64) -> Result<u64> {
    let multiple = |key: &str| match values::size(params, key)? {
        Some(0) => Err(values::wrong(key, "0 is not a size to round to")),
        other => Ok(other),
    };
    let mut size = values::size(params, "truncate")?.unwrap_or(own);
    if let Some(n) = multiple("round-up")? {
        let up = size.checked_next_multiple_of(n).filter(|up| i64::try_from(*up).is_ok());
        size = up.ok_or_else(|| values::wrong("round-up", "the size would exceed 2^63-1 bytes"))?;
    }
    if let Some(n) = multiple("round-down")? {
        size -= size % n;
    }
    Ok(size)
}

/// The size of the disk, in bytes.
struct Truncate(u64);

/// The disk below, of which part may be shown, or more than there is.
struct Shown<'a>(&'a Edge);

impl Shown<'_> {
    /// How many of `len` bytes from `offset` the disk below has.
    fn inside(&self, offset: u64, len: u64) -> u64 {
        self.0.info().size.saturating_sub(offset).min(len)
    }

    fn read(&self, offset: u64, mut buffer: Buffer, done: Done) {
        let Some(inside) = self.inside_of(offset, &buffer) else {
            return self.0.submit(Operation::Read { offset, buffer }, done);
        };
        if let Some(rest) = buffer.get_mut(inside..) {
            rest.fill(0);
        }
        if inside == 0 {
            return done(Ok(Outcome::Read(buffer)));
        }
        let then: Done = Box::new(move |result| {
            done(result.map(|outcome| {
                if let (Outcome::Read(read), Some(start)) = (&outcome, buffer.get_mut(..inside)) {
                    start.copy_from_slice(read);
                }
                Outcome::Read(buffer)
            }));
        });
        self.0.submit(Operation::Read { offset, buffer: Buffer::zeroed(inside) }, then);
    }

    /// How many of `bytes` the disk below has, unless it has all of them.
    fn inside_of(&self, offset: u64, bytes: &[u8]) -> Option<usize> {
        let inside = to_usize(self.inside(offset, bytes.len() as u64));
        (inside < bytes.len()).then_some(inside)
    }

    fn write(&self, offset: u64, data: Slice, fua: bool, done: Done) {
        let Some(inside) = self.inside_of(offset, &data) else {
            return self.0.submit(Operation::Write { offset, data, fua }, done);
        };
        if !data.get(inside..).is_some_and(is_zero) {
            let action = "write: only zeroes can be written beyond the end of the disk below";
            let e = Error::new(ErrorKind::NoSpace, Fault::User, action);
            return done(Err(e.on(&self.0.info().name).at(offset + inside as u64)));
        }
        match data.into_pieces(inside).into_iter().next() {
            Some(data) if inside > 0 => {
                self.0.submit(Operation::Write { offset, data, fua }, done);
            }
            _ => done(Ok(Outcome::Done)),
        }
    }

    fn resolve(&self, offset: u64, len: u64, max: usize, done: Done) {
        let inside = self.inside(offset, len);
        let beyond = (offset + inside, len - inside);
        let add = move |list: &mut Vec<Extent>| {
            let told = list.last().map_or(offset, Extent::end);
            if beyond.1 > 0 && told == beyond.0 {
                merge_extent(list, Extent::new(beyond.0, beyond.1, ExtentKind::Hole));
                list.truncate(max);
            }
        };
        if inside == 0 {
            let mut list = Vec::new();
            add(&mut list);
            return done(Ok(Outcome::Extents(list)));
        }
        let then: Done = Box::new(move |result| {
            done(result.map(|mut outcome| {
                if let Outcome::Extents(list) = &mut outcome {
                    add(list);
                }
                outcome
            }));
        });
        self.0.submit(Operation::Resolve { offset, len: inside, max }, then);
    }

    /// Runs the operation for the part of a range that the disk below has, if there is one.
    fn on_inside(
        &self,
        offset: u64,
        len: u64,
        done: Done,
        operation: impl FnOnce(u64) -> Operation,
    ) {
        match self.inside(offset, len) {
            0 => done(Ok(Outcome::Done)),
            inside => self.0.submit(operation(inside), done),
        }
    }
}

impl Truncate {
    fn is_longer(&self, below: &Edge) -> bool {
        self.0 > below.info().size
    }
}

impl Filter for Truncate {
    fn describe(&self, over: &mut Over) {
        let info = &mut over.info;
        info.size = self.0;
        if self.is_longer(&over.below) {
            info.abilities.extents = true;
            // Nothing is known for the part that does not exist below.
            info.contexts.clear();
        } else {
            over.passes = Passes::ALL;
        }
        // The edge above must not split a write that is then refused.
        info.blocks.maximum = info.blocks.maximum.max(BlockSizes::ANY.maximum);
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let shown = Shown(&over.below);
        match operation {
            Operation::Flush => over.below.submit(Operation::Flush, done),
            Operation::Prefetch { offset, len } => {
                shown.on_inside(offset, len, done, |len| Operation::Prefetch { offset, len });
            }
            Operation::Read { offset, buffer } => shown.read(offset, buffer, done),
            Operation::Resolve { offset, len, max } => shown.resolve(offset, len, max, done),
            Operation::Status { .. } if self.is_longer(&over.below) => {
                done(Err(Error::unsupported("status of a disk that is shown longer than it is")));
            }
            status @ Operation::Status { .. } => over.below.submit(status, done),
            Operation::Take { offset, len, from, share_only } => match shown.inside(offset, len) {
                0 => done(Ok(Outcome::Taken(0))),
                len => over.below.submit(Operation::Take { offset, len, from, share_only }, done),
            },
            Operation::Trim { offset, len, fua } => {
                shown.on_inside(offset, len, done, |len| Operation::Trim { offset, len, fua });
            }
            Operation::Write { offset, data, fua } => shown.write(offset, data, fua, done),
            Operation::Zero { offset, len, flags } => {
                shown.on_inside(offset, len, done, |len| Operation::Zero { offset, len, flags });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::model::Model;
    use device::{Abilities, ZeroFlags};
    use proptest::prelude::*;

    use super::*;
    use crate::kit::tested::{blank, put, simple};
    use device::Blocking as _;

    #[test]
    fn the_size_is_set_then_rounded_up_then_down() {
        let size =
            |words: &[&str]| put("truncate", blank(1000), words).map(|disk| disk.info().size);
        assert_eq!(size(&[]).unwrap(), 1000);
        assert_eq!(size(&["truncate=10"]).unwrap(), 10);
        assert_eq!(size(&["truncate=7E"]).unwrap(), 7 << 60);
        assert_eq!(size(&["round-up=512"]).unwrap(), 1024);
        assert_eq!(size(&["round-down=512"]).unwrap(), 512);
        assert_eq!(size(&["truncate=100", "round-up=300", "round-down=200"]).unwrap(), 200);
        assert_eq!(size(&["round-down=2000"]).unwrap(), 0);
    }

    #[test]
    fn a_longer_disk_has_no_place_of_its_own_and_a_shorter_one_has() {
        let memory = devices::Named::parse("memory:1M").unwrap();
        let memory =
            memory.open(&devices::OpenOptions::read_write(), &runtime::Context::default()).unwrap();
        let over = |word: &str| put("truncate", memory.clone(), &[word]).unwrap();
        let is_flat = |disk: &Edge| disk.info().flat.is_some();
        assert!(!is_flat(&over("truncate=2M")) && is_flat(&over("truncate=512K")));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Write(usize, usize, u8),
        Zero(usize, usize, bool),
        Trim(usize, usize),
        Resolve(usize, usize, usize),
    }

    const SHOWN: usize = 3000;
    const REAL: usize = 1500;

    fn any_op() -> impl Strategy<Value = Op> {
        let range = || (0..SHOWN, 0..SHOWN).prop_map(|(o, l)| (o, l.min(SHOWN - o)));
        prop_oneof![
            (range(), 0u8..3).prop_map(|((o, l), b)| Op::Write(o, l, b)),
            (range(), any::<bool>()).prop_map(|((o, l), fast)| Op::Zero(o, l, fast)),
            range().prop_map(|(o, l)| Op::Trim(o, l)),
            (range(), 1..4usize).prop_map(|((o, l), max)| Op::Resolve(o, l, max)),
        ]
    }

    /// The map of a range: its extents adjoin, and show no hole where there is data.
    fn check_map(disk: &Edge, at: usize, len: usize, max: usize, bytes: &[u8]) {
        let mut map = Vec::new();
        disk.resolve(at as u64, len as u64, max, &mut map).unwrap();
        assert!(map.len() <= max && map.is_empty() == (len == 0));
        for e in map.iter().filter(|e| e.kind.reads_zero()) {
            let range = usize::try_from(e.start).unwrap()..usize::try_from(e.end()).unwrap();
            assert!(bytes[range].iter().all(|b| *b == 0));
        }
    }

    /// A disk that is shown longer than it is, beside its bytes.
    fn try_longer(model: Arc<Model>, outside: bool, ops: &[Op]) {
        let mut disk = put("truncate", simple(model.clone()), &["truncate=3000"]).unwrap();
        if outside {
            // The non-blocking interface.
            disk = put("delay", disk.device().clone(), &["rdelay=1us"]).unwrap();
        }
        let mut bytes = vec![0; SHOWN];
        for op in ops {
            match *op {
                Op::Write(at, len, byte) => {
                    let fits = byte == 0 || len == 0 || at + len <= REAL;
                    let result = disk.write(&vec![byte; len], at as u64, false);
                    if fits {
                        result.unwrap();
                        bytes[at..at + len].fill(byte);
                    } else {
                        assert_eq!(result.unwrap_err().kind(), ErrorKind::NoSpace);
                    }
                }
                Op::Zero(at, len, fast_only) => {
                    let flags = ZeroFlags { fast_only, ..ZeroFlags::default() };
                    match disk.zero(at as u64, len as u64, flags) {
                        Err(e) => assert!(fast_only && e.kind() == ErrorKind::NotFast),
                        Ok(()) => bytes[at..at + len].fill(0),
                    }
                }
                Op::Trim(at, len) => {
                    disk.trim(at as u64, len as u64, true).unwrap();
                    let end = (at + len).min(REAL);
                    bytes[at.min(end)..end].copy_from_slice(&model.bytes()[at.min(end)..end]);
                }
                Op::Resolve(at, len, max) => check_map(&disk, at, len, max, &bytes),
            }
            let mut all = vec![9; SHOWN];
            disk.read(&mut all, 0).unwrap();
            assert!(all == bytes, "after {op:?}");
            let mut part = vec![9; 300];
            disk.read(&mut part, 1400).unwrap();
            assert!(part == bytes[1400..1700], "after {op:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn a_longer_disk_has_zeroes_behind(
            ops in prop::collection::vec(any_op(), 1..16), blocks in any::<bool>(), outside in any::<bool>(),
        ) {
            let all = Model::new(1).info().abilities;
            let model = if blocks {
                let sizes = BlockSizes { minimum: 512, preferred: 512, maximum: 1024 };
                let none = Abilities { zero: false, fast_zero: false, fua: false, ..all };
                Model::with(REAL, none, sizes)
            } else {
                Model::new(REAL)
            };
            try_longer(Arc::new(model), outside, &ops);
        }
    }
}
