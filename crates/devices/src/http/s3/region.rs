//! Regions of AWS, which become part of a host's name.

/// The domain of AWS that a region is in.
pub(super) fn domain(region: &str) -> &'static str {
    if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" }
}

/// Whether a word can be a region: it becomes part of a host's name.
pub(super) fn is_region(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.len() <= 40 && text.bytes().all(plain)
}
