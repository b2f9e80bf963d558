//! Uploads that a store began for us, and whose names did not arrive.
//!
//! Such an upload is looked for and named, and ended only where the user says that no other program
//! writes the object (`exclusive=true`): a store lists an upload by its key, its time and its
//! owner, which are the same for two programs that write one object with the same keys. What tells
//! ours from another's, the mark, is not in any list. To end an upload that began when ours did
//! could end the one of another program, which has parts in it.

use std::time::SystemTime;

use hyper::Method;

use super::super::answer::iso_time;
use super::super::xml;
use super::params::encoded;
use super::store::{ObjectStore, StoreAnswer, StoreRequest};

/// Uploads that a message names.
const NAMED: usize = 4;
/// The longest name of an upload that is shown.
const LONGEST: usize = 256;

/// An upload of this object that is not ours, or whose name did not arrive.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct StrayUpload {
    pub(super) id: String,
    /// It began after we did, by the store's own time. Otherwise no time of it is known.
    pub(super) is_late: bool,
}

/// The uploads of this object that are not known to have begun before `since`, the store's own
/// time, and are not `ours`; `None`: the store does not list uploads.
pub(super) fn strays(
    store: &ObjectStore,
    since: Option<SystemTime>,
    ours: Option<&str>,
) -> Option<Vec<StrayUpload>> {
    let key = store.key();
    let query = format!("prefix={}&uploads=", encoded(key, false));
    let asked = StoreRequest { of_bucket: true, ..StoreRequest::new(Method::GET, query) };
    let answer = store.ask_last("list uploads", &asked);
    let answer = answer.ok().filter(StoreAnswer::is_done)?;
    let mut found = named(&answer.body, key, since);
    found.retain(|upload| Some(upload.id.as_str()) != ours);
    Some(found)
}

/// What is said of them; nothing where there are none.
pub(super) fn warning(found: Option<Vec<StrayUpload>>) -> Option<String> {
    let Some(found) = found else {
        return Some("the store may keep an upload of it, and does not list uploads".into());
    };
    let more = if found.len() > NAMED { " or another" } else { "" };
    let names: Vec<_> = found.iter().take(NAMED).map(|upload| upload.id.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "the store keeps an upload of it that nothing completes, if no other program writes \
             the object: {}{more}; `aws s3api abort-multipart-upload` removes it",
            names.join(" or ")
        )
    })
}

/// The uploads of this key that are not known to have begun before, of a list.
fn named(list: &[u8], key: &str, since: Option<SystemTime>) -> Vec<StrayUpload> {
    let found = |upload: &[u8]| {
        let id = shown(&xml::text(upload, "UploadId")?)?.to_owned();
        let began = xml::text(upload, "Initiated").and_then(|text| iso_time(&text));
        let is_late = began.zip(since).map(|(began, since)| began >= since);
        (is_late != Some(false)).then(|| StrayUpload { id, is_late: is_late == Some(true) })
    };
    xml::elements(list, "Upload")
        .filter(|upload| xml::text(upload, "Key").as_deref() == Some(key))
        .filter_map(found)
        .collect()
}

/// The name of an upload, if it can be shown: it comes from the store, and goes to a terminal.
pub(super) fn shown(id: &str) -> Option<&str> {
    let plain = !id.is_empty() && id.len() <= LONGEST && id.bytes().all(|b| b.is_ascii_graphic());
    plain.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_uploads_of_this_key_that_began_since_then_are_named() {
        let upload = |key: &str, id: &str, began: &str| {
            let began = format!("<Initiated>{began}</Initiated>");
            format!("<Upload><Key>{key}</Key><UploadId>{id}</UploadId>{began}</Upload>")
        };
        let list = [
            upload("a&amp;b", "early", "2026-01-31T23:59:58.999Z"),
            upload("a&amp;b", "now", "2026-01-31T23:59:59.000Z"),
            upload("a&amp;b", "later", "2026-02-01T00:00:00Z"),
            upload("a&amp;b", "undated", "soon"),
            upload("a&amp;b.raw", "of-another-key", "2026-02-01T00:00:00Z"),
            upload("a&amp;b", "two\u{1b}[2Jwords", "2026-02-01T00:00:00Z"),
            upload("a&amp;b", "", "2026-02-01T00:00:00Z"),
            "<Upload><Key>a&amp;b</Key><UploadId>cut".to_owned(),
        ];
        let list = format!("<L><Bucket>b</Bucket>{}", list.concat());
        let since = iso_time("2026-01-31T23:59:59Z");
        let found = |since| {
            let found = named(list.as_bytes(), "a&b", since).into_iter();
            found.map(|upload| (upload.id, upload.is_late)).collect::<Vec<_>>()
        };
        let of = |all: &[(&str, bool)]| {
            all.iter().map(|(id, is_late)| ((*id).to_owned(), *is_late)).collect::<Vec<_>>()
        };
        assert_eq!(found(since), of(&[("now", true), ("later", true), ("undated", false)]));
        // Where the store tells no time, none is known to be ours.
        let all = [("early", false), ("now", false), ("later", false), ("undated", false)];
        assert_eq!(found(None), of(&all));
        assert!(named(b"", "a", None).is_empty() && named(b"<Upload>", "a", None).is_empty());
    }
}
