//! The object: its URL, the URL that redirects led to, and its identity when it was opened.
//!
//! A redirect is followed once and remembered. Its target may expire (a signed URL): then the
//! redirects are followed again from the beginning, and must lead to the same object. The object is
//! pinned by its strong ETag, which the server is asked to compare (If-Match), else by its date and
//! size, which are compared here in every answer: one that changes is an error, never a mixture.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use device::{Error, ErrorKind, Fault, Result};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request};
use runtime::Mutex;

use super::answer::Validators;
use super::credentials::HttpCredentials;
use super::dial::Dialer;
use super::payload::Payload;
use super::signing::Signer;
use super::url::{HttpScheme, LONGEST, Url};

/// Redirects in a row, at most.
pub(super) const HOPS: usize = 5;

/// Which redirects to follow, and our User-Agent.
#[derive(Clone, Debug)]
pub(super) struct Manners {
    pub(super) follow: bool,
    /// From http to https as well.
    pub(super) upgrade: bool,
    pub(super) user_agent: String,
}

/// The identity of the object when it was opened.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) size: u64,
    pub(super) validators: Validators,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Origin {
    original: Url,
    credentials: HttpCredentials,
    manners: Manners,
    current: Mutex<Arc<Url>>,
    known: OnceLock<Known>,
    matching: AtomicU8,
}

/// Whether the server accepts If-Match: some that check signatures refuse unsigned headers.
const UNTRIED: u8 = 0;
const TAKEN: u8 = 1;
const REFUSED: u8 = 2;

impl Origin {
    pub(super) fn new(original: Url, credentials: HttpCredentials, manners: Manners) -> Self {
        let current = Mutex::new(Arc::new(original.clone()));
        let (known, matching) = (OnceLock::new(), AtomicU8::new(UNTRIED));
        Self { original, credentials, manners, current, known, matching }
    }

    /// The URL that was named.
    pub(super) fn original(&self) -> &Url {
        &self.original
    }

    /// The URL that redirects led to.
    pub(super) fn current(&self) -> Arc<Url> {
        self.current.lock().clone()
    }

    /// Remembers that it was found there.
    pub(super) fn remember(&self, url: &Url) {
        let mut current = self.current.lock();
        if **current != *url {
            *current = Arc::new(url.clone());
        }
    }

    /// What signs its requests.
    pub(super) fn signer(&self) -> Option<&Arc<dyn Signer>> {
        self.credentials.signer.as_ref()
    }

    /// Makes header scripts run again, and a signer fetch what it signs with. Returns whether that
    /// may help.
    pub(super) fn renew(&self) -> bool {
        self.credentials.renew()
    }

    /// Pins the object.
    pub(super) fn pin(&self, size: u64, validators: Validators) {
        let _ = self.known.set(Known { size, validators });
    }

    /// Where a redirect from `url` leads.
    ///
    /// # Errors
    /// It must not be followed.
    pub(super) fn follow(&self, url: &Url, location: &str) -> Result<Url> {
        let refuse = |why: &str| {
            Error::new(ErrorKind::Denied, Fault::Peer, format!("GET: the server redirects {why}"))
        };
        if !self.manners.follow {
            return Err(refuse(match self.signer() {
                Some(_) => "elsewhere, where no signature is sent",
                None => "elsewhere, and followlocation=false was given",
            }));
        }
        let next = url.join(location).map_err(|_| {
            if location.len() > LONGEST {
                return refuse("to a URL that is longer than 32 KiB");
            }
            let scheme = location.split(':').next().unwrap_or_default();
            let scheme: String =
                scheme.chars().filter(|c| c.is_ascii_alphanumeric()).take(16).collect();
            refuse(&format!("to a URL that is not followed ({scheme}:)"))
        })?;
        match (url.scheme, next.scheme) {
            (HttpScheme::Https, HttpScheme::Http) => {
                Err(refuse(&format!("to {next}: from https to http is not followed")))
            }
            (HttpScheme::Http, HttpScheme::Https) if !self.manners.upgrade => Err(refuse(
                &format!("to {next}: name that URL, or allow it with protocols=http,https"),
            )),
            _ => Ok(next),
        }
    }

    /// Whether requests carry If-Match now.
    pub(super) fn matches(&self) -> bool {
        self.strong().is_some() && self.matching.load(Ordering::Relaxed) != REFUSED
    }

    /// A request with If-Match was answered with bytes.
    pub(super) fn match_was_taken(&self) {
        let _ =
            self.matching.compare_exchange(UNTRIED, TAKEN, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// One was refused. Returns whether the header may be the reason; it is then not sent any more.
    pub(super) fn match_was_refused(&self) -> bool {
        let now =
            self.matching.compare_exchange(UNTRIED, REFUSED, Ordering::Relaxed, Ordering::Relaxed);
        now.is_ok()
    }

    /// The header was not the reason: it is sent again.
    pub(super) fn match_again(&self) {
        self.matching.store(UNTRIED, Ordering::Relaxed);
    }

    fn strong(&self) -> Option<&str> {
        self.known.get().and_then(|known| known.validators.strong())
    }

    /// Whether an answer about `size` bytes is about another object.
    ///
    /// # Errors
    /// It is: what is different.
    pub(super) fn check(&self, size: Option<u64>, headers: &HeaderMap) -> Result<()> {
        let Some(known) = self.known.get() else { return Ok(()) };
        if let Some(size) = size.filter(|size| *size != known.size) {
            return Err(changed(&format!("it had {} bytes and has {size} now", known.size)));
        }
        let why = known.validators.contradicted_by(&Validators::of(headers));
        why.map_or(Ok(()), |why| Err(changed(&why)))
    }

    /// A request for bytes of `url`; `range` is the value after `bytes=`.
    ///
    /// # Errors
    /// As of [`compose`](Self::compose).
    pub(super) fn request(
        &self,
        method: Method,
        url: &Url,
        dialer: &Dialer,
        range: Option<&str>,
    ) -> Result<Request<Payload>> {
        let value = |text: &str| HeaderValue::from_str(text).ok();
        let encoding = (header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let range = range.and_then(|range| value(&format!("bytes={range}")));
        let etag = self.strong().filter(|_| self.matches()).and_then(value);
        let range = range.map(|range| (header::RANGE, range));
        let etag = etag.map(|etag| (header::IF_MATCH, etag));
        let headers = [Some(encoding), range, etag].into_iter().flatten().collect();
        self.compose(method, url, dialer, (headers, Payload::default()))
    }

    /// A request for `url` with these headers, which nothing else replaces, and this body.
    ///
    /// # Errors
    /// A script that makes headers failed, or it cannot be signed.
    pub(super) fn compose(
        &self,
        method: Method,
        url: &Url,
        dialer: &Dialer,
        (own, body): (Vec<(HeaderName, HeaderValue)>, Payload),
    ) -> Result<Request<Payload>> {
        let proxy = dialer.proxy(url).filter(|_| url.scheme == HttpScheme::Http);
        let target = match proxy {
            Some(_) => format!("http://{}{}", url.authority(), url.target),
            None => url.target.clone(),
        };
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = target.parse().map_err(|_| Error::invalid("the URL is not valid"))?;
        let headers = request.headers_mut();
        let mut set = |name, text: &str| {
            HeaderValue::from_str(text)
                .map(|value| headers.insert(name, value))
                .map(|_| ())
                .map_err(|_| Error::invalid("a header has characters that it cannot have"))
        };
        set(header::HOST, &url.authority())?;
        set(header::ACCEPT, "*/*")?;
        if !self.manners.user_agent.is_empty() {
            set(header::USER_AGENT, &self.manners.user_agent)?;
        }
        if let Some(login) = proxy.and_then(super::proxy::Proxy::authorization) {
            set(header::PROXY_AUTHORIZATION, &login)?;
        }
        if url.is_same_origin(&self.original) {
            let headers = request.headers_mut();
            let chosen = self.credentials.headers()?;
            for (name, _) in &chosen {
                headers.remove(name);
            }
            for (name, value) in chosen {
                if let Some(value) = value {
                    headers.append(name, value);
                }
            }
        }
        request.headers_mut().extend(own);
        if let Some(signer) = self.signer().filter(|_| url.is_same_origin(&self.original)) {
            signer.sign(&mut request, url)?;
        }
        Ok(request)
    }
}

/// The object is another one than the one that was opened.
pub(super) fn changed(why: &str) -> Error {
    let action = format!("GET: the object has changed since it was opened: {why}");
    Error::new(ErrorKind::Changed, Fault::Peer, action)
}

#[cfg(test)]
mod tests {
    use device::Params;

    use super::super::params::HttpParams;
    use super::*;

    #[test]
    fn no_redirect_leads_from_https_to_http_and_only_where_it_is_named_from_http_to_https() {
        for (words, from, to, follows) in [
            (&[][..], "https://h/a", "http://h/b", false),
            (&["protocols=http,https"], "https://h/a", "http://h/b", false),
            (&[], "http://h/a", "https://h/b", false),
            (&["protocols=http,https"], "http://h/a", "https://h/b", true),
            (&[], "https://h/a", "https://other/b", true),
            (&[], "https://h/a", "b", true),
            (&[], "https://h/a", "ftp://h/b", false),
            (&["followlocation=false"], "https://h/a", "b", false),
        ] {
            let mut params = Params::parse(words.iter().copied()).unwrap();
            params.add("url", from);
            let wanted = HttpParams::parse(&params).unwrap();
            let origin = Origin::new(wanted.url.clone(), wanted.credentials, wanted.manners);
            let led = origin.follow(&wanted.url, to);
            assert_eq!(led.is_ok(), follows, "{from} {to} {words:?}: {led:?}");
        }
    }
}
