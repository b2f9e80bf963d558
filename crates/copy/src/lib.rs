//! The copy engine: plan, lanes, zero policy, progress.
