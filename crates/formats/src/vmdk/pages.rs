//! Grain directories and tables as they are read: in pages, of which some are kept, under one budget
//! for all extents of an image.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::{Edge, Result};

use crate::kit;

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// Pages that are kept: 16 MiB.
const MOST: usize = 4096;

/// What a page is known by: the extent, and its number in the extent's file.
type Key = (usize, u64);

/// Pages that were read.
#[derive(Default)]
pub(super) struct Pages(Mutex<State>);

#[derive(Default)]
struct State {
    kept: HashMap<Key, Kept>,
    /// Who leaves next, unless it was used since it came here.
    turns: VecDeque<Key>,
}

struct Kept {
    page: Arc<[u8]>,
    used: bool,
}

impl Pages {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The page with the number `number` of a file, which may end in it; `None` if it would have to be
    /// waited for, and `may_wait` is false.
    pub(super) async fn page(
        &self,
        file: &Edge,
        (extent, number): Key,
        may_wait: bool,
    ) -> Result<Option<Arc<[u8]>>> {
        if let Some(kept) = self.lock().kept.get_mut(&(extent, number)) {
            kept.used = true;
            return Ok(Some(kept.page.clone()));
        }
        let at = number.saturating_mul(PAGE);
        let len = file.info().size.saturating_sub(at).min(PAGE);
        let len = usize::try_from(len).unwrap_or(0);
        let Some(bytes) = kit::read(file, at, len, may_wait).await? else { return Ok(None) };
        let page: Arc<[u8]> = Arc::from(&*bytes);
        self.lock().keep((extent, number), page.clone());
        Ok(Some(page))
    }
}

impl State {
    fn keep(&mut self, key: Key, page: Arc<[u8]>) {
        if self.kept.insert(key, Kept { page, used: false }).is_some() {
            return;
        }
        self.turns.push_back(key);
        while self.kept.len() > MOST
            && let Some(key) = self.turns.pop_front()
        {
            let used = self.kept.get_mut(&key).map(|kept| std::mem::take(&mut kept.used));
            if used == Some(true) {
                self.turns.push_back(key);
            } else {
                self.kept.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_the_budget_and_what_is_used_stays() {
        let mut state = State::default();
        let page: Arc<[u8]> = Arc::from([0; 4096].as_slice());
        for number in 0..3 * MOST as u64 {
            state.keep((0, number), page.clone());
            if let Some(first) = state.kept.get_mut(&(0, 0)) {
                first.used = true;
            }
        }
        assert_eq!((state.kept.len(), state.turns.len()), (MOST, MOST));
        assert!(state.kept.contains_key(&(0, 0)) && !state.kept.contains_key(&(0, 1)));
    }
}
