//! Sources that are streams: their bytes come once, in pieces of any length, and end when they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use copy::{Cancel, FailedCopy, Options, Progress, Report};
use device::model::Model;
use device::{Blocking as _, Edge, Error, ErrorKind, Fault, OperationKind, Result, Session};
use runtime::WorkPool;
use trial::{Fate, TestDevice};

use crate::support::*;

/// Returns these bytes in pieces of any length, with pauses in between; then the end, or an error.
struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    random: Random,
    end: Option<ErrorKind>,
}

impl Pieces {
    fn new(bytes: Vec<u8>, seed: u64) -> Self {
        Self { bytes, at: 0, random: Random(seed), end: None }
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        let rest = &self.bytes[self.at..];
        if rest.is_empty() {
            return match self.end {
                None => Ok(Some(0)),
                Some(kind) => Err(Error::new(kind, Fault::File, "read").on("pieces")),
            };
        }
        let most = [1, 511, 4096, 70_000][self.random.below(4) as usize];
        let n = (1 + self.random.below(most) as usize).min(rest.len()).min(buffer.len());
        if self.random.below(5) == 0 {
            return Ok(None);
        }
        buffer[..n].copy_from_slice(&rest[..n]);
        self.at += n;
        Ok(Some(n))
    }
}

type Copied = std::result::Result<Report, Box<FailedCopy>>;

fn copy(mut from: Pieces, target: &Edge, options: &Options) -> Copied {
    let mut read = move |buffer: &mut [u8], _: Duration| from.read(buffer);
    let resize = |size| target.device().resize(size);
    let (progress, cancel) = (Progress::default(), Cancel::default());
    copy::stream(&mut read, target, &resize, options, &progress, &cancel)
}

/// Bytes with zeroes of all lengths among them.
fn some(len: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let byte = random.pick(&[0, 0, 7, 200]);
        let most = random.pick(&[100, 5000, 300_000]);
        let n = 1 + random.below(most);
        bytes.resize((bytes.len() + n as usize).min(len), byte);
    }
    bytes
}

fn held(model: &Model, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xaa; len];
    let max = model.info().blocks.maximum as usize;
    for (i, piece) in bytes.chunks_mut(max).enumerate() {
        model.read_at(piece, (i * max) as u64).unwrap();
    }
    bytes
}

#[test]
fn every_byte_arrives_whatever_the_pieces_and_what_lies_behind_stays() {
    let mut random = Random(5);
    for round in 0..40 {
        let size = 2 << 20;
        let len = random.pick(&[0, 1, 4096, 262_144, 262_145, size]);
        let len = if round % 2 == 0 { random.below(size) } else { len } as usize;
        let bytes = some(len, &mut random);
        let model = Arc::new(Model::new(size as usize));
        fill(&model, 0x99);
        let options = Options {
            sparse: random.pick(&[None, Some(512), Some(4096)]),
            allocated: random.below(2) == 0,
            wipe: random.below(4) == 0,
            ..Options::default()
        };
        let report =
            copy(Pieces::new(bytes.clone(), round), &edge(model.clone()), &options).unwrap();
        let mut wanted = vec![0x99; size as usize];
        wanted[..len].copy_from_slice(&bytes);
        assert!(held(&model, size as usize) == wanted, "round {round}: {options:?}");
        assert_eq!((report.total, report.done()), (len as u64, len as u64));
        assert!(report.left.is_empty());
    }
}

#[test]
fn zeroes_are_left_out_only_where_the_target_is_known_to_be_zero() {
    for (known, zeroed) in [(true, false), (false, true)] {
        let model = Arc::new(Model::new(1 << 20));
        let options = Options { target_is_zero: known, check_zero: false, ..Options::default() };
        let target = watched(model, 0);
        copy(Pieces::new(vec![0; 1 << 20], 1), &edge(target.clone()), &options).unwrap();
        assert_eq!(target.count(OperationKind::Zero) > 0, zeroed);
        assert_eq!(target.count(OperationKind::Write), 0);
    }
    // A claim that has to be checked is not enough here.
    let model = Arc::new(Model::new(1 << 20));
    fill(&model, 0x99);
    let options = Options { target_is_zero: true, check_zero: true, ..Options::default() };
    copy(Pieces::new(vec![0; 1 << 20], 1), &edge(model.clone()), &options).unwrap();
    assert!(held(&model, 1 << 20).iter().all(|b| *b == 0));
}

#[test]
fn a_read_that_fails_is_not_the_end() {
    let mut from = Pieces::new(vec![1; 300_000], 3);
    from.end = Some(ErrorKind::Io);
    let failure =
        copy(from, &edge(Arc::new(Model::new(1 << 20))), &Options::default()).unwrap_err();
    assert_eq!(failure.error.kind(), ErrorKind::Io);
    assert!(!failure.report.left.is_empty());
}

#[test]
fn a_stream_that_is_longer_than_the_target_fails_and_one_that_fits_exactly_does_not() {
    for (len, fits) in [(1 << 20, true), ((1 << 20) + 1, false), (3 << 20, false)] {
        let target = edge(Arc::new(Model::new(1 << 20)));
        let copied = copy(Pieces::new(vec![7; len], 9), &target, &Options::default());
        assert_eq!(copied.is_ok(), fits, "{len}");
        if let Err(failure) = copied {
            assert_eq!(failure.error.kind(), ErrorKind::NoSpace);
        }
    }
}

#[test]
fn the_first_write_that_fails_ends_it() {
    for at in [1, 2, 5] {
        let target = watched(Arc::new(Model::new(8 << 20)), 0);
        target.fail_nth(at);
        let failure =
            copy(Pieces::new(vec![7; 8 << 20], at as u64), &edge(target), &Options::default())
                .unwrap_err();
        assert_eq!(failure.error.kind(), ErrorKind::Io, "{at}");
        assert!(!failure.report.left.is_empty());
    }
}

#[test]
fn a_cancel_does_not_wait_for_the_next_byte() {
    let target = edge(Arc::new(Model::new(1 << 20)));
    let cancel = Cancel::default();
    let stop = cancel.clone();
    let mut read = move |_: &mut [u8], _: Duration| {
        stop.cancel();
        Ok(None)
    };
    let (resize, progress) = (|_| Ok(()), Progress::default());
    let outcome =
        copy::stream(&mut read, &target, &resize, &Options::default(), &progress, &cancel);
    assert_eq!(outcome.unwrap_err().error.kind(), ErrorKind::Cancelled);
}

/// A path that has broken and was opened again once something was written.
#[derive(Default)]
struct Written(AtomicBool);

impl Session for Written {
    fn epoch(&self) -> u64 {
        self.0.load(SeqCst).into()
    }
}

#[test]
fn what_a_target_may_have_forgotten_is_no_success_and_neither_is_an_answer_that_never_comes() {
    for (answers, said) in [(true, "cannot be read again"), (false, "returned an invalid result")] {
        let path = Arc::<Written>::default();
        let written = path.clone();
        let target =
            TestDevice::over(Model::new(1 << 20)).session_of(path).hooked(move |operation| {
                written.0.store(true, SeqCst);
                if answers { Fate::Pass(operation) } else { Fate::Drop }
            });
        let target = target.shared().edge(&WorkPool::undivided(4));
        let failure =
            copy(Pieces::new(vec![7; 1 << 20], 2), &target, &Options::default()).unwrap_err();
        assert!(failure.error.to_string().contains(said), "{}", failure.error);
    }
}
