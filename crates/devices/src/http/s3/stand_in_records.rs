//! What the small store does with records: conditions, lists in pages, and its clock.

use super::super::site::{Asked, Reply, good, plain};
use super::super::xml;
use super::stand_in::{StoreContents, answer as usual, is_signed, refused};

/// The store's time, and the second before in which all of its objects were written.
const NOW: &str = "Date: Sun, 01 Feb 2026 00:01:00 GMT";
const WRITTEN: [&str; 2] = ["Sun, 01 Feb 2026 00:00:30 GMT", "2026-02-01T00:00:30.000Z"];
/// Seconds between them.
pub(super) const AGE: u64 = 30;
/// Entries of a page.
const PAGE: usize = 3;

pub(super) fn answer(asked: &Asked, contents: &mut StoreContents) -> Reply {
    if !is_signed(asked) {
        return refused("403 Forbidden", "SignatureDoesNotMatch");
    }
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    let kept = contents.objects.get(path);
    match (asked.method.as_str(), kept) {
        ("GET", _) if query.contains("list-type=2") => list(path, query, contents),
        ("GET", Some(kept)) => {
            let headers =
                [format!("ETag: {}", kept.etag), format!("Last-Modified: {}", WRITTEN[0])];
            good(asked, &kept.bytes, &[NOW, &headers[0], &headers[1]])
        }
        ("PUT", kept) => match (asked.header("if-match"), kept) {
            (Some(_), None) => refused("404 Not Found", "NoSuchKey"),
            (Some(etag), Some(kept)) if etag != kept.etag => {
                refused("412 Precondition Failed", "PreconditionFailed")
            }
            _ => usual(asked, contents),
        },
        ("DELETE", _) => {
            contents.objects.remove(path);
            plain("204 No Content", &[], b"")
        }
        _ => usual(asked, contents),
    }
}

fn list(bucket: &str, query: &str, contents: &StoreContents) -> Reply {
    let word = |name: &str| {
        let mut words = query.split('&').filter_map(|word| word.split_once('='));
        let value = words.find(|(key, _)| *key == name).map(|(_, value)| value);
        value.map(|value| value.replace("%2F", "/"))
    };
    let prefix = word("prefix").unwrap();
    let from: usize = word("continuation-token").map_or(0, |token| token.parse().unwrap());
    let keys = contents.objects.iter().filter_map(|(path, kept)| {
        Some((path.strip_prefix(bucket)?.strip_prefix('/')?, kept.bytes.len()))
    });
    let mut keys = keys.filter(|(key, _)| key.starts_with(&prefix)).skip(from);
    let page: Vec<_> = keys.by_ref().take(PAGE).collect();
    let entry = |(key, len): &(&str, usize)| {
        // Paths are kept as they are asked for.
        let (key, at) = (xml::escaped(&key.replace("%20", " ")), WRITTEN[1]);
        format!(
            "<Contents><Key>{key}</Key><LastModified>{at}</LastModified><Size>{len}</Size></Contents>"
        )
    };
    let entries: String = page.iter().map(entry).collect();
    let more = keys.next().is_some();
    let token = from + page.len();
    let body = format!(
        "<L><IsTruncated>{more}</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>{entries}</L>"
    );
    plain("200 OK", &[NOW, &format!("Content-Length: {}", body.len())], body.as_bytes())
}
