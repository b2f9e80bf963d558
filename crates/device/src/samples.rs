//! Where to sample a range that is not read as a whole.

/// First bytes of `steps + 1` pieces of `piece` bytes each in `len` bytes: both ends, and others
/// evenly between, at multiples of `piece`. One piece alone is as long as the range, if that is
/// shorter. `piece` and `steps` are at least 1.
pub fn samples(len: u64, piece: u64, steps: u64) -> impl Iterator<Item = u64> {
    let (piece, steps) = (piece.max(1), steps.max(1));
    let last = len.saturating_sub(piece);
    (0..=steps).map(move |i| {
        let at = u128::from(last) * u128::from(i) / u128::from(steps);
        let at = u64::try_from(at).unwrap_or(last);
        if at < last { at - at % piece } else { last }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_lie_inside_and_at_both_ends() {
        for len in [0, 1, 4095, 4096, 4097, 1 << 20, (1 << 40) + 3, u64::MAX] {
            for steps in [1, 7, 63] {
                let found: Vec<_> = samples(len, 4096, steps).collect();
                assert_eq!(found.len() as u64, steps + 1);
                assert_eq!(found.first(), Some(&0));
                assert_eq!(found.last(), Some(&len.saturating_sub(4096)));
                assert!(found.is_sorted(), "{len}");
                assert!(found.iter().rev().skip(1).all(|at| at % 4096 == 0 || *at == len - 4096));
            }
        }
    }
}
