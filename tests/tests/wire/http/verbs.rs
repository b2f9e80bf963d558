//! Disks of an HTTP server are copied, served and converted, and each byte comes once.

use std::fs;

use blackbox::eventually;
use blackbox::launch::Serve;
use blackbox::peers::peer;
use blackbox::run::{ours, program, run};
use blackbox::temp::{TempDir, pattern};

use super::nginx::Nginx;

#[test]
fn a_copy_is_equal_and_each_byte_comes_once() {
    let Some(nginx) = Nginx::start("") else { return };
    let content = pattern(0, 50_000_001);
    nginx.file("disk", &content);
    let target = nginx.temp().join("copy");
    run(ours(["copy", &nginx.url("/disk")]).arg(&target)).succeeded();
    assert!(fs::read(&target).unwrap() == content);
    assert!(nginx.sent() <= content.len() as u64 + 65_536, "{}", nginx.sent());
    let all = nginx.requests();
    assert!(all.iter().all(|(method, status, ..)| method == "GET" && *status == 206), "{all:?}");
}

#[test]
fn it_is_served_to_many_clients_that_share_what_has_come() {
    let (Some(nginx), Some(nbdcopy)) = (Nginx::start(""), peer("nbdcopy")) else { return };
    let content = pattern(0, 20_000_000);
    nginx.file("disk", &content);
    let url = format!("url={}", nginx.url("/disk"));
    let server = Serve::device(["http", &url]).start();
    for name in ["one", "two"] {
        let target = server.temp().join(name);
        run(program(&nbdcopy, [&server.uri("")]).arg(&target)).succeeded();
        assert!(fs::read(&target).unwrap() == content);
    }
    assert!(nginx.sent() <= content.len() as u64 + 65_536, "{}", nginx.sent());
    assert!(server.anonymous_memory() < 128 << 20);
}

#[test]
fn a_server_that_takes_no_put_is_no_target_and_secrets_in_its_name_are_not_shown() {
    let Some(nginx) = Nginx::start("") else { return };
    nginx.file("disk", &[1; 512]);
    let url = nginx.url("/disk?sig=secret").replace("http://", "http://me:secret@");
    let outcome = run(&mut ours(["copy", "memory:512", &url]));
    assert!(!outcome.failed().contains("secret"), "{outcome:?}");
    let server = Serve::device(["http", &format!("url={url}")]).option("-v").start();
    let said = run(&mut ours(["info", &server.uri("")]));
    assert!(!said.succeeded().contains("secret"), "{said:?}");
    for path in ["/none?sig=secret", "/disk?sig=secret#x"] {
        let outcome = run(&mut ours(["copy", &nginx.url(path), "null:"]));
        assert!(!outcome.stderr.contains("secret"), "{outcome:?}");
    }
}

#[test]
fn a_file_is_named_by_its_uri_too() {
    let temp = TempDir::new();
    let content = pattern(0, 100_000);
    let source = temp.file("a disk", &content);
    let target = temp.join("copy");
    let uri = format!("file://{}", source.display()).replace(' ', "%20");
    run(&mut ours(["copy", &uri, &format!("file://localhost{}", target.display())])).succeeded();
    assert!(fs::read(&target).unwrap() == content);
    run(&mut ours(["copy", "file://elsewhere/x", "null:"])).refused();
}

#[test]
fn an_image_becomes_another_one_while_it_downloads_without_a_temporary_file() {
    let (Some(nginx), Some(qemu_img)) = (Nginx::start(""), peer("qemu-img")) else { return };
    let content = pattern(0, 90_000_000);
    let raw = nginx.temp().file("raw", &content);
    let image = nginx.temp().join("root/image.qcow2");
    // qemu-img writes clusters in order unless it is allowed not to.
    for (made, parts) in [(&[][..], 0), (&["-c"], 0), (&["-W"], 10), (&["-c", "-W"], 10)] {
        let mut make = program(&qemu_img, ["convert", "-O", "qcow2"]);
        run(make.args(made).arg(&raw).arg(&image)).succeeded();
        let before = nginx.sent();
        let place = TempDir::new();
        let target = place.join("converted.qcow2");
        let mut convert = ours(["convert", "-O", "qcow2", "-f", "qcow2"]);
        convert.arg(nginx.url("/image.qcow2"));
        convert.env("TMPDIR", "/nonexistent").current_dir(place.path());
        run(convert.arg(&target)).succeeded();
        run(program(&qemu_img, ["compare"]).arg(&raw).arg(&target)).succeeded();
        run(program(&qemu_img, ["check"]).arg(&target)).succeeded();
        let left: Vec<_> = fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(left, [target]);
        let (sent, size) = (nginx.sent() - before, fs::metadata(&image).unwrap().len());
        let most = size + size * parts / 100 + 65_536;
        assert!(sent <= most, "{made:?}: {sent} of {size}: more than {parts} % came twice");
    }
}

#[test]
fn an_image_costs_no_round_trips_for_its_tables() {
    // How many more there are is a matter of which is quicker; none is for tables alone.
    for (size, most) in [(7_000_000, 1), (90_000_000, 400)] {
        let (Some(nginx), Some(qemu_img)) = (Nginx::start(""), peer("qemu-img")) else { return };
        let raw = nginx.temp().file("raw", &pattern(0, size));
        let image = nginx.temp().join("root/image.qcow2");
        let mut make = program(&qemu_img, ["convert", "-O", "qcow2"]);
        run(make.arg(&raw).arg(&image)).succeeded();
        let target = nginx.temp().join("converted");
        let url = nginx.url("/image.qcow2");
        run(ours(["convert", "-f", "qcow2", "-O", "raw", &url]).arg(&target)).succeeded();
        // One brings the header, the tables and the first data. The log has requests as they end,
        // sometimes after the client.
        let requests = eventually("the log has the first request", || {
            let requests = nginx.requests();
            requests.iter().any(|(_, _, _, range)| range == "bytes=0-8388607").then_some(requests)
        });
        assert!(requests.len() <= most, "{requests:?}");
        let sent: u64 = requests.iter().map(|(_, _, bytes, _)| bytes).sum();
        let size = fs::metadata(&image).unwrap().len();
        assert!(sent <= size + 65_536, "{sent} of {size}: each byte once");
    }
}
