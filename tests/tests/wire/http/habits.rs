//! What servers do that a download has to live with.

use std::fs;
use std::thread;
use std::time::{Duration, SystemTime};

use blackbox::run::{Job, Outcome, ours, run};
use blackbox::temp::pattern;

use super::nginx::{Nginx, unreliable};

/// Copies what `url` names, with further parameters of the device (`&key=value`), and returns the
/// of it.
fn copy(nginx: &Nginx, url: &str, words: &str) -> (Outcome, Vec<u8>) {
    let target = nginx.temp().join("copy");
    let _ = fs::remove_file(&target);
    let outcome = run(ours(["copy", &format!("http:?url={url}{words}")]).arg(&target));
    (outcome, fs::read(&target).unwrap_or_default())
}

#[track_caller]
fn is_equal(nginx: &Nginx, url: &str, words: &str, content: &[u8]) {
    let (outcome, copy) = copy(nginx, url, words);
    outcome.succeeded();
    assert!(copy == content, "differs");
}

/// Starts a copy, does something to the server while it runs, and returns its outcome.
fn meanwhile(nginx: &Nginx, path: &str, act: impl FnOnce()) -> (Outcome, Vec<u8>) {
    let target = nginx.temp().join("copy");
    let job = Job::start(ours(["copy", &nginx.url(path)]).arg(&target));
    while nginx.requests().len() < 2 {
        thread::sleep(Duration::from_millis(5));
    }
    act();
    (job.wait(), fs::read(&target).unwrap_or_default())
}

#[test]
fn a_server_without_ranges_is_copied_in_one_pass() {
    let Some(nginx) = Nginx::start("max_ranges 0;") else { return };
    let content = pattern(0, 100_000_000);
    nginx.file("disk", &content);
    is_equal(&nginx, &nginx.url("/disk"), "", &content);
    assert_eq!(nginx.requests().len(), 1);
}

#[test]
fn nothing_but_get_is_asked_for_where_a_signature_allows_nothing_else() {
    let signed =
        "if ($request_method != GET) { return 403; } if ($arg_sig != good) { return 403; }";
    let Some(nginx) = Nginx::start(signed) else { return };
    let content = pattern(0, 3_000_000);
    nginx.file("disk", &content);
    is_equal(&nginx, &nginx.url("/disk?sig=good"), "&retry=0", &content);
    let (outcome, _) = copy(&nginx, &nginx.url("/disk?sig=secret"), "&retry=0");
    let said = outcome.failed();
    assert!(said.contains("403") && !said.contains("secret"), "{said}");
}

#[test]
fn a_redirect_is_followed_once_and_again_when_it_expires() {
    let server = "location /moved { if (-f %ROOT%/second) { return 302 /signed/disk?sig=second; }\n\
                  return 302 /signed/disk?sig=first; }\n\
                  location /signed/ { alias %ROOT%/; limit_rate 8m;\n\
                  if (!-f %ROOT%/$arg_sig) { return 403; } }";
    let Some(nginx) = Nginx::start(server) else { return };
    // More than what can have been asked for by the time it expires.
    let content = pattern(0, 160_000_000);
    nginx.file("disk", &content);
    nginx.file("first", b"");
    let (outcome, copy) = meanwhile(&nginx, "/moved", || {
        nginx.file("second", b"");
        fs::remove_file(nginx.temp().join("root/first")).unwrap();
    });
    outcome.succeeded();
    assert!(copy == content);
    let redirects = nginx.requests().iter().filter(|(_, status, ..)| *status == 302).count();
    // At first, and at most once for each connection that finds the door closed.
    assert!((2..=9).contains(&redirects), "{redirects}");
}

#[test]
fn no_redirect_leads_to_another_scheme_or_round_and_round() {
    let server = "location /file { return 302 file:///etc/passwd; }\n\
                  location /tls { return 302 https://127.0.0.1/x; }\n\
                  location /round { return 302 /round; }";
    let Some(nginx) = Nginx::start(server) else { return };
    for (path, why) in [("/file", "not followed"), ("/tls", "protocols="), ("/round", "redirects")]
    {
        let (outcome, copy) = copy(&nginx, &nginx.url(path), "");
        assert!(outcome.failed().contains(why), "{outcome:?}");
        assert!(copy.is_empty());
    }
    let (outcome, _) = copy(&nginx, &nginx.url("/round"), "&followlocation=false");
    assert!(outcome.failed().contains("followlocation"), "{outcome:?}");
}

#[test]
fn what_changes_midway_ends_in_an_error_and_never_in_a_mixture() {
    let Some(nginx) = Nginx::start("limit_rate 4m;") else { return };
    nginx.file("disk", &pattern(0, 80_000_000));
    // nginx makes its ETag of the size and the second of the last change.
    let new = nginx.file("new", &pattern(7, 80_000_000));
    let later = SystemTime::now() + Duration::from_secs(5);
    fs::File::options().write(true).open(&new).unwrap().set_modified(later).unwrap();
    // Another file under the same name, as an upload ends; the old one is still being sent.
    let replace = || fs::rename(&new, nginx.temp().join("root/disk")).unwrap();
    let (outcome, _) = meanwhile(&nginx, "/disk", replace);
    assert!(outcome.failed().contains("has changed since it was opened"), "{outcome:?}");
    assert!(!nginx.temp().join("copy").exists());
}

#[test]
fn what_becomes_shorter_midway_ends_in_an_error() {
    // Without an ETag only the size and the date tell.
    let Some(nginx) = Nginx::start("etag off; limit_rate 4m;") else { return };
    nginx.file("disk", &pattern(0, 80_000_000));
    let new = nginx.file("new", &pattern(0, 3_000_000));
    let replace = || fs::rename(&new, nginx.temp().join("root/disk")).unwrap();
    let (outcome, _) = meanwhile(&nginx, "/disk", replace);
    assert!(outcome.failed().contains("has changed since it was opened"), "{outcome:?}");
}

#[test]
fn too_many_requests_are_waited_out() {
    let limit = "limit_req_zone $server_addr zone=z:1m rate=2r/s; limit_req_status 429;";
    let server = "limit_req zone=z; add_header Retry-After 1 always;";
    let Some(nginx) = Nginx::start_with("", limit, server) else { return };
    let content = pattern(0, 40_000_000);
    nginx.file("disk", &content);
    is_equal(&nginx, &nginx.url("/disk"), "&retry=20", &content);
    assert!(nginx.requests().iter().any(|(_, status, ..)| *status == 429));
}

#[test]
fn a_server_that_is_out_of_service_for_a_while_is_waited_for() {
    let server = "limit_rate 8m; if (-f %ROOT%/busy) { return 503; }";
    let Some(nginx) = Nginx::start(server) else { return };
    // More than what can have been asked for by the time it is busy.
    let content = pattern(0, 160_000_000);
    nginx.file("disk", &content);
    let (outcome, copy) = meanwhile(&nginx, "/disk", || {
        let busy = nginx.file("busy", b"");
        while !nginx.requests().iter().any(|(_, status, ..)| *status == 503) {
            thread::sleep(Duration::from_millis(5));
        }
        fs::remove_file(busy).unwrap();
    });
    outcome.succeeded();
    assert!(copy == content);
}

#[test]
fn bodies_that_are_cut_short_and_servers_that_start_slowly_cost_nothing_but_time() {
    let Some(nginx) = Nginx::start("") else { return };
    let content = pattern(0, 20_000_000);
    nginx.file("disk", &content);
    for (cut, delay) in [(700_000, 0), (30_000_000, 300)] {
        let port = unreliable(nginx.port(), cut, Duration::from_millis(delay));
        let url = format!("http://127.0.0.1:{port}/disk");
        is_equal(&nginx, &url, "&retry=2", &content);
    }
    // One that never brings anything.
    let port = unreliable(nginx.port(), 0, Duration::ZERO);
    let (outcome, _) = copy(&nginx, &format!("http://127.0.0.1:{port}/disk"), "&retry=1");
    outcome.failed();
}

#[test]
fn what_is_packed_on_the_way_is_refused_and_never_taken_for_the_disk() {
    let Some(nginx) = Nginx::start("gzip_static always;") else { return };
    let content = pattern(0, 1_000_000);
    let plain = nginx.file("disk", &content);
    run(std::process::Command::new("gzip").arg("-k").arg(plain)).succeeded();
    let (outcome, copy) = copy(&nginx, &nginx.url("/disk"), "");
    assert!(outcome.failed().contains("encoded (gzip)"), "{outcome:?}");
    assert!(copy.is_empty());
}

#[test]
fn a_server_that_packs_what_it_may_is_not_allowed_to() {
    let server = "gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any;";
    let Some(nginx) = Nginx::start(server) else { return };
    let content = pattern(0, 1_000_000);
    nginx.file("disk", &content);
    is_equal(&nginx, &nginx.url("/disk"), "", &content);
}

#[test]
fn a_body_in_chunks_without_a_length_is_read_to_its_end() {
    // nginx unpacks for us, and does not know how long that becomes.
    let Some(nginx) = Nginx::start("gzip_static always; gunzip on;") else { return };
    let content = pattern(0, 5_000_000);
    let plain = nginx.file("disk", &content);
    run(std::process::Command::new("gzip").arg("-k").arg(plain)).succeeded();
    is_equal(&nginx, &nginx.url("/disk"), "", &content);
}

#[test]
fn connections_that_take_a_few_requests_each_cost_no_error() {
    let Some(nginx) = Nginx::start("keepalive_requests 2; etag off;") else { return };
    let content = pattern(0, 30_000_000);
    nginx.file("disk", &content);
    is_equal(&nginx, &nginx.url("/disk"), "&retry=0", &content);
}

#[test]
fn an_empty_file_is_an_empty_disk() {
    let Some(nginx) = Nginx::start("") else { return };
    nginx.file("disk", b"");
    is_equal(&nginx, &nginx.url("/disk"), "", b"");
}
