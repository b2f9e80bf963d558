//! What the parameters mean, and why some of nbdkit's are refused.

use std::path::PathBuf;
use std::time::Duration;

use device::{Error, Params, Result, values};
use net::tls::{CertificateFiles, TlsVersions, Trust};
use runtime::to_usize;

use super::credentials::{Header, HttpCredentials, Script, Secret, basic, header};
use super::dial::Ways;
use super::netrc;
use super::origin::Manners;
use super::proxy::{Proxies, Proxy};
use super::secret::{named, secret};
use super::url::{HttpScheme, Url};

/// Connections by default, and at most.
const CONNECTIONS: usize = 8;
const MOST_CONNECTIONS: usize = 64;
/// How long a server that owes something may be silent.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a script may take.
const SCRIPT: Duration = Duration::from_secs(60);
/// Failures in a row before one is reported.
const RETRIES: u32 = 5;
/// Bytes of a `.netrc`, at most.
const NETRC: u64 = 1 << 20;

/// Parameters of nbdkit that make no sense here, and why.
const REFUSED: &[(&str, &str)] = &[
    (
        "cookiefile",
        "cookies that servers set are not kept; send one with cookie= or cookie-script=",
    ),
    ("cookiejar", "cookies that servers set are not kept; send one with cookie= or cookie-script="),
    ("ssl-cipher-list", "all supported ciphers are secure; there is nothing to choose"),
    ("tls13-ciphers", "all supported ciphers are secure; there is nothing to choose"),
    (
        "ipresolve",
        "addresses are tried in the order in which the system gives them; resolve= fixes one",
    ),
    ("proxy-cainfo", "connections to proxies use plain HTTP"),
    ("proxy-capath", "connections to proxies use plain HTTP"),
];

/// What is wanted.
#[derive(Debug)]
pub(crate) struct HttpParams {
    pub(super) url: Url,
    pub(super) credentials: HttpCredentials,
    pub(super) manners: Manners,
    pub(super) ways: Ways,
    pub(super) connections: usize,
    pub(super) retries: u32,
    /// Its name for people, unless it is the URL.
    pub(super) name: Option<String>,
}

impl HttpParams {
    /// What `params` say. Files of secrets are read.
    ///
    /// # Errors
    /// They make no sense.
    pub(crate) fn parse(params: &Params) -> Result<Self> {
        refuse(params)?;
        let text = params.get("url").unwrap_or_default();
        if text.is_empty() {
            let action = "url= is missing; for example url=https://example.com/disk.img";
            return Err(Error::invalid(action));
        }
        let url = Url::parse(text)?;
        let credentials = credentials(params, &url, text)?;
        let manners = manners(params, &url)?;
        common(params, url, credentials, manners)
    }
}

/// What parameters say that any object takes, whatever names it.
///
/// # Errors
/// They make no sense.
pub(super) fn common(
    params: &Params,
    url: Url,
    credentials: HttpCredentials,
    manners: Manners,
) -> Result<HttpParams> {
    let connections = count(params, "connections", 1, MOST_CONNECTIONS)?;
    let retries = count(params, "retry", 0, 1000)?.and_then(|n| u32::try_from(n).ok());
    // 0 is nbdkit's word for the default.
    let patience = values::duration(params, "timeout")?.filter(|time| !time.is_zero());
    Ok(HttpParams {
        url,
        credentials,
        manners,
        ways: ways(params, patience.unwrap_or(PATIENCE))?,
        connections: connections.unwrap_or(CONNECTIONS),
        retries: retries.unwrap_or(RETRIES),
        name: None,
    })
}

/// A number in a range.
fn count(params: &Params, key: &str, least: usize, most: usize) -> Result<Option<usize>> {
    let Some(number) = values::number(params, key)? else { return Ok(None) };
    match Some(to_usize(number)).filter(|n| (least..=most).contains(n)) {
        Some(number) => Ok(Some(number)),
        None => {
            let range = format!("a number from {least} to {most}");
            Err(values::not_a(key, params.get(key).unwrap_or_default(), &range))
        }
    }
}

fn refuse(params: &Params) -> Result<()> {
    for (key, why) in REFUSED {
        if params.contains(key) {
            return Err(values::wrong(key, why));
        }
    }
    for key in ["tcp-keepalive", "tcp-nodelay"] {
        if values::flag(params, key)? == Some(false) {
            return Err(values::wrong(key, "it is always on"));
        }
    }
    match params.get("http-version") {
        None | Some("none" | "1.1") => Ok(()),
        Some(_) => Err(values::wrong(
            "http-version",
            "only HTTP/1.1 is supported: ranges over several of its connections are faster than over one of HTTP/2",
        )),
    }
}

fn manners(params: &Params, url: &Url) -> Result<Manners> {
    let protocols = params.get("protocols").unwrap_or_default();
    let names: Vec<&str> = protocols.split(',').map(str::trim).filter(|p| !p.is_empty()).collect();
    let allowed: Vec<HttpScheme> =
        names.iter().filter_map(|name| HttpScheme::parse(name)).collect();
    if params.contains("protocols") && !allowed.contains(&url.scheme) {
        let why = format!("{} is not among them", url.scheme.name());
        return Err(values::wrong("protocols", why));
    }
    let own = concat!("diskferry/", env!("CARGO_PKG_VERSION"));
    Ok(Manners {
        follow: values::flag(params, "followlocation")?.unwrap_or(true),
        upgrade: allowed.contains(&HttpScheme::Https),
        user_agent: params.get("user-agent").unwrap_or(own).to_owned(),
    })
}

fn credentials(params: &Params, url: &Url, text: &str) -> Result<HttpCredentials> {
    for (one, other) in [
        ("header", "header-script"),
        ("cookie", "cookie-script"),
        ("bearer", "user"),
        ("bearer", "password"),
        ("bearer", "netrc"),
        ("netrc", "password"),
    ] {
        if params.contains(one) && params.contains(other) {
            return Err(Error::invalid(format!("{one}= and {other}= cannot be combined")));
        }
    }
    let script = |key: &str, renew: &str| {
        let time = values::duration(params, renew)?.filter(|time| !time.is_zero());
        match params.get(key) {
            None if time.is_some() => Err(Error::invalid(format!("{renew}= needs {key}="))),
            None => Ok(None),
            Some(command) => Ok(Some(Script::new(command, text, time, SCRIPT))),
        }
    };
    Ok(HttpCredentials {
        authorization: authorization(params, url)?,
        headers: params.all("header").map(named_header).collect::<Result<_>>()?,
        cookie: secret(params, "cookie")?,
        header_script: script("header-script", "header-script-renew")?,
        cookie_script: script("cookie-script", "cookie-script-renew")?,
        signer: None,
    })
}

/// A header, or the name of one: none begins with `+` or `-`.
fn named_header(word: &str) -> Result<Header> {
    header(&named(word, "header")?.0)
}

fn authorization(params: &Params, url: &Url) -> Result<Option<Secret>> {
    if let Some(Secret(token)) = secret(params, "bearer")? {
        return Ok(Some(Secret(format!("Bearer {token}"))));
    }
    let user = params.get("user").map(str::to_owned).or(url.user.clone());
    let mut password = secret(params, "password")?.or(url.password.clone().map(Secret));
    let mut user = user.filter(|user| !user.is_empty());
    if let Some(path) = params.get("netrc").filter(|_| password.is_none()) {
        let found = netrc::login(&netrc_text(path)?, &url.host, user.as_deref());
        if let Some((login, secret)) = found {
            (user, password) = (Some(login), Some(secret));
        }
    }
    match (user, password) {
        (Some(user), password) => {
            if user.contains(':') {
                return Err(Error::invalid("user= has a colon, which no login can have"));
            }
            Ok(Some(Secret(basic(&user, &password.unwrap_or_default().0))))
        }
        (None, Some(_)) => Err(Error::invalid("password= needs user=")),
        (None, None) => Ok(None),
    }
}

/// The contents of the file, or, without a name, of the user's own.
fn netrc_text(path: &str) -> Result<String> {
    let path = if path.is_empty() {
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
        let home = home.ok_or_else(|| values::wrong("netrc", "HOME is not set; name the file"))?;
        PathBuf::from(home).join(".netrc")
    } else {
        PathBuf::from(path)
    };
    let failed = |e: std::io::Error| Error::os("read netrc=", e).on(path.display());
    let mut text = String::new();
    let file = std::fs::File::open(&path).map_err(failed)?;
    std::io::Read::read_to_string(&mut std::io::Read::take(file, NETRC), &mut text)
        .map_err(failed)?;
    Ok(text)
}

fn ways(params: &Params, patience: Duration) -> Result<Ways> {
    let resolve = params.all("resolve").map(|text| {
        let wrong = || values::not_a("resolve", text, "HOST:PORT:ADDRESS");
        let mut parts = text.splitn(3, ':');
        let host = parts.next().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        let port = parts.next().and_then(|port| port.parse().ok()).ok_or_else(wrong)?;
        let address = parts.next().ok_or_else(wrong)?;
        let address = address.trim_start_matches('[').trim_end_matches(']');
        address.parse::<std::net::IpAddr>().map_err(|_| wrong())?;
        Ok((host.to_ascii_lowercase(), port, address.to_owned()))
    });
    let unix = params.get("unix-socket-path").map(str::to_owned);
    if unix.is_some() && params.contains("proxy") {
        return Err(Error::invalid("unix-socket-path= and proxy= cannot be combined"));
    }
    let resolve = resolve.collect::<Result<Vec<_>>>()?;
    Ok(Ways { unix, proxies: proxies(params)?, resolve, tls: tls(params)?, patience })
}

fn proxies(params: &Params) -> Result<Proxies> {
    let user = params.get("proxy-user").map(str::to_owned);
    let password = secret(params, "proxy-password")?;
    if user.is_none() && password.is_some() {
        return Err(Error::invalid("proxy-password= needs proxy-user="));
    }
    match params.get("proxy") {
        Some("") => Ok(Proxies::default()),
        Some(text) => {
            let login = user.map(|user| (user, password.unwrap_or_default().0));
            let mut all = Proxies::only(Proxy::parse(text, login)?);
            all.set_exceptions(params.get("noproxy").unwrap_or_default());
            Ok(all)
        }
        None if user.is_some() => Err(Error::invalid("proxy-user= needs proxy=")),
        None => Proxies::of_environment(|name| std::env::var(name).ok()),
    }
}

fn tls(params: &Params) -> Result<CertificateFiles> {
    let path = |key| params.get(key).map(PathBuf::from);
    let ours = match (path("sslcert"), path("sslkey")) {
        (Some(certificate), key) => {
            let key = key.unwrap_or_else(|| certificate.clone());
            Some((certificate, key))
        }
        (None, Some(_)) => return Err(Error::invalid("sslkey= needs sslcert=")),
        (None, None) => None,
    };
    let versions = match params.get("ssl-version") {
        None | Some("default" | "tlsv1" | "tlsv1.2") => TlsVersions::Both,
        Some("tlsv1.3") => TlsVersions::Only13,
        Some("max-tlsv1.2") => TlsVersions::Only12,
        Some(other) => {
            let why = format!("{other} is not supported; there are tlsv1.2 (or later) and tlsv1.3");
            return Err(values::wrong("ssl-version", why));
        }
    };
    let trust = match (path("cainfo"), path("capath")) {
        _ if values::flag(params, "sslverify")? == Some(false) => Trust::Anyone,
        (None, None) => Trust::System,
        // An empty name: no file.
        (file, directory) => {
            let file = file.filter(|file| !file.as_os_str().is_empty());
            Trust::Named { file, directory }
        }
    };
    let (advice, protocol) = ("cainfo= or capath=", "http/1.1");
    Ok(CertificateFiles { trust, advice, ours, versions, protocol })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<HttpParams> {
        let mut params = Params::parse(words.iter().copied()).unwrap();
        if !params.contains("url") {
            params.add("url", "https://host.example/disk?sig=secret");
        }
        HttpParams::parse(&params)
    }

    fn login(words: &[&str]) -> Option<String> {
        parse(words).unwrap().credentials.authorization.map(|secret| secret.0)
    }

    #[test]
    fn a_login_is_taken_from_parameters_url_or_netrc() {
        assert_eq!(login(&["user=a", "password=b"]).unwrap(), basic("a", "b"));
        assert_eq!(login(&["url=https://u:p@h/"]).unwrap(), basic("u", "p"));
        assert_eq!(login(&["url=https://u:p@h/", "password=q"]).unwrap(), basic("u", "q"));
        assert_eq!(login(&["bearer=t"]).unwrap(), "Bearer t");
        assert_eq!(login(&[]), None);
        let scratch = trial::Scratch::new("/tmp");
        let path = scratch.file("netrc", b"machine host.example login n password m");
        let netrc = format!("netrc={}", path.display());
        assert_eq!(login(&[&netrc]).unwrap(), basic("n", "m"));
        assert_eq!(login(&[&netrc, "user=n"]).unwrap(), basic("n", "m"));
        assert_eq!(login(&[&netrc, "user=x"]).unwrap(), basic("x", ""));
    }

    #[test]
    fn invalid_parameters_are_refused_with_a_reason_and_without_secrets() {
        for words in [
            &["url=ftp://h/"][..],
            &["url=secret"],
            &["url="],
            &["connections=0"],
            &["connections=1000"],
            &["retry=-1"],
            &["timeout=soon"],
            &["cookiefile=x"],
            &["cookiejar=x"],
            &["http-version=2.0"],
            &["tcp-nodelay=false"],
            &["tcp-keepalive=false"],
            &["ssl-version=sslv3"],
            &["ssl-cipher-list=x"],
            &["protocols=http"],
            &["protocols=ftp"],
            &["header=X: secret", "header-script=x"],
            &["header=secret"],
            &["header=Range: secret"],
            &["cookie=secret", "cookie-script=x"],
            &["cookie-script-renew=5"],
            &["bearer=secret", "user=x"],
            &["password=secret"],
            &["user=a:b", "password=secret"],
            &["proxy-password=secret"],
            &["proxy-user=x"],
            &["proxy=socks5://h"],
            &["proxy=http://u:secret@h:port"],
            &["unix-socket-path=/s", "proxy=h:1"],
            &["resolve=h:1"],
            &["resolve=h:1:name"],
            &["sslkey=x"],
            &["netrc=/nonexistent"],
        ] {
            let error = parse(words).expect_err(&format!("{words:?}")).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn every_parameter_of_nbdkits_curl_is_taken_or_refused_with_a_reason() {
        let taken = "cainfo=; capath=/etc/ssl/certs; connections=16; cookie=a=b; \
             cookie-script=echo a=b; followlocation=false; header=X-Token: 1; \
             header-script=echo X-Token: 1; http-version=none; http-version=1.1; \
             protocols=http,https; proxy=http://proxy:3128; resolve=host.example:443:127.0.0.1; \
             resolve=host.example:443:[::1]; sslverify=false; ssl-version=tlsv1.2; \
             ssl-version=tlsv1.3; ssl-version=max-tlsv1.2; tcp-keepalive=true; \
             tcp-nodelay=true; timeout=5; timeout=0; unix-socket-path=/run/http; user=me; \
             user-agent=other/1; user-agent=";
        for word in taken.split("; ") {
            parse(&[word]).unwrap_or_else(|e| panic!("{word}: {e}"));
        }
        for words in [
            ["cookie-script=x", "cookie-script-renew=60"],
            ["header-script=x", "header-script-renew=60"],
            ["user=me", "password=p"],
            ["proxy=h:1", "proxy-user=me"],
        ] {
            parse(&words).unwrap();
        }
        parse(&["proxy=h:1", "proxy-user=me", "proxy-password=p"]).unwrap();
        for (word, why) in [
            ("cookiefile=", "cookies that servers set are not kept"),
            ("cookiejar=f", "cookies that servers set are not kept"),
            ("ipresolve=v4", "resolve= fixes one"),
            ("http-version=2TLS", "only HTTP/1.1 is supported"),
            ("http-version=3", "only HTTP/1.1 is supported"),
            ("proxy-cainfo=f", "connections to proxies use plain HTTP"),
            ("proxy-capath=d", "connections to proxies use plain HTTP"),
            ("ssl-cipher-list=a:b", "nothing to choose"),
            ("tls13-ciphers=a:b", "nothing to choose"),
            ("ssl-version=tlsv1.1", "is not supported"),
            ("ssl-version=sslv2", "is not supported"),
            ("tcp-keepalive=false", "it is always on"),
            ("tcp-nodelay=false", "it is always on"),
            ("protocols=ftp,file", "https is not among them"),
        ] {
            let said = parse(&[word]).expect_err(word).to_string();
            assert!(said.contains(why), "{word}: {said}");
        }
    }

    #[test]
    fn nothing_that_is_secret_is_shown() {
        let wanted = parse(&[
            "user=me",
            "password=secret",
            "cookie=secret",
            "header=X-Token: secret",
            "proxy=http://u:secret@h:1",
        ]);
        let shown = format!("{:?}", wanted.unwrap());
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn other_schemes_are_followed_where_they_are_named() {
        let upgrades = |words: &[&str]| parse(words).unwrap().manners.upgrade;
        assert!(!upgrades(&["url=http://h/"]));
        assert!(upgrades(&["url=http://h/", "protocols=http,https"]));
    }
}
