//! TLS: from STARTTLS to the first option under it.
//!
//! A handshake computes for a millisecond or more (a signature, a shared secret), and there may be
//! many: so each of its steps runs in the pool, where clients take turns, and a reactor only hands
//! it over. The connection is paused meanwhile.
//!
//! A client that fails to prove its identity is told so, and its connection closed, only after the
//! delay that the library asks for; a timer counts that, and nothing of the client is read
//! meanwhile.

use std::sync::Arc;
use std::time::Instant;

use net::tls::{FailedHandshake, Handshake, HandshakeProgress};
use runtime::{Mutex, WorkPool};
use serving::{Reason, Severity, quoted};
use wire::ServerHandshake;

use super::{Connection, Phase};
use crate::link::Link;

/// A connection on which TLS begins.
#[derive(Debug)]
pub(super) struct Securing {
    step: Step,
    /// The session that continues under it.
    then: Box<ServerHandshake>,
}

/// Its state.
type TlsOutcome = (Handshake, Result<HandshakeProgress, FailedHandshake>);

/// One step of a handshake.
#[derive(Debug)]
enum Step {
    /// Bytes may have come, or there is room.
    Due(Handshake),
    /// The pool has it, and will return it here.
    Away(Arc<Mutex<Option<TlsOutcome>>>),
    /// Between the two.
    Gone,
}

/// Counts as a request that is worked on elsewhere, until it is dropped.
struct Busy(Arc<Link>);

impl Busy {
    fn new(link: &Arc<Link>) -> Self {
        link.begin(0);
        Self(link.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.ended(0);
    }
}

impl Step {
    /// Runs the next step of a handshake in the pool.
    fn begin(mut tls: Handshake, link: &Arc<Link>, pool: &WorkPool) -> Self {
        let place = Arc::new(Mutex::new(None));
        let (found, busy) = (place.clone(), Busy::new(link));
        pool.run(move || {
            let result = tls.advance(busy.0.stream());
            *found.lock() = Some((tls, result));
            drop(busy);
        });
        Self::Away(place)
    }
}

/// A client that was refused.
#[derive(Debug)]
pub(super) struct Refused {
    tls: Handshake,
    pub(super) until: Instant,
}

impl Refused {
    /// Logs it.
    pub(super) fn say(&mut self, connection: &Link) {
        self.tls.farewell(connection.stream());
    }
}

impl Connection {
    /// STARTTLS was negotiated: what comes from now on is TLS.
    pub(super) fn start_tls(&mut self) {
        let Phase::Handshake(then) = std::mem::replace(&mut self.phase, Phase::Gone) else {
            return;
        };
        match self.common.terms.now().tls.as_ref().map(net::tls::Acceptor::accept) {
            Some(Ok(tls)) => {
                self.phase = Phase::Securing(Box::new(Securing { step: Step::Due(tls), then }));
            }
            Some(Err(e)) => {
                self.report(Reason::Tls, &e);
                self.finish(false);
            }
            // The policy would have refused it.
            None => self.finish(false),
        }
    }

    /// Continues the TLS handshake, if no step of it runs in the pool. Returns whether there may be
    /// more to do now.
    pub(super) fn secure(&mut self) -> bool {
        let Phase::Securing(securing) = &mut self.phase else { return true };
        let (tls, result) = match std::mem::replace(&mut securing.step, Step::Gone) {
            Step::Due(tls) => {
                self.link.want_room(false);
                securing.step = Step::begin(tls, &self.link, &self.common.computing);
                return true;
            }
            Step::Away(place) => {
                let outcome = place.lock().take();
                let Some(outcome) = outcome else {
                    // It panicked, which has been logged.
                    self.finish(false);
                    return false;
                };
                outcome
            }
            Step::Gone => return false,
        };
        match result {
            Ok(HandshakeProgress::Waits { room }) => {
                securing.step = Step::Due(tls);
                self.link.want_room(room);
                false
            }
            Ok(HandshakeProgress::Done) => {
                self.link.want_room(false);
                let phase = std::mem::replace(&mut self.phase, Phase::Gone);
                if let Phase::Securing(securing) = phase {
                    let mut handshake = securing.then;
                    handshake.tls_established();
                    self.opener.forget();
                    self.phase = Phase::Handshake(handshake);
                }
                self.introduce();
                true
            }
            Err(failed) => {
                self.refuse(tls, &failed);
                false
            }
        }
    }

    /// Logs the client's identity.
    fn introduce(&self) {
        let stream = self.link.stream();
        let (identity, agreed) = (stream.identity().unwrap_or_default(), stream.agreed());
        let agreed = agreed.unwrap_or_default();
        match identity.user.as_ref().or(identity.subject.as_ref()) {
            Some(name) => {
                self.voice.event(Severity::Info, format_args!("{agreed}: {}", quoted(name)));
            }
            None => self.voice.event(Severity::Info, format_args!("{agreed}")),
        }
    }

    fn refuse(&mut self, tls: Handshake, failed: &FailedHandshake) {
        self.report(Reason::Tls, &failed.why);
        self.link.want_room(false);
        let until = Instant::now() + failed.delay;
        let mut refused = Refused { tls, until };
        if failed.delay.is_zero() {
            refused.say(&self.link);
            return self.finish(true);
        }
        self.phase = Phase::Refused(Box::new(refused));
        self.link.pause();
    }
}
