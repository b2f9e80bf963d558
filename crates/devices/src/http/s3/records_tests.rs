//! Records against a store that checks signatures, loses answers, and has limits.

use std::sync::Arc;
use std::time::Duration;

use ::device::{Params, Result};
use runtime::Mutex;

use super::super::site::{Asked, Reply, Site, Step, plain};
use super::stand_in::{SECRET, Store, StoreContents, refused};
use super::stand_in_records::{AGE, answer};
use crate::records::{LONGEST_RECORD, RecordTag, Records, new_mark};

/// `odd` answers instead, where it has an answer; it may do what was asked, and lose the answer.
fn store(
    odd: impl Fn(&Asked, &mut StoreContents) -> Option<Reply> + Send + Sync + 'static,
) -> Store {
    let contents: Arc<Mutex<StoreContents>> = Arc::default();
    let kept = contents.clone();
    let site = Site::new(move |asked| {
        let mut contents = kept.lock();
        odd(asked, &mut contents).unwrap_or_else(|| answer(asked, &mut contents))
    });
    Store { site, contents }
}

fn records(store: &Store, more: &[&str]) -> Result<Arc<dyn Records>> {
    let words = store.words("/b/a prefix/");
    let words = words.iter().map(String::as_str).chain(more.iter().copied());
    super::records(&Params::parse(words).unwrap(), None)
}

/// Does what was asked, and closes the connection.
fn done_and_lost(asked: &Asked, contents: &mut StoreContents) -> Reply {
    answer(asked, contents);
    vec![Step::Close]
}

#[test]
fn a_record_is_made_once_and_replaced_by_who_knows_what_is_there() {
    let store = store(|_, _| None);
    let records = records(&store, &[]).unwrap();
    assert!(records.read("a").unwrap().is_none());
    let first = records.create("a", b"1").unwrap().unwrap();
    assert!(records.create("a", b"2").unwrap().is_none());
    let found = records.read("a").unwrap().unwrap();
    assert!(found.bytes == b"1" && found.tag == first);
    assert_eq!(found.age, Some(Duration::from_secs(AGE)));
    let second = records.replace("a", b"3", &first).unwrap().unwrap();
    assert!(records.replace("a", b"4", &first).unwrap().is_none());
    // An empty one has a length, too.
    let third = records.replace("a", b"", &second).unwrap().unwrap();
    assert!(records.read("a").unwrap().unwrap().bytes.is_empty());
    records.remove("a").unwrap();
    records.remove("a").unwrap();
    assert!(records.replace("a", b"5", &third).unwrap().is_none());
    assert!(store.contents.lock().objects.is_empty());
    assert_eq!(records.shown("a"), "s3://b/a prefix/a");
    assert_ne!(new_mark().unwrap(), new_mark().unwrap());
}

#[test]
fn a_write_whose_answer_is_lost_is_known_by_what_is_there() {
    for status in [None, Some(("500 Internal Server Error", "InternalError"))] {
        let store = store(move |asked, contents| {
            let lost = asked.method == "PUT" && asked.number % 2 == 0;
            lost.then(|| match status {
                None => done_and_lost(asked, contents),
                Some((status, code)) => {
                    answer(asked, contents);
                    refused(status, code)
                }
            })
        });
        let records = records(&store, &[]).unwrap();
        let first = records.create("a", b"ours 1").unwrap().unwrap();
        assert_eq!(records.read("a").unwrap().unwrap().tag, first);
        let second = records.replace("a", b"ours 2", &first).unwrap().unwrap();
        assert_eq!(records.read("a").unwrap().unwrap().tag, second);
        // Another one was there, which the first try had seen as well.
        assert!(records.create("a", b"ours 3").unwrap().is_none());
        assert!(records.replace("a", b"ours 4", &first).unwrap().is_none());
        assert_eq!(records.read("a").unwrap().unwrap().bytes, b"ours 2");
    }
}

#[test]
fn a_write_of_which_nothing_is_known_fails_and_is_known_later() {
    let store = store(|asked, contents| {
        let lost = asked.method == "PUT" && asked.body.starts_with(b"lost");
        lost.then(|| done_and_lost(asked, contents))
    });
    let records = records(&store, &["retry=0"]).unwrap();
    // The look that follows is answered.
    records.create("a", b"lost 1").unwrap().unwrap();
    let gone = super::records(
        &Params::parse(store.words("/b/p").iter().map(String::as_str)).unwrap(),
        Some(Duration::from_secs(10)),
    );
    assert!(gone.unwrap().create("a", b"lost 2").unwrap().is_some());
}

#[test]
fn a_conflict_is_waited_for_and_not_taken_for_a_refusal() {
    for conflicts in [1, 100] {
        let store = store(move |asked, _| {
            let is_put = asked.method == "PUT";
            // Between two of them it is looked what is there.
            (is_put && asked.number / 2 < conflicts)
                .then(|| refused("409 Conflict", "ConditionalRequestConflict"))
        });
        let made = records(&store, &[]).unwrap().create("a", b"1");
        match conflicts {
            1 => assert!(made.unwrap().is_some()),
            _ => assert!(made.unwrap_err().to_string().contains("another write of it is not over")),
        }
    }
}

#[test]
fn all_pages_are_listed_and_only_records() {
    let store = store(|_, _| None);
    let records = records(&store, &[]).unwrap();
    for n in 0..10 {
        records.create(&format!("0.{n}.x"), &vec![0; n]).unwrap().unwrap();
    }
    for other in ["/b/a%20prefix/0.a/b", "/b/a%20prefix/0.a%26", "/b/a%20prefix2/0.x", "/b/0.x"] {
        store.put(other, b"");
    }
    let listed = records.list("0.", 100).unwrap();
    let found: Vec<_> = listed.iter().map(|listed| (&*listed.name, listed.bytes)).collect();
    let names: Vec<_> = (0..10).map(|n| format!("0.{n}.x")).collect();
    let wanted: Vec<_> = names.iter().map(String::as_str).zip(0..).collect();
    assert_eq!(found, wanted);
    assert!(listed.iter().all(|listed| listed.age == Some(Duration::from_secs(AGE))));
    assert!(records.list("0.", 9).unwrap_err().to_string().contains("more than 9"));
}

#[test]
fn what_a_store_answers_has_limits_and_makes_sense_or_is_an_error() {
    let page = |body: &str| {
        let length = format!("Content-Length: {}", body.len());
        plain("200 OK", &[&length], body.as_bytes())
    };
    let more =
        "<L><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></L>";
    for (body, why) in [
        (more.to_owned(), "more than 9"),
        ("<L></L>".into(), "does not say whether the list is complete"),
        ("<L><IsTruncated>true</IsTruncated></L>".into(), "how the list continues"),
        (format!("<L>{}</L>", " ".repeat(3 << 20)), "more than"),
    ] {
        let store = store(move |_, _| Some(page(&body)));
        let e = records(&store, &[]).unwrap().list("", 9).unwrap_err().to_string();
        assert!(e.contains(why) && !e.contains(SECRET), "{e}");
    }
    let store = store(|asked, _| {
        (asked.method == "PUT").then(|| plain("200 OK", &["Content-Length: 0"], b""))
    });
    store.put("/b/a%20prefix/long", &vec![b' '; LONGEST_RECORD + 1]);
    store.put("/b/a%20prefix/code", b"<Error><Code>SlowDown</Code></Error>");
    let records = records(&store, &[]).unwrap();
    assert!(records.read("long").unwrap_err().to_string().contains("more than"));
    // What a record holds is no answer of the store.
    assert_eq!(records.read("code").unwrap().unwrap().bytes.len(), 36);
    assert!(records.create("a", b"").unwrap_err().to_string().contains("no ETag"));
}

#[test]
fn refusals_say_why_and_never_a_secret() {
    let store = store(|asked, _| match asked.method.as_str() {
        "PUT" => Some(refused("403 Forbidden", "AccessDenied")),
        _ => Some(refused("404 Not Found", "NoSuchBucket")),
    });
    let place = records(&store, &[]).unwrap();
    for e in [
        place.create("a", b"1").unwrap_err(),
        place.replace("a", b"1", &RecordTag("\"x\"".into())).unwrap_err(),
        place.read("a").unwrap_err(),
        place.list("", 9).unwrap_err(),
        place.remove("a").unwrap_err(),
    ] {
        let said = format!("{e} {e:?}");
        assert!(!said.contains(SECRET) && said.contains("s3://b/a prefix"), "{said}");
        assert!(said.contains("may not do that") || said.contains("no such bucket"), "{said}");
    }
    let mut words = store.words("/b//");
    assert!(
        super::records(&Params::parse(words.iter().map(String::as_str)).unwrap(), None).is_err()
    );
    words[0] = "uri=s3://b/k?version=1".into();
    assert!(
        super::records(&Params::parse(words.iter().map(String::as_str)).unwrap(), None).is_err()
    );
}
