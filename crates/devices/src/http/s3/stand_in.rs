//! A small store in this process, for tests: it checks signatures and sums, keeps
//! objects and uploads in memory, and answers what a test wants instead where the test says so.

use std::collections::BTreeMap;
use std::sync::Arc;

use runtime::Mutex;

use super::super::answer::iso_time;
use super::super::site::{Asked, Reply, Site, good, plain};
use super::keys::AwsKeys;
use super::signature::{Signable, SignatureScope, sha256};

pub(super) const ID: &str = "AKID";
pub(super) const SECRET: &str = "do-not-show-me";

/// An object, or an upload.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    pub(super) bytes: Vec<u8>,
    pub(super) etag: String,
    pub(super) mark: Option<String>,
    /// Of an upload: for which object it is, and when it began, where the store says that.
    pub(super) path: String,
    pub(super) began: Option<&'static str>,
    pub(super) parts: BTreeMap<u32, (Vec<u8>, String)>,
}

#[derive(Default)]
pub(super) struct StoreContents {
    pub(super) objects: BTreeMap<String, Kept>,
    pub(super) uploads: BTreeMap<String, Kept>,
    pub(super) count: usize,
}

/// See the module.
pub(super) struct Store {
    pub(super) site: Site,
    pub(super) contents: Arc<Mutex<StoreContents>>,
}

impl Store {
    /// `odd` answers instead, where it has an answer; it is asked before anything is done.
    pub(super) fn new(odd: impl Fn(&Asked) -> Option<Reply> + Send + Sync + 'static) -> Self {
        let contents: Arc<Mutex<StoreContents>> = Arc::default();
        let kept = contents.clone();
        let site =
            Site::new(move |asked| odd(asked).unwrap_or_else(|| answer(asked, &mut kept.lock())));
        Self { site, contents }
    }

    pub(super) fn put(&self, path: &str, bytes: &[u8]) {
        let kept = Kept { bytes: bytes.to_vec(), etag: etag(bytes), ..Kept::default() };
        self.contents.lock().objects.insert(path.to_owned(), kept);
    }

    /// The words that lead to an object in it.
    pub(super) fn words(&self, path: &str) -> Vec<String> {
        let (id, secret) = (format!("access-key={ID}"), format!("secret-key={SECRET}"));
        let endpoint = format!("endpoint=http://{}", self.site.address);
        vec![format!("uri=s3:/{path}"), id, secret, endpoint, "timeout=20".into()]
    }
}

fn etag(bytes: &[u8]) -> String {
    format!("\"{}\"", &sha256(bytes)[..32])
}

pub(super) fn refused(status: &str, code: &str) -> Reply {
    let body =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>no</Message></Error>");
    plain(status, &[&format!("Content-Length: {}", body.len())], body.as_bytes())
}

/// Whether the request has a right signature.
pub(super) fn is_signed(asked: &Asked) -> bool {
    let Some(given) = asked.header("authorization") else { return false };
    let payload = asked.header("x-amz-content-sha256").unwrap_or_default();
    let date = asked.header("x-amz-date").unwrap_or_default();
    let names = given.split("SignedHeaders=").nth(1).unwrap_or_default();
    let names: Vec<&str> = names.split(',').next().unwrap_or_default().split(';').collect();
    let must =
        |name: &str| name.starts_with("x-amz-") || ["host", "range", "if-match"].contains(&name);
    let all = asked.headers.iter().filter(|(name, _)| must(name));
    if !all.into_iter().all(|(name, _)| names.contains(&name.as_str())) {
        return false;
    }
    let headers =
        names.iter().map(|name| (*name, asked.header(name).unwrap_or_default().to_owned()));
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    let what = Signable { method: &asked.method, path, query, headers: headers.collect(), payload };
    let part = |at: std::ops::Range<usize>| date.get(at).unwrap_or_default();
    let (day, clock) =
        ([part(0..4), part(4..6), part(6..8)], [part(9..11), part(11..13), part(13..15)]);
    let Some(at) = iso_time(&format!("{}T{}Z", day.join("-"), clock.join(":"))) else {
        return false;
    };
    let scope = SignatureScope { region: "us-east-1", service: "s3", at };
    let keys = AwsKeys::fixed(ID, SECRET, None);
    scope.authorization(&keys, &what) == given && payload == sha256(&asked.body)
}

pub(super) fn answer(asked: &Asked, contents: &mut StoreContents) -> Reply {
    if !is_signed(asked) {
        return refused("403 Forbidden", "SignatureDoesNotMatch");
    }
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    let object = contents.objects.get(path);
    match (asked.method.as_str(), object) {
        ("GET" | "HEAD", None) if asked.method == "HEAD" => {
            plain("404 Not Found", &["Date: Sun, 01 Feb 2026 00:00:00 GMT"], b"")
        }
        ("GET", None) if query.ends_with("uploads=") => {
            super::stand_in_writes::uploads(path, contents)
        }
        ("GET", None) => refused("404 Not Found", "NoSuchKey"),
        ("GET" | "HEAD", Some(kept)) => {
            if asked.header("if-match").is_some_and(|etag| etag != kept.etag) {
                return refused("412 Precondition Failed", "PreconditionFailed");
            }
            let etag = format!("ETag: {}", kept.etag);
            let mark =
                kept.mark.as_ref().map(|mark| format!("x-amz-meta-diskferry-upload: {mark}"));
            let headers: Vec<&str> =
                [Some(&etag), mark.as_ref()].into_iter().flatten().map(String::as_str).collect();
            good(asked, &kept.bytes, &headers)
        }
        _ => super::stand_in_writes::changed(asked, (path, query), contents),
    }
}
