//! Metrics of a running server, as text: for people (SIGUSR1) and in OpenMetrics.
//!
//! Requests are counted where they are run ([`tally`]); everything else is collected on demand.

pub mod endpoint;
mod process;
mod tally;
mod text;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use device::Result;
use runtime::{Gauge, Mutex};

use crate::exports::{Export, HeldExport};
use crate::hub::Hub;
use crate::present::ClientStatus;
pub use tally::{Answered, Tally};
use text::Text;

/// Exports with counts of their own; beyond that, they count together.
const EXPORTS: usize = 1000;
/// Their common name.
const OTHERS: &str = "(others)";
/// Sets of counters over all exports: the more exports there are, the fewer threads have sets of
/// their own. Clients may invent names, where names choose the disk, and each set takes 6 KiB.
const SETS: usize = 1024;

/// Why a connection was refused or closed by the server.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Reason {
    /// There are too many, or too many of one address.
    Full,
    /// See `Full`.
    FullOfAddress,
    /// Its handshake took too long, it was idle for too long, or it stopped moving bytes.
    Handshake,
    /// See `Handshake`.
    Idle,
    /// See `Handshake`.
    Slow,
    /// It broke the protocol, or TLS failed.
    Protocol,
    /// See `Protocol`.
    Tls,
}

impl Reason {
    fn name(self) -> &'static str {
        match self {
            Self::Full => "connections",
            Self::FullOfAddress => "connections_of_address",
            Self::Handshake => "handshake",
            Self::Idle => "idle",
            Self::Slow => "slow",
            Self::Protocol => "protocol",
            Self::Tls => "tls",
        }
    }
}

/// The counters of a server.
#[derive(Debug)]
pub struct Metrics {
    /// Threads that count often.
    threads: usize,
    exports: Mutex<BTreeMap<String, Arc<Tally>>>,
    closed: Mutex<BTreeMap<Reason, u64>>,
}

impl Metrics {
    /// For this many threads that serve clients.
    pub(crate) fn new(serving: usize) -> Self {
        // Threads that wait for disks count too, though seldom.
        let threads = (2 * serving).clamp(4, 64);
        Self { threads, exports: Mutex::default(), closed: Mutex::default() }
    }

    /// The counts of an export.
    pub fn of(&self, export: &str) -> Arc<Tally> {
        let mut exports = self.exports.lock();
        let known = exports.contains_key(export) || exports.len() < EXPORTS;
        let name = if known { export } else { OTHERS };
        if let Some(tally) = exports.get(name) {
            return tally.clone();
        }
        let most = (SETS / (exports.len() + 1)).max(1);
        let tally = Arc::new(Tally::new(self.threads.min(most)));
        exports.insert(name.to_owned(), tally.clone());
        tally
    }

    /// A connection was refused or closed.
    pub fn closed(&self, reason: Reason) {
        *self.closed.lock().entry(reason).or_default() += 1;
    }
}

/// A handle on a running server. It keeps nothing of it alive.
#[derive(Clone, Debug)]
pub struct Live(Weak<Hub>);

impl Live {
    /// Of what these front ends share.
    #[must_use]
    pub fn of(hub: &Arc<Hub>) -> Self {
        Self(Arc::downgrade(hub))
    }

    /// All metrics, in OpenMetrics 1.0; `more` comes from the disks of the program.
    #[must_use]
    pub fn open_metrics(&self, more: &[Gauge]) -> String {
        let mut text = Text::new();
        if let Some(hub) = self.0.upgrade() {
            connections(&hub, &mut text);
            requests(&hub, &mut text);
            memory(&hub, &mut text);
        }
        // A gauge, as others have it: readers of the older text format know no other word for it.
        text.family("diskferry_build_info", "gauge", "The program");
        text.sample("diskferry_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
        process::tell(&mut text);
        for measure in more {
            text.family(measure.name, "gauge", measure.help);
            text.sample(measure.name, &[], measure.value);
        }
        text.end()
    }

    /// The clients that are connected.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientStatus> {
        self.0.upgrade().map_or_else(Vec::new, |hub| hub.present.list())
    }

    /// Sends the client of this number away: it gets the replies that it is owed, and no more.
    /// `None` if it is not there.
    ///
    /// # Errors
    /// It is of a kind that is not sent away.
    #[must_use]
    pub fn dismiss(&self, number: u64) -> Option<Result<()>> {
        self.0.upgrade()?.present.dismiss(number)
    }

    /// The export of exactly this name.
    pub(crate) fn export(&self, name: &str) -> Option<Arc<HeldExport>> {
        self.0.upgrade()?.exports.list().into_iter().find(|export| export.name == name)
    }

    /// Requests of an export that have begun and are not answered.
    pub(crate) fn in_flight(&self, name: &str) -> u64 {
        let Some(hub) = self.0.upgrade() else { return 0 };
        let sums = hub.metrics.of(name).sums().into_iter();
        sums.map(|(_, sum)| sum.requests.saturating_sub(sum.answered)).sum()
    }

    /// Serves an export from now on. Returns false if the name is taken, or the server has ended.
    #[must_use]
    pub fn add(&self, export: Export) -> bool {
        self.0.upgrade().is_some_and(|hub| hub.exports.add(export))
    }

    /// Names the export for clients that ask for the empty name. Returns false if there is none of
    /// that name.
    pub fn set_default(&self, name: &str) -> bool {
        self.0.upgrade().is_some_and(|hub| hub.exports.set_default(name))
    }

    /// Serves an export no longer, or `instead`, which has the same name, in its place. New clients
    /// do not find it; `now`: those that have it are dismissed, otherwise they keep it. `end` is
    /// called, in a thread of its own, when the last of them has left. Returns how many clients
    /// have it; `None`: there is none of that name.
    pub fn withdraw(
        &self,
        name: &str,
        (instead, now): (Option<Export>, bool),
        end: impl FnOnce() + Send + 'static,
    ) -> Option<usize> {
        let hub = self.0.upgrade()?;
        let gone = hub.exports.withdraw(name, instead, end)?;
        Some(if now { hub.present.dismiss_all(&gone) } else { hub.present.count(&gone) })
    }

    /// The same in short, in lines for people.
    #[must_use]
    pub fn lines(&self, more: &[Gauge]) -> Vec<String> {
        let Some(hub) = self.0.upgrade() else { return Vec::new() };
        let open = hub.present.number();
        let accepted = hub.clients_so_far();
        let (used, limit) = hub.budget.used_of();
        let mut lines = vec![format!(
            "{open} clients, {accepted} so far; {used} bytes of requests in flight, of {limit}"
        )];
        let limits = hub.limits();
        lines.extend(limits.iter().map(|(option, value)| format!("--{option}: {value}")));
        for (reason, number) in &*hub.metrics.closed.lock() {
            lines.push(format!("refused or closed ({}): {number}", reason.name()));
        }
        for (name, tally) in &*hub.metrics.exports.lock() {
            for (command, sum) in tally.sums().iter().filter(|(_, sum)| sum.requests > 0) {
                let (half, most) = (sum.percentile(50) * 1e6, sum.percentile(99) * 1e6);
                let under_way = sum.requests.saturating_sub(sum.answered);
                lines.push(format!(
                    "export \"{name}\": {command}: {} requests, {} bytes, {under_way} in flight, half \
                     within {half:.0} µs, 99 of 100 within {most:.0} µs",
                    sum.requests, sum.bytes
                ));
            }
            for (code, number) in tally.errors() {
                lines.push(format!("export \"{name}\": {code}: {number}"));
            }
        }
        lines.extend(more.iter().map(|m| format!("{}: {}", m.help, m.value)));
        lines
    }
}

fn connections(hub: &Hub, text: &mut Text) {
    text.family("diskferry_connections", "gauge", "Clients connected now");
    text.sample("diskferry_connections", &[], hub.present.number() as u64);
    text.family("diskferry_connections_accepted", "counter", "Clients so far");
    let accepted = hub.clients_so_far();
    text.sample("diskferry_connections_accepted_total", &[], accepted);
    let name = "diskferry_connections_closed";
    text.family(name, "counter", "Clients refused or closed by the server");
    for (reason, number) in &*hub.metrics.closed.lock() {
        let name = "diskferry_connections_closed_total";
        text.sample(name, &[("reason", reason.name())], *number);
    }
    text.family("diskferry_limit", "gauge", "Limits set by options, in the units of the options");
    for (option, value) in &hub.limits() {
        text.sample("diskferry_limit", &[("option", option)], value);
    }
}

/// The labels of counters by command.
fn labels<'a>(export: &'a str, command: &'a str) -> [(&'static str, &'a str); 2] {
    [("export", export), ("command", command)]
}

fn requests(hub: &Hub, text: &mut Text) {
    let exports = hub.metrics.exports.lock().clone();
    let all: Vec<_> = exports
        .iter()
        .flat_map(|(name, tally)| {
            let used = tally.sums().into_iter().filter(|(_, sum)| sum.requests > 0);
            used.map(move |(command, sum)| (name.as_str(), command, sum))
        })
        .collect();
    text.family("diskferry_requests", "counter", "Requests of clients");
    for (export, command, sum) in &all {
        text.sample("diskferry_requests_total", &labels(export, command), sum.requests);
    }
    text.family("diskferry_request_bytes", "counter", "Bytes requested or sent");
    for (export, command, sum) in &all {
        text.sample("diskferry_request_bytes_total", &labels(export, command), sum.bytes);
    }
    text.family("diskferry_requests_in_flight", "gauge", "Requests in flight");
    for (export, command, sum) in &all {
        let under_way = sum.requests.saturating_sub(sum.answered);
        text.sample("diskferry_requests_in_flight", &labels(export, command), under_way);
    }
    let name = "diskferry_request_seconds";
    text.family(name, "histogram", "Time from the receipt of a request to its reply");
    for (export, command, sum) in &all {
        let bounds = sum.histogram().map(|(bound, count)| (bound.to_string(), count));
        for (bound, count) in bounds.chain([("+Inf".to_owned(), sum.answered)]) {
            let labels = [("export", *export), ("command", *command), ("le", &*bound)];
            text.sample("diskferry_request_seconds_bucket", &labels, count);
        }
        let labels = labels(export, command);
        text.sample("diskferry_request_seconds_count", &labels, sum.answered);
        text.sample("diskferry_request_seconds_sum", &labels, sum.seconds);
    }
    text.family("diskferry_errors", "counter", "Requests answered with an error");
    for (name, tally) in &exports {
        for (code, number) in tally.errors() {
            let labels = [("export", name.as_str()), ("error", code)];
            text.sample("diskferry_errors_total", &labels, number);
        }
    }
}

fn memory(hub: &Hub, text: &mut Text) {
    let (used, limit) = hub.budget.used_of();
    text.family("diskferry_memory_bytes", "gauge", "Bytes of requests in flight, of all clients");
    text.sample("diskferry_memory_bytes", &[], used);
    text.family("diskferry_memory_limit_bytes", "gauge", "Limit of bytes in flight");
    text.sample("diskferry_memory_limit_bytes", &[], limit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_clients_invent_do_not_take_memory_for_each_thread() {
        let metrics = Metrics::new(64);
        let name = |n: usize| n.to_string();
        let all: usize = (0..2 * EXPORTS).map(|n| metrics.of(&name(n)).sets()).sum();
        assert_eq!(metrics.exports.lock().len(), EXPORTS + 1);
        assert_eq!(metrics.of("0").sets(), 64);
        let kept: usize = metrics.exports.lock().values().map(|tally| tally.sets()).sum();
        assert!(kept < 8 * SETS && all > kept, "{kept}");
    }
}
