//! What the small store does with requests that change it.

use hyper::body::Bytes;
use md5::{Digest, Md5};

use super::super::credentials::base64;
use super::super::site::{Asked, Reply, plain};
use super::super::xml;
use super::signature::hex;
use super::stand_in::{Kept, StoreContents, refused};

const MARK: &str = "x-amz-meta-diskferry-upload";
const SUM: &str = "x-amz-checksum-crc32";

fn etag_of(bytes: &[u8]) -> String {
    format!("\"{}\"", hex(&Md5::digest(bytes)))
}

fn said(body: &str, headers: &[&str]) -> Reply {
    let length = format!("Content-Length: {}", body.len());
    plain("200 OK", &[&[length.as_str()], headers].concat(), body.as_bytes())
}

pub(super) fn changed(
    asked: &Asked,
    (path, query): (&str, &str),
    contents: &mut StoreContents,
) -> Reply {
    let get = |name: &str| {
        let mut words = query.split('&').map(|word| word.split_once('=').unwrap_or((word, "")));
        words.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    };
    let sum = base64(&crc32fast::hash(&asked.body).to_be_bytes());
    if asked.header(SUM).is_some_and(|told| told != sum) {
        return refused("400 Bad Request", "XAmzContentChecksumMismatch");
    }
    let taken = asked.header("if-none-match").is_some() && contents.objects.contains_key(path);
    let mark = asked.header(MARK).map(str::to_owned);
    match (asked.method.as_str(), get("uploadId"), get("partNumber")) {
        ("POST", None, None) if query == "uploads=" => {
            contents.count += 1;
            let id = format!("up/{}", contents.count);
            let began = Some("2026-02-01T00:00:01.000Z");
            let kept = Kept { mark, path: path.to_owned(), began, ..Kept::default() };
            contents.uploads.insert(id.clone(), kept);
            said(&format!("<R><UploadId>{id}</UploadId></R>"), &[])
        }
        ("PUT", None, None) if taken => refused("412 Precondition Failed", "PreconditionFailed"),
        ("PUT", None, None) => {
            let (bytes, etag) = (Bytes::from(asked.body.clone()), etag_of(&asked.body));
            let answer = said("", &[&format!("ETag: {etag}"), &format!("{SUM}: {sum}")]);
            let kept = Kept { bytes: bytes.to_vec(), etag, mark, ..Kept::default() };
            contents.objects.insert(path.to_owned(), kept);
            answer
        }
        (method, Some(id), number) => {
            let id = id.replace("%2F", "/");
            if !contents.uploads.contains_key(&id) {
                return refused("404 Not Found", "NoSuchUpload");
            }
            match (method, number) {
                ("PUT", Some(number)) => {
                    let etag = etag_of(&asked.body);
                    let kept = contents.uploads.get_mut(&id).unwrap();
                    kept.parts.insert(number.parse().unwrap(), (asked.body.clone(), etag.clone()));
                    said("", &[&format!("ETag: {etag}"), &format!("{SUM}: {sum}")])
                }
                ("DELETE", None) => {
                    contents.uploads.remove(&id);
                    plain("204 No Content", &[], b"")
                }
                ("POST", None) if taken => refused("412 Precondition Failed", "PreconditionFailed"),
                ("POST", None) => complete(asked, path, &id, contents),
                _ => refused("405 Method Not Allowed", "MethodNotAllowed"),
            }
        }
        _ => refused("405 Method Not Allowed", "MethodNotAllowed"),
    }
}

/// The uploads of a bucket.
pub(super) fn uploads(bucket: &str, contents: &StoreContents) -> Reply {
    let all = contents.uploads.iter().filter_map(|(id, kept)| {
        let key = kept.path.strip_prefix(bucket)?.strip_prefix('/')?;
        let began = kept.began.map(|at| format!("<Initiated>{at}</Initiated>")).unwrap_or_default();
        Some(format!("<Upload><Key>{key}</Key><UploadId>{id}</UploadId>{began}</Upload>"))
    });
    said(&format!("<R>{}</R>", all.collect::<String>()), &[])
}

fn complete(asked: &Asked, path: &str, id: &str, contents: &mut StoreContents) -> Reply {
    let upload = contents.uploads.get(id).unwrap();
    let text = String::from_utf8(asked.body.clone()).unwrap();
    let mut bytes = Vec::new();
    for (number, part) in (1..).zip(text.split("<Part>").skip(1)) {
        let field = |name| xml::text(part.as_bytes(), name).unwrap_or_default();
        let Some((body, etag)) = upload.parts.get(&number) else {
            return refused("400 Bad Request", "InvalidPart");
        };
        let sum = base64(&crc32fast::hash(body).to_be_bytes());
        let same = field("ETag") == *etag && field("ChecksumCRC32") == sum;
        if field("PartNumber") != number.to_string() || !same {
            return refused("400 Bad Request", "InvalidPart");
        }
        bytes.extend_from_slice(body);
    }
    let etag = format!("{}-{}\"", etag_of(&bytes).trim_end_matches('"'), upload.parts.len());
    let kept = Kept { bytes, etag: etag.clone(), mark: upload.mark.clone(), ..Kept::default() };
    contents.objects.insert(path.to_owned(), kept);
    contents.uploads.remove(id);
    said(&format!("<R><ETag>{}</ETag></R>", etag.replace('"', "&quot;")), &[])
}
