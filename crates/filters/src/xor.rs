//! `xor`: XORs every byte of the disk with a repeating key. This is obfuscation, not encryption.
//!
//! Zeroes below read as the key here, and the key below as zeroes. So no range is known to be zero,
//! zeroes are written as data, and a trim, which may leave anything, is not passed on.

use device::{
    Abilities, Done, Error, Extent, ExtentKind, Filter, Filtered, Operation, Outcome, Over, Params,
    Result, param, values,
};
use runtime::to_usize;

use crate::FilterKind;
use crate::kit::{below, changed};

pub(crate) const KIND: FilterKind = FilterKind {
    word: "xor",
    summary: "XORs all data with a repeating key; not encryption",
    keeps_disk: false,
    params: &[
        param("xor", "VALUE", "the key, a number: 0xDEADBEEF"),
        param("xorlen", "N", "bytes of the key, 1 to 8"),
    ],
    example: "serve --filter=xor memory 1M xor=0xDEADBEEF xorlen=4 --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, _| Ok(Filtered::device(Xor(Key::read(params)?), below)),
    ..FilterKind::PLAIN
};

/// The key: the last `len` bytes.
#[derive(Clone, Copy, Debug)]
struct Key {
    bytes: [u8; 8],
    /// 1 to 8.
    len: usize,
}

impl Key {
    fn read(params: &Params) -> Result<Self> {
        let missing = |key: &str, example: &str| {
            Error::invalid(format!("`{key}` is missing; for example {key}={example}"))
        };
        let value = values::number(params, "xor")?.ok_or_else(|| missing("xor", "0xDEADBEEF"))?;
        let len = values::number(params, "xorlen")?.ok_or_else(|| missing("xorlen", "4"))?;
        let len = usize::try_from(len).ok().filter(|len| (1..=8).contains(len));
        let len = len.ok_or_else(|| values::wrong("xorlen", "a key has 1 to 8 bytes"))?;
        Ok(Self { bytes: value.to_be_bytes(), len })
    }

    /// XORs the key into bytes at `offset` of the disk; a second call restores them.
    fn mix(self, bytes: &mut [u8], offset: u64) {
        let key = self.bytes.get(8 - self.len..).unwrap_or_default();
        let skip = to_usize(offset % self.len as u64);
        for (byte, key) in bytes.iter_mut().zip(key.iter().cycle().skip(skip)) {
            *byte ^= key;
        }
    }
}

struct Xor(Key);

impl Filter for Xor {
    fn describe(&self, over: &mut Over) {
        over.info.abilities = Abilities {
            trim: false,
            zero: false,
            fast_zero: false,
            take: false,
            extents: false,
            discards: false,
            ..over.info.abilities
        };
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let (below, key) = (over.below.clone(), self.0);
        match operation {
            Operation::Read { offset, buffer } => below::complete(done, async move {
                let change = |bytes: &mut [u8]| key.mix(bytes, offset);
                changed::read(below, offset, buffer, change).await
            }),
            Operation::Write { offset, data, fua } => below::complete(done, async move {
                let change = |bytes: &mut [u8]| key.mix(bytes, offset);
                changed::write(below, offset, data, fua, change).await
            }),
            Operation::Resolve { offset, len, max: _ } => {
                let all = Extent::new(offset, len, ExtentKind::Data);
                done(Ok(Outcome::Extents(vec![all])));
            }
            // The writes that replace it are XORed.
            Operation::Take { .. } => done(Ok(Outcome::Taken(0))),
            // The edge above writes zeroes.
            Operation::Zero { flags, .. } if flags.fast_only => done(Err(Error::not_fast())),
            Operation::Zero { .. } => done(Err(Error::unsupported("zero"))),
            Operation::Trim { fua: false, .. } => done(Ok(Outcome::Done)),
            Operation::Trim { fua: true, .. } => below.submit(Operation::Flush, done),
            other @ (Operation::Flush | Operation::Prefetch { .. } | Operation::Status { .. }) => {
                below.submit(other, done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::model::Model;
    use device::{BlockSizes, Blocking as _, ZeroFlags};
    use proptest::prelude::*;

    use super::*;
    use crate::kit::tested::{put, simple};

    #[test]
    fn the_key_repeats_from_the_beginning_of_the_disk_whatever_is_asked_for() {
        let model = Arc::new(Model::new(4096));
        let disk = put("xor", simple(model.clone()), &["xor=0x123456", "xorlen=3"]).unwrap();
        model.write_at(&[0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6], 0, false).unwrap();
        let mut shown = [0; 7];
        disk.read(&mut shown, 0).unwrap();
        assert_eq!(shown, [0xb2, 0x95, 0xf4, 0xb1, 0x90, 0xf3, 0xb4]);
        disk.read(&mut shown[..2], 5).unwrap();
        assert_eq!(shown[..2], [0xf3, 0xb4]);
        disk.zero(2, 3, ZeroFlags::default()).unwrap();
        assert_eq!(model.bytes()[..7], [0xa0, 0xa1, 0x56, 0x12, 0x34, 0xa5, 0xa6]);
        let mut map = Vec::new();
        disk.resolve(0, 4096, 9, &mut map).unwrap();
        assert!(map.iter().all(|e| e.kind == ExtentKind::Data), "a hole is not zero here");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn a_disk_that_was_zeroed_is_like_the_model(
            ops in prop::collection::vec(trial::op(), 1..16), blocks in any::<bool>(), len in 1..9u8,
        ) {
            let all = Model::new(1).info().abilities;
            let sizes = BlockSizes { minimum: 512, preferred: 4096, maximum: 8192 };
            let sizes = if blocks { sizes } else { BlockSizes::ANY };
            let model = Arc::new(Model::with(trial::SIZE, all, sizes));
            let words = ["xor=0x123456789abcdef0", &format!("xorlen={len}")];
            let disk = put("xor", simple(model), &words).unwrap();
            disk.zero(0, trial::SIZE as u64, ZeroFlags::default()).unwrap();
            // The device below knows the change better than the test: the range was zeroed before.
            let ops: Vec<_> = ops.into_iter().filter(|op| !matches!(op, trial::Op::Status(..))).collect();
            trial::run_on(&disk, &ops, trial::Trims::AsHint)?;
        }
    }
}
