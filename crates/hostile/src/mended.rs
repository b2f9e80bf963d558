//! Repairs the checksums of images: no fuzzer finds a checksum by luck, and there is more to break
//! after it.

/// CRC-32 with the lowest bit first, as GPT has it.
const IEEE: u32 = 0xedb8_8320;
/// CRC-32C, as VHDX has it.
const CASTAGNOLI: u32 = 0x82f6_3b78;

/// The same image with right checksums, if its format has any and they are wrong.
pub(crate) fn image(format: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut mended = bytes.to_vec();
    match format {
        "vhdx" => vhdx(&mut mended),
        "vpc" => vpc(&mut mended),
        "luks" => luks(&mut mended),
        _ => return None,
    }
    (mended != bytes).then_some(mended)
}

/// The same disk with right checksums in its GPT, if it has one and they are wrong.
pub(crate) fn gpt(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut mended = bytes.to_vec();
    let last = (bytes.len() / 512).saturating_sub(1) * 512;
    for at in [512, last] {
        let Some(header) = mended.get(at..at + 92).filter(|h| h.starts_with(b"EFI PART")) else {
            continue;
        };
        let field = |at: usize| usize::try_from(le32(header, at)).unwrap();
        let (list, count, entry) = (field(72), field(80), field(84));
        let start = list.saturating_mul(512);
        let len = count.saturating_mul(entry);
        if let Some(entries) = mended.get(start..start.saturating_add(len)) {
            let sum = crc(IEEE, entries);
            put(&mut mended, at + 88, sum);
        }
        put(&mut mended, at + 16, 0);
        let len = usize::try_from(le32(&mended, at + 12)).unwrap();
        if let Some(header) = mended.get(at..at.saturating_add(len.min(512))) {
            let sum = crc(IEEE, header);
            put(&mut mended, at + 16, sum);
        }
    }
    (mended != bytes).then_some(mended)
}

/// The same archive of tar with right sums in its headers, if any are wrong.
pub(crate) fn tar(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut mended = bytes.to_vec();
    for block in mended.chunks_exact_mut(512).filter(|b| b[257..262] == *b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    (mended != bytes).then_some(mended)
}

/// Both copies of the header of LUKS2, each as long as it says.
fn luks(image: &mut [u8]) {
    use sha2::{Digest, Sha256};
    for at in [0, 16 << 10] {
        let Some(head) = image.get(at..at + 4096) else { continue };
        if head[4..8] != [0xba, 0xbe, 0, 2] {
            continue;
        }
        let len = u64::from_be_bytes(head[8..16].try_into().unwrap());
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if at.checked_add(len).is_none_or(|end| image.len() < end) || len < 4096 {
            continue;
        }
        image[at + 72..at + 104].fill(0);
        image[at + 72..at + 78].copy_from_slice(b"sha256");
        image[at + 448..at + 512].fill(0);
        let sum = Sha256::digest(&image[at..at + len]);
        image[at + 448..at + 480].copy_from_slice(&sum);
    }
}

fn vhdx(image: &mut [u8]) {
    const KIB: usize = 1 << 10;
    let regions =
        [(64 * KIB, 4 * KIB), (128 * KIB, 4 * KIB), (192 * KIB, 64 * KIB), (256 * KIB, 64 * KIB)];
    let entries = (0..image.len() / 4096).map(|i| i * 4096);
    let entries: Vec<_> = entries
        .filter(|at| image[*at..].starts_with(b"loge"))
        .map(|at| (at, usize::try_from(le32(image, at + 8)).unwrap().min(64 * KIB)))
        .collect();
    for (at, len) in regions.into_iter().chain(entries) {
        let is_there =
            image.get(at..at.saturating_add(len)).is_some_and(|b| b.len() > 8 && b[..4] != [0; 4]);
        if is_there {
            put(image, at + 4, 0);
            let sum = crc(CASTAGNOLI, &image[at..at + len]);
            put(image, at + 4, sum);
        }
    }
}

fn vpc(image: &mut [u8]) {
    let footers = (0..image.len() / 512).map(|i| i * 512);
    let starts: Vec<_> = footers.chain([image.len().saturating_sub(512)]).collect();
    for at in starts {
        let (len, field) = match image.get(at..at + 8) {
            Some(b"conectix") => (512, 64),
            Some(b"cxsparse") => (1024, 36),
            _ => continue,
        };
        if at + len > image.len() {
            continue;
        }
        put(image, at + field, 0);
        let sum =
            image[at..at + len].iter().fold(0_u32, |sum, byte| sum.wrapping_add((*byte).into()));
        put(image, at + field, (!sum).swap_bytes());
    }
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).unwrap_or_default())
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(field) = bytes.get_mut(at..at + 4) {
        field.copy_from_slice(&value.to_le_bytes());
    }
}

fn crc(polynomial: u32, bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (polynomial & (crc & 1).wrapping_neg())
        })
    };
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_are_those_of_the_standards() {
        assert_eq!(crc(IEEE, b"123456789"), 0xcbf4_3926);
        assert_eq!(crc(CASTAGNOLI, b"123456789"), 0xe306_9283);
    }
}
