//! The options of a server, of which some may change while it runs.
//!
//! Limits and TLS settings are looked up where they matter: in a handshake, and about once a second
//! for each connection; never for each request.

use std::sync::Arc;
use std::time::Duration;

use runtime::RwLock;
use serving::ServerLog;

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is negotiated.
    pub policy: wire::ServerPolicy,
    /// The certificates or keys for TLS, where the policy has TLS.
    pub tls: Option<net::tls::Acceptor>,
    /// Reactors; 0 for one a core.
    pub reactors: usize,
    /// Connections at a time; more are closed at once.
    pub max_connections: usize,
    /// Connections of one address or user at a time; more are closed at once.
    pub max_of_address: Option<usize>,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How long a client that is owed nothing may ask for nothing.
    pub idle_timeout: Option<Duration>,
    /// How long a client may take nothing of what it is owed, once the server stops.
    pub stop_timeout: Duration,
    /// Requests a second of one connection; more wait.
    pub max_requests: Option<u64>,
    /// Bytes of requests in flight, of all connections.
    pub memory: u64,
    /// The log.
    pub log: ServerLog,
    /// Whether to log which clients come and go.
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: wire::ServerPolicy::default(),
            tls: None,
            reactors: 0,
            max_connections: 1000,
            max_of_address: None,
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: None,
            stop_timeout: Duration::from_secs(5),
            max_requests: None,
            memory: 512 << 20,
            log: ServerLog::default(),
            verbose: false,
        }
    }
}

impl Options {
    /// The values of those options of [`crate::limits`] that are here.
    pub(crate) fn limits(&self) -> Vec<(&'static str, String)> {
        let seconds = |time: Duration| time.as_secs_f64().to_string();
        let all = [
            ("max-connections", Some(self.max_connections.to_string())),
            ("max-connections-per-address", self.max_of_address.map(|n| n.to_string())),
            ("handshake-timeout", Some(seconds(self.handshake_timeout))),
            ("idle-timeout", self.idle_timeout.map(seconds)),
            ("stop-timeout", Some(seconds(self.stop_timeout))),
            ("max-requests", self.max_requests.map(|n| n.to_string())),
            ("memory-limit", Some(self.memory.to_string())),
        ];
        all.into_iter().filter_map(|(option, value)| Some((option, value?))).collect()
    }
}

/// The options as they are now.
#[derive(Debug)]
pub(crate) struct Terms(RwLock<Arc<Options>>);

impl Terms {
    pub(crate) fn new(options: Options) -> Self {
        Self(RwLock::new(Arc::new(options)))
    }

    /// The options as they are now.
    pub(crate) fn now(&self) -> Arc<Options> {
        self.0.read().clone()
    }

    /// Takes the limits from `new`, and the TLS settings, if it has some; all else stays as it is.
    pub(crate) fn change(&self, new: &Options) {
        let mut now = self.0.write();
        // Field by field, so that a new field is not forgotten here.
        let Options {
            policy: _,
            tls,
            reactors: _,
            max_connections,
            max_of_address,
            handshake_timeout,
            idle_timeout,
            stop_timeout,
            max_requests,
            memory,
            log: _,
            verbose: _,
        } = new.clone();
        *now = Arc::new(Options {
            tls: tls.or_else(|| now.tls.clone()),
            max_connections,
            max_of_address,
            handshake_timeout,
            idle_timeout,
            stop_timeout,
            max_requests,
            memory,
            ..(**now).clone()
        });
    }
}
