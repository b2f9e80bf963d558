//! Block status extents and their two encodings: 32-bit (chunk type 5) and 64-bit (type 6).
//!
//! Promises: what is sent keeps the protocol's sums (all extents but the last end before the
//! requested range does) and has at least one extent of a length other than 0; what is received is
//! bounded, makes progress, and never reaches beyond the export.

use crate::codec::{Reader, len32, put_u32, put_u64};
use crate::constants::{CommandFlags, Framing, MAX_STATUS_EXTENTS};
use crate::error::PeerMisbehaved;

/// A run of bytes with one status. Each begins where the one before it ends.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct StatusExtent {
    /// Bytes; never 0 in a reply.
    pub length: u64,
    /// The context's flags (or number).
    pub flags: u64,
}

/// Longest extent sent in 32 bits: a multiple of every legal block size, not the odd 2^32-1.
const MAX_NARROW: u64 = (u32::MAX - 0xffff) as u64;

/// How much of an extent list to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusLimits {
    pub(crate) mode: Framing,
    pub(crate) flags: CommandFlags,
    /// Bytes asked for.
    pub(crate) length: u64,
    /// Most extents.
    pub(crate) extents: usize,
}

/// Appends the payload of a status chunk; returns the bytes of the range it covers. Zero says that
/// there was nothing to send, and `out` is as it was.
pub(crate) fn encode_status(
    limits: StatusLimits,
    context: u32,
    extents: impl IntoIterator<Item = StatusExtent>,
    out: &mut Vec<u8>,
) -> u64 {
    let start = out.len();
    put_u32(out, context);
    let count_at = out.len();
    let wide = limits.mode == Framing::Extended;
    if wide {
        put_u32(out, 0);
    }
    let one = limits.flags.contains(CommandFlags::REQ_ONE);
    let most = if one { 1 } else { limits.extents.clamp(1, MAX_STATUS_EXTENTS) };
    let (mut covered, mut count) = (0_u64, 0_usize);
    for extent in extents.into_iter().filter(|extent| extent.length != 0) {
        let wanted = if one { extent.length.min(limits.length) } else { extent.length };
        let length = if wide { wanted } else { wanted.min(MAX_NARROW) };
        if wide {
            put_u64(out, length);
            put_u64(out, extent.flags);
        } else {
            put_u32(out, u32::try_from(length).unwrap_or(u32::MAX));
            // Flags 0 promise nothing, so they are safe for what 32 bits cannot say.
            put_u32(out, u32::try_from(extent.flags).unwrap_or(0));
        }
        covered = covered.saturating_add(length);
        count += 1;
        // After a cut extent the next would be in the wrong place.
        if length < wanted || covered >= limits.length || count >= most {
            break;
        }
    }
    if covered == 0 {
        out.truncate(start);
    } else if wide && let Some(field) = out.get_mut(count_at..count_at + 4) {
        field.copy_from_slice(&len32(count).to_be_bytes());
    }
    covered
}

/// A status chunk's payload as received: the context and its extents, bounded but not yet fitted
/// to a request.
///
/// # Errors
///
/// The payload breaks a rule; the request it belongs to fails, the stream is still in step.
pub(crate) fn parse_status_payload(
    mode: Framing,
    payload: &[u8],
) -> Result<(u32, Vec<StatusExtent>), PeerMisbehaved> {
    let malformed = PeerMisbehaved::StatusMalformed;
    let mut reader = Reader::new(payload);
    let context = reader.u32().ok_or(malformed)?;
    let wide = mode == Framing::Extended;
    let each = if wide { 16 } else { 8 };
    let told = if wide { Some(reader.u32().ok_or(malformed)?) } else { None };
    let count = reader.len() / each;
    let whole = reader.len().is_multiple_of(each) && count > 0 && count <= MAX_STATUS_EXTENTS;
    if !whole || told.is_some_and(|told| told != len32(count)) {
        return Err(malformed);
    }
    let mut extents = Vec::with_capacity(count);
    while !reader.is_empty() {
        let (length, flags) = if wide {
            (reader.u64().ok_or(malformed)?, reader.u64().ok_or(malformed)?)
        } else {
            let length = reader.u32().ok_or(malformed)?;
            (length.into(), reader.u32().ok_or(malformed)?.into())
        };
        if length == 0 {
            return Err(PeerMisbehaved::ExtentEmpty);
        }
        extents.push(StatusExtent { length, flags });
    }
    Ok((context, extents))
}

/// Fits a received extent list to the request it answers: drops what begins at or after the end of
/// the range, cuts the last extent at the end of the export (or of the range, after REQ_ONE).
/// `room` is the export's size less the request's offset.
pub(crate) fn fit_status(
    extents: &mut Vec<StatusExtent>,
    flags: CommandFlags,
    length: u64,
    room: u64,
) {
    if flags.contains(CommandFlags::REQ_ONE) {
        extents.truncate(1);
    }
    let most = if flags.contains(CommandFlags::REQ_ONE) { length } else { room };
    let mut covered = 0_u64;
    let mut kept = 0;
    for extent in extents.iter_mut() {
        extent.length = extent.length.min(most.saturating_sub(covered));
        if extent.length == 0 {
            break;
        }
        covered += extent.length;
        kept += 1;
        if covered >= length {
            break;
        }
    }
    extents.truncate(kept);
}
