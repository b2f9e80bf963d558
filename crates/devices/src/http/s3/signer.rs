//! What signs requests for a store, and what its refusals mean.

use std::time::SystemTime;

use device::{Error, Result};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, StatusCode};

use super::super::payload::Payload;
use super::super::signing::Signer;
use super::super::url::{HttpScheme, Url};
use super::super::xml;
use super::keys::KeyRing;
use super::region::is_region;
use super::signature::{Signable, SignatureScope, UNSIGNED, amz_date, sha256};

/// Headers that are signed, beside those of AWS. Others may be changed on the way.
const SIGNED: [HeaderName; 6] = [
    header::HOST,
    header::RANGE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::CONTENT_TYPE,
    HeaderName::from_static("content-md5"),
];

/// What the codes of refusals mean.
const MEANINGS: &[(&str, &str)] = &[
    ("AccessDenied", "these keys may not do that"),
    ("ExpiredToken", "the session token has expired"),
    ("InvalidAccessKeyId", "the store does not know these keys"),
    ("InvalidToken", "the session token is wrong"),
    ("NoSuchBucket", "there is no such bucket"),
    ("NoSuchKey", "there is no such object"),
    ("NoSuchVersion", "there is no such version of the object"),
    ("NotImplemented", "the store cannot do that"),
    ("RequestTimeTooSkewed", "this machine's clock is wrong"),
    ("SignatureDoesNotMatch", "the secret key is wrong"),
];

/// See the module.
#[derive(Debug)]
pub(super) struct S3Signer {
    ring: KeyRing,
    region: String,
}

impl S3Signer {
    pub(super) fn new(ring: KeyRing, region: String) -> Self {
        Self { ring, region }
    }
}

impl Signer for S3Signer {
    fn sign(&self, request: &mut Request<Payload>, url: &Url) -> Result<()> {
        let now = SystemTime::now();
        let Some(keys) = self.ring.keys(now)? else { return Ok(()) };
        // TLS protects a body already.
        let bytes = request.body().bytes();
        let payload = if bytes.is_empty() || url.scheme == HttpScheme::Http {
            sha256(bytes)
        } else {
            UNSIGNED.to_owned()
        };
        set(request, "x-amz-date", &amz_date(now), false)?;
        set(request, "x-amz-content-sha256", &payload, false)?;
        if let Some(token) = &keys.token {
            set(request, "x-amz-security-token", &token.0, true)?;
        }
        let is_signed =
            |name: &HeaderName| SIGNED.contains(name) || name.as_str().starts_with("x-amz-");
        let headers = request.headers().iter().filter(|(name, _)| is_signed(name));
        let headers = headers
            .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes()).into()));
        let (path, query) = url.target.split_once('?').unwrap_or((&url.target, ""));
        let what = Signable {
            method: request.method().as_str(),
            path,
            query,
            headers: headers.collect(),
            payload: &payload,
        };
        let scope = SignatureScope { region: &self.region, service: "s3", at: now };
        let authorization = scope.authorization(&keys, &what);
        set(request, "authorization", &authorization, true)
    }

    fn renew(&self) -> bool {
        self.ring.renew()
    }

    fn explain(&self, _: StatusCode, headers: &HeaderMap, body: &[u8]) -> Option<String> {
        let told = headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok());
        let told = told.map(str::to_owned).or_else(|| xml::text(body, "Region"));
        if let Some(region) = told.filter(|it| is_region(it) && *it != self.region) {
            return Some(format!("the bucket is in another region; add region={region}"));
        }
        let code = xml::code(body)?;
        let meaning = MEANINGS.iter().find(|(known, _)| *known == code);
        let who =
            if self.ring.is_anonymous() { "; nothing was signed (anonymous=true)" } else { "" };
        Some(match meaning {
            Some((_, meaning)) => format!("{meaning} ({code}){who}"),
            None => format!("{code}{who}"),
        })
    }
}

fn set(
    request: &mut Request<Payload>,
    name: &'static str,
    text: &str,
    is_secret: bool,
) -> Result<()> {
    let value = HeaderValue::from_str(text);
    let mut value = value.map_err(|_| Error::invalid("sign: the keys are not text"))?;
    value.set_sensitive(is_secret);
    request.headers_mut().insert(HeaderName::from_static(name), value);
    Ok(())
}
