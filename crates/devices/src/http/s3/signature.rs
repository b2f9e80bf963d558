//! AWS Signature, version 4: what is signed of a request, and with what.
//!
//! Pure computation. The path and the query are signed as they are sent: encoded once, which is
//! what S3 wants. Tested with the examples that AWS publishes.

use std::fmt::Write as _;
use std::time::SystemTime;

use device::timestamp;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::keys::AwsKeys;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// What stands for the digest of a body that TLS protects.
pub(super) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// What is signed.
#[derive(Debug)]
pub(super) struct Signable<'a> {
    pub(super) method: &'a str,
    /// As it is sent.
    pub(super) path: &'a str,
    pub(super) query: &'a str,
    /// Those that are signed: names in lower case.
    pub(super) headers: Vec<(&'a str, String)>,
    /// The digest of the body, or what stands for it.
    pub(super) payload: &'a str,
}

/// For which keys a signature is.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignatureScope<'a> {
    pub(super) region: &'a str,
    pub(super) service: &'a str,
    pub(super) at: SystemTime,
}

impl SignatureScope<'_> {
    /// The value of Authorization.
    pub(super) fn authorization(&self, keys: &AwsKeys, what: &Signable<'_>) -> String {
        let (canonical, signed) = what.canonical();
        let time = amz_date(self.at);
        let day = time.get(..8).unwrap_or_default();
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        let digest = hex(&Sha256::digest(&canonical));
        let text = format!("{ALGORITHM}\n{time}\n{scope}\n{digest}");
        let mut key = hmac(format!("AWS4{}", keys.secret.0).as_bytes(), day);
        for part in [self.region, self.service, "aws4_request"] {
            key = hmac(&key, part);
        }
        let signature = hex(&hmac(&key, &text));
        let id = &keys.id;
        format!(
            "{ALGORITHM} Credential={id}/{scope}, SignedHeaders={signed}, Signature={signature}"
        )
    }
}

impl Signable<'_> {
    /// The request in its canonical form, and the names of its headers.
    fn canonical(&self) -> (String, String) {
        let mut headers: Vec<_> = self.headers.iter().collect();
        headers.sort();
        let mut lines = String::new();
        for (name, value) in &headers {
            let words: Vec<&str> = value.split_ascii_whitespace().collect();
            let _ = writeln!(lines, "{name}:{}", words.join(" "));
        }
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let mut query: Vec<(&str, &str)> = self
            .query
            .split('&')
            .filter(|word| !word.is_empty())
            .map(|word| word.split_once('=').unwrap_or((word, "")))
            .collect();
        query.sort_unstable();
        let query: Vec<String> =
            query.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        let (method, path, query) = (self.method, self.path, query.join("&"));
        let payload = self.payload;
        (format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}"), names)
    }
}

/// A time as AWS writes it: `20150830T123600Z`.
pub(super) fn amz_date(at: SystemTime) -> String {
    let text = timestamp(at);
    let digits = text.split('.').next().unwrap_or_default();
    let digits = digits.chars().filter(|c| !matches!(c, '-' | ':'));
    let text: String = digits.map(|c| if c == ' ' { 'T' } else { c }).collect();
    text + "Z"
}

/// The digest of bytes, in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    // A key may have any length.
    let Ok(mut hmac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    hmac.update(text.as_bytes());
    hmac.finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn signature(what: &Signable<'_>, secret: &str, service: &str, at: u64) -> String {
        let keys = AwsKeys::fixed("AKID", secret, None);
        let at = UNIX_EPOCH + Duration::from_secs(at);
        let scope = SignatureScope { region: "us-east-1", service, at };
        scope.authorization(&keys, what).rsplit('=').next().unwrap().to_owned()
    }

    /// The examples of "Authenticating Requests: Using the Authorization Header" in the
    /// documentation of S3.
    #[test]
    fn the_examples_of_s3_have_their_signatures() {
        const PUT: &str = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        let host = ("host", "examplebucket.s3.amazonaws.com");
        let date = ("x-amz-date", "20130524T000000Z");
        for (method, path, query, headers, payload, wanted) in [
            (
                "GET",
                "/test.txt",
                "",
                &[("range", "bytes=0-9")][..],
                EMPTY,
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "PUT",
                "/test%24file.text",
                "",
                &[
                    ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
                    ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                ],
                PUT,
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            ),
            (
                "GET",
                "/",
                "lifecycle",
                &[],
                EMPTY,
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "GET",
                "/",
                "prefix=J&max-keys=2",
                &[],
                EMPTY,
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let digest = ("x-amz-content-sha256", payload);
            let headers = headers.iter().chain([&host, &date, &digest]);
            let headers = headers.map(|(name, value)| (*name, (*value).to_owned())).collect();
            let what = Signable { method, path, query, headers, payload };
            let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
            assert_eq!(signature(&what, secret, "s3", 1_369_353_600), wanted, "{path} {query}");
        }
        assert_eq!(sha256(b"Welcome to Amazon S3."), PUT);
    }

    /// Of the test suite of Signature V4 (aws-sig-v4-test-suite).
    #[test]
    fn the_plain_requests_of_the_test_suite_have_their_signatures() {
        for (method, headers, wanted) in [
            ("GET", &[][..], "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
            ("POST", &[], "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
            (
                "GET",
                &[("my-header1", " value1"), ("my-header2", " \"a   b   c\"")],
                "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
            ),
        ] {
            let own = [("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")];
            let headers = headers.iter().chain(&own);
            let headers = headers.map(|(name, value)| (*name, (*value).to_owned())).collect();
            let what = Signable { method, path: "/", query: "", headers, payload: EMPTY };
            let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
            assert_eq!(signature(&what, secret, "service", 1_440_938_160), wanted, "{method}");
        }
    }

    #[test]
    fn a_signature_says_for_whom_it_is_and_shows_no_secret() {
        let keys = AwsKeys::fixed("AKID", "hidden", None);
        let scope = SignatureScope { region: "eu-x-1", service: "s3", at: UNIX_EPOCH };
        let headers = vec![("host", "h".into())];
        let what = Signable { method: "GET", path: "/", query: "", headers, payload: UNSIGNED };
        let said = scope.authorization(&keys, &what);
        let begins = "AWS4-HMAC-SHA256 Credential=AKID/19700101/eu-x-1/s3/aws4_request, \
                      SignedHeaders=host, Signature=";
        assert!(said.starts_with(begins), "{said}");
        assert!(!said.contains("hidden") && !format!("{keys:?}").contains("hidden"));
    }
}
