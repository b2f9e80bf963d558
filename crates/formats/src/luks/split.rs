//! The anti-forensic splitter: a key as many stripes, all of which are needed to have it again.

use zeroize::Zeroizing;

use super::hash::Hash;

/// Merges `stripes` (≥ 1) stripes of `len` bytes; those that are missing count as zeroes.
pub(super) fn merge(split: &[u8], len: usize, stripes: usize, hash: Hash) -> Zeroizing<Vec<u8>> {
    let mut key = Zeroizing::new(vec![0; len]);
    for (index, stripe) in split.chunks(len.max(1)).take(stripes).enumerate() {
        mix(&mut key, stripe);
        if index + 1 < stripes {
            diffuse(&mut key, hash);
        }
    }
    key
}

/// Splits `key` into the stripes of `random`, of which the last is written over. `random` is at
/// least one stripe.
pub(super) fn split(key: &[u8], random: &mut [u8], hash: Hash) {
    let Some(before) = random.len().checked_sub(key.len()) else { return };
    let (stripes, last) = random.split_at_mut(before);
    let mut sum = Zeroizing::new(vec![0; key.len()]);
    for stripe in stripes.chunks(key.len().max(1)) {
        mix(&mut sum, stripe);
        diffuse(&mut sum, hash);
    }
    last.copy_from_slice(key);
    mix(last, &sum);
}

fn mix(into: &mut [u8], other: &[u8]) {
    into.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
}

/// Each piece of the length of a digest becomes the digest of its number and itself.
fn diffuse(bytes: &mut [u8], hash: Hash) {
    for (index, piece) in (0_u32..).zip(bytes.chunks_mut(hash.len())) {
        let digest = hash.digest(&[&index.to_be_bytes(), piece]);
        piece.iter_mut().zip(digest.iter()).for_each(|(byte, digest)| *byte = *digest);
    }
}
