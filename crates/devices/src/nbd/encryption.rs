//! How a connection is to be encrypted, from the URI and the parameters: libnbd's words and
//! nbdkit's.

use std::path::PathBuf;

use client::{Calling, ServerSpec, command_reaches};
use device::{Endpoint, Error, Params, Reach, Result, values};
use wire::{Transport, Uri};

use super::params::server;

/// Parameters of the device, each with what a URI calls the same.
const PARAMS: [(&str, &str); 5] = [
    ("tls-certificates", "tls-certificates"),
    ("tls-hostname", "tls-hostname"),
    ("tls-psk", "tls-psk-file"),
    ("tls-username", "tls-username"),
    ("tls-verify", "tls-verify-peer"),
];

/// The user's settings, from the URI or the parameters.
struct Said<'a> {
    params: &'a Params,
    uri: Option<&'a Uri>,
}

impl Said<'_> {
    /// A value by its name among the parameters.
    fn get(&self, param: &str) -> Option<&str> {
        let in_uri = PARAMS.iter().find(|(name, _)| *name == param).map(|(_, key)| *key);
        let of_uri = || self.uri.zip(in_uri).and_then(|(uri, key)| uri.param(key));
        self.params.get(param).or_else(of_uri)
    }

    /// The first setting of TLS.
    fn any(&self) -> Option<String> {
        let param = PARAMS.iter().find(|(name, _)| self.params.contains(name));
        let of_uri = || self.uri?.params.iter().find(|(key, _)| key.starts_with("tls-"));
        param.map(|(name, _)| (*name).to_owned()).or_else(|| of_uri().map(|(key, _)| key.clone()))
    }

    fn user(&self) -> Option<String> {
        let of_uri = || self.uri.and_then(|uri| uri.user.as_deref());
        self.get("tls-username").or_else(of_uri).map(str::to_owned)
    }

    fn verifies(&self) -> Result<bool> {
        let of_uri = || self.uri.is_none_or(Uri::verifies_peer);
        Ok(values::flag(self.params, "tls-verify")?.unwrap_or_else(of_uri))
    }

    /// The name that a certificate must be for.
    fn host(&self) -> Option<String> {
        let of_uri = || match self.uri.map(|uri| &uri.transport) {
            Some(Transport::Tcp { host, .. }) => Some(host.as_str()),
            _ => None,
        };
        self.get("tls-hostname").or_else(of_uri).map(str::to_owned)
    }
}

/// How to encrypt; `None`: not at all.
///
/// # Errors
/// The settings make no sense, or would not always encrypt.
pub(super) fn calling(params: &Params, server: &ServerSpec) -> Result<Option<Calling>> {
    let uri = if let ServerSpec::Address(uri) = server { Some(uri) } else { None };
    let said = Said { params, uri };
    if !is_wanted(params, uri)? {
        return match said.any() {
            None => Ok(None),
            Some(key) => {
                let action =
                    format!("{key} is for TLS; write nbds://, nbds+unix:// or tls=require");
                Err(Error::invalid(action))
            }
        };
    }
    let kind = uri.and_then(|uri| uri.param("tls-type"));
    if uri.is_some_and(|uri| uri.param("tls-priority").is_some()) {
        let action = "tls-priority= is GnuTLS' language; versions and ciphers are fixed here";
        return Err(Error::unsupported(action));
    }
    match (said.get("tls-psk"), said.get("tls-certificates"), kind) {
        (_, _, Some("anon")) => {
            let action = "tls-type=anon: is not supported: it does not authenticate the server";
            Err(Error::unsupported(action))
        }
        (Some(_), Some(_), _) => {
            Err(Error::invalid("both keys and certificates are named for TLS"))
        }
        (Some(_), _, Some("x509")) | (_, Some(_), Some("psk")) | (None, _, Some("psk")) => {
            Err(Error::invalid("tls-type= does not fit the other TLS parameters"))
        }
        (Some(file), None, _) => {
            Ok(Some(Calling::Keys { file: PathBuf::from(file), user: said.user() }))
        }
        (None, directory, _) => Ok(Some(Calling::Certificates {
            directory: directory.map(PathBuf::from),
            host: said.host(),
            verify_peer: said.verifies()?,
        })),
    }
}

/// The files that are read for it, whenever a connection is made.
pub(crate) fn reaches(params: &Params) -> Reach {
    let server = server(params).map(|(server, _)| server);
    let (programs, privates) = match &server {
        Ok(ServerSpec::Command(words)) => {
            let (program, folder) = command_reaches(words);
            (vec![program], vec![folder])
        }
        _ => (Vec::new(), Vec::new()),
    };
    let network = server.as_ref().ok().and_then(endpoint).into_iter().collect();
    let calling = server.and_then(|server| calling(params, &server));
    let reads = match calling.ok().flatten() {
        None => Vec::new(),
        Some(Calling::Keys { file, .. }) => vec![file],
        Some(Calling::Certificates { directory: Some(directory), .. }) => vec![directory],
        Some(Calling::Certificates { directory: None, .. }) => {
            [client::certificate_places(), net::tls::authority_places()].concat()
        }
    };
    Reach { reads, programs, privates, network, ..Reach::default() }
}

/// Where connections are made to; nowhere with one that was handed over.
fn endpoint(server: &ServerSpec) -> Option<Endpoint> {
    Some(match server {
        ServerSpec::Descriptor(_) => return None,
        ServerSpec::Command(_) => Endpoint::Unix,
        ServerSpec::Address(uri) => match &uri.transport {
            Transport::Tcp { port, .. } => Endpoint::Tcp(*port),
            Transport::Unix { .. } => Endpoint::Unix,
            Transport::UnixAbstract { .. } => Endpoint::Abstract,
            Transport::Vsock { .. } => Endpoint::Vsock,
        },
    })
}

fn is_wanted(params: &Params, uri: Option<&Uri>) -> Result<bool> {
    let by_uri = uri.is_some_and(|uri| uri.tls);
    let word = params.get("tls").map(str::to_ascii_lowercase);
    match word.as_deref() {
        None => Ok(by_uri),
        Some("require" | "required" | "force") => Ok(true),
        Some("off" | "no" | "n" | "false" | "f" | "0") if by_uri => {
            Err(Error::invalid("tls=off cannot be combined with a URI that asks for it"))
        }
        Some("off" | "no" | "n" | "false" | "f" | "0") => Ok(false),
        Some("on" | "yes" | "y" | "true" | "t" | "1") => Err(Error::unsupported(
            "tls=on would go on in clear text if the server has no TLS; write tls=require",
        )),
        Some(other) => Err(values::not_a("tls", other, "off or require")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> std::result::Result<String, String> {
        let params = Params::parse(words.iter().copied()).unwrap();
        let (server, _) = crate::nbd::params::server(&params).map_err(|e| e.to_string())?;
        match calling(&params, &server) {
            Ok(None) => Ok("clear".into()),
            Ok(Some(Calling::Keys { file, user })) => {
                Ok(format!("{} {}", file.display(), user.unwrap_or_default()))
            }
            Ok(Some(Calling::Certificates { directory, host, verify_peer })) => {
                let directory = directory.unwrap_or_default();
                let host = host.unwrap_or_default();
                Ok(format!("{} {host} {verify_peer}", directory.display()))
            }
            Err(e) => Err(e.to_string()),
        }
    }

    #[test]
    fn what_is_asked_for_is_read_from_the_uri_and_from_the_parameters() {
        for (words, means) in [
            (&["uri=nbd://h/"][..], "clear"),
            (&["host=h", "tls=off"], "clear"),
            (&["uri=nbds://h/"], " h true"),
            (&["uri=nbds://h/?tls-certificates=/d&tls-hostname=n"], "/d n true"),
            (&["uri=nbds://h/?tls-verify-peer=0"], " h false"),
            (&["uri=nbds://h/?tls-verify-peer=false"], " h false"),
            (&["uri=nbds+unix:///?socket=/s"], "  true"),
            (&["uri=nbds://bob@h/?tls-psk-file=/k"], "/k bob"),
            (&["uri=nbds://bob@h/?tls-psk-file=/k&tls-username=eve"], "/k eve"),
            (&["uri=nbds://h/?tls-type=psk&tls-psk-file=/k"], "/k "),
            (&["host=h", "tls=no"], "clear"),
            (&["host=h", "tls=Force"], " h true"),
            (&["host=h", "tls=require"], " h true"),
            (&["socket=/s", "tls=require", "tls-psk=/k", "tls-username=u"], "/k u"),
            (&["host=h", "tls=require", "tls-verify=false", "tls-certificates=/d"], "/d h false"),
            (&["command=x", "tls=require", "tls-hostname=n"], " n true"),
        ] {
            assert_eq!(read(words).unwrap(), means, "{words:?}");
        }
    }

    #[test]
    fn what_is_read_for_it_is_told_before() {
        let reads = |words: &[&str]| reaches(&Params::parse(words.iter().copied()).unwrap()).reads;
        assert_eq!(reads(&["uri=nbds://h/?tls-psk-file=/k"]), [PathBuf::from("/k")]);
        assert_eq!(reads(&["uri=nbds://h/?tls-certificates=/d"]), [PathBuf::from("/d")]);
        assert!(!reads(&["uri=nbds://h/"]).is_empty());
        assert!(reads(&["uri=nbd://h/"]).is_empty());
    }

    #[test]
    fn connections_are_made_to_the_named_server_alone() {
        let network = |word: &str| reaches(&Params::parse([word]).unwrap()).network;
        assert_eq!(network("uri=nbd://h"), [Endpoint::Tcp(10809)]);
        assert_eq!(network("uri=nbds://h:99/"), [Endpoint::Tcp(99)]);
        assert_eq!(network("socket=/s"), [Endpoint::Unix]);
        assert_eq!(network("socket=@s"), [Endpoint::Abstract]);
        assert_eq!(network("vsock=2"), [Endpoint::Vsock]);
        assert_eq!(network("command=server"), [Endpoint::Unix]);
        assert_eq!(network("socket-fd=7"), []);
    }

    #[test]
    fn what_would_not_always_be_encrypted_or_means_nothing_is_refused() {
        for words in [
            &["uri=nbd://h/?tls-psk-file=/k"][..],
            &["uri=nbd://h/?tls-hostname=h"],
            &["host=h", "tls-psk=/k"],
            &["host=h", "tls=on"],
            &["host=h", "tls=perhaps"],
            &["uri=nbds://h/", "tls=off"],
            &["uri=nbds://h/?tls-type=anon"],
            &["uri=nbds://h/?tls-type=psk"],
            &["uri=nbds://h/?tls-type=x509&tls-psk-file=/k"],
            &["uri=nbds://h/?tls-priority=NORMAL"],
            &["uri=nbds://h/?tls-psk-file=/k&tls-certificates=/d"],
            &["uri=nbds://h/?tls-verify-peer=maybe"],
            &["uri=nbds://h/", "tls-verify=maybe"],
        ] {
            assert!(read(words).is_err(), "{words:?}");
        }
    }
}
