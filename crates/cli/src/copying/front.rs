//! What a job tells the user, and what the user's words allow.

use device::{Edge, Result};
use disk::Opened;
use runtime::Context;
use transfer::job::JobFront;

use super::CopyRequest;
use crate::progress::Display;

pub(super) struct Telling<'a> {
    pub(super) work: &'a CopyRequest,
    pub(super) display: &'a Display,
}

impl JobFront for Telling<'_> {
    fn opened(&self, index: usize, opened: &Opened) -> Result<()> {
        let Some(source) = self.work.sources.get(index) else { return Ok(()) };
        let note = source.interpreted(opened)?;
        if let Some(note) = note.filter(|_| self.work.warns) {
            self.display.note(&note);
        }
        Ok(())
    }

    fn meets(&self, source: Option<&Edge>, context: &Context) -> Result<()> {
        let warning = self.work.promise.check(&self.work.job.target, source, context)?;
        if let Some(warning) = warning {
            self.display.warn(&warning);
        }
        Ok(())
    }

    fn warn(&self, text: &str) {
        self.display.warn(text);
    }
}
