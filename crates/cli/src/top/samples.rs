//! What the metrics of a server say of its exports, and what was done between two looks.

use std::collections::BTreeMap;

/// What an export has done since the server began.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ExportSample {
    pub(super) requests: u64,
    pub(super) answered: u64,
    /// Bytes.
    pub(super) read: u64,
    pub(super) written: u64,
    pub(super) in_flight: u64,
    pub(super) errors: u64,
    /// Requests that were answered within so many nanoseconds, by that.
    pub(super) within: BTreeMap<u64, u64>,
}

/// All exports by name, and what is not theirs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ServerSample {
    pub(super) exports: BTreeMap<String, ExportSample>,
    pub(super) clients: u64,
    /// Bytes of requests in flight, and how many they may be.
    pub(super) memory: (u64, u64),
}

impl ServerSample {
    /// Reads a text of OpenMetrics. What it does not know is passed over.
    pub(super) fn parse(text: &str) -> Self {
        let mut sample = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((what, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = match what.split_once('{') {
                Some((name, labels)) => (name, labels_of(labels)),
                None => (what, BTreeMap::new()),
            };
            // Sums of seconds are the only ones that are no whole numbers.
            let Ok(value) = value.parse::<u64>() else { continue };
            sample.take(name, &labels, value);
        }
        sample
    }

    fn take(&mut self, name: &str, labels: &BTreeMap<String, String>, value: u64) {
        match name {
            "diskferry_connections" => return self.clients = value,
            "diskferry_memory_bytes" => return self.memory.0 = value,
            "diskferry_memory_limit_bytes" => return self.memory.1 = value,
            _ => {}
        }
        let Some(export) = labels.get("export") else { return };
        let export = self.exports.entry(export.clone()).or_default();
        let command = labels.get("command").map(String::as_str);
        match (name, command) {
            ("diskferry_requests_total", _) => export.requests += value,
            ("diskferry_request_bytes_total", Some("read")) => export.read += value,
            ("diskferry_request_bytes_total", Some("write")) => export.written += value,
            ("diskferry_requests_in_flight", _) => export.in_flight += value,
            ("diskferry_errors_total", _) => export.errors += value,
            ("diskferry_request_seconds_count", _) => export.answered += value,
            ("diskferry_request_seconds_bucket", _) => {
                if let Some(bound) = labels.get("le").and_then(|le| nanoseconds(le)) {
                    *export.within.entry(bound).or_default() += value;
                }
            }
            _ => {}
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time that is shown; as is saturates"
)]
fn nanoseconds(seconds: &str) -> Option<u64> {
    let seconds = seconds.parse::<f64>().ok().filter(|seconds| seconds.is_finite())?;
    Some((seconds * 1e9).round() as u64)
}

impl ExportSample {
    /// What was done since `before`. What is in flight is that of now.
    pub(super) fn since(&self, before: &Self) -> Self {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        let then = |bound: &u64| before.within.get(bound).copied().unwrap_or(0);
        Self {
            requests: less(self.requests, before.requests),
            answered: less(self.answered, before.answered),
            read: less(self.read, before.read),
            written: less(self.written, before.written),
            in_flight: self.in_flight,
            errors: less(self.errors, before.errors),
            within: self
                .within
                .iter()
                .map(|(bound, count)| (*bound, less(*count, then(bound))))
                .collect(),
        }
    }

    /// Within how many nanoseconds this many of a hundred requests were answered; `None`: none was,
    /// or it took longer than is told apart.
    pub(super) fn percentile(&self, of_hundred: u64) -> Option<u64> {
        let wanted = self.answered.checked_mul(of_hundred)?.div_ceil(100);
        if wanted == 0 {
            return None;
        }
        self.within.iter().find(|(_, count)| **count >= wanted).map(|(bound, _)| *bound)
    }
}

/// The labels behind `{`.
fn labels_of(text: &str) -> BTreeMap<String, String> {
    let (mut labels, mut rest) = (BTreeMap::new(), text);
    while let Some((name, value)) = rest.split_once("=\"") {
        let (mut word, mut chars) = (String::new(), value.char_indices());
        let mut end = value.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    end = at + 1;
                    break;
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => word.push('\n'),
                    Some((_, other)) => word.push(other),
                    None => break,
                },
                other => word.push(other),
            }
        }
        labels.insert(name.trim_start_matches(',').to_owned(), word);
        rest = value.get(end..).unwrap_or_default();
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = r#"# TYPE diskferry_requests counter
diskferry_connections 3
diskferry_memory_bytes 100
diskferry_memory_limit_bytes 1000
diskferry_requests_total{export="a\"\\,x=",command="read"} 10
diskferry_requests_total{export="a\"\\,x=",command="write"} 5
diskferry_request_bytes_total{export="a\"\\,x=",command="read"} 4096
diskferry_request_seconds_bucket{export="a\"\\,x=",command="read",le="0.001"} 8
diskferry_request_seconds_bucket{export="a\"\\,x=",command="read",le="+Inf"} 10
diskferry_request_seconds_count{export="a\"\\,x=",command="read"} 10
diskferry_request_seconds_sum{export="a\"\\,x=",command="read"} 0.125
nonsense{
nonsense{x="
"#;

    #[test]
    fn a_text_is_read_whatever_names_are_like() {
        let sample = ServerSample::parse(BEFORE);
        assert_eq!((sample.clients, sample.memory), (3, (100, 1000)));
        let export = &sample.exports["a\"\\,x="];
        assert_eq!((export.requests, export.read, export.answered), (15, 4096, 10));
        assert_eq!((export.percentile(50), export.percentile(99)), (Some(1_000_000), None));
    }

    #[test]
    fn between_two_looks_only_what_is_new_counts() {
        let before = ServerSample::parse(BEFORE);
        let later = BEFORE.replace("} 8", "} 108").replace("} 10\n", "} 110\n");
        let after = ServerSample::parse(&later);
        let [old, new] = [&before, &after].map(|sample| &sample.exports["a\"\\,x="]);
        let done = new.since(old);
        assert_eq!((done.requests, done.read, done.percentile(99)), (100, 0, Some(1_000_000)));
        // A server that was started anew has done less than before.
        assert_eq!(old.since(new).requests, 0);
    }
}
