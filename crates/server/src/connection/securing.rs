//! TLS: from the agreement on STARTTLS to the first option under it.
//!
//! A client that is not who it should be is told so, and sees the connection end, only after the
//! delay that the library asks for; a timer counts that, and nothing of the client is read meanwhile.

use std::time::Instant;

use net::tls::{Failed, Handshake, Progress};
use wire::ServerHandshake;

use super::{Connection, Phase};
use crate::log::{Level, quoted};
use crate::metrics::Reason;

/// A connection on which TLS begins.
#[derive(Debug)]
pub(super) struct Securing {
    tls: Handshake,
    /// What goes on under it.
    then: Box<ServerHandshake>,
}

/// A client that was refused.
#[derive(Debug)]
pub(super) struct Refused {
    tls: Handshake,
    pub(super) until: Instant,
}

impl Refused {
    /// Says it.
    pub(super) fn say(&mut self, connection: &crate::link::Link) {
        self.tls.farewell(connection.stream());
    }
}

impl Connection {
    /// STARTTLS was agreed on: what comes from now on is TLS.
    pub(super) fn start_tls(&mut self) {
        let Phase::Handshake(then) = std::mem::replace(&mut self.phase, Phase::Gone) else {
            return;
        };
        match self.common.tls.as_ref().map(net::tls::Acceptor::accept) {
            Some(Ok(tls)) => self.phase = Phase::Securing(Box::new(Securing { tls, then })),
            Some(Err(e)) => {
                self.report(Reason::Tls, &e);
                self.finish(false);
            }
            // The policy would not have agreed.
            None => self.finish(false),
        }
    }

    /// Goes on with the handshake of TLS. The answer: whether there may be more to do now.
    pub(super) fn secure(&mut self) -> bool {
        let Phase::Securing(securing) = &mut self.phase else { return true };
        match securing.tls.advance(self.link.stream()) {
            Ok(Progress::Waits { room }) => {
                self.link.want_room(room);
                false
            }
            Ok(Progress::Done) => {
                self.link.want_room(false);
                let phase = std::mem::replace(&mut self.phase, Phase::Gone);
                if let Phase::Securing(securing) = phase {
                    let mut handshake = securing.then;
                    handshake.tls_established();
                    self.door.forget();
                    self.phase = Phase::Handshake(handshake);
                }
                self.introduce();
                true
            }
            Err(failed) => {
                self.refuse(&failed);
                false
            }
        }
    }

    /// Says in the log who it is.
    fn introduce(&self) {
        let stream = self.link.stream();
        let (identity, agreed) = (stream.identity().unwrap_or_default(), stream.agreed());
        let agreed = agreed.unwrap_or_default();
        match identity.user.as_ref().or(identity.subject.as_ref()) {
            Some(name) => {
                self.voice.event(Level::Info, format_args!("{agreed}: {}", quoted(name)));
            }
            None => self.voice.event(Level::Info, format_args!("{agreed}")),
        }
    }

    fn refuse(&mut self, failed: &Failed) {
        self.report(Reason::Tls, &failed.why);
        self.link.want_room(false);
        let phase = std::mem::replace(&mut self.phase, Phase::Gone);
        let Phase::Securing(securing) = phase else { return };
        let until = Instant::now() + failed.delay;
        let mut refused = Refused { tls: securing.tls, until };
        if failed.delay.is_zero() {
            refused.say(&self.link);
            return self.finish(true);
        }
        self.phase = Phase::Refused(Box::new(refused));
        self.link.pause();
    }
}
