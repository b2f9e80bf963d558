//! What is told of pages in memory.

/// Pages of a range that lie in memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Pages {
    /// How many.
    pub cached: u64,
    /// Their states; only cachestat(2) reports them.
    pub states: Option<PageStates>,
}

/// In what state pages are.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PageStates {
    /// Dirty: changed, and not written back.
    pub dirty: u64,
    /// Being written back.
    pub writeback: u64,
    /// Evicted: they were in memory, and the system reclaimed them.
    pub evicted: u64,
    /// Those of them that were reclaimed recently: reading them again would mean that memory is
    /// short.
    pub recently_evicted: u64,
}
