//! Untrusted input for each target that has some in `fuzz/corpus`: as it is, cut off,
//! and with bytes changed at random. Nothing panics, hangs, or grows.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use std::path::Path;

use hostile::{FuzzTarget, TARGETS};

/// Changed images that are tried for each one in the corpus; `HOSTILE_MUTATIONS=N` tries N.
const MUTATIONS: u64 = 80;
/// Bytes that all of it may take at a time.
const MEMORY: u64 = 160 << 20;

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % (n.max(1) as u64)).unwrap()
    }
}

/// Numbers at which a parser may fail.
fn number(dice: &mut Dice, len: usize) -> u64 {
    let bit = dice.below(64);
    let any = [
        0,
        u64::MAX,
        i64::MAX.unsigned_abs(),
        len as u64,
        len as u64 + 1,
        1 << bit,
        (1 << bit) - 1,
        (1 << 63) | (dice.below(len) / 512 * 512) as u64,
        (dice.below(len) / 512 * 512) as u64,
    ];
    any[dice.below(any.len())]
}

/// Offsets of bytes other than zero, on which the whole image depends.
fn places(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len() / 8).map(|i| i * 8).filter(|at| bytes[*at..at + 8] != [0; 8]).collect()
}

fn mutate(image: &[u8], places: &[usize], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = image.to_vec();
    if bytes.len() < 16 || places.is_empty() {
        bytes.push(u8::try_from(dice.below(256)).unwrap());
        let at = dice.below(bytes.len());
        bytes[at] ^= 1 << dice.below(8);
        return bytes;
    }
    for _ in 0..=dice.below(4) {
        let at = match dice.below(3) {
            0 => dice.below(120),
            1 => places[dice.below(places.len())],
            _ => dice.below(bytes.len()),
        };
        let at = at.min(bytes.len().saturating_sub(8));
        match dice.below(4) {
            0 => bytes[at] ^= 1 << dice.below(8),
            1 => bytes[at] = u8::try_from(dice.below(256)).unwrap(),
            2 => {
                let number = number(dice, image.len()).to_be_bytes();
                bytes[at..at + 8].copy_from_slice(&number);
            }
            _ => {
                let number = number(dice, image.len()).to_be_bytes();
                bytes[at..at + 4].copy_from_slice(&number[4..]);
            }
        }
    }
    if dice.below(8) == 0 {
        bytes.truncate(dice.below(bytes.len()));
    }
    bytes
}

fn corpus(target: &FuzzTarget) -> Vec<Vec<u8>> {
    let directory =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target.name);
    let mut paths: Vec<_> =
        std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{}", directory.display());
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn what_was_broken_ends_in_errors_and_nothing_else() {
    let wanted = std::env::var("HOSTILE_MUTATIONS").ok().and_then(|n| n.parse().ok());
    for target in TARGETS {
        for (seed, input) in (1u64..).zip(corpus(target)) {
            (target.run)(&input);
            assert!(input.len() <= target.longest, "{}: {} bytes", target.name, input.len());
            let (places, mut dice) = (places(&input), Dice(seed));
            for _ in 0..wanted.unwrap_or(MUTATIONS) {
                (target.run)(&mutate(&input, &places, &mut dice));
            }
        }
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let most: u64 = most.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(most << 10 < MEMORY, "{most} KiB");
}

#[test]
fn every_format_and_every_corpus_has_a_target() {
    for format in formats::formats().iter().filter(|format| !format.is_plain) {
        assert!(hostile::target(format.word).is_some(), "{}", format.word);
    }
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for entry in std::fs::read_dir(corpora).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(hostile::target(&name).is_some(), "{name}");
    }
}
