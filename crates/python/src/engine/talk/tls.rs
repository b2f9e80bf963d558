//! TLS, when the server has agreed to it.

use net::tls::{Calling, Connector, HandshakeProgress};
use wire::Framing;
use wire::constants::option;

use super::Phase;
use crate::engine::{Engine, EngineError};

impl<K> Engine<K> {
    /// The server will encrypt.
    pub(super) fn start_tls(&mut self) -> Result<(), EngineError> {
        // Plain text ahead of TLS would be taken for authentic afterwards.
        if self.inbox.len() > 0 {
            return Err(EngineError::plain("handshake: server sent data before TLS began"));
        }
        let calling = self.calling();
        let say = |e: device::Error| EngineError::plain(e.to_string());
        let handshake = Connector::new(&calling).and_then(|c| c.connect()).map_err(say)?;
        self.talk.phase = Phase::Tls(Box::new(handshake), false);
        Ok(())
    }

    pub(super) fn calling(&self) -> Calling {
        let settings = &self.settings;
        if let Some(file) = settings.tls_psk_file.clone() {
            return Calling::Keys { file, user: settings.tls_username.clone() };
        }
        Calling::Certificates {
            directory: settings.tls_certificates.clone(),
            host: settings.tls_hostname.clone(),
            verify_peer: settings.tls_verify_peer,
        }
    }

    /// Goes on with the handshake of TLS; whether it is done.
    pub(super) fn handshake(&mut self) -> Result<bool, EngineError> {
        let Some(stream) = self.stream.clone() else { return Ok(false) };
        let Phase::Tls(handshake, room) = &mut self.talk.phase else { return Ok(false) };
        match handshake.advance(&stream) {
            Ok(HandshakeProgress::Waits { room: wanted }) => {
                *room = wanted;
                Ok(false)
            }
            Ok(HandshakeProgress::Done) => {
                // What was negotiated in clear text is void.
                self.mode = Framing::Simple;
                self.forget_contexts();
                self.forget_export();
                if self.talk.by_user {
                    self.option_done(0);
                } else {
                    self.go_on(option::STARTTLS);
                }
                Ok(true)
            }
            Err(failed) => {
                if failed.delay.is_zero() {
                    handshake.farewell(&stream);
                }
                Err(EngineError::plain(failed.why.to_string()))
            }
        }
    }
}
