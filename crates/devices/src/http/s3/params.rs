//! What names an object, and how its store is reached and asked.
//!
//! `s3://BUCKET/KEY?name=value`, where the key is what stands there, as AWS' own tools take it; or
//! `bucket=` and `key=`. The rest comes from parameters, the environment, and a profile of the
//! shared files, in this order.

use std::path::PathBuf;
use std::sync::Arc;

use device::{Error, Param, Params, Reach, Result, param, repeated, values};
use wire::percent_encode;

use super::super::credentials::{HttpCredentials, Secret};
use super::super::origin::Manners;
use super::super::params::{HttpParams, common};
use super::super::secret::secret;
use super::super::url::Url;
use super::keys::{AwsKeys, KeyRing, KeySource};
use super::profile::{Environment, Profile, files};
use super::region::{domain, is_region};
use super::signer::S3Signer;

/// Bytes of a key, at most.
const LONGEST_KEY: usize = 1024;
/// The region of a store that has an endpoint of its own, unless another is named.
const USUAL: &str = "us-east-1";

#[rustfmt::skip] // a parameter a line
pub(crate) const S3: &[Param] = &[
    param("uri", "URI", "s3://BUCKET/KEY?NAME=VALUE&…, with any of these parameters"),
    param("bucket", "NAME", "instead: the bucket"),
    param("key", "KEY", "instead: the key"),
    param("access-key", "ID", "the id of the keys to sign with (default: as AWS' own tools find them)"),
    param("anonymous", "true|false", "sign nothing: for objects that anyone may read (default false)"),
    param("cainfo", "FILE", "certificates to trust instead of the system's (empty: none)"),
    param("capath", "DIR", "a directory of certificates to trust"),
    param("connections", "N", "connections at most (default 8)"),
    param("endpoint", "URL", "where the store is (default: AWS)"),
    param("endpoint-url", "URL", "the same as endpoint"),
    param("exclusive", "true|false", "as a target: no other program writes the object meanwhile, so uploads of it that begin then are ours, and are ended if their names were lost (default false)"),
    param("noproxy", "HOSTS", "comma-separated hosts that need no proxy="),
    param("overwrite", "true|false", "as a target: replace an object that exists (default false)"),
    param("path-style", "true|false", "the bucket is in the path, not in the name of the host (default: where there is an endpoint)"),
    param("profile", "NAME", "the profile in ~/.aws to take keys and settings from (default: AWS_PROFILE)"),
    param("proxy", "PROXY", "http://HOST:PORT (default: the environment's; empty: none)"),
    param("proxy-password", "PASSWORD", "for the proxy; in the forms of secret-key="),
    param("proxy-user", "USER", "the login at the proxy"),
    param("region", "REGION", "the bucket's region (default: AWS_REGION, the profile's, or what the store says)"),
    repeated("resolve", "HOST:PORT:ADDRESS", "an address to use instead of looking it up"),
    param("retry", "N", "failures in a row before an operation fails (default 5)"),
    param("secret-key", "KEY", "the secret key: KEY, +FILE, -FD, -env:NAME, or - to be asked"),
    param("session-token", "TOKEN", "the token of temporary keys; in the forms of secret-key="),
    param("ssl-version", "tlsv1.2|tlsv1.3", "the oldest TLS to speak (default tlsv1.2)"),
    param("sslcert", "FILE", "our own certificate"),
    param("sslkey", "FILE", "its key (default: in the same file)"),
    param("sslverify", "true|false", "whether to verify the store's certificate (default true)"),
    param("timeout", "TIME", "how long a store that owes a reply may be silent (default 30)"),
    param("unix-socket-path", "PATH", "the store's Unix socket, instead of TCP"),
    param("version", "ID", "this version of the object, of a bucket that keeps versions"),
];

/// What is wanted.
#[derive(Debug)]
pub(super) struct S3Params {
    /// The name of the object, for people.
    pub(super) name: String,
    /// Its URL, how it is reached, and what signs requests for it.
    pub(super) http: HttpParams,
    pub(super) key: String,
    /// Whether an object that is there is replaced.
    pub(super) replaces: bool,
    /// Whether no other program writes it meanwhile.
    pub(super) is_exclusive: bool,
}

/// Which object, of all parameters.
#[derive(Debug)]
struct NamedObject {
    bucket: String,
    key: String,
    params: Params,
}

impl NamedObject {
    /// Takes a URI apart.
    fn of(params: &Params) -> Result<Self> {
        let mut all = params.clone();
        let (mut bucket, mut key) = (params.get("bucket"), params.get("key"));
        if let Some(uri) = params.get("uri") {
            if bucket.is_some() || key.is_some() {
                return Err(Error::invalid("uri= does not go with bucket= and key="));
            }
            let place = strip_scheme(uri);
            let (place, query) = place.split_once('?').unwrap_or((place, ""));
            for (name, value) in Params::parse_query(query)?.iter() {
                all.add(name, value);
            }
            all.check_declared(S3, false)?;
            let (one, other) = place.split_once('/').unwrap_or((place, ""));
            (bucket, key) = (Some(one), Some(other));
        }
        let wrong = |what: &str| {
            Error::invalid(format!("{what}; write s3://BUCKET/KEY, or bucket= and key="))
        };
        let bucket = bucket.filter(|bucket| !bucket.is_empty());
        let bucket = bucket.ok_or_else(|| wrong("no bucket is named"))?.to_owned();
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        if bucket.len() > 255 || !bucket.bytes().all(plain) || bucket.starts_with('.') {
            return Err(wrong(&format!("{bucket:?} is not the name of a bucket")));
        }
        let key = key.filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| wrong("no key is given: which object?"))?.to_owned();
        if key.len() > LONGEST_KEY {
            return Err(wrong("the key is longer than 1024 bytes"));
        }
        Ok(Self { bucket, key, params: all })
    }
}

fn strip_scheme(uri: &str) -> &str {
    let scheme = uri.get(..5).filter(|scheme| scheme.eq_ignore_ascii_case("s3://"));
    scheme.and_then(|scheme| uri.get(scheme.len()..)).unwrap_or(uri)
}

/// The name for people: without parameters, which may be secret.
pub(crate) fn shown(uri: &str) -> String {
    let (place, query) = uri.split_once('?').map_or((uri, false), |(place, _)| (place, true));
    format!("{place}{}", if query { "?…" } else { "" })
}

impl S3Params {
    /// What `params` say. Files of secrets and settings are read; `ask` is asked for the region of
    /// a bucket where nothing names it, with the URL that leads to it.
    ///
    /// # Errors
    /// They make no sense.
    pub(super) fn parse(
        params: &Params,
        environment: Environment<'_>,
        ask: impl FnOnce(&Url, &HttpParams) -> Option<String>,
    ) -> Result<Self> {
        let NamedObject { bucket, key, params } = NamedObject::of(params)?;
        let get = |name| environment(name).filter(|value: &String| !value.is_empty());
        let named = params.get("profile").map(str::to_owned);
        let chosen = named.clone().or_else(|| get("AWS_PROFILE"));
        let profile = chosen.as_deref().unwrap_or("default");
        let profile = Profile::read(profile, chosen.is_some(), environment)?;
        let setting = |variables: &[&'static str], key: &str| {
            let set = variables.iter().find_map(|name| get(name));
            set.or_else(|| profile.get(key).map(str::to_owned))
        };
        let endpoint = params.get("endpoint").or(params.get("endpoint-url")).map(str::to_owned);
        let endpoint = endpoint
            .or_else(|| setting(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"], "endpoint_url"));
        let region = params.get("region").map(str::to_owned);
        let region = region.or_else(|| setting(&["AWS_REGION", "AWS_DEFAULT_REGION"], "region"));
        let region = region.or_else(|| endpoint.is_some().then(|| USUAL.to_owned()));
        if let Some(region) = region.as_deref().filter(|region| !is_region(region)) {
            return Err(values::not_a("region", region, "a region: eu-central-1, say"));
        }
        let path_style = values::flag(&params, "path-style")?;
        let place = |region: &str| {
            let query = params.get("version").map(|id| format!("versionId={}", encoded(id, false)));
            let host = (endpoint.as_deref(), region);
            url(host, path_style, (&bucket, &key), query.as_deref().unwrap_or_default())
        };
        let own = concat!("diskferry/", env!("CARGO_PKG_VERSION")).to_owned();
        let manners = Manners { follow: false, upgrade: false, user_agent: own };
        let first = place(region.as_deref().unwrap_or(USUAL))?;
        let mut http = common(&params, first, HttpCredentials::default(), manners)?;
        let region = match region {
            Some(region) => region,
            None => ask(&http.url, &http).filter(|it| is_region(it)).unwrap_or(USUAL.into()),
        };
        http.url = place(&region)?;
        let named = named.is_some();
        let source = source(&params, (&profile, named), &region, environment)?;
        let name = format!("s3://{bucket}/{key}");
        http.name = Some(name.clone());
        http.credentials.signer = Some(Arc::new(S3Signer::new(KeyRing::new(source), region)));
        let replaces = values::flag(&params, "overwrite")?.unwrap_or(false);
        let is_exclusive = values::flag(&params, "exclusive")?.unwrap_or(false);
        Ok(Self { name, http, key, replaces, is_exclusive })
    }
}

/// Where keys come from.
fn source(
    params: &Params,
    (profile, named): (&Profile, bool),
    region: &str,
    environment: Environment<'_>,
) -> Result<KeySource> {
    let given = (params.get("access-key"), secret(params, "secret-key")?);
    let token = secret(params, "session-token")?.map(|Secret(token)| token);
    let anonymous = values::flag(params, "anonymous")?.unwrap_or(false);
    match given {
        (None, None) if anonymous => Ok(KeySource::Anonymous),
        (Some(_), _) | (_, Some(_)) if anonymous => {
            Err(Error::invalid("anonymous=true does not go with access-key= and secret-key="))
        }
        (Some(id), Some(Secret(secret))) => {
            Ok(KeySource::Fixed(AwsKeys::fixed(id, &secret, token)))
        }
        (Some(_), None) => Err(Error::invalid("access-key= needs secret-key=")),
        (None, Some(_)) => Err(Error::invalid("secret-key= needs access-key=")),
        (None, None) => KeySource::find(profile, named, region, environment),
    }
}

/// The URL of an object.
fn url(
    (endpoint, region): (Option<&str>, &str),
    path_style: Option<bool>,
    (bucket, key): (&str, &str),
    query: &str,
) -> Result<Url> {
    // A certificate for *.s3.… covers no name with a dot.
    let path_style = path_style.unwrap_or(endpoint.is_some() || bucket.contains('.'));
    let text = match endpoint {
        Some(endpoint) if endpoint.contains("://") => endpoint.to_owned(),
        Some(endpoint) => format!("https://{endpoint}"),
        None => format!("https://s3.{region}.{}", domain(region)),
    };
    let mut url = Url::parse(&text).map_err(|e| Error::invalid("endpoint=").with_source(e))?;
    if url.target.contains('?') || url.user.is_some() {
        return Err(values::not_a("endpoint", &url.to_string(), "a URL without a login or query"));
    }
    let base = url.target.trim_end_matches('/');
    let path = encoded(key, true);
    let query = if query.is_empty() { String::new() } else { format!("?{query}") };
    url.target = if path_style {
        format!("{base}/{bucket}/{path}{query}")
    } else {
        url.host = format!("{}.{}", bucket.to_ascii_lowercase(), url.host);
        format!("{base}/{path}{query}")
    };
    Ok(url)
}

/// Text in a path, where slashes stay, or in a query, as signatures want it.
pub(super) fn encoded(text: &str, slashes: bool) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b) || slashes && b == b'/';
    percent_encode(text.as_bytes(), plain)
}

/// The files of settings and keys, beside what `http` reaches.
pub(crate) fn reaches(params: &Params) -> Reach {
    let environment = |name: &str| std::env::var(name).ok();
    let all = NamedObject::of(params).map_or_else(|_| params.clone(), |named| named.params);
    let mut reach = super::super::reach::reaches(&all);
    for key in ["secret-key", "session-token"] {
        reach = all.get(key).map(super::super::secret::reach).into_iter().fold(reach, Reach::and);
    }
    let files = files(&environment).into_iter().filter(|path| !path.as_os_str().is_empty());
    reach.reads.extend(files);
    reach.rereads.extend(token_file(&all, &environment));
    reach
}

/// The file with a token that a service of keys wants.
fn token_file(params: &Params, environment: Environment<'_>) -> Option<PathBuf> {
    let named = params.get("profile").map(str::to_owned);
    let chosen = named.clone().or_else(|| environment("AWS_PROFILE"));
    let profile = Profile::read(chosen.as_deref().unwrap_or("default"), false, environment).ok()?;
    match KeySource::find(&profile, named.is_some(), USUAL, environment).ok()? {
        KeySource::Service(service) => service.file().cloned(),
        KeySource::Anonymous | KeySource::Fixed(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<S3Params> {
        let keys = |name: &str| match name {
            "AWS_ACCESS_KEY_ID" => Some("AKID".to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some("hidden".to_owned()),
            _ => None,
        };
        let params = Params::parse(words.iter().copied()).unwrap();
        S3Params::parse(&params, &keys, |_, _| Some("eu-x-1".into()))
    }

    fn url_of(words: &[&str]) -> String {
        let parsed = parse(words).unwrap();
        let url = parsed.http.url;
        format!("{}://{}{}", url.scheme.name(), url.authority(), url.target)
    }

    #[test]
    fn an_object_is_named_by_a_uri_or_by_parameters() {
        for (words, url) in [
            (&["uri=s3://b-1/a/k.raw"][..], "https://b-1.s3.eu-x-1.amazonaws.com/a/k.raw"),
            (&["uri=S3://b/k?region=cn-n"], "https://b.s3.cn-n.amazonaws.com.cn/k"),
            (&["uri=b/k", "region=r"], "https://b.s3.r.amazonaws.com/k"),
            (&["uri=s3://a.b/k"], "https://s3.eu-x-1.amazonaws.com/a.b/k"),
            (&["uri=s3://b/k?endpoint=http://h:9000/"], "http://h:9000/b/k"),
            (&["uri=s3://b/k", "endpoint-url=h"], "https://h/b/k"),
            (&["uri=s3://b/k?endpoint=http://h&path-style=false"], "http://b.h/k"),
            (&["uri=s3://b/k?version=a/b", "endpoint=http://h"], "http://h/b/k?versionId=a%2Fb"),
            (
                &["bucket=b", "key=a?b c%+é", "endpoint=http://h"],
                "http://h/b/a%3Fb%20c%25%2B%C3%A9",
            ),
        ] {
            assert_eq!(url_of(words), url, "{words:?}");
        }
        assert_eq!(shown("s3://b/k?secret-key=hidden"), "s3://b/k?…");
    }

    #[test]
    fn what_makes_no_sense_is_refused_without_secrets() {
        for words in [
            &["bucket=b"][..],
            &["key=k"],
            &["uri=s3://"],
            &["uri=s3://b"],
            &["uri=s3://b/"],
            &["uri=s3://b c/k"],
            &["uri=s3://b/k", "bucket=b"],
            &["uri=s3://b/k?nothing=1"],
            &["uri=s3://b/k?region=A B"],
            &["uri=s3://b/k?region=a.evil.example/"],
            &["uri=s3://b/k", "endpoint=ftp://h"],
            &["uri=s3://b/k", "endpoint=http://u:hidden@h"],
            &["uri=s3://b/k", "access-key=a"],
            &["uri=s3://b/k", "secret-key=hidden"],
            &["uri=s3://b/k?secret-key=hidden", "access-key=a", "anonymous=true"],
            &["uri=s3://b/k", "connections=0"],
        ] {
            let error = parse(words).expect_err(&format!("{words:?}")).to_string();
            assert!(!error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn nothing_that_is_secret_is_shown() {
        for words in [&["uri=s3://b/k?session-token=hidden"][..], &["uri=s3://b/k"]] {
            let shown = format!("{:?}", parse(words).unwrap());
            assert!(!shown.contains("hidden"), "{shown}");
        }
    }
}
