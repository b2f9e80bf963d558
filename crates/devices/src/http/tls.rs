//! TLS for https: trust, our certificate, and one encrypted connection.
//!
//! rustls, TLS 1.2 and 1.3, certificates only. The server is trusted if its certificate is signed
//! for its name by an authority of the system, or of `cainfo=` and `capath=`; with
//! `sslverify=false` any server is.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use device::{Error, ErrorKind, Fault, Result};
use net::{Received, Stream, Until};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    SupportedProtocolVersion,
};

/// Ciphertext that is received at once, in bytes.
const PIECE: usize = 64 << 10;

/// What is wanted of TLS.
#[derive(Clone, Debug)]
pub(super) struct Wishes {
    /// A file of certificates to trust instead of the system's; empty: none.
    pub(super) cainfo: Option<String>,
    /// A directory of them.
    pub(super) capath: Option<String>,
    /// Whether the server's certificate is verified.
    pub(super) verify: bool,
    /// Our certificate and its key, both as files.
    pub(super) identity: Option<(String, String)>,
    pub(super) versions: &'static [&'static SupportedProtocolVersion],
}

impl Default for Wishes {
    fn default() -> Self {
        let versions = rustls::ALL_VERSIONS;
        Self { cainfo: None, capath: None, verify: true, identity: None, versions }
    }
}

/// How connections are encrypted. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Reads the certificates.
    ///
    /// # Errors
    /// A file cannot be read or holds none, or no server would be trusted.
    pub(super) fn new(wishes: &Wishes) -> Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(wishes.versions)
            .map_err(|e| failed("set up TLS", e))?;
        let builder = if wishes.verify {
            builder.with_root_certificates(trusted(wishes)?)
        } else {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        };
        let mut config = match &wishes.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let unreadable = |e| failed("read the client's key", e).on(key);
                let secret = PrivateKeyDer::from_pem_file(key).map_err(unreadable)?;
                let unfit = |e| failed("use the client's certificate", e).on(certificate);
                builder.with_client_auth_cert(chain, secret).map_err(unfit)?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }

    /// Encrypts a stream to `host`.
    ///
    /// # Errors
    /// The server is not trusted, or does not speak TLS.
    pub(super) fn connect(
        &self,
        host: &str,
        stream: &Stream,
        until: Until,
    ) -> Result<HttpsSession> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Error::invalid("TLS: the host name is not valid"))?;
        let connection =
            ClientConnection::new(self.0.clone(), name).map_err(|e| failed("TLS", e))?;
        let mut session = HttpsSession::new(connection);
        session.shake_hands(stream, until)?;
        Ok(session)
    }
}

fn failed(doing: &str, e: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::PermissionDenied, Fault::User, doing).with_source(e)
}

fn trusted(wishes: &Wishes) -> Result<RootCertStore> {
    let file = wishes.cainfo.as_deref().filter(|file| !file.is_empty());
    let directory = wishes.capath.as_deref();
    if let Some(file) = file {
        // One that was named has to be there.
        certificates(file)?;
    }
    let found = match (&wishes.cainfo, directory) {
        (None, None) => rustls_native_certs::load_native_certs(),
        _ => rustls_native_certs::load_certs_from_paths(
            file.map(Path::new),
            directory.map(Path::new),
        ),
    };
    let mut store = RootCertStore::empty();
    // Those that rustls does not understand are not trusted.
    let _ = store.add_parsable_certificates(found.certs);
    if store.is_empty() {
        let action = "TLS: no certificate is trusted; name some with cainfo= or capath=";
        let error = Error::new(ErrorKind::NotFound, Fault::User, action);
        return Err(match found.errors.into_iter().next() {
            Some(e) => error.with_source(e),
            None => error,
        });
    }
    Ok(store)
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let all = all.map_err(|e| failed("read certificates", e).on(path))?;
    if all.is_empty() {
        let action = "read certificates: there is none in the file";
        return Err(Error::new(ErrorKind::NotFound, Fault::User, action).on(path));
    }
    Ok(all)
}

/// Trusts every server: `sslverify=false`.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// One encrypted connection, without its socket: ciphertext goes in and out by the caller.
pub(super) struct HttpsSession {
    tls: ClientConnection,
    /// Ciphertext that came, of which `from..to` was not read yet.
    inbound: Box<[u8]>,
    from: usize,
    to: usize,
    /// Ciphertext to send, without the first `gone` bytes.
    outbound: Vec<u8>,
    gone: usize,
}

impl HttpsSession {
    fn new(tls: ClientConnection) -> Self {
        let inbound = vec![0; PIECE].into_boxed_slice();
        Self { tls, inbound, from: 0, to: 0, outbound: Vec::new(), gone: 0 }
    }

    fn shake_hands(&mut self, stream: &Stream, until: Until) -> Result<()> {
        let broken = |e: io::Error| {
            Error::new(ErrorKind::Disconnected, Fault::Peer, "TLS handshake").with_source(e)
        };
        loop {
            while let Some(bytes) = self.outgoing().map_err(broken)? {
                match stream.send(bytes).map_err(|e| broken(e.into()))? {
                    0 => until.writable(stream)?,
                    n => self.sent(n),
                }
            }
            if !self.tls.is_handshaking() {
                return Ok(());
            }
            match stream.receive(self.room()).map_err(|e| broken(e.into()))? {
                Received::Nothing => until.readable(stream)?,
                Received::Bytes(n) => {
                    if let Err(e) = self.received(n).and_then(|()| self.take_all()) {
                        // An alert for the server; it does not matter whether it arrives.
                        if let Ok(Some(bytes)) = self.outgoing() {
                            let _ = stream.send(bytes);
                        }
                        let action =
                            "TLS: the server is not trusted, or no TLS version or cipher is common";
                        return Err(Error::new(ErrorKind::PermissionDenied, Fault::Peer, action)
                            .with_source(e));
                    }
                }
                Received::End => {
                    return Err(broken(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the server closed the connection",
                    )));
                }
            }
        }
    }

    /// Ciphertext to send.
    pub(super) fn outgoing(&mut self) -> io::Result<Option<&[u8]>> {
        if self.gone == self.outbound.len() {
            self.outbound.clear();
            self.gone = 0;
            while self.tls.wants_write() {
                self.tls.write_tls(&mut self.outbound)?;
            }
        }
        Ok(self.outbound.get(self.gone..).filter(|bytes| !bytes.is_empty()))
    }

    /// This much of it was sent.
    pub(super) fn sent(&mut self, n: usize) {
        self.gone = (self.gone + n).min(self.outbound.len());
    }

    /// Where to receive ciphertext into, when `read` says that it needs more: all that came before
    /// has been taken.
    pub(super) fn room(&mut self) -> &mut [u8] {
        (self.from, self.to) = (0, 0);
        &mut self.inbound
    }

    /// This many bytes of ciphertext have come; 0: the end.
    pub(super) fn received(&mut self, n: usize) -> io::Result<()> {
        if n == 0 {
            // Fails unless the server announced the end.
            self.tls.read_tls(&mut io::empty())?;
            self.process()?;
        }
        self.to = n.min(self.inbound.len());
        Ok(())
    }

    /// Decrypts into `into`: how many bytes, 0 at the end; `None`: more ciphertext is needed.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.tls.reader().read(into) {
                Ok(n) => return Ok(Some(n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
            if self.from == self.to {
                return Ok(None);
            }
            self.take_some()?;
        }
    }

    /// Takes plaintext, at least some of it.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tls.writer().write(bytes)
    }

    fn take_all(&mut self) -> io::Result<()> {
        while self.from < self.to {
            self.take_some()?;
        }
        Ok(())
    }

    fn take_some(&mut self) -> io::Result<()> {
        let mut rest = self.inbound.get(self.from..self.to).unwrap_or_default();
        let taken = self.tls.read_tls(&mut rest)?;
        self.from += taken;
        if taken == 0 {
            self.from = self.to;
        }
        self.process()
    }

    fn process(&mut self) -> io::Result<()> {
        let processed = self.tls.process_new_packets();
        processed.map(|_| ()).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }
}
