//! Many clients at once over a device that answers late, in any order, and sometimes with a
//! failure half-way. Each client has parts of the disk for itself, whose borders lie anywhere in
//! blocks; what it wrote there is what it reads there, whatever the others do beside it.

use device::Blocking as _;
use runtime::WorkPool;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use device::model::Model;
use device::{
    Abilities, BlockSizes, Edge, Error, ErrorKind, Extent, Fault, Operation, Outcome, Params,
    Result, ZeroFlags, run_blocking,
};
use runtime::Context;
use trial::{Fate, TestDevice};

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Writes in two halves, so that others come between. One of so many operations fails, between the
/// halves if it has some; 0: none does. A trim may change nothing.
fn answer(
    model: &Model,
    random: &Mutex<Random>,
    operation: Operation,
    (fails, keeps): (u64, bool),
) -> Result<Outcome> {
    let mut dice = random.lock().unwrap();
    let (fails, waits) = (fails > 0 && dice.below(fails) == 0, dice.below(3) == 0);
    drop(dice);
    if waits {
        std::thread::yield_now();
    }
    let failed = || Err(Error::new(ErrorKind::Io, Fault::File, "fail as told"));
    match operation {
        Operation::Write { offset, data, fua } => {
            let (first, second) = data.split_at(data.len() / 2);
            model.write_at(first, offset, false)?;
            std::thread::yield_now();
            if fails {
                return failed();
            }
            model.write_at(second, offset + first.len() as u64, fua)?;
            Ok(Outcome::Done)
        }
        Operation::Zero { offset, len, flags } if fails && !flags.fast_only && len > 1 => {
            model.zero(offset, len / 2, flags)?;
            failed()
        }
        _ if fails => failed(),
        Operation::Trim { .. } if keeps => Ok(Outcome::Done),
        other => run_blocking(model, other),
    }
}

/// A part of the disk that one client has for itself.
struct Own {
    range: Range<u64>,
    holds: Vec<u8>,
}

/// A client, and what it knows of its parts.
struct Crowd<'a> {
    disk: &'a Edge,
    random: Random,
    parts: Vec<Own>,
    context: String,
}

impl Crowd<'_> {
    fn run(mut self, rounds: usize) -> Vec<Own> {
        for round in 0..rounds {
            let part = usize::try_from(self.random.below(self.parts.len() as u64)).unwrap();
            let mut own = self.parts.swap_remove(part);
            self.step(&mut own, round);
            self.parts.push(own);
        }
        self.parts
    }

    fn step(&mut self, own: &mut Own, round: usize) {
        let random = &mut self.random;
        let all = own.range.end - own.range.start;
        let (start, len) = match random.below(4) {
            // All of it, which is whole blocks and parts of others.
            0 => (0, all),
            _ => {
                let start = random.below(all);
                (start, 1 + random.below(all - start))
            }
        };
        let (offset, within) = (own.range.start + start, at(start)..at(start + len));
        let fua = random.below(4) == 0;
        let may_unmap = random.below(2) == 0;
        match random.below(12) {
            0..4 => {
                let byte = u8::try_from(1 + random.below(255)).unwrap();
                let data = vec![byte; within.len()];
                let done = self.disk.write(&data, offset, fua);
                self.settle(own, within, byte, done.is_ok());
            }
            4 | 5 => {
                let fast_only = random.below(2) == 0;
                let flags = ZeroFlags { written: false, fast_only, may_unmap, fua };
                match self.disk.zero(offset, len, flags) {
                    Err(e) if e.kind() == ErrorKind::NotFast => {}
                    done => self.settle(own, within, 0, done.is_ok()),
                }
            }
            6 => {
                // A hint: what it holds then is the old or nothing.
                let _ = self.disk.trim(offset, len, fua);
                self.settle(own, within, 0, false);
            }
            7 => drop(self.disk.flush()),
            8 => drop(self.disk.prefetch(offset, len)),
            9 => {
                let mut map: Vec<Extent> = Vec::new();
                if self.disk.resolve(offset, len, 9, &mut map).is_ok() {
                    for e in map.iter().filter(|e| e.kind.reads_zero()) {
                        let range = at(e.start - own.range.start)..at(e.end() - own.range.start);
                        let zero = own.holds[range].iter().all(|b| *b == 0);
                        assert!(zero, "{}, {round}: data in a hole {e:?}", self.context);
                    }
                }
            }
            _ => {
                let mut read = vec![0xee; within.len()];
                if self.disk.read(&mut read, offset).is_ok() {
                    let wrong = read.iter().zip(&own.holds[within]).position(|(a, b)| a != b);
                    let wrong = wrong.map(|i| (offset + i as u64, read[i]));
                    assert_eq!(wrong, None, "{}, {round}: {offset}+{len}", self.context);
                }
            }
        }
    }

    /// After a change that was done, or was not, or only in part: then it holds what it is seen to
    /// hold, and goes on to do so.
    fn settle(&self, own: &mut Own, within: Range<usize>, byte: u8, done: bool) {
        let holds = &mut own.holds[within.clone()];
        if done {
            holds.fill(byte);
            return;
        }
        let mut seen = vec![0xee; holds.len()];
        while self.disk.read(&mut seen, own.range.start + within.start as u64).is_err() {}
        let neither = seen.iter().zip(&*holds).position(|(new, old)| *new != byte && new != old);
        assert_eq!(neither, None, "{}: neither old nor new in {:?}", self.context, own.range);
        holds.copy_from_slice(&seen);
    }
}

fn at(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

/// The disk in parts, in turns for each of `clients`.
fn shares(random: &mut Random, bytes: &[u8], clients: usize) -> Vec<Vec<Own>> {
    let mut shares: Vec<Vec<Own>> = (0..clients).map(|_| Vec::new()).collect();
    let (mut start, size) = (0, bytes.len() as u64);
    for i in 0.. {
        if start == size {
            break;
        }
        let long = random.below(3) == 0;
        let len = 1 + random.below(if long { 60_000 } else { 3_000 });
        let end = (start + len).min(size);
        let holds = bytes[at(start)..at(end)].to_vec();
        shares[i % clients].push(Own { range: start..end, holds });
        start = end;
    }
    shares
}

const CLIENTS: usize = 8;
/// No whole number of blocks.
const SIZE: usize = 600_011;

/// What the disk below holds, what the disk above should, and does.
struct End {
    before: Vec<u8>,
    below: Vec<u8>,
    should: Vec<u8>,
    above: Vec<u8>,
}

/// Crowds on one stack of filters, the first nearest the clients.
fn crowd(stack: &[(&str, &[&str])], seed: u64, fails: u64) -> End {
    let mut random = Random(seed);
    let all = Abilities { prefetch: true, ..Model::new(1).info().abilities };
    let fast_zero = random.below(2) == 0;
    let can = Abilities { fast_zero, fua: random.below(2) == 0, ..all };
    let model = Arc::new(Model::with(SIZE, can, BlockSizes::ANY));
    for start in (0..SIZE - 20_000).step_by(50_000) {
        model.write_at(&[7; 20_000], start as u64, false).unwrap();
    }
    let before = model.bytes();
    let (keeps, dice) = (random.below(2) == 0, Arc::new(Mutex::new(Random(seed))));
    let late = TestDevice::over(model.clone()).late(3).shared();
    let failing = |fails| {
        let (below, dice) = (model.clone(), dice.clone());
        late.on(move |operation| Fate::Answer(answer(&below, &dice, operation, (fails, keeps))));
    };
    failing(0);
    let context = Context::new(WorkPool::new(3));
    let mut disk = late.edge(&context.pool);
    for (word, words) in stack.iter().rev() {
        let params = Params::parse(words.iter().copied()).unwrap();
        disk = filters::open(word, &params, disk, &context).unwrap();
    }
    failing(fails);
    let shares = shares(&mut random, &before, CLIENTS);
    let parts = std::thread::scope(|scope| {
        let threads: Vec<_> = shares
            .into_iter()
            .enumerate()
            .map(|(i, parts)| {
                let random = Random(random.below(u64::MAX) + i as u64);
                let context = format!("{stack:?}, seed {seed}");
                let crowd = Crowd { disk: &disk, random, parts, context };
                scope.spawn(move || crowd.run(250))
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    failing(0);
    disk.flush().unwrap();
    let mut should = vec![0; SIZE];
    for own in parts {
        should[at(own.range.start)..at(own.range.end)].copy_from_slice(&own.holds);
    }
    let mut above = vec![0xee; SIZE];
    disk.read(&mut above, 0).unwrap();
    context.control.end();
    End { before, below: model.bytes(), should, above }
}

const CACHES: &[&[&str]] = &[
    &["cache-min-block-size=4K"],
    &["cache-min-block-size=4K", "cache-max-size=40K", "cache-on-read=true"],
    &["cache-min-block-size=8K", "cache-max-size=200K"],
    &["cache=writethrough", "cache-min-block-size=4K", "cache-on-read=true"],
    &["cache=writethrough", "cache-min-block-size=4K", "cache-max-size=64K", "cache-on-read=true"],
    &["cache=unsafe", "cache-min-block-size=16K", "cache-max-size=128K"],
    &["cache-on-read=true"],
];

#[track_caller]
fn same(a: &[u8], b: &[u8]) {
    assert_eq!(a.iter().zip(b).position(|(a, b)| a != b), None);
}

#[test]
fn a_cow_keeps_what_each_of_many_clients_wrote_and_changes_nothing_below() {
    let shapes: &[&[&str]] = &[
        &["cow-block-size=4K"],
        &["cow-on-cache=true"],
        &["cow-on-read=true", "cow-block-size=8K"],
    ];
    for (i, words) in shapes.iter().enumerate() {
        for fails in [0, 20] {
            let end = crowd(&[("cow", words)], i as u64 + fails, fails);
            same(&end.above, &end.should);
            same(&end.below, &end.before);
        }
    }
}

#[test]
fn a_cache_keeps_what_each_of_many_clients_wrote_and_a_flush_brings_it_below() {
    for (i, words) in CACHES.iter().enumerate() {
        let end = crowd(&[("cache", words)], i as u64, 0);
        same(&end.above, &end.should);
        same(&end.below, &end.should);
    }
}

#[test]
fn a_cache_over_a_disk_that_fails_now_and_then_shows_no_two_truths() {
    for (i, words) in CACHES.iter().enumerate() {
        let end = crowd(&[("cache", words)], 100 + i as u64, 15);
        same(&end.above, &end.should);
        same(&end.below, &end.should);
    }
}

#[test]
fn what_fails_now_and_then_is_never_seen_through_retry_above_and_below_others() {
    let retry: (&str, &[&str]) = ("retry", &["retry-delay=0", "retries=50"]);
    let cache: (&str, &[&str]) = ("cache", CACHES[1]);
    let cow: (&str, &[&str]) = ("cow", &["cow-block-size=4K"]);
    for (seed, stack) in [[cache, retry], [cow, retry], [retry, cache]].iter().enumerate() {
        let end = crowd(stack, seed as u64, 15);
        same(&end.above, &end.should);
        let below = if stack[0].0 == "cow" { &end.before } else { &end.should };
        same(&end.below, below);
    }
}
