//! Images of all formats that are written where they lie, over all kinds of containers: memory, a
//! file, filters over either, a disk that answers late. Each is what the model is, also with many
//! operations in flight and one thread for all, and still is when it is opened again.

use std::sync::mpsc;
use std::time::Duration;

use device::model::Model;
use device::{Blocking, Buffer, Edge, Operation, Outcome, Params, Result, ZeroFlags};
use devices::{Named, OpenOptions};
use formats::{Closed, Opening};
use proptest::prelude::*;
use runtime::{Context, WorkPool};
use trial::{Op, SIZE, TestDevice, Trims, op};

use crate::support::{Place, all, make};

/// Room in a container that does not grow.
const ROOM: usize = 8 << 20;

/// The formats, and options of theirs.
const IMAGES: &[(&str, &[&str])] = &[
    ("qcow2", &[]),
    ("qcow2", &["cluster_size=512", "refcount_bits=1"]),
    ("qcow2", &["extended_l2=on", "cluster_size=16k"]),
    ("vdi", &[]),
    ("vpc", &["force_size=on"]),
    ("vpc", &["force_size=on", "subformat=fixed"]),
    ("vhdx", &["block_size=1M"]),
    ("vhdx", &["block_size=1M", "subformat=fixed"]),
    ("vmdk", &[]),
    ("vmdk", &["zeroed_grain=on"]),
];

/// How many kinds of [`container`] there are.
const KINDS: usize = 6;

fn open_file(path: &str, context: &Context) -> Edge {
    let options = OpenOptions { lock: false, ..OpenOptions::read_write() };
    Edge::new(Named::parse(path).unwrap().open(&options, context).unwrap(), context.pool.clone())
}

/// A container of a kind with a new image in it.
fn container(place: &Place, kind: usize, image: usize, context: &Context) -> Edge {
    let (format, options) = IMAGES[image];
    let path = place.path("image");
    make(&path, format, options, &vec![0; SIZE]);
    // What ends with its container, and what has to grow.
    let is_as_long = options.contains(&"subformat=fixed") || format == "vmdk";
    let file = || open_file(&path, context);
    let filtered = |below, word: &str, words: &[&str]| {
        filters::open(word, &Params::parse(words.iter().copied()).unwrap(), below, context).unwrap()
    };
    let roomy = |edge: Edge| {
        edge.write(&std::fs::read(&path).unwrap(), 0, false).unwrap();
        edge
    };
    match kind {
        _ if is_as_long => file(),
        0 => roomy(open_file(&format!("memory:{ROOM}"), context)),
        1 => file(),
        2 => {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(ROOM as u64).unwrap();
            filtered(open_file(&path, context), "log", &["logfile=/dev/null"])
        }
        3 => filtered(roomy(open_file(&format!("memory:{ROOM}"), context)), "limit", &["limit=9"]),
        4 => {
            let memory = roomy(open_file(&format!("memory:{ROOM}"), context));
            filtered(memory, "error", &["error-rate=0"])
        }
        _ => {
            let model = Model::new(ROOM);
            model.write_at(&std::fs::read(&path).unwrap(), 0, false).unwrap();
            TestDevice::over(model).late(3).shared().edge(&context.pool)
        }
    }
}

/// The disk in it; the image is closed when the context ends.
fn opened(container: &Edge, image: usize, write: bool, context: &Context) -> Edge {
    let (params, format) = (Params::default(), formats::format(IMAGES[image].0).unwrap());
    let opening = Opening { params: &params, files: &Closed, context };
    let open = if write { format.write.unwrap() } else { format.open };
    Edge::new(open(container.clone(), &opening).unwrap(), context.pool.clone())
}

/// It is closed, and holds these bytes when it is opened again.
fn reopened(place: &Place, container: &Edge, image: usize, context: &Context, bytes: &[u8]) {
    context.control.end();
    let complaints = context.control.take_complaints();
    assert!(complaints.is_empty(), "{complaints:?}");
    // One that grows is longer now.
    let container = match container.device().grows() {
        true => &open_file(&place.path("image"), context),
        false => container,
    };
    let again = opened(container, image, false, context);
    assert!(all(&again)[..SIZE] == *bytes, "other bytes when it is opened again");
    if let Some(check) = formats::format(IMAGES[image].0).unwrap().check {
        let found = check(container, context).unwrap();
        assert!(found.corruptions.is_empty() && found.leaks == 0, "{found:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn an_image_is_what_the_model_is_and_still_is_when_it_is_opened_again(
        ops in prop::collection::vec(op(), 1..24),
        kind in 0..KINDS,
        image in 0..IMAGES.len(),
    ) {
        let (place, context) = (Place::new(), Context::new(WorkPool::new(1)));
        let container = container(&place, kind, image, &context);
        let disk = opened(&container, image, true, &context);
        prop_assert_eq!(disk.info().size, SIZE as u64);
        trial::run_on(&disk, &ops, Trims::AsHint)?;
        let bytes = all(&disk);
        drop(disk);
        reopened(&place, &container, image, &context, &bytes);
    }

    /// In every block of a few, several neighbours; and each of them once, so that the end is
    /// known.
    #[test]
    fn many_operations_in_flight_at_a_time_do_not_harm_each_other(
        steps in prop::collection::vec((1..3000usize, 0..4u8), 8..64),
        kind in 0..KINDS,
        image in 0..IMAGES.len(),
        is_new in any::<bool>(),
    ) {
        let (place, context) = (Place::new(), Context::new(WorkPool::new(1)));
        let container = container(&place, kind, image, &context);
        let disk = opened(&container, image, true, &context);
        let first = if is_new { 0 } else { 9 };
        if !is_new {
            disk.write(&vec![first; SIZE], 0, false).unwrap();
        }
        let (tx, rx) = mpsc::channel::<Result<Outcome>>();
        let (mut at, mut expected, mut started) = (0, vec![first; SIZE], 0);
        for (i, (len, byte)) in steps.into_iter().enumerate() {
            let (offset, len) = (at as u64, len.min(SIZE - at));
            let (change, meanwhile) = operations(i, offset, len, byte);
            for operation in [change, meanwhile] {
                let tx = tx.clone();
                disk.submit(operation, Box::new(move |result| drop(tx.send(result))));
                started += 1;
            }
            expected[at..at + len].fill(byte);
            at += len;
        }
        for _ in 0..started {
            let result = rx.recv_timeout(Duration::from_secs(60));
            let result = result.map_err(|_| TestCaseError::fail("an operation never ended"))?;
            prop_assert!(result.is_ok(), "{:?}", result.err());
        }
        let bytes = all(&disk);
        let differs = (0..SIZE).find(|i| bytes[*i] != expected[*i]);
        prop_assert!(differs.is_none(), "byte {:?}", differs);
        drop(disk);
        reopened(&place, &container, image, &context, &bytes);
    }
}

/// Grains lie apart, and here only the second part of the range is slow to zero.
#[test]
fn a_fast_zero_of_which_a_part_is_done_is_not_refused() {
    let flags = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
    let ops = [
        Op::Write(65536, 4096, 1, false),
        Op::Write(31144, 30712, 1, false),
        Op::Zero(61441, 8191, flags),
    ];
    for image in 0..IMAGES.len() {
        let (place, context) = (Place::new(), Context::new(WorkPool::new(1)));
        let container = container(&place, 1, image, &context);
        let disk = opened(&container, image, true, &context);
        trial::run_on(&disk, &ops, Trims::AsHint).unwrap();
    }
}

/// A change, and what is done with the same range meanwhile.
fn operations(i: usize, offset: u64, len: usize, byte: u8) -> (Operation, Operation) {
    let flags = ZeroFlags { may_unmap: !i.is_multiple_of(3), ..ZeroFlags::default() };
    let change = match byte {
        0 => Operation::Zero { offset, len: len as u64, flags },
        _ => {
            let data = Buffer::copy_of(&vec![byte; len]).into();
            Operation::Write { offset, data, fua: i.is_multiple_of(5) }
        }
    };
    let meanwhile = match i % 4 {
        0 => Operation::Flush,
        1 => Operation::Resolve { offset, len: len as u64, max: 4 },
        2 => Operation::Prefetch { offset, len: len as u64 },
        _ => Operation::Read { offset, buffer: Buffer::zeroed(len) },
    };
    (change, meanwhile)
}
