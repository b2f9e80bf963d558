//! A long image from a short input: pieces of it, and zeroes between them. So a fuzzer changes
//! data, and not one of four million zeroes.
//!
//! A piece is its place in pages of 4 KiB and its length in bytes, each as two bytes, little end
//! first, and then the bytes.

/// The longest image, in bytes.
const MOST: usize = 8 << 20;
const PAGE: usize = 4096;

/// The image that `bytes` stand for; what does not fit is left out.
pub(crate) fn whole(bytes: &[u8]) -> Vec<u8> {
    let mut image = Vec::new();
    let mut rest = bytes;
    while let Some(([a, b, c, d], after)) = rest.split_first_chunk() {
        let at = usize::from(u16::from_le_bytes([*a, *b])) * PAGE;
        let len = usize::from(u16::from_le_bytes([*c, *d])).min(after.len());
        let (piece, after) = after.split_at(len);
        rest = after;
        let end = at + len;
        if end > MOST {
            continue;
        }
        if image.len() < end {
            image.resize(end, 0);
        }
        image[at..end].copy_from_slice(piece);
    }
    image
}

#[cfg(test)]
mod tests {
    use super::whole;

    #[test]
    fn pieces_lie_where_they_say() {
        let image = whole(&[1, 0, 2, 0, 7, 8, 0, 0, 1, 0, 9, 0xff, 0xff, 1, 0, 1, 2, 0, 0, 0]);
        assert_eq!(image.len(), 8192);
        assert_eq!((image[0], &image[4096..4098]), (9, &[7, 8][..]));
    }
}
