//! `copy --plan`: what the copy would do, and about how long it would read. Nothing is changed.

use std::process::ExitCode;

use device::format_size;
use runtime::Context;
use serde_json::{Value, json};
use transfer::job::{CopyJob, CopyOutline, FoundTarget};

use super::CopyRequest;
use super::front::Telling;
use crate::failure::ExitResult;
use crate::output::{self, VERSION};
use crate::progress::{Counting, Display};
use crate::sandbox::Sandbox;

/// How the plan is printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PlanForm {
    Text,
    Json,
}

/// Looks at both ends, and prints what the copy would do.
pub(super) fn show(work: &CopyRequest, form: PlanForm) -> ExitResult {
    let display = Display::new(work.show, Counting::Data);
    let context = Context::default().with_patience(work.patience);
    let job = CopyJob { digest: None, ..work.job.clone() };
    let sandbox = Sandbox::enter(work.sandbox, &job.reach_of_outline())?;
    let front = Telling { work, display: &display };
    let outlined = job.outline(&context, &front)?;
    sandbox.shut()?;
    let outline = outlined.look()?;
    context.control.end();
    output::finish(|out| {
        match form {
            PlanForm::Text => write!(out, "{}", text(work, &outline))?,
            PlanForm::Json => writeln!(out, "{}", value(work, &outline))?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn text(work: &CopyRequest, outline: &CopyOutline) -> String {
    let source = work.sources.iter().map(|source| source.disk.to_string()).collect::<Vec<_>>();
    let what = match outline.size {
        None => "a stream of unknown length".to_owned(),
        Some(size) => format_size(size),
    };
    let mut lines = vec![format!("from     {}, {what}", source.join(" "))];
    let there = match outline.found {
        FoundTarget::Nothing => "does not exist, and would be created",
        FoundTarget::Disk => "exists, and would be overwritten",
        FoundTarget::Stream => "a stream, written in order",
        FoundTarget::Elsewhere => "would be overwritten",
    };
    lines.push(format!("to       {}: {there}", work.job.target));
    if outline.size.is_some() {
        let CopyOutline { data, stretches, zeroes, .. } = *outline;
        let (data, zeroes) = (format_size(data), format_size(zeroes));
        let stretches = match stretches {
            1 => "one stretch".to_owned(),
            n => format!("{n} stretches"),
        };
        lines.push(format!("data     {data} in {stretches}; {zeroes} of holes cost nothing"));
    }
    if outline.durable > 0 {
        lines.push(format!("journal  {} already copied", format_size(outline.durable)));
    }
    if outline.compared > 0 {
        let CopyOutline { compared, equal, .. } = *outline;
        lines.push(format!("equal    at {equal} of {compared} compared places"));
    }
    if let Some((seconds, rate)) = reading(outline) {
        let (read, rate) = (format_size(outline.read.0), format_size(rate));
        lines.push(format!("time     {seconds:.1} s to read, at {rate}/s as measured over {read}"));
    }
    lines.push("Nothing was changed.\n".to_owned());
    lines.join("\n")
}

fn value(work: &CopyRequest, outline: &CopyOutline) -> Value {
    let sources: Vec<_> = work.sources.iter().map(|source| source.disk.to_string()).collect();
    let CopyOutline { size, data, stretches, zeroes, durable, found, compared, equal, .. } =
        *outline;
    let reading = reading(outline);
    json!({
        "version": VERSION,
        "sources": sources,
        "target": work.job.target.to_string(),
        "target-exists": found != FoundTarget::Nothing,
        "size": size,
        "data": size.map(|_| data),
        "stretches": size.map(|_| stretches),
        "zeroes": size.map(|_| zeroes),
        "durable": durable,
        "compared": compared,
        "equal": equal,
        "seconds-to-read": reading.map(|(seconds, _)| seconds),
        "bytes-per-second": reading.map(|(_, rate)| rate),
    })
}

/// How long the data takes to be read by one reader as it was looked at, and how many bytes a
/// second that is.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate"
)]
fn reading(outline: &CopyOutline) -> Option<(f64, u64)> {
    let (read, took) = outline.read;
    let rate = (read as f64 / took.as_secs_f64().max(1e-9)).max(1.0);
    (read > 0).then(|| (outline.data as f64 / rate, rate as u64))
}
