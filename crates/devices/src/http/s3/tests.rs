//! Objects against a store that checks signatures.

use std::sync::Arc;

use ::device::{Device, Params, Result};

use super::super::site::{content, plain, status};
use super::super::tests::{MIB, is_all};
use super::stand_in::{SECRET, Store, refused};
use crate::OpenOptions;

fn open(words: &[String], more: &[&str]) -> Result<Arc<dyn Device>> {
    let words = words.iter().map(String::as_str).chain(more.iter().copied());
    super::open_with(&Params::parse(words).unwrap(), &OpenOptions::default(), 64 << 10)
}

fn error(words: &[String], more: &[&str]) -> String {
    let error = open(words, more).err().unwrap().to_string();
    assert!(!error.contains(SECRET), "{error}");
    error
}

#[test]
fn an_object_is_read_in_ranges_each_of_which_is_signed() {
    let bytes = content(20 * MIB + 3);
    let store = Store::new(|_| None);
    store.put("/b/a%20key%3F", &bytes);
    let mut words = store.words("/b/x");
    words[0] = "bucket=b".into();
    let disk = open(&words, &["key=a key?"]).unwrap();
    assert_eq!(disk.info().name, "s3://b/a key?");
    is_all(&disk, &bytes, 300_000);
    let asked = store.site.asked();
    assert!(
        asked.len() > 3 && asked.iter().skip(1).all(|asked| asked.header("if-match").is_some())
    );
    assert!(store.site.connections() > 1);
}

#[test]
fn a_store_that_drops_throttles_and_fails_costs_no_byte() {
    let bytes = content(12 * MIB);
    let store = Store::new(|asked| match asked.number % 5 {
        1 => Some(refused("503 Slow Down", "SlowDown")),
        2 => Some(refused("500 Internal Server Error", "InternalError")),
        3 => Some(vec![super::super::site::Step::Close]),
        _ => None,
    });
    store.put("/b/k", &bytes);
    is_all(&open(&store.words("/b/k"), &["retry=20"]).unwrap(), &bytes, MIB);
}

#[test]
fn an_object_that_is_replaced_meanwhile_is_an_error() {
    let store = Store::new(|_| None);
    store.put("/b/k", &content(60 * MIB));
    let disk = open(&store.words("/b/k"), &[]).unwrap();
    store.put("/b/k", &content(60 * MIB + 1));
    let read = super::super::tests::read(&disk, 50 * MIB, 4096);
    assert!(read.unwrap_err().to_string().contains("has changed"));
}

#[test]
fn refusals_say_what_they_mean_and_never_a_secret() {
    let store = Store::new(|asked| match asked.path.as_str() {
        "/b/region" => Some(status("301 Moved Permanently", &["x-amz-bucket-region: eu-x-1"])),
        "/b/other" => Some(plain(
            "307 Temporary Redirect",
            &["Location: http://127.0.0.1:1/", "Content-Length: 0"],
            b"",
        )),
        "/b/denied" => Some(refused("403 Forbidden", "AccessDenied")),
        "/b/strange" => Some(refused("403 Forbidden", "do-not-show me")),
        _ => None,
    });
    for (path, more, why) in [
        ("/b/none", &[][..], "there is no such object (NoSuchKey)"),
        ("/b/denied", &[], "these keys may not do that (AccessDenied)"),
        ("/b/region", &[], "add region=eu-x-1"),
        ("/b/other", &[], "elsewhere, where no signature is sent"),
        ("/b/strange", &[], "403"),
    ] {
        let said = error(&store.words(path), more);
        assert!(said.contains(why), "{path}: {said}");
    }
    let mut words = store.words("/b/k");
    words[2] = "secret-key=other".into();
    assert!(error(&words, &[]).contains("the secret key is wrong"));
    words.drain(1..3);
    assert!(error(&words, &["anonymous=true"]).contains("nothing was signed"));
    assert!(store.site.asked().iter().all(|asked| asked.path != "/"));
}
