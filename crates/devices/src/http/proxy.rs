//! The proxy for a server: the one that was named, or the environment's.

use device::{Error, Result};

use super::credentials::basic;
use super::url::{HttpScheme, Url};

/// An HTTP proxy.
#[derive(Clone, Eq, PartialEq)]
pub(super) struct Proxy {
    url: Url,
}

impl Proxy {
    /// Reads its URL, or `HOST:PORT`; a login is that of the URL, unless one is given.
    ///
    /// # Errors
    /// It is of a kind that is not supported.
    pub(super) fn parse(text: &str, login: Option<(String, String)>) -> Result<Self> {
        let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let scheme = whole.split("://").next().unwrap_or_default().to_ascii_lowercase();
        if scheme != "http" {
            return Err(Error::invalid(format!(
                "proxy: only HTTP proxies (http://HOST:PORT) are supported, not {scheme}"
            )));
        }
        let mut url = Url::parse(&whole).map_err(|_| Error::invalid("proxy: that is not a URL"))?;
        // curl's default port for a proxy.
        let authority = whole.rsplit(['@', '/']).find(|part| !part.is_empty()).unwrap_or_default();
        if url.port == 80 && !authority.ends_with(":80") {
            url.port = 1080;
        }
        if let Some((user, password)) = login {
            (url.user, url.password) = (Some(user), Some(password));
        }
        Ok(Self { url })
    }

    /// Host and port.
    pub(super) fn place(&self) -> (&str, u16) {
        (&self.url.host, self.url.port)
    }

    pub(super) fn endpoint(&self) -> String {
        self.url.endpoint()
    }

    /// The value of Proxy-Authorization.
    pub(super) fn authorization(&self) -> Option<String> {
        let password = self.url.password.as_deref().unwrap_or_default();
        self.url.user.as_ref().map(|user| basic(user, password))
    }
}

runtime::debug_as!(Proxy, |proxy| "Proxy({})", proxy.endpoint());

/// Proxies for each scheme, and the hosts that are reached without one.
#[derive(Clone, Debug, Default)]
pub(super) struct Proxies {
    pub(super) http: Option<Proxy>,
    pub(super) https: Option<Proxy>,
    pub(super) except: Vec<String>,
}

impl Proxies {
    /// One for all.
    pub(super) fn only(proxy: Proxy) -> Self {
        Self { http: Some(proxy.clone()), https: Some(proxy), except: Vec::new() }
    }

    /// From the environment: `http_proxy` (in small letters only, for a server that runs scripts
    /// must not take it from a header), `https_proxy`, `all_proxy`, `no_proxy`.
    ///
    /// # Errors
    /// A proxy of a kind that is not supported.
    pub(super) fn of_environment(get: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let get = |names: &[&str]| {
            names.iter().find_map(|name| get(name)).filter(|value| !value.trim().is_empty())
        };
        let read = |names: &[&str]| {
            get(names)
                .map(|text| Proxy::parse(text.trim(), None).map_err(|e| e.on(names.join(", "))))
                .transpose()
        };
        let all = ["all_proxy", "ALL_PROXY"];
        let mut found = Self {
            http: read(&[&["http_proxy"], &all[..]].concat())?,
            https: read(&[&["https_proxy", "HTTPS_PROXY"], &all[..]].concat())?,
            except: Vec::new(),
        };
        found.set_exceptions(&get(&["no_proxy", "NO_PROXY"]).unwrap_or_default());
        Ok(found)
    }

    /// Hosts, with commas between, that are reached without a proxy.
    pub(super) fn set_exceptions(&mut self, text: &str) {
        let hosts = text.split([',', ' ']).map(|host| host.trim().to_ascii_lowercase());
        self.except = hosts.filter(|host| !host.is_empty()).collect();
    }

    pub(super) fn of(&self, url: &Url) -> Option<&Proxy> {
        let excepted = self.except.iter().any(|name| {
            let name = name.strip_prefix("*.").or(name.strip_prefix('.')).unwrap_or(name);
            let name = name.trim_start_matches('[').trim_end_matches(']');
            let rest = url.host.strip_suffix(name);
            name == "*" || rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        });
        if excepted {
            return None;
        }
        match url.scheme {
            HttpScheme::Http => self.http.as_ref(),
            HttpScheme::Https => self.https.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_which_proxy_and_for_which_hosts() {
        let get = |name: &str| match name {
            "http_proxy" => Some("http://u:p@one:3128/".to_owned()),
            "ALL_PROXY" => Some("two".to_owned()),
            "no_proxy" => Some("localhost, .corp.example,10.0.0.1".to_owned()),
            _ => None,
        };
        let proxies = Proxies::of_environment(get).unwrap();
        let of = |url: &str| proxies.of(&Url::parse(url).unwrap()).map(Proxy::endpoint);
        assert_eq!(of("http://example/").as_deref(), Some("one:3128"));
        assert_eq!(of("https://example/").as_deref(), Some("two:1080"));
        for direct in ["http://localhost:8080/", "http://a.corp.example/", "https://10.0.0.1/"] {
            assert_eq!(of(direct), None, "{direct}");
        }
        assert!(of("http://notlocalhost/").is_some());
        let login = proxies.http.as_ref().and_then(Proxy::authorization);
        assert_eq!(login.as_deref(), Some("Basic dTpw"));
        assert_eq!(format!("{:?}", proxies.http), "Some(Proxy(one:3128))");
    }

    #[test]
    fn proxies_that_are_not_spoken_to_are_refused() {
        for text in ["socks5://h:1", "https://h:1", "http://", "socks4a://h"] {
            assert!(Proxy::parse(text, None).is_err(), "{text}");
        }
        let host_only = Proxy::parse("h:80", None).unwrap();
        assert_eq!(host_only.endpoint(), "h:80");
    }
}
