//! The library's configuration, made once for a server or a target.
//!
//! Uses `unsafe` for one method of the library, which is marked so because it trusts any peer
//! (`tls-verify-peer=0`).
#![expect(unsafe_code, reason = "see above")]

use std::path::Path;
use std::sync::Arc;

use device::{Error, ErrorKind, Fault, Result};
use s2n_tls::config::{Builder, Config};
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, ClientAuthType, Mode, PskHmac};
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;

use super::credentials::{self, Key};
use super::demands::Demands;
use super::handshake::Handshake;
use super::host::{AnyHost, ExpectedHost};
use super::{Calling, CertificateFiles, Serving, TlsVersions, Trust, authorities};

/// Versions, ciphers, groups and signatures, by the date of the library's list: AES-128-GCM before
/// AES-256-GCM and ChaCha20, TLS 1.2 only with ECDHE and AES-GCM. A test checks the result.
const POLICY: &str = "20251014";

/// The same without TLS 1.2, and without 1.3.
const ONLY_13: &str = "AWS-CRT-SDK-TLSv1.3-2023";
const ONLY_12: &str = "ELBSecurityPolicy-FS-1-2-Res-2020-10";

/// What the library makes, or its error.
type TlsResult<T> = std::result::Result<T, s2n_tls::error::Error>;

/// Seconds, at most, before a peer learns that it was refused (and a third of them at least). The
/// library's 30 are for ciphers whose timing reveals something about the plaintext, of which none
/// is in that list; and a user who mistyped a key would have to wait.
const DELAY: u32 = 3;

/// A server's settings. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Acceptor(Arc<Setup>);

/// A client's settings. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connector(Arc<Setup>);

#[derive(Debug)]
struct Setup {
    config: Config,
    keys: Vec<Psk>,
    demands: Demands,
    /// The user of the key, if there is only one.
    user: Option<String>,
}

impl Acceptor {
    /// Reads the files.
    ///
    /// # Errors
    /// One is missing, cannot be read or makes no sense.
    pub fn new(serving: &Serving) -> Result<Self> {
        let setup = match serving {
            Serving::Keys(file) => with_keys(&credentials::keys(file)?)?,
            Serving::Certificates { directory, verify_peer } => {
                let found = directory.clone().map_or_else(|| credentials::directory("nbdkit"), Ok);
                let config = server_certificates(&found?, *verify_peer)?;
                let demands = Demands { certificate: *verify_peer, ..Demands::default() };
                Setup { config, keys: Vec::new(), demands, user: None }
            }
        };
        Ok(Self(Arc::new(setup)))
    }

    /// The user whose key it takes, if there is only one.
    #[must_use]
    pub fn only_user(&self) -> Option<&str> {
        self.0.user.as_deref()
    }

    /// Begins a handshake with a client.
    ///
    /// # Errors
    /// There is no memory.
    pub fn accept(&self) -> Result<Handshake> {
        self.0.begin(Mode::Server)
    }
}

impl Connector {
    /// Reads the files.
    ///
    /// # Errors
    /// One is missing, cannot be read or makes no sense; or no host is given to check the
    /// certificate for.
    pub fn new(calling: &Calling) -> Result<Self> {
        let setup = match calling {
            Calling::Keys { file, user } => {
                let keys = credentials::keys(file)?;
                with_keys(std::slice::from_ref(one_of(&keys, user.as_deref(), file)?))?
            }
            Calling::Certificates { directory, host, verify_peer } => {
                client_certificates(directory.as_deref(), host.as_deref(), *verify_peer)?
            }
        };
        Ok(Self(Arc::new(setup)))
    }

    /// Reads the files. The host has to be given with [`Connector::for_host`].
    ///
    /// # Errors
    /// One is missing, cannot be read or makes no sense, or no certificate is trusted.
    pub fn of_files(files: &CertificateFiles) -> Result<Self> {
        let policy = match files.versions {
            TlsVersions::Both => POLICY,
            TlsVersions::Only12 => ONLY_12,
            TlsVersions::Only13 => ONLY_13,
        };
        let mut builder = trusting(policy, &files.trust, files.advice)?;
        if let Some((certificate, key)) = &files.ours {
            let ours = authorities::pair(certificate, key)?;
            show(&mut builder, &ours).map_err(|e| e.on(certificate.display()))?;
        }
        let made = builder.set_application_protocol_preference([files.protocol]);
        let made = made.map(|_| ()).and_then(|()| builder.build());
        let config = made.map_err(|e| failed(CERTIFICATES, &e))?;
        let demands = Demands {
            certificate: files.trust != Trust::Anyone,
            protocol: Some(files.protocol),
            ..Demands::default()
        };
        Ok(Self(Arc::new(Setup { config, keys: Vec::new(), demands, user: None })))
    }

    /// The same for the server `host`, a name or an address, which its certificate must be for.
    /// Keys are left behind.
    #[must_use]
    pub fn for_host(&self, host: &str) -> Self {
        let (config, old) = (self.0.config.clone(), self.0.demands.clone());
        let demands = Demands { key: false, host: Some(host.to_owned()), ..old };
        Self(Arc::new(Setup { config, keys: Vec::new(), demands, user: None }))
    }

    /// Begins a handshake with a server.
    ///
    /// # Errors
    /// There is no memory.
    pub fn connect(&self) -> Result<Handshake> {
        self.0.begin(Mode::Client)
    }
}

impl Serving {
    /// Warnings for the user.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let Self::Keys(file) = self else { return None };
        credentials::is_open_to_all(file)
            .then(|| format!("{}: every user may read these keys", file.display()))
    }
}

impl Setup {
    fn begin(&self, mode: Mode) -> Result<Handshake> {
        let mut connection = Connection::new(mode);
        self.prepare(&mut connection).map_err(|e| failed("set up TLS", &e))?;
        Handshake::new(connection, self.demands.clone())
    }

    fn prepare(&self, connection: &mut Connection) -> TlsResult<()> {
        connection.set_config(self.config.clone())?;
        connection.set_blinding(Blinding::SelfService)?;
        connection.prefer_throughput()?;
        if let Some(host) = self.demands.host.as_deref().filter(|host| !host.is_empty()) {
            connection.set_verify_host_callback(ExpectedHost(host.to_owned()))?;
            // An address must not be sent as a server name, nor a dot behind one (RFC 6066).
            if host.parse::<std::net::IpAddr>().is_err() {
                connection.set_server_name(host.trim_end_matches('.'))?;
            }
        }
        self.keys.iter().try_for_each(|key| connection.append_psk(key))
    }
}

const CERTIFICATES: &str = "set up TLS with the certificates";

fn failed(doing: &str, e: &s2n_tls::error::Error) -> Error {
    Error::new(ErrorKind::InvalidInput, Fault::User, doing).with_source(e.to_string())
}

/// A configuration in which no peer is trusted yet.
fn builder(policy: &str) -> TlsResult<Builder> {
    let mut builder = Builder::new();
    builder.with_system_certs(false)?;
    builder.set_security_policy(&Policy::from_version(policy)?)?;
    builder.set_max_blinding_delay(DELAY)?;
    Ok(builder)
}

/// Keys only: no certificate is shown, asked for or accepted.
fn with_keys(keys: &[Key]) -> Result<Setup> {
    let say = |e| failed("set up TLS with keys", &e);
    let config = builder(POLICY).and_then(Builder::build).map_err(say)?;
    let user = if let [only] = keys { Some(only.user.clone()) } else { None };
    let psk = |key: &Key| -> TlsResult<Psk> {
        let mut psk = Psk::builder()?;
        // The peers know no other.
        psk.set_identity(key.user.as_bytes())?
            .set_secret(&key.secret)?
            .set_hmac(PskHmac::SHA256)?;
        psk.build()
    };
    let keys = keys.iter().map(psk).collect::<std::result::Result<_, _>>().map_err(say)?;
    let demands = Demands { key: true, ..Demands::default() };
    Ok(Setup { config, keys, demands, user })
}

fn one_of<'a>(keys: &'a [Key], user: Option<&str>, file: &Path) -> Result<&'a Key> {
    let login = std::env::var("USER").ok();
    let user = match (user, keys) {
        (Some(user), _) => user,
        (None, [only]) => return Ok(only),
        (None, _) => login.as_deref().unwrap_or_default(),
    };
    keys.iter().find(|key| key.user == user).ok_or_else(|| {
        let action = format!("TLS: the file has no key of the user {user:?} (tls-username=)");
        Error::new(ErrorKind::NotFound, Fault::User, action).on(file.display())
    })
}

fn server_certificates(dir: &Path, verify_peer: bool) -> Result<Config> {
    credentials::refuse_revocations(dir)?;
    let certificate = credentials::required(dir, "server-cert.pem")?;
    let key = credentials::required(dir, "server-key.pem")?;
    let authority =
        if verify_peer { Some(credentials::required(dir, "ca-cert.pem")?) } else { None };
    let make = || -> TlsResult<Config> {
        let mut builder = builder(POLICY)?;
        builder.load_pem(&certificate, &key)?;
        if let Some(authority) = &authority {
            builder.trust_pem(authority)?;
            builder.set_client_auth_type(ClientAuthType::Required)?;
            builder.set_verify_host_callback(AnyHost)?;
        }
        builder.build()
    };
    make().map_err(|e| failed(CERTIFICATES, &e).on(dir.display()))
}

fn client_certificates(dir: Option<&Path>, host: Option<&str>, verify: bool) -> Result<Setup> {
    let found = dir.map(Path::to_owned).map_or_else(|| credentials::directory("libnbd"), Ok);
    let found = match found {
        Ok(found) => Some(found),
        // The authorities that the system trusts.
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    let mut trust = if verify { Trust::System } else { Trust::Anyone };
    let mut ours = None;
    if let Some(dir) = &found {
        credentials::refuse_revocations(dir)?;
        ours = credentials::pair(dir)?;
        if verify {
            trust = Trust::Named { file: Some(dir.join("ca-cert.pem")), directory: None };
        }
    }
    if verify && host.is_none_or(str::is_empty) {
        let action = "TLS: the name that the server's certificate must be for is missing; add \
                      tls-hostname=";
        return Err(Error::invalid(action));
    }
    let on = |e: Error| if let Some(dir) = &found { e.on(dir.display()) } else { e };
    let mut builder = trusting(POLICY, &trust, "tls-certificates=").map_err(on)?;
    if let Some(ours) = &ours {
        show(&mut builder, ours).map_err(on)?;
    }
    let config = builder.build().map_err(|e| on(failed(CERTIFICATES, &e)))?;
    let host = host.map(str::to_owned);
    let demands = Demands { certificate: verify, host, ..Demands::default() };
    Ok(Setup { config, keys: Vec::new(), demands, user: None })
}

/// A client that trusts these authorities. `advice`: what names others.
fn trusting(policy: &str, trust: &Trust, advice: &str) -> Result<Builder> {
    let say = |e| failed(CERTIFICATES, &e);
    let mut builder = builder(policy).map_err(say)?;
    if *trust == Trust::Anyone {
        believe_any_certificate(&mut builder).map_err(say)?;
    }
    authorities::trust(&mut builder, trust, advice)?;
    Ok(builder)
}

/// Makes a client show this certificate, with its key.
fn show(builder: &mut Builder, (certificate, key): &(Vec<u8>, Vec<u8>)) -> Result<()> {
    builder.load_pem(certificate, key).map(|_| ()).map_err(|e| failed(CERTIFICATES, &e))
}

/// What `tls-verify-peer=0` asks for.
fn believe_any_certificate(builder: &mut Builder) -> TlsResult<()> {
    // SAFETY: memory safety is not affected; the library marks it so because it disables a security
    // check.
    unsafe { builder.disable_x509_verification()? };
    Ok(())
}
