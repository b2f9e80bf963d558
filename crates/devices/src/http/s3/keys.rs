//! The keys that requests are signed with, and where they come from.
//!
//! In this order, the first that is there: parameters, the environment, a token of a web identity
//! (`AWS_WEB_IDENTITY_TOKEN_FILE`), a profile of the shared files, the service of a container
//! (`AWS_CONTAINER_CREDENTIALS_…`), that of a machine (IMDSv2). Keys that end are fetched again
//! five minutes before, and once more when a server refuses them. None of it is ever printed.

use std::time::{Duration, SystemTime};

use device::{Error, ErrorKind, Fault, Result};
use runtime::Mutex;

use super::super::credentials::Secret;
use super::profile::{Environment, Profile};
use super::roles::KeyService;

/// How long before their end keys are fetched again.
const EARLY: Duration = Duration::from_secs(300);

/// What a request is signed with.
#[derive(Clone, Debug)]
pub(super) struct AwsKeys {
    pub(super) id: String,
    pub(super) secret: Secret,
    pub(super) token: Option<Secret>,
    /// When they end, if they do.
    pub(super) until: Option<SystemTime>,
}

impl AwsKeys {
    pub(super) fn fixed(id: &str, secret: &str, token: Option<String>) -> Self {
        let (secret, token) = (Secret(secret.to_owned()), token.map(Secret));
        Self { id: id.to_owned(), secret, token, until: None }
    }
}

/// Where keys come from.
#[derive(Debug)]
pub(super) enum KeySource {
    /// None are used.
    Anonymous,
    /// They were given.
    Fixed(AwsKeys),
    /// A service gives them, for a while.
    Service(KeyService),
}

impl KeySource {
    /// The one that the environment and the shared files lead to.
    ///
    /// # Errors
    /// The profile asks for what is not supported.
    pub(super) fn find(
        profile: &Profile,
        named: bool,
        region: &str,
        environment: Environment<'_>,
    ) -> Result<Self> {
        let get = |name| environment(name).filter(|value: &String| !value.is_empty());
        let pair = get("AWS_ACCESS_KEY_ID").zip(get("AWS_SECRET_ACCESS_KEY"));
        if let Some((id, secret)) = pair.filter(|_| !named) {
            return Ok(Self::Fixed(AwsKeys::fixed(&id, &secret, get("AWS_SESSION_TOKEN"))));
        }
        if let Some(web) = KeyService::web_identity(&get, region).filter(|_| !named) {
            return Ok(Self::Service(web));
        }
        if let (Some(id), Some(secret)) =
            (profile.get("aws_access_key_id"), profile.get("aws_secret_access_key"))
        {
            let token = profile.get("aws_session_token").map(str::to_owned);
            return Ok(Self::Fixed(AwsKeys::fixed(id, secret, token)));
        }
        if let Some(web) = KeyService::web_identity_of(profile, region, &get) {
            return Ok(Self::Service(web));
        }
        for key in ["credential_process", "sso_session", "sso_start_url", "source_profile"] {
            if profile.get(key).is_some() {
                let action = format!(
                    "the profile has {key}, which is not supported; put keys into the environment: \
                     eval \"$(aws configure export-credentials --format env)\""
                );
                return Err(Error::unsupported(action));
            }
        }
        Ok(Self::Service(match KeyService::container(&get) {
            Some(container) => container,
            None => KeyService::machine(&get).ok_or_else(none)?,
        }))
    }
}

/// No keys are there.
pub(super) fn none() -> Error {
    let action = "find keys: there are none in the parameters, the environment (AWS_ACCESS_KEY_ID), \
                  ~/.aws, or from a role of this machine; add anonymous=true for what anyone may read";
    Error::new(ErrorKind::PermissionDenied, Fault::User, action)
}

/// Keys as they are now.
#[derive(Debug)]
pub(super) struct KeyRing {
    source: KeySource,
    fetched: Mutex<Option<AwsKeys>>,
}

impl KeyRing {
    pub(super) fn new(source: KeySource) -> Self {
        Self { source, fetched: Mutex::default() }
    }

    /// What to sign with at this time; `None`: nothing.
    ///
    /// # Errors
    /// They cannot be fetched.
    pub(super) fn keys(&self, now: SystemTime) -> Result<Option<AwsKeys>> {
        let service = match &self.source {
            KeySource::Anonymous => return Ok(None),
            KeySource::Fixed(keys) => return Ok(Some(keys.clone())),
            KeySource::Service(service) => service,
        };
        let mut fetched = self.fetched.lock();
        let lasts = |keys: &AwsKeys, early| keys.until.is_none_or(|until| now + early < until);
        if let Some(keys) = fetched.as_ref().filter(|keys| lasts(keys, EARLY)) {
            return Ok(Some(keys.clone()));
        }
        match (service.fetch(), fetched.as_ref()) {
            (Ok(keys), _) => {
                *fetched = Some(keys.clone());
                Ok(Some(keys))
            }
            // They are good for some minutes more.
            (Err(_), Some(keys)) if lasts(keys, Duration::ZERO) => Ok(Some(keys.clone())),
            (Err(e), _) => Err(e),
        }
    }

    /// Fetches them again when they are needed next. Returns whether others may come.
    pub(super) fn renew(&self) -> bool {
        let mut fetched = self.fetched.lock();
        let had = fetched.take().is_some();
        had && matches!(self.source, KeySource::Service(_))
    }

    pub(super) fn is_anonymous(&self) -> bool {
        matches!(self.source, KeySource::Anonymous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)], named: bool) -> Result<KeySource> {
        let environment = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let profile = Profile::read("default", false, &environment)?;
        KeySource::find(&profile, named, "us-east-1", &environment)
    }

    #[test]
    fn keys_are_found_where_aws_own_tools_find_them() {
        let scratch = trial::Scratch::new("/tmp");
        let text = b"[default]\naws_access_key_id=F\naws_secret_access_key=hidden\n";
        let file = scratch.file("keys", text).display().to_string();
        let shared = ("AWS_SHARED_CREDENTIALS_FILE", file.as_str());
        let own = [("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "hidden"), shared];
        let id = |source| match source {
            Ok(KeySource::Fixed(keys)) => keys.id,
            other => panic!("{other:?}"),
        };
        assert_eq!(id(found(&own, false)), "E");
        assert_eq!(id(found(&own, true)), "F");
        assert_eq!(id(found(&[own[0], shared], false)), "F");
        assert!(!format!("{:?}", found(&own, false)).contains("hidden"));
        let off = ("AWS_EC2_METADATA_DISABLED", "true");
        let error = found(&[off], false).unwrap_err().to_string();
        assert!(error.contains("anonymous=true"), "{error}");
        let process = scratch.file("process", b"[default]\ncredential_process = x\n");
        let config = [("AWS_CONFIG_FILE", &*process.display().to_string()), off];
        let error = found(&config, false).unwrap_err().to_string();
        assert!(error.contains("credential_process"), "{error}");
        let web = [("AWS_WEB_IDENTITY_TOKEN_FILE", "/t"), ("AWS_ROLE_ARN", "r"), shared];
        assert!(matches!(found(&web, false), Ok(KeySource::Service(_))));
        assert!(matches!(found(&[], false), Ok(KeySource::Service(_))));
    }
}
