//! Every filter over the model and over devices that wait, alone and in random stacks: what is
//! written through them is what is read through them.
//!
//! One line a filter in [`SHAPES`], with parameters under which it changes no bytes. A filter
//! that cannot be so (it makes the disk smaller, say) has a test beside its code instead and is
//! named in [`ELSEWHERE`].

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;

use device::model::Model;
use device::{Abilities, BlockSizes, Device, Edge, Params, WorkPool};
use filters::Context;
use proptest::prelude::*;
use trial::{SIZE, Trims, op};

/// Filters and parameters with which operations end as on the bare device.
const SHAPES: &[(&str, &[&str])] = &[
    ("cache", &["cache-on-read=true"]),
    ("cache", &["cache-min-block-size=4K", "cache-max-size=20K", "cache-on-read=true"]),
    ("cache", &["cache=writethrough", "cache-min-block-size=4K"]),
    ("cache", &["cache=unsafe", "cache-min-block-size=8K", "cache-max-size=64K"]),
    ("cow", &["cow-block-size=4K"]),
    ("cow", &["cow-on-read=true", "cow-on-cache=true"]),
    ("delay", &["rdelay=1us", "wdelay=20us", "delay-extents=5us"]),
    ("evil", &["evil-probability=0"]),
    ("nozero", &["zeromode=emulate"]),
    ("nozero", &["zeromode=none"]),
    ("nozero", &["zeromode=notrim"]),
    ("nozero", &["zeromode=plugin", "fastzeromode=slow"]),
];

/// Filters whose model tests stand beside their code, and why.
const ELSEWHERE: &[(&str, &str)] = &[("checkwrite", "it accepts no writes that change anything")];

fn bottom(kind: usize) -> Arc<dyn Device> {
    let all = Model::new(SIZE).info().abilities;
    match kind {
        0 => Arc::new(Model::new(SIZE)),
        // Blocks, short requests, no zeroing and no FUA: everything must be derived.
        1 => Arc::new(Model::with(
            SIZE,
            Abilities { fua: false, zero: false, fast_zero: false, ..all },
            BlockSizes { minimum: 512, preferred: 4096, maximum: 8192 },
        )),
        // A device for which the edge needs the pool.
        _ => {
            let path = std::path::Path::new("/dev/shm").join(format!(
                "diskferry-stack-{}-{:?}",
                std::process::id(),
                std::thread::current().id()
            ));
            let options = devices::OpenOptions {
                create: Some(SIZE as u64),
                lock: false,
                ..devices::OpenOptions::read_write()
            };
            let _ = std::fs::remove_file(&path);
            let name = device::Name::Path(path.display().to_string());
            let disk = devices::open(&name, &options).unwrap();
            std::fs::remove_file(&path).unwrap();
            disk
        }
    }
}

/// The filters of `stack`, the first nearest the client, over a device.
fn pile(stack: &[usize], kind: usize) -> Arc<dyn Device> {
    let context = Context::new(WorkPool::new(2));
    let mut edge = Edge::new(bottom(kind), context.pool.clone());
    for shape in stack.iter().rev() {
        let (word, words) = SHAPES[*shape];
        let params = Params::parse(words.iter().copied()).unwrap();
        edge = filters::open(word, &params, edge, &context).unwrap();
    }
    edge.device().clone()
}

#[test]
fn every_filter_is_on_trial() {
    for kind in filters::kinds() {
        let tried = SHAPES.iter().any(|(word, _)| *word == kind.word);
        let elsewhere = ELSEWHERE.iter().any(|(word, why)| *word == kind.word && !why.is_empty());
        assert!(tried || elsewhere, "{} is not", kind.word);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_filter_alone_is_like_the_model(ops in prop::collection::vec(op(), 1..16), kind in 0..3usize) {
        for shape in 0..SHAPES.len() {
            trial::run(pile(&[shape], kind), &ops, Trims::AsHint)?;
        }
    }

    #[test]
    fn filters_in_random_stacks_are_like_the_model(
        ops in prop::collection::vec(op(), 1..16),
        stack in prop::collection::vec(0..SHAPES.len(), 2..7),
        kind in 0..3usize,
    ) {
        trial::run(pile(&stack, kind), &ops, Trims::AsHint)?;
    }
}
