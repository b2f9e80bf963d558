//! Services that give out keys for a while: STS for a token of a web identity (as Kubernetes gives
//! one to a pod), that of a container, and that of a machine (IMDSv2).
//!
//! They are asked over the same HTTP layer. What they answer is bounded, and shown to nobody.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use device::{Error, ErrorKind, Fault, Result};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request};
use net::tls::{CertificateFiles, TlsVersions, Trust};
use runtime::Bell;
use wire::percent_encode;

use super::super::answer::iso_time;
use super::super::calling::Caller;
use super::super::credentials::Secret;
use super::super::dial::{Dialer, Ways};
use super::super::payload::Payload;
use super::super::proxy::Proxies;
use super::super::url::Url;
use super::super::xml;
use super::keys::{AwsKeys, none};
use super::profile::Profile;

/// Bytes of an answer, and of a file with a token, at most.
const LONGEST: u64 = 64 << 10;
/// How long STS may be silent; and a service of this machine, which may not be there.
const PATIENCE: Duration = Duration::from_secs(20);
const NEAR: Duration = Duration::from_secs(2);
/// Where the service of a machine is, and that of a container.
const MACHINE: &str = "http://169.254.169.254";
const CONTAINER: &str = "http://169.254.170.2";

/// Reads a variable that is set and not empty.
type Get<'a> = &'a dyn Fn(&'static str) -> Option<String>;

/// A service that gives out keys.
#[derive(Debug)]
pub(super) enum KeyService {
    /// STS, for a token in a file.
    WebIdentity { token: PathBuf, role: String, session: String, endpoint: String },
    /// That of a container: its URL, and the token that it wants.
    Container { url: String, token: Option<Secret>, token_file: Option<PathBuf> },
    /// That of a machine.
    Machine { endpoint: String },
}

impl KeyService {
    /// The one that the environment names.
    pub(super) fn web_identity(get: Get<'_>, region: &str) -> Option<Self> {
        let (token, role) = (get("AWS_WEB_IDENTITY_TOKEN_FILE")?, get("AWS_ROLE_ARN")?);
        Some(Self::web(token, role, get("AWS_ROLE_SESSION_NAME"), region, get))
    }

    /// The one that a profile names.
    pub(super) fn web_identity_of(profile: &Profile, region: &str, get: Get<'_>) -> Option<Self> {
        let (token, role) = (profile.get("web_identity_token_file")?, profile.get("role_arn")?);
        let session = profile.get("role_session_name").map(str::to_owned);
        Some(Self::web(token.to_owned(), role.to_owned(), session, region, get))
    }

    fn web(
        token: String,
        role: String,
        session: Option<String>,
        region: &str,
        get: Get<'_>,
    ) -> Self {
        let endpoint = get("AWS_ENDPOINT_URL_STS");
        let endpoint = endpoint.unwrap_or_else(|| match region {
            "" => "https://sts.amazonaws.com".to_owned(),
            region => format!("https://sts.{region}.{}", super::region::domain(region)),
        });
        let session = session.unwrap_or_else(|| format!("diskferry-{}", std::process::id()));
        Self::WebIdentity { token: token.into(), role, session, endpoint }
    }

    /// The one that the environment of a container names.
    pub(super) fn container(get: Get<'_>) -> Option<Self> {
        let relative = get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
        let url = relative.map(|path| format!("{CONTAINER}{path}"));
        let url = url.or_else(|| get("AWS_CONTAINER_CREDENTIALS_FULL_URI"))?;
        let token = get("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(Secret);
        let token_file = get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(PathBuf::from);
        Some(Self::Container { url, token, token_file })
    }

    /// That of this machine, unless it is not to be asked.
    pub(super) fn machine(get: Get<'_>) -> Option<Self> {
        let off = get("AWS_EC2_METADATA_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let endpoint = get("AWS_EC2_METADATA_SERVICE_ENDPOINT");
        let endpoint = endpoint.unwrap_or_else(|| MACHINE.to_owned());
        (!off).then(|| Self::Machine { endpoint: endpoint.trim_end_matches('/').to_owned() })
    }

    /// The files that are read each time.
    pub(super) fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::WebIdentity { token, .. } => Some(token),
            Self::Container { token_file, .. } => token_file.as_ref(),
            Self::Machine { .. } => None,
        }
    }

    /// New keys.
    ///
    /// # Errors
    /// The service is not there, or refuses.
    pub(super) fn fetch(&self) -> Result<AwsKeys> {
        match self {
            Self::WebIdentity { token, role, session, endpoint } => {
                let mut service = Service::new(PATIENCE)?;
                let form = [
                    ("Action", "AssumeRoleWithWebIdentity"),
                    ("Version", "2011-06-15"),
                    ("RoleArn", role),
                    ("RoleSessionName", session),
                    ("WebIdentityToken", &read(token)?.0),
                ];
                let pair = |(key, value): (&str, &str)| {
                    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
                    format!("{key}={}", percent_encode(value.as_bytes(), plain))
                };
                let form: Vec<String> = form.into_iter().map(pair).collect();
                let kind = (header::CONTENT_TYPE, "application/x-www-form-urlencoded");
                let answer =
                    service.ask(&Method::POST, endpoint, &[kind], form.join("&").into_bytes())?;
                of_xml(&answer).ok_or_else(|| strange("STS"))
            }
            Self::Container { url, token, token_file } => {
                let read = token_file.as_deref().map(read).transpose()?;
                let token = read.as_ref().or(token.as_ref()).map(|token| token.0.as_str());
                let token: Vec<_> =
                    token.map(|token| (header::AUTHORIZATION, token)).into_iter().collect();
                let answer = Service::new(NEAR)?.ask(&Method::GET, url, &token, Vec::new())?;
                of_json(&answer).ok_or_else(|| strange("the container's credential service"))
            }
            Self::Machine { endpoint } => of_machine(endpoint),
        }
    }
}

/// The keys of the role that a machine has.
fn of_machine(endpoint: &str) -> Result<AwsKeys> {
    let mut service = Service::new(NEAR)?;
    let lasts = (HeaderName::from_static("x-aws-ec2-metadata-token-ttl-seconds"), "300");
    let token = format!("{endpoint}/latest/api/token");
    // No machine of AWS, most often.
    let token = service.ask(&Method::PUT, &token, &[lasts], Vec::new());
    let token = token.map_err(|e| none().with_source(e))?;
    let token =
        String::from_utf8(token).map_err(|_| strange("the machine's credential service"))?;
    let token = [(HeaderName::from_static("x-aws-ec2-metadata-token"), token.as_str())];
    let roles = format!("{endpoint}/latest/meta-data/iam/security-credentials/");
    let role = service.ask(&Method::GET, &roles, &token, Vec::new());
    let role = role.map_err(|e| none().with_source(e))?;
    let role = String::from_utf8_lossy(&role);
    let role = role.lines().next().unwrap_or_default().trim();
    let keys = service.ask(&Method::GET, &format!("{roles}{role}"), &token, Vec::new())?;
    of_json(&keys).ok_or_else(|| strange("the machine's credential service"))
}

fn strange(who: &str) -> Error {
    let action = format!("find keys: {who} answers without keys");
    Error::new(ErrorKind::Protocol, Fault::Peer, action)
}

fn of_json(text: &[u8]) -> Option<AwsKeys> {
    let all: serde_json::Value = serde_json::from_slice(text).ok()?;
    let get = |key: &str| all.get(key)?.as_str().map(str::to_owned);
    let keys = AwsKeys::fixed(&get("AccessKeyId")?, &get("SecretAccessKey")?, get("Token"));
    Some(AwsKeys { until: get("Expiration").and_then(|text| iso_time(&text)), ..keys })
}

fn of_xml(text: &[u8]) -> Option<AwsKeys> {
    let get = |key| xml::text(text, key);
    let keys = AwsKeys::fixed(&get("AccessKeyId")?, &get("SecretAccessKey")?, get("SessionToken"));
    Some(AwsKeys { until: get("Expiration").and_then(|text| iso_time(&text)), ..keys })
}

/// A file with a token, which may have been replaced.
fn read(path: &Path) -> Result<Secret> {
    let failed = |e| Error::os("read the token", e).on(path.display());
    let file = programs::names::read(path).map(std::fs::File::from).map_err(failed)?;
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(failed)?;
    Ok(Secret(text.trim().to_owned()))
}

/// A service, over one connection.
struct Service(Caller);

impl Service {
    fn new(patience: Duration) -> Result<Self> {
        let bell = Arc::new(Bell::new().map_err(|e| Error::os("open", e))?);
        let (advice, protocol) = ("SSL_CERT_FILE", "http/1.1");
        let versions = TlsVersions::Both;
        let tls = CertificateFiles { trust: Trust::System, advice, ours: None, versions, protocol };
        let proxies = if patience == NEAR {
            Proxies::default()
        } else {
            Proxies::of_environment(|name| std::env::var(name).ok())?
        };
        let ways = Ways { unix: None, proxies, resolve: Vec::new(), tls, patience };
        Ok(Self(Caller::new(Arc::new(Dialer::new(ways, bell)))))
    }

    /// The body of the answer to one request.
    fn ask(
        &mut self,
        method: &Method,
        url: &str,
        headers: &[(HeaderName, &str)],
        body: Vec<u8>,
    ) -> Result<Vec<u8>> {
        let url = Url::parse(url).map_err(|e| e.on("the credential service"))?;
        let body = hyper::body::Bytes::from(body);
        let request = |_: &Dialer| {
            let mut request = Request::new(Payload::of(body.clone()));
            *request.method_mut() = method.clone();
            let target = url.target.parse();
            *request.uri_mut() = target.map_err(|_| Error::invalid("the URL is not valid"))?;
            let host = (header::HOST, url.authority());
            let headers = headers.iter().map(|(name, value)| (name.clone(), (*value).to_owned()));
            for (name, value) in headers.chain([host]) {
                let mut value = HeaderValue::from_str(&value)
                    .map_err(|_| Error::invalid("find keys: a token is not text"))?;
                value.set_sensitive(true);
                request.headers_mut().insert(name, value);
            }
            Ok(request)
        };
        let asked = self.0.call(&url, request).and_then(|head| Ok((head, self.0.body(LONGEST)?)));
        let (head, body) = asked.map_err(|trouble| trouble.error.on(&url))?;
        if head.status().is_success() && body.len() as u64 <= LONGEST {
            return Ok(body);
        }
        let code = xml::code(&body).map(|code| format!(", {code}")).unwrap_or_default();
        let action = format!("find keys: the service answers {}{code}", head.status().as_u16());
        Err(Error::new(ErrorKind::PermissionDenied, Fault::Peer, action).on(&url))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::site::{Asked, Reply, Site, plain, status};
    use super::*;

    const JSON: &str = r#"{"Code":"Success","AccessKeyId":"A","SecretAccessKey":"hidden","Token":"t","Expiration":"2100-01-31T23:59:59Z"}"#;
    const XML: &str = "<R><Credentials><AccessKeyId>A</AccessKeyId><SecretAccessKey>hidden</SecretAccessKey>\
         <SessionToken>t</SessionToken><Expiration>2100-01-31T23:59:59.000Z</Expiration></Credentials></R>";

    fn said(body: &str) -> Reply {
        plain("200 OK", &[&format!("Content-Length: {}", body.len())], body.as_bytes())
    }

    /// A service that gives keys to who asks as one has to, and what variables lead to it.
    fn service(asked: &Asked) -> Reply {
        let body = String::from_utf8(asked.body.clone()).unwrap();
        let roles = "/latest/meta-data/iam/security-credentials/";
        let has = |name: &str, value: &str| asked.header(name) == Some(value);
        match (asked.method.as_str(), asked.path.as_str()) {
            ("PUT", "/latest/api/token") if has("x-aws-ec2-metadata-token-ttl-seconds", "300") => {
                said("session")
            }
            ("GET", path) if path == roles && has("x-aws-ec2-metadata-token", "session") => {
                said("a-role\n")
            }
            ("GET", path) if path == format!("{roles}a-role") => said(JSON),
            ("GET", "/container") if has("authorization", "let me in") => said(JSON),
            ("POST", "/")
                if body.contains("WebIdentityToken=a%2Fb&") || body.ends_with("=a%2Fb") =>
            {
                said(XML)
            }
            _ => status("403 Forbidden", &[]),
        }
    }

    #[test]
    fn each_service_is_asked_in_its_own_way() {
        let scratch = trial::Scratch::new("/tmp");
        let token = scratch.file("token", b"a/b\n").display().to_string();
        let site = Site::new(service);
        let url = site.url("");
        let get = |name: &'static str| match name {
            "AWS_WEB_IDENTITY_TOKEN_FILE" => Some(token.clone()),
            "AWS_ROLE_ARN" => Some("arn:aws:iam::1:role/x".to_owned()),
            "AWS_ENDPOINT_URL_STS" | "AWS_EC2_METADATA_SERVICE_ENDPOINT" => Some(url.clone()),
            "AWS_CONTAINER_CREDENTIALS_FULL_URI" => Some(format!("{url}/container")),
            "AWS_CONTAINER_AUTHORIZATION_TOKEN" => Some("let me in".to_owned()),
            _ => None,
        };
        for service in [
            KeyService::web_identity(&get, "us-east-1"),
            KeyService::container(&get),
            KeyService::machine(&get),
        ] {
            let service = service.unwrap();
            let keys = service.fetch().unwrap_or_else(|e| panic!("{service:?}: {e}"));
            assert_eq!((keys.id.as_str(), keys.secret.0.as_str()), ("A", "hidden"), "{service:?}");
            assert_eq!(keys.token.as_ref().map(|token| token.0.as_str()), Some("t"));
            assert_eq!(keys.until, iso_time("2100-01-31T23:59:59Z"));
            assert!(!format!("{service:?} {keys:?}").contains("hidden"));
        }
    }

    #[test]
    fn what_a_service_refuses_or_makes_up_is_an_error_that_shows_nothing_of_it() {
        for answer in [
            said("hidden"),
            said(r#"{"AccessKeyId":"hidden"}"#),
            plain("403 Forbidden", &["Content-Length: 32"], b"<E><Code>hidden me</Code></E>123"),
            plain("200 OK", &["Content-Length: 100000"], &[b'a'; 100_000]),
        ] {
            let site = Site::new(move |_| answer.clone());
            let url = Some(site.url("/"));
            let get =
                move |name| url.clone().filter(|_| name == "AWS_CONTAINER_CREDENTIALS_FULL_URI");
            let error = KeyService::container(&get).unwrap().fetch().unwrap_err().to_string();
            assert!(!error.contains("hidden") && error.len() < 300, "{error}");
        }
    }
}
