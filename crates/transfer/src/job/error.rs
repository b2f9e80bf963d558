//! Why a job ended, what helps, and what became of its target: values, from which every front end
//! makes its own words.

use std::fmt;

use copy::Report;
use device::{Error, ErrorKind, Fault, format_size};

/// A job that did not come to its end.
#[derive(Debug)]
pub struct JobError {
    /// The cause.
    pub error: Error,
    /// What the user may do about it.
    pub advice: Option<Advice>,
    /// The target's name, and what became of it; `None`: the job was refused before it came to
    /// that, and nothing was changed.
    pub target: Option<(String, TargetFate)>,
    /// How far the copy came, if it began.
    pub report: Option<Box<Report>>,
}

/// What helps. Each front end has its own words for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Advice {
    /// Let the target be created.
    Create,
    /// Write it although the system uses it ([`super::CopyJob::force`]).
    Force,
    /// Resize the target.
    Resize,
}

/// What became of the target of a job that failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TargetFate {
    /// It has all bytes, durable, and its name.
    Complete,
    /// It has a part of the bytes; the first of the others is at this offset.
    Incomplete {
        /// In bytes.
        gap: u64,
    },
    /// All bytes were written, but it may not keep them, nor have its length.
    InDoubt,
    /// It has all bytes, but its name may not outlast a power failure.
    NameInDoubt,
    /// The job had created it, and removed it.
    Removed,
    /// Nothing was written to it.
    Untouched,
}

impl JobError {
    pub(super) fn advise(mut self, advice: Advice) -> Self {
        self.advice = Some(advice);
        self
    }

    pub(super) fn with_target(mut self, name: &str, fate: TargetFate) -> Self {
        self.target = Some((name.to_owned(), fate));
        self
    }

    /// The user asked for something that cannot be, whatever exists.
    pub(super) fn usage(text: impl Into<String>) -> Self {
        Error::invalid(text).into()
    }

    /// The ends do not fit the job.
    pub(super) fn refused(kind: ErrorKind, text: impl Into<String>) -> Self {
        Error::new(kind, Fault::User, text).into()
    }
}

impl From<Error> for JobError {
    fn from(error: Error) -> Self {
        Self { error, advice: None, target: None, report: None }
    }
}

/// One line, without the advice: the cause, and what became of the target.
impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error, target, report, .. } = self;
        write!(f, "{error}")?;
        let done = |report: &Report| {
            let (done, total) = (format_size(report.done()), format_size(report.total));
            format!("{done} of {total} copied")
        };
        let done = report.as_deref().map(done);
        let Some((name, fate)) = target else { return Ok(()) };
        match (fate, done) {
            (TargetFate::Removed, None) => write!(f, "; {name} was removed"),
            (TargetFate::Removed, Some(done)) => write!(f, "; {name} was removed ({done})"),
            (TargetFate::Untouched, _) => write!(f, "; {name} was not written"),
            (TargetFate::Incomplete { gap }, done) => {
                let done = done.unwrap_or_default();
                write!(f, "; {name} is incomplete: {done}, the first gap at {gap}")
            }
            (TargetFate::InDoubt, _) => write!(
                f,
                "; all bytes were written, but {name} may not keep them, nor have its length"
            ),
            (TargetFate::NameInDoubt, _) => {
                f.write_str("; all bytes were copied, but its name may not last")
            }
            (TargetFate::Complete, _) => f.write_str("; all bytes were copied"),
        }
    }
}

impl std::error::Error for JobError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
