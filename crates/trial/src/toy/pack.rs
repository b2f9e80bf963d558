//! Runs of equal bytes: a length of two bytes, little end first, and the byte.

/// `bytes` in runs, if that is at most half as long.
pub(super) fn pack(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut packed = Vec::new();
    let mut rest = bytes;
    while let Some(byte) = rest.first() {
        let n = rest.iter().position(|b| b != byte).unwrap_or(rest.len());
        let run = u16::try_from(n).unwrap_or(u16::MAX);
        packed.extend(run.to_le_bytes());
        packed.push(*byte);
        if packed.len() > bytes.len() / 2 {
            return None;
        }
        rest = &rest[usize::from(run)..];
    }
    Some(packed)
}

/// What was packed, if that is `len` bytes.
pub(super) fn unpack(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len);
    for run in packed.chunks(3) {
        let [low, high, byte] = *run else { return None };
        let n = usize::from(u16::from_le_bytes([low, high]));
        if n > len - bytes.len() {
            return None;
        }
        bytes.resize(bytes.len() + n, byte);
    }
    (bytes.len() == len).then_some(bytes)
}
