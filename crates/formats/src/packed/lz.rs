//! lzip: members, one after the other, each an LZMA stream between a header and a trailer with its
//! sum and both its lengths. A member is decompressed by itself.

use device::{Edge, Result};
use liblzma::stream::Stream;

use crate::kit::fields::{corrupt, le64, load};

use super::Kind;
use super::index::{Index, SECTIONS_MAX, Section};
use super::xz::{MEMORY, unpack};

/// With the version whose trailers have the length of their member.
pub(super) const MAGIC: [u8; 5] = *b"LZIP\x01";
const HEADER: u64 = 6;
const TRAILER: u64 = 20;
/// No member is shorter: its LZMA stream has ten bytes at least.
const MEMBER_MIN: u64 = HEADER + 10 + TRAILER;

pub(super) const KIND: Kind =
    Kind { start: || unpack("lzip", Stream::new_lzip_decoder(MEMORY, 0), false), index };

/// The members, by their trailers, from the last one on.
fn index(container: &Edge, max: u64) -> Result<Option<Index>> {
    let mut end = container.info().size;
    let mut members = Vec::new();
    loop {
        let (start, len) = member_before(container, end)?;
        members.push((start, end, len));
        end = start;
        if end == 0 {
            break;
        }
        if members.len() > SECTIONS_MAX {
            return Err(corrupt("the lzip file has more members than we keep"));
        }
    }
    let mut index = Index::default();
    for (start, end, len) in members.into_iter().rev() {
        index.push(Section::new(index.size, start, end), len, max)?;
    }
    Ok(Some(index))
}

/// Where the member that ends at `end` starts, and its uncompressed bytes.
fn member_before(container: &Edge, end: u64) -> Result<(u64, u64)> {
    let broken = |why: &str| corrupt(format!("the lzip stream is broken: {why}")).at(end);
    let at = end.checked_sub(TRAILER).ok_or_else(|| broken("it is too short"))?;
    let trailer = load(container, "trailer", at, 20)?;
    let (len, packed) = (le64(&trailer, 4), le64(&trailer, 12));
    let start = end.checked_sub(packed).filter(|_| packed >= MEMBER_MIN);
    let start = start.ok_or_else(|| broken("a member has no trailer, or something follows it"))?;
    if !load(container, "header", start, 6)?.starts_with(&MAGIC) {
        return Err(broken("a member does not begin where its trailer says"));
    }
    Ok((start, len))
}
