//! A cache for an image: pages of its grain directories and tables, and grains that were
//! decompressed for a request that wanted less.

use std::sync::Arc;

use device::{Edge, Result};
use runtime::Context;

use crate::kit;
use crate::kit::cache::{Cache, Shelf};

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// The numbers per extent that can be keys.
const NUMBERS: u64 = 1 << 52;

/// The cache of an image.
pub(super) struct Kept {
    pages: Shelf,
    grains: Shelf,
}

/// The key of a page or grain: the extent, and its number there.
type Key = (usize, u64);

/// As one number; `None` if it is too large.
fn number((extent, number): Key) -> Option<u64> {
    let extent = u64::try_from(extent).ok()?.checked_mul(NUMBERS)?;
    (number < NUMBERS).then(|| extent.checked_add(number)).flatten()
}

impl Kept {
    pub(super) fn new(context: &Context) -> Self {
        let cache = Cache::of(context);
        Self { pages: cache.shelf(), grains: cache.shelf() }
    }

    /// Page `number` of a file, which may end in it; `None` if that would have to wait and
    /// `may_wait` is false.
    pub(super) async fn page(
        &self,
        file: &Edge,
        key: Key,
        may_wait: bool,
    ) -> Result<Option<Arc<[u8]>>> {
        let known = number(key);
        if let Some(page) = known.and_then(|known| self.pages.get(known)) {
            return Ok(Some(page));
        }
        let at = key.1.saturating_mul(PAGE);
        let len = file.info().size.saturating_sub(at).min(PAGE);
        let len = usize::try_from(len).unwrap_or(0);
        let Some(bytes) = kit::read(file, at, len, may_wait).await? else { return Ok(None) };
        let page: Arc<[u8]> = Arc::from(&*bytes);
        if let Some(known) = known {
            self.pages.put(known, page.clone());
        }
        Ok(Some(page))
    }

    /// A cached grain.
    pub(super) fn grain(&self, key: Key) -> Option<Arc<[u8]>> {
        self.grains.get(number(key)?)
    }

    /// Caches a grain.
    pub(super) fn keep(&self, key: Key, grain: Arc<[u8]>) {
        if let Some(known) = number(key) {
            self.grains.put(known, grain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_things_are_known_by_one_number() {
        assert_eq!(number((0, 5)), Some(5));
        assert_eq!(number((4095, NUMBERS - 1)), Some(u64::MAX));
        assert_eq!(number((1, 0)), Some(NUMBERS));
        assert_eq!(number((0, NUMBERS)), None);
        assert_eq!(number((4096, 0)), None);
    }
}
