//! `--object TYPE,id=ID,…`: what options of QEMU refer to. Secrets in files and in the kernel's
//! keyring (what is on the command line itself is shown by a list of processes), credentials for
//! TLS, and throttle groups with a limit of bytes.

use clap::{Arg, ArgAction, ArgMatches};
use device::{Params, between_commas, parse_size};
use disk::NodeObjects;

use crate::arguments::value;
use crate::failure::Failure;

/// The kinds of secrets, each with what says where one is, and the parameter of a format for that.
const SECRETS: [(&str, &str, &str); 2] =
    [("secret", "file", "key-file"), ("secret_keyring", "serial", "key-serial")];

/// The file of keys in the directory of `tls-creds-psk`.
const KEYS: &str = "keys.psk";

/// What may be limited of a throttle group, and is not here.
const UNLIMITED: [&str; 5] = ["bps-read", "bps-write", "iops-total", "iops-read", "iops-write"];

/// An object that is named.
enum NamedObject {
    Secret(NamedSecret),
    Tls(TlsObject),
    /// Its bytes a second.
    Throttle(String, Option<u64>),
    /// What makes no difference here.
    Thread,
}

/// A secret that is named.
struct NamedSecret {
    id: String,
    /// The parameter that says where it is.
    key: &'static str,
    place: String,
    format: String,
}

/// Certificates or keys for TLS.
pub(crate) struct TlsObject {
    id: String,
    /// The directory of certificates, or the file of keys.
    place: String,
    is_psk: bool,
    is_server: bool,
    verifies: bool,
    user: Option<String>,
}

impl TlsObject {
    /// As parameters of `nbd`.
    pub(crate) fn params(&self) -> Params {
        let mut params = Params::default();
        params.add("tls", "require");
        params.add(if self.is_psk { "tls-psk" } else { "tls-certificates" }, &self.place);
        if let Some(user) = &self.user {
            params.add("tls-username", user);
        }
        if !self.verifies {
            params.add("tls-verify", "false");
        }
        params
    }

    /// As options of a server.
    pub(crate) fn of_server(&self) -> Vec<String> {
        let place = if self.is_psk { "tls-psk" } else { "tls-certificates" };
        let mut options = vec!["--tls=require".to_owned(), format!("--{place}={}", self.place)];
        if self.verifies && !self.is_psk {
            options.push("--tls-verify-peer".to_owned());
        }
        options
    }
}

/// `--object`.
pub(crate) fn object() -> Arg {
    let help = "A secret, for key-secret=ID: secret,id=ID,file=FILE, or of the kernel's keyring: secret_keyring,id=ID,serial=N; format=base64 where it is encoded. \
                For nodes: tls-creds-x509,id=ID,dir=DIR, tls-creds-psk,id=ID,dir=DIR, throttle-group,id=ID,limits.bps-total=BYTES";
    value("--object TYPE,...", help).action(ArgAction::Append)
}

/// Refuses objects that make no sense, or are none of these.
pub(crate) fn check_objects(matches: &ArgMatches) -> Result<(), Failure> {
    objects(matches).map(drop)
}

/// What nodes refer to.
pub(crate) fn for_nodes(matches: &ArgMatches) -> Result<NodeObjects, Failure> {
    let mut found = NodeObjects::default();
    for object in objects(matches)? {
        match object {
            NamedObject::Tls(tls) if !tls.is_server => {
                found.credentials.push((tls.id.clone(), tls.params()));
            }
            NamedObject::Throttle(id, bytes) => found.throttles.push((id, bytes)),
            NamedObject::Tls(_) | NamedObject::Secret(_) | NamedObject::Thread => {}
        }
    }
    Ok(found)
}

/// The credentials of this name, for a server or a client.
pub(crate) fn credentials(
    matches: &ArgMatches,
    id: &str,
    is_server: bool,
) -> Result<TlsObject, Failure> {
    let found = objects(matches)?.into_iter().find_map(|object| match object {
        NamedObject::Tls(tls) if tls.id == id && tls.is_server == is_server => Some(tls),
        _ => None,
    });
    let end = if is_server { "server" } else { "client" };
    found.ok_or_else(|| {
        Failure::usage(format!(
            "--tls-creds {id}: add --object tls-creds-x509,id={id},endpoint={end},dir=DIR"
        ))
    })
}

/// Names the files and keys of the secrets that parameters refer to.
pub(crate) fn resolve_secrets(matches: &ArgMatches, params: &mut Params) -> Result<(), Failure> {
    // The options that refer to one, each with the prefix of those that name it.
    let refer = ["key-", "new-", "old-"].map(|kind| (kind, kind.trim_start_matches("key-")));
    let prefixes = ["", "encrypt."].into_iter();
    for (kind, prefix) in
        prefixes.flat_map(|p| refer.map(|(k, own)| (format!("{p}{k}"), format!("{p}{own}"))))
    {
        let Some(id) = params.take(&format!("{kind}secret")) else { continue };
        let found = objects(matches)?.into_iter().find_map(|object| match object {
            NamedObject::Secret(secret) if secret.id == id => Some(secret),
            _ => None,
        });
        let found = found.ok_or_else(|| {
            Failure::usage(format!(
                "{kind}secret={id}: which file? add --object secret,id={id},file=FILE"
            ))
        })?;
        params.set(&format!("{prefix}{}", found.key), &found.place)?;
        params.set(&format!("{prefix}key-format"), &found.format)?;
    }
    Ok(())
}

fn objects(matches: &ArgMatches) -> Result<Vec<NamedObject>, Failure> {
    super::words(matches, "object").map(object_of).collect()
}

/// An object's options, while they are read. What is wrong is said without the values: they may be
/// secret.
struct ObjectOptions<'a> {
    kind: &'a str,
    params: Params,
}

impl<'a> ObjectOptions<'a> {
    fn read(kind: &'a str, words: &[String]) -> Result<Self, Failure> {
        let mut options = Self { kind, params: Params::default() };
        for word in words {
            let (key, value) =
                word.split_once('=').ok_or_else(|| options.wrong("an option has no value"))?;
            let set = options.params.set(key, value);
            set.map_err(|_| options.wrong("an option is given twice"))?;
        }
        Ok(options)
    }

    fn wrong(&self, why: &str) -> Failure {
        Failure::usage(format!("--object {}: {why}", self.kind))
    }

    fn check(&self, known: &[&str]) -> Result<(), Failure> {
        self.params.check(known).map_err(|e| self.wrong(&e.to_string()))
    }

    fn need(&mut self, key: &str) -> Result<String, Failure> {
        self.params.take(key).ok_or_else(|| self.wrong(&format!("there is no {key}=")))
    }

    fn secret(mut self, place: &str, key: &'static str) -> Result<NamedObject, Failure> {
        if self.params.get("data").is_some() {
            return Err(self.wrong(
                "data= would be shown by a list of processes; put it into a file: file=FILE",
            ));
        }
        self.check(&["id", place, "format"])?;
        let (id, place) = (self.need("id")?, self.need(place)?);
        let format = self.params.take("format").unwrap_or_else(|| "raw".to_owned());
        match &*format {
            "raw" | "base64" => Ok(NamedObject::Secret(NamedSecret { id, key, place, format })),
            _ => Err(self.wrong("format= is raw or base64")),
        }
    }

    fn credentials(mut self, is_psk: bool) -> Result<NamedObject, Failure> {
        self.check(&[
            "id",
            "dir",
            "endpoint",
            "verify-peer",
            "username",
            "priority",
            "sanity-check",
        ])?;
        let is_server = match self.params.get("endpoint") {
            None | Some("client") => false,
            Some("server") => true,
            Some(_) => return Err(self.wrong("endpoint= is client or server")),
        };
        let verifies = match self.params.get("verify-peer") {
            None | Some("yes" | "on" | "true") => true,
            Some("no" | "off" | "false") => false,
            Some(_) => return Err(self.wrong("verify-peer= is yes or no")),
        };
        let (id, place) = (self.need("id")?, self.need("dir")?);
        let place = if is_psk { format!("{place}/{KEYS}") } else { place };
        let user = self.params.take("username");
        let tls = TlsObject { id, place, is_psk, is_server, verifies, user };
        Ok(NamedObject::Tls(tls))
    }

    fn throttle(mut self) -> Result<NamedObject, Failure> {
        let id = self.need("id")?;
        let mut bytes = None;
        for (key, value) in self.params.iter() {
            let own = key.strip_prefix("limits.").or(key.strip_prefix("x-"));
            let Some(own) = own else { return Err(self.wrong("an option is unknown")) };
            let number = parse_size(value).map_err(|_| self.wrong("a limit is not a number"))?;
            match own {
                "bps-total" => bytes = Some(number).filter(|number| *number > 0),
                _ if UNLIMITED.contains(&own) && number > 0 => {
                    return Err(self.wrong(&format!("{key}: only bps-total is limited here")));
                }
                // How far a burst may go beyond a limit.
                _ => {}
            }
        }
        Ok(NamedObject::Throttle(id, bytes))
    }
}

fn object_of(text: &str) -> Result<NamedObject, Failure> {
    let all = between_commas(text);
    let (kind, rest) = all.split_first().map_or(("", &[][..]), |(kind, rest)| (&**kind, rest));
    let word = kind.trim_start_matches("qom-type=");
    if let Some((_, place, key)) = SECRETS.into_iter().find(|(known, ..)| *known == word) {
        return ObjectOptions::read(kind, rest)?.secret(place, key);
    }
    match word {
        "tls-creds-x509" => ObjectOptions::read(kind, rest)?.credentials(false),
        "tls-creds-psk" => ObjectOptions::read(kind, rest)?.credentials(true),
        "throttle-group" => ObjectOptions::read(kind, rest)?.throttle(),
        "iothread" => Ok(NamedObject::Thread),
        _ => Err(Failure::usage(
            "--object: secret, secret_keyring, tls-creds-x509, tls-creds-psk and throttle-group \
             are known, each with an id=",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> NamedSecret {
        match object_of(text) {
            Ok(NamedObject::Secret(secret)) => secret,
            _ => panic!("{text}: no secret"),
        }
    }

    #[test]
    fn a_secret_is_in_a_file_or_a_keyring_and_nothing_that_is_wrong_shows_one() {
        let found = secret("secret,id=a,file=/b,,c,format=base64");
        let found = (&*found.id, found.key, &*found.place, &*found.format);
        assert_eq!(found, ("a", "key-file", "/b,c", "base64"));
        let found = secret("secret_keyring,id=a,serial=0x1f");
        assert_eq!((found.key, &*found.place, &*found.format), ("key-serial", "0x1f", "raw"));
        assert_eq!(secret("secret,id=a,file=b").format, "raw");
        for wrong in [
            "",
            "tls-creds-x509,id=a,dirt=sesame",
            "tls-creds-x509,id=sesame",
            "tls-creds-psk,id=a,dir=b,verify-peer=sesame",
            "throttle-group,id=a,limits.bps-total=sesame",
            "throttle-group,id=a,sesame=1",
            "secret,id=a,data=sesame",
            "secret,id=a,file=b,format=sesame",
            "secret,id=a,serial=sesame",
            "secret_keyring,id=a,file=sesame",
            "secret_keyring,id=a,data=sesame",
            "secret,id=a,file=b,id=sesame",
            "secret,id=a,file=b,sesame",
            "secret,file=sesame",
            "secret,id=sesame",
        ] {
            let error = format!("{:?}", object_of(wrong).err().unwrap());
            // A wrong key is no secret.
            assert!(!error.replace("`sesame`", "").contains("sesame"), "{wrong}: {error}");
        }
    }

    #[test]
    fn credentials_and_limits_become_parameters() {
        let params = |text: &str| match object_of(text) {
            Ok(NamedObject::Tls(tls)) => {
                let params = tls.params();
                params.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
            }
            _ => panic!("{text}: no credentials"),
        };
        assert_eq!(
            params("tls-creds-x509,id=a,dir=/pki,endpoint=client,verify-peer=no"),
            ["tls=require", "tls-certificates=/pki", "tls-verify=false"]
        );
        assert_eq!(
            params("tls-creds-psk,id=a,dir=/k,username=u"),
            ["tls=require", "tls-psk=/k/keys.psk", "tls-username=u"]
        );
        let limit = |text: &str| match object_of(text) {
            Ok(NamedObject::Throttle(_, bytes)) => Ok(bytes),
            Err(e) => Err(e.line()),
            _ => panic!("{text}: no throttle group"),
        };
        assert_eq!(limit("throttle-group,id=a,limits.bps-total=1M"), Ok(Some(1 << 20)));
        assert_eq!(limit("throttle-group,id=a,x-iops-total=0,x-bps-total-max=5"), Ok(None));
        assert!(limit("throttle-group,id=a,limits.iops-total=5").is_err());
    }
}
