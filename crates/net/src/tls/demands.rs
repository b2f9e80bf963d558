//! What is demanded of a peer beyond what the library checks: it passes all names of a certificate
//! to one callback, whatever they are names of, and believes any signature and key in a chain.

use s2n_tls::connection::Connection;
use s2n_tls::enums::{HashAlgorithm, Mode};

use super::certificate::Certificate;
use super::host;

/// Shortest key of RSA, in bits.
const SHORTEST_RSA: usize = 2048;

/// What a peer must have shown once the handshake has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Demands {
    /// A key that both know; never a certificate instead.
    pub(super) key: bool,
    /// A certificate with a chain that is verified.
    pub(super) certificate: bool,
    /// The name or address that it must be for. A name is sent to the server, so that it knows for
    /// which of its names we ask.
    pub(super) host: Option<String>,
    /// What was offered by ALPN.
    pub(super) protocol: Option<&'static str>,
}

impl Demands {
    /// # Errors
    /// Why the peer is not trusted. Has nothing that is secret.
    pub(super) fn check(&self, connection: &Connection, user: Option<&str>) -> Result<(), String> {
        if self.key {
            // The library refuses that earlier; a certificate must never replace a key.
            return user.map(|_| ()).ok_or_else(|| "the peer did not use the key".to_owned());
        }
        let spoken = connection.application_protocol();
        if spoken.is_some_and(|spoken| self.protocol.map(str::as_bytes) != Some(spoken)) {
            return Err("the peer speaks a protocol that was not offered".to_owned());
        }
        let hash = connection.selected_hash_algorithm();
        let is_weak = matches!(hash, Ok(HashAlgorithm::MD5 | HashAlgorithm::SHA1));
        if connection.mode() == Mode::Client && is_weak {
            return Err("the peer signed the handshake with SHA-1".to_owned());
        }
        if self.certificate { self.check_chain(connection) } else { Ok(()) }
    }

    fn check_chain(&self, connection: &Connection) -> Result<(), String> {
        let say = |e: s2n_tls::error::Error| e.to_string();
        let chain = connection.peer_cert_chain().map_err(say)?;
        let chain: Vec<_> = chain.iter().collect::<Result<_, _>>().map_err(say)?;
        let chain: Vec<_> =
            chain.iter().map(|one| one.der()).collect::<Result<_, _>>().map_err(say)?;
        check_chain(&chain)?;
        let Some(host) = self.host.as_deref().filter(|_| connection.mode() == Mode::Client) else {
            return Ok(());
        };
        let leaf = chain.first().and_then(|leaf| Certificate::read(leaf));
        leaf.is_some_and(|leaf| host::is_named(host, &leaf).unwrap_or(false))
            .then_some(())
            .ok_or_else(|| format!("its certificate is not for {host}"))
    }
}

/// Checks keys and signatures of a chain, which begins with the peer's certificate and ends with
/// one that we trust.
fn check_chain(chain: &[&[u8]]) -> Result<(), String> {
    let odd = || "a certificate of the peer's is not understood".to_owned();
    if chain.is_empty() {
        return Err("the peer showed no certificate".to_owned());
    }
    for (at, der) in chain.iter().enumerate() {
        let one = Certificate::read(der).ok_or_else(odd)?;
        let is_last = at + 1 == chain.len();
        // The last is trusted because we have it, not because of who signed it.
        let is_authority = is_last && one.is_self_issued();
        if !(is_authority || one.is_signed_well().ok_or_else(odd)?) {
            return Err("a certificate of the peer's is signed with SHA-1, or worse".to_owned());
        }
        let bits = one.rsa_bits().ok_or_else(odd)?.filter(|bits| *bits < SHORTEST_RSA);
        if let Some(bits) = bits.filter(|_| at == 0 || !is_last) {
            return Err(format!("a certificate of the peer's has a key of RSA of {bits} bits"));
        }
    }
    Ok(())
}
