//! CRC-32C, the checksum of all VHDX structures, and of ext4's.

/// The polynomial, with its lowest bit first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

static TABLE: [u32; 256] = table();

#[expect(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "the index of a table of 256, when this is compiled"
)]
const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

/// The sum of what came before, and of `bytes` behind it; it begins with all bits set, and is not
/// inverted at the end.
#[must_use]
pub fn crc32c(before: u32, bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        let [low, ..] = (crc ^ u32::from(*byte)).to_le_bytes();
        crc >> 8 ^ TABLE.get(usize::from(low)).copied().unwrap_or(0)
    };
    bytes.iter().fold(before, step)
}

/// The sum of `bytes`, of which the four at `at` count as zeroes.
pub(super) fn crc(bytes: &[u8], at: usize) -> u32 {
    let (front, rest) = bytes.split_at(at.min(bytes.len()));
    let (own, back) = rest.split_at(rest.len().min(4));
    let zeroes = [0; 4];
    let sum = crc32c(u32::MAX, front);
    !crc32c(crc32c(sum, zeroes.get(..own.len()).unwrap_or_default()), back)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_the_standard() {
        assert_eq!(crc(b"123456789", 100), 0xe306_9283);
    }
}
