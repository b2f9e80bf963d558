//! What nginx does that a download has to live with. What other servers do is in the device's own
//! tests, which script one.

use std::fs;
use std::time::{Duration, SystemTime};

use blackbox::run::{Job, Outcome, ours, run};
use blackbox::temp::pattern;
use blackbox::wait_for;

use super::nginx::Nginx;

/// Copies what `url` names, with further parameters of the device (`&key=value`), and returns the
/// bytes of it.
fn copy(nginx: &Nginx, url: &str, words: &str) -> (Outcome, Vec<u8>) {
    let target = nginx.temp().join("copy");
    let _ = fs::remove_file(&target);
    let outcome = run(ours(["copy", &format!("http:?url={url}{words}")]).arg(&target));
    (outcome, fs::read(&target).unwrap_or_default())
}

#[test]
fn whatever_nginx_is_told_to_do_the_copy_is_equal() {
    let busy = "limit_req_zone $server_addr zone=z:1m rate=2r/s; limit_req_status 429;";
    let packs = "gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any;";
    for (outside, server, words, size, seen) in [
        // In one pass.
        ("", "max_ranges 0;", "", 100_000_000, 200),
        // It may pack what it sends, and is not asked to.
        ("", packs, "", 1_000_000, 206),
        // It unpacks for us, and does not know how long that becomes: in chunks.
        ("", "gzip_static always; gunzip on;", "", 5_000_000, 200),
        ("", "keepalive_requests 2; etag off;", "&retry=0", 30_000_000, 206),
        (busy, "limit_req zone=z; add_header Retry-After 1 always;", "&retry=20", 40_000_000, 429),
        ("", "", "", 0, 200),
    ] {
        let Some(nginx) = Nginx::start_with("", outside, server) else { return };
        let content = pattern(0, size);
        let plain = nginx.file("disk", &content);
        if server.contains("gunzip") {
            run(std::process::Command::new("gzip").arg("-k").arg(plain)).succeeded();
        }
        let (outcome, copy) = copy(&nginx, &nginx.url("/disk"), words);
        outcome.succeeded();
        assert!(copy == content, "{server}: differs");
        let requests = nginx.requests();
        assert!(requests.iter().any(|(_, status, ..)| *status == seen), "{server}: {requests:?}");
        assert!(requests.len() == 1 || !server.contains("max_ranges"), "{requests:?}");
    }
}

#[test]
fn no_redirect_leads_to_another_scheme_or_round_and_round() {
    let server = "location /file { return 302 file:///etc/passwd; }\n\
                  location /tls { return 302 https://127.0.0.1/x; }\n\
                  location /round { return 302 /round; }";
    let Some(nginx) = Nginx::start(server) else { return };
    for (path, words, why) in [
        ("/file", "", "not followed"),
        ("/tls", "", "protocols="),
        ("/round", "", "redirects"),
        ("/round", "&followlocation=false", "followlocation"),
    ] {
        let (outcome, copy) = copy(&nginx, &nginx.url(path), words);
        assert!(outcome.failed().contains(why), "{outcome:?}");
        assert!(copy.is_empty());
    }
}

#[test]
fn what_changes_midway_ends_in_an_error_and_never_in_a_mixture() {
    // Without an ETag only the size and the date tell.
    for (server, size) in [("limit_rate 4m;", 80_000_000), ("etag off; limit_rate 4m;", 3_000_000)]
    {
        let Some(nginx) = Nginx::start(server) else { return };
        nginx.file("disk", &pattern(0, 80_000_000));
        // nginx makes its ETag of the size and the second of the last change.
        let new = nginx.file("new", &pattern(7, size));
        let later = SystemTime::now() + Duration::from_secs(5);
        fs::File::options().write(true).open(&new).unwrap().set_modified(later).unwrap();
        let target = nginx.temp().join("copy");
        let job = Job::start(ours(["copy", &nginx.url("/disk")]).arg(&target));
        wait_for("it is copied", || nginx.requests().len() >= 2);
        // Another file under the same name, as an upload ends; the old one is still being sent.
        fs::rename(&new, nginx.temp().join("root/disk")).unwrap();
        let outcome = job.wait();
        assert!(outcome.failed().contains("has changed since it was opened"), "{outcome:?}");
        assert!(!target.exists());
    }
}
