//! Every filter over devices that never wait, that wait for a disk, and that wait for something
//! outside, alone and in random stacks, with one thread for all of it: what is written through them
//! is what is read through them.
//!
//! One line a filter in [`SHAPES`], with parameters under which it changes no bytes. A filter
//! that cannot be so (it makes the disk smaller, say) has a test beside its code instead and is
//! named in [`ELSEWHERE`].

use runtime::WorkPool;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use device::model::Model;
use device::{
    BlockSizes, Blocking, Device, Edge, Error, Info, Now, Params, Result, Simple, ZeroFlags,
};
use proptest::prelude::*;
use runtime::Context;
use trial::{SIZE, Trims, op};

use bottoms::{Guard, IN_MEMORY, KINDS, bottom, bottom_of};

mod alike;
mod bottoms;
mod fast;
mod lasting;
mod together;

/// Filters and parameters with which operations end as on the bare device.
const SHAPES: &[(&str, &[&str])] = &[
    ("blocksize", &["minblock=1", "maxdata=1000", "maxlen=3000"]),
    ("blocksize", &["minblock=4096", "maxdata=8192", "maxlen=12288"]),
    ("blocksize-policy", &["blocksize-minimum=1", "blocksize-error-policy=error"]),
    ("blocksize-policy", &["blocksize-minimum=512"]),
    ("cache", &["cache-min-block-size=4K", "cache-max-size=20K", "cache-on-read=true"]),
    ("cache", &["cache-on-read=true"]),
    ("cache", &["cache=unsafe", "cache-min-block-size=8K", "cache-max-size=64K"]),
    ("cache", &["cache=writethrough", "cache-min-block-size=4K"]),
    ("count", &[]),
    ("cow", &["cow-block-size=4K"]),
    ("cow", &["cow-on-read=true", "cow-on-cache=true"]),
    ("delay", &["rdelay=1us", "wdelay=20us", "delay-extents=5us"]),
    ("error", &["error=ENOSPC", "error-rate=0"]),
    ("evil", &["evil-probability=0"]),
    ("exitlast", &[]),
    ("exitwhen", &[]),
    ("exportname", &["exportname=disk"]),
    ("fua", &["fuamode=emulate", "flush-on-close=true"]),
    ("fua", &["fuamode=force"]),
    ("fua", &["fuamode=none"]),
    ("ip", &["allow=any"]),
    ("limit", &["limit=9"]),
    ("log", &["logfile=/dev/null"]),
    ("multi-conn", &["multi-conn-mode=emulate"]),
    ("multi-conn", &["multi-conn-mode=plugin", "multi-conn-track-dirty=fast"]),
    ("nocache", &["cachemode=emulate"]),
    ("noextents", &[]),
    ("nofilter", &[]),
    ("noparallel", &["serialize=all-requests"]),
    ("noparallel", &["serialize=requests"]),
    ("nozero", &["zeromode=emulate"]),
    ("nozero", &["zeromode=none"]),
    ("nozero", &["zeromode=notrim"]),
    ("nozero", &["zeromode=plugin", "fastzeromode=slow"]),
    ("openonce", &[]),
    ("protect", &["protect=~-"]),
    ("rate", &["rate=100G", "connection-rate=80G"]),
    ("readahead", &[]),
    ("readonly", &["readonly-file=/nonexistent/file"]),
    ("retry", &["retry-delay=1ms", "retry-readonly=true"]),
    ("retry-request", &["retry-request-delay=1ms"]),
    ("rotational", &[]),
    ("scan", &[]),
    ("spinning", &["min-seek-time=1us", "half-seek-time=2us", "max-seek-time=3us"]),
    ("stats", &["statsfile=/dev/null"]),
    ("swab", &["swab-bits=8"]),
    ("time-limit", &["time-limit=3600"]),
    ("truncate", &["round-up=4096"]),
];

/// Filters whose model tests stand beside their code, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("bzip2", "there must be a stream"),
    ("checkwrite", "it accepts no writes that change anything"),
    ("ddrescue", "it accepts no writes"),
    ("ext2", "there must be a file system"),
    ("extentlist", "it accepts no writes"),
    ("gzip", "there must be a stream"),
    ("indexed-gzip", "there must be a stream"),
    ("qcow2dec", "there must be an image"),
    ("luks", "there must be a header, and a key"),
    ("lzip", "there must be a stream"),
    ("map", "it is among the disguises"),
    ("offset", "it is among the disguises"),
    ("partition", "there must be a table"),
    ("pause", "it is among the disguises"),
    ("tar", "there must be an archive"),
    ("tls-fallback", "clients without TLS do not see the disk"),
    ("xor", "zeroes below are none here"),
    ("xz", "there must be a stream"),
];

/// The filters of `stack`, the first nearest the client, over a device.
fn pile(stack: &[usize], kind: usize) -> Edge {
    let pool = WorkPool::new(1);
    filtered(stack, Edge::new(bottom(kind, &pool), pool))
}

/// The filters of `stack` over what there is.
fn filtered(stack: &[usize], below: Edge) -> Edge {
    let shapes: Vec<_> = stack.iter().map(|shape| SHAPES[*shape]).collect();
    on(&shapes, below)
}

/// The same, with one thread for all that may wait: a task that holds it while it waits for another
/// waits for ever.
fn over(stack: &[(&str, &[&str])], bottom: impl FnOnce(&WorkPool) -> Arc<dyn Device>) -> Edge {
    let pool = WorkPool::new(1);
    on(stack, Edge::new(bottom(&pool), pool))
}

fn on(stack: &[(&str, &[&str])], mut edge: Edge) -> Edge {
    let context = Context::new(edge.pool().clone());
    for (word, words) in stack.iter().rev() {
        let params = Params::parse(words.iter().copied()).unwrap();
        edge = filters::open(word, &params, edge, &context).unwrap();
    }
    edge
}

#[test]
fn every_filter_is_on_trial() {
    for kind in filters::kinds() {
        let tried = SHAPES.iter().any(|(word, _)| *word == kind.word);
        let elsewhere = ELSEWHERE.iter().any(|(word, why)| *word == kind.word && !why.is_empty());
        assert!(tried || elsewhere, "{} is not", kind.word);
    }
}

/// Filters that must see each read, so that no place leads past them.
const WATCHFUL: &[&str] = &[
    "count",
    "delay",
    "error",
    "log",
    "rate",
    "retry",
    "retry-request",
    "spinning",
    "stats",
    "time-limit",
];

#[test]
fn no_place_leads_past_a_filter_that_must_see_reads() {
    let bare = bottom(IN_MEMORY, &WorkPool::new(1));
    assert!(bare.info().flat.is_some(), "the test needs a device with places");
    for (shape, (word, _)) in SHAPES.iter().enumerate() {
        let edge = pile(&[shape], IN_MEMORY);
        let device = edge.device();
        edge.write(&[1; SIZE], 0, false).unwrap();
        let mut extents = Vec::new();
        edge.resolve(0, SIZE as u64, 10, &mut extents).unwrap();
        let is_flat = device.info().flat.is_some();
        assert!(is_flat || extents.iter().all(|e| e.place.is_none()), "{word}: {extents:?}");
        if WATCHFUL.contains(word) {
            assert!(!is_flat, "{word}");
            assert!(!edge.read_now(&mut [0; 512], 0).unwrap(), "{word}");
            assert!(!edge.resolve_now(0, 512, 9, &mut Vec::new()).unwrap(), "{word}");
            assert!(!writes_pass(device), "{word}");
        }
    }
}

/// Whether there is a way to write that the filter does not see.
fn writes_pass(device: &Arc<dyn Device>) -> bool {
    let window = device.window(0, 256 << 10).is_some();
    let now = Now::Write { offset: 0, data: &[1; 512], fua: false };
    window || device.now(now).unwrap()
}

/// Filters that must see each write, with parameters under which they let reads pass.
const GUARDING: &[(&str, &[&str])] = &[
    ("checkwrite", &[]),
    ("fua", &["fuamode=force"]),
    ("multi-conn", &["multi-conn-mode=plugin"]),
    ("protect", &["protect=0-511"]),
    ("readonly", &["readonly-file=/nonexistent/file"]),
];

#[test]
fn nothing_is_written_past_a_filter_that_must_see_writes() {
    let bare = bottom(IN_MEMORY, &WorkPool::new(1));
    assert!(writes_pass(&bare), "the test needs a device that can be written past");
    for shape in GUARDING {
        let disk = over(&[*shape], |pool| bottom(IN_MEMORY, pool));
        assert!(disk.info().flat.is_some(), "{shape:?}");
        assert!(!writes_pass(disk.device()), "{shape:?}");
        let mut zeroes = [1; 512];
        disk.read(&mut zeroes, 0).unwrap();
        assert_eq!(zeroes, [0; 512], "{shape:?}");
    }
}

#[test]
fn nothing_is_taken_past_a_filter_that_must_see_writes() {
    let seven = || trial::lying(7, 512);
    let pool = WorkPool::new(1);
    let bare = Edge::new(bottom(IN_MEMORY, &pool), pool.clone());
    assert_eq!(bare.take(0, 512, seven(), false).unwrap(), 512, "the test needs one that takes");
    let refuses: [(&str, &[&str]); 6] = [
        ("checkwrite", &[]),
        ("cow", &[]),
        ("fua", &["fuamode=force"]),
        ("log", &["logfile=/dev/null"]),
        ("protect", &["protect=0-511"]),
        ("readonly", &["readonly-file=/"]),
    ];
    for shape in refuses {
        let below = Edge::new(bottom(IN_MEMORY, &pool), pool.clone());
        let disk = on(&[shape], below.clone());
        assert_eq!(disk.take(0, 512, seven(), false).unwrap_or(0), 0, "{shape:?}");
        let mut zeroes = [1; 512];
        below.read(&mut zeroes, 0).unwrap();
        assert_eq!(zeroes, [0; 512], "{shape:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]

    #[test]
    fn every_filter_alone_is_like_the_model(ops in prop::collection::vec(op(), 1..16)) {
        let _guard = Guard::new();
        // The last kind is a real disk, whose syncs take their time.
        for kind in 0..KINDS - 1 {
            for shape in 0..SHAPES.len() {
                trial::run_on(&pile(&[shape], kind), &ops, Trims::AsHint)?;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn filters_in_random_stacks_are_like_the_model(
        ops in prop::collection::vec(op(), 1..16),
        stack in prop::collection::vec(0..SHAPES.len(), 2..7),
        kind in 0..KINDS,
    ) {
        let _guard = Guard::new();
        trial::run_on(&pile(&stack, kind), &ops, Trims::AsHint)?;
    }
}

/// Stacks that show other bytes than those below, or the same elsewhere.
const DISGUISES: &[&[(&str, &[&str])]] = &[
    &[("offset", &["offset=1234", "range=98304"])],
    &[("offset", &["offset=8192", "range=98304"])],
    &[("truncate", &["truncate=98304"])],
    // The end comes first, then the beginning.
    &[("map", &["map=0-61438:36865", "map=61439-98303:0"])],
    &[("map", &["map=0-65535:32768", "map=65536-98303:0"])],
    &[("swab", &["swab-bits=16"]), ("swab", &["swab-bits=16"])],
    &[("swab", &["swab-bits=64"]), ("swab", &["swab-bits=64"])],
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn disks_in_disguise_are_like_the_model(ops in prop::collection::vec(op(), 1..16)) {
        let _guard = Guard::new();
        let socket = std::env::temp_dir().join(format!("diskferry-stack-{}", std::process::id()));
        let socket = format!("pause-control={}", socket.display());
        let pause: [(&str, &[&str]); 1] = [("pause", &[&socket])];
        for kind in 0..KINDS - 1 {
            for stack in DISGUISES.iter().copied().chain([&pause[..]]) {
                let disk = over(stack, |pool| bottom_of(SIZE + 12_288, kind, pool));
                trial::run_on(&disk, &ops, Trims::AsHint)
                    .map_err(|e| TestCaseError::fail(format!("{stack:?} over {kind}: {e}")))?;
            }
        }
    }
}

/// A disk of many gigabytes that remembers only the bytes at a few offsets. No `TestDevice`: zeroes
/// by the gigabyte are written to it, and it does not copy them.
struct Marks {
    info: Info,
    bytes: Mutex<BTreeMap<u64, u8>>,
}

const LARGE: u64 = (4 << 30) + (200 << 20);

impl Marks {
    fn new(at: &[u64], zeroes: bool, blocks: BlockSizes) -> Self {
        let model = Model::new(1);
        let mut info = Info { size: LARGE, blocks, ..model.info().clone() };
        info.abilities.zero = zeroes;
        info.abilities.fast_zero = zeroes;
        // What it holds elsewhere is not known.
        info.abilities.extents = false;
        Self { info, bytes: Mutex::new(at.iter().map(|at| (*at, 0xee)).collect()) }
    }

    fn set(&self, offset: u64, len: u64, byte: impl Fn(usize) -> u8) {
        for (at, b) in self.bytes.lock().unwrap().range_mut(offset..offset + len) {
            *b = byte(usize::try_from(at - offset).unwrap());
        }
    }
}

impl Blocking for Marks {
    fn info(&self) -> &Info {
        &self.info
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        buf.fill(0);
        for (at, b) in self.bytes.lock().unwrap().range(offset..offset + buf.len() as u64) {
            buf[usize::try_from(at - offset).unwrap()] = *b;
        }
        Ok(())
    }
    fn write_at(&self, data: &[u8], offset: u64, _fua: bool) -> Result<()> {
        assert!(data.len() <= self.info.blocks.maximum as usize);
        self.set(offset, data.len() as u64, |i| data[i]);
        Ok(())
    }
    fn zero(&self, offset: u64, len: u64, _flags: ZeroFlags) -> Result<()> {
        if !self.info.abilities.zero {
            return Err(Error::unsupported("zero"));
        }
        self.set(offset, len, |_| 0);
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

/// Zeroes that once left stale bytes on NFS in other programs: more than 64 MiB, and more than 4
/// GiB, by every way there is to make zeroes.
#[test]
fn a_long_zero_leaves_no_stale_byte_through_any_filter() {
    const M: u64 = 1 << 20;
    let small = BlockSizes { minimum: 512, preferred: 4096, maximum: 256 << 10 };
    for (start, len) in [(M + 1, 70 * M), (3, (4 << 30) + 100 * M), (0, LARGE), (512, LARGE - 512)]
    {
        let end = start + len;
        let inside = [start, start + 63 * M, start + 64 * M, start + 65 * M - 1, end - 1];
        let far = [start + (4 << 30) - 1, start + (4 << 30), start + len / 2];
        let outside = [start.wrapping_sub(1), end, end + 511];
        let all = inside.iter().chain(&far).chain(&outside);
        let marks: Vec<u64> = all.copied().filter(|at| *at < LARGE).collect();
        // Millions of tiny pieces prove no more than thousands of larger ones.
        let long: [(&str, &[&str]); 3] = [
            ("blocksize", &["minblock=4096", "maxdata=256K", "maxlen=1G"]),
            ("blocksize", &["minblock=4096"]),
            ("blocksize", &["maxlen=1073737728"]),
        ];
        for shape in SHAPES.iter().filter(|shape| shape.0 != "blocksize").chain(&long) {
            for (zeroes, blocks) in
                [(true, BlockSizes::ANY), (false, BlockSizes::ANY), (false, small)]
            {
                let disk = over(&[*shape], |pool| {
                    Simple::device(Marks::new(&marks, zeroes, blocks), pool)
                });
                disk.zero(start, len, ZeroFlags { may_unmap: true, ..ZeroFlags::default() })
                    .unwrap();
                for at in &marks {
                    let mut byte = [1];
                    disk.read(&mut byte, *at).unwrap();
                    let wanted = if (start..end).contains(at) { 0 } else { 0xee };
                    assert_eq!(byte[0], wanted, "{shape:?} at {at} of {start}+{len}");
                }
            }
        }
    }
}
