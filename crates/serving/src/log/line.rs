//! One line of the log, and its formats: text for people, or a JSON object for programs.

use std::time::SystemTime;

use device::timestamp;
use serde_json::json;

use super::{Severity, voice};

/// How the lines of a log are written.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LogFormat {
    /// Words with spaces between.
    #[default]
    Text,
    /// An object with `time`, `level`, `peer`, `export` and `message`; `null` stands for what is
    /// missing.
    Json,
}

/// One line.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) time: SystemTime,
    pub(super) level: Severity,
    /// The client's address.
    pub(super) peer: Option<String>,
    /// As much of its name as [`voice::start_of`] leaves.
    pub(super) export: Option<String>,
    /// What happened; without control characters.
    pub(super) what: String,
}

impl Line {
    /// A line of the log itself.
    pub(super) fn own(level: Severity, what: String) -> Self {
        Self { time: SystemTime::now(), level, peer: None, export: None, what }
    }

    /// Bytes that it takes in the queue.
    pub(super) fn len(&self) -> usize {
        let of = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.what.len() + of(&self.peer) + of(&self.export)
    }

    /// Without the time: `LEVEL PEER EXPORT: WHAT`.
    pub(super) fn said(&self) -> String {
        let Self { level, what, .. } = self;
        let peer = self.peer.as_deref().unwrap_or("-");
        match &self.export {
            Some(export) => format!("{level} {peer} {}: {what}", voice::quoted(export)),
            None => format!("{level} {peer} -: {what}"),
        }
    }

    /// With the time.
    pub(super) fn timed(&self) -> String {
        format!("{} {}", timestamp(self.time), self.said())
    }

    /// As a JSON object, with the time as RFC 3339 has it.
    pub(super) fn json(&self) -> String {
        let Self { level, peer, export, what, .. } = self;
        let time = timestamp(self.time).replace(' ', "T") + "Z";
        let level = level.to_string();
        let export = export.as_deref().map(voice::shortened);
        json!({ "time": time, "level": level, "peer": peer, "export": export, "message": what })
            .to_string()
    }
}
