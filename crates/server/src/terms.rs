//! The options of a server, of which some may change while it runs.
//!
//! Limits and TLS settings are looked up where they matter: in a handshake, and about once a second for each
//! connection; never for each request.

use std::sync::{Arc, PoisonError, RwLock};

use crate::server::Options;

/// The options as they are now.
#[derive(Debug)]
pub(crate) struct Terms(RwLock<Arc<Options>>);

impl Terms {
    pub(crate) fn new(options: Options) -> Self {
        Self(RwLock::new(Arc::new(options)))
    }

    /// The options as they are now.
    pub(crate) fn now(&self) -> Arc<Options> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the limits from `new`, and the TLS settings, if it has some; all else stays as it is.
    pub(crate) fn change(&self, new: &Options) {
        let mut now = self.0.write().unwrap_or_else(PoisonError::into_inner);
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
