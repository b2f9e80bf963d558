//! The layer over a disk that records what is changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::{
    Admission, Admitted, Arrival, Client, Done, Filter, Operation, Outcome, Over, Passes, Result,
};

use super::LiveBitmaps;

/// A client's view: it keeps the contexts that there were when it came.
pub(super) struct Recorder {
    bitmaps: LiveBitmaps,
    contexts: Vec<(u64, Arc<str>)>,
}

impl Recorder {
    /// For those that come before there are bitmaps.
    pub(super) fn new(bitmaps: LiveBitmaps) -> Self {
        Self { bitmaps, contexts: Vec::new() }
    }
}

impl Filter for Recorder {
    fn describe(&self, over: &mut Over) {
        over.passes = Passes::READS;
        over.info.abilities.take = false;
        over.info.contexts.extend(self.contexts.iter().map(|(_, context)| context.clone()));
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        match operation {
            Operation::Status { context, offset, len, max } => {
                let known = self.contexts.iter().find(|(_, known)| *known == context);
                match known {
                    Some((number, _)) => {
                        let runs = self.bitmaps.status(*number, (offset, len), max);
                        done(runs.map(Outcome::Status));
                    }
                    None => {
                        let below = Operation::Status { context, offset, len, max };
                        over.below.submit(below, done);
                    }
                }
            }
            operation if operation.changes() => {
                let (offset, len) = operation.range().unwrap_or((0, over.info.size));
                let change = self.bitmaps.begin(offset, len);
                let ended: Done = Box::new(move |result| {
                    drop(change);
                    done(result);
                });
                over.below.submit(operation, ended);
            }
            other => over.below.submit(other, done),
        }
    }

    fn write_now(&self, over: &Over, offset: u64, data: &[u8], fua: bool) -> Result<bool> {
        let len = data.len() as u64;
        self.bitmaps.recorded(offset, len, || over.below.write_now(data, offset, fua))
    }

    fn admit(&self, _: &Client, then: Admitted) {
        let bitmaps = self.bitmaps.clone();
        bitmaps.0.clients.fetch_add(1, Ordering::Relaxed);
        let leave = move || {
            bitmaps.0.clients.fetch_sub(1, Ordering::Relaxed);
        };
        then(Ok(Admission::until(leave)));
    }

    fn further_contexts(&self, over: &Over) -> Vec<Arc<str>> {
        let own = self.bitmaps.contexts().into_iter().map(|(_, context)| context);
        own.chain(over.below.device().further_contexts()).collect()
    }

    fn for_client(&self, _: &Over, _: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        let (bitmaps, contexts) = (self.bitmaps.clone(), self.bitmaps.contexts());
        Some(Arc::new(Self { bitmaps, contexts }))
    }
}
