//! `bench`: what it counts adds up, it changes nothing unless it is told to, and it sees a disk
//! that does not keep what is written.

use std::fs;

use blackbox::launch::Serve;
use blackbox::run::{ferry, json, text};
use blackbox::temp::{TempDir, pattern};

const MIB: u64 = 1 << 20;

#[test]
fn requests_add_up_on_each_connection_and_the_disk_stays_as_it_was() {
    let temp = TempDir::new();
    let disk = temp.file("disk", &pattern(7, 4 << 20));
    let server = Serve::file(&disk).start();
    let words = ["bench", "--json", "-C", "2", "-d", "1,8", "-s", "4K,64K", "-c", "500"];
    let said = ferry([&words[..], &[&server.uri("")]].concat());
    let found = json(said.succeeded());
    let works = found["works"].as_array().unwrap();
    assert_eq!((found["size"].as_u64(), works.len()), (Some(4 * MIB), 4));
    for work in works {
        let count = |key: &str| work[key].as_u64().unwrap();
        assert_eq!((count("requests"), count("connections")), (500, 2));
        assert_eq!(count("bytes"), 500 * count("request-size"));
        let times = work["times"].as_array().unwrap();
        assert_eq!(times.iter().map(|pair| pair[1].as_u64().unwrap()).sum::<u64>(), 500);
        assert!(count("nanoseconds-50") <= count("nanoseconds-999"), "{work}");
        assert!(count("nanoseconds-999") <= count("nanoseconds-longest"), "{work}");
        assert!(work["flush-seconds"].is_null() && work["verified-bytes"].is_null());
    }
    let said = ferry(["bench", "--svg", "-c", "100", "pattern:4M"]);
    let picture = said.succeeded();
    assert_eq!(picture.matches("<polyline").count(), 4);
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    assert!(fs::read(&disk).unwrap() == pattern(7, 4 << 20));
}

#[test]
fn writes_need_a_format_and_are_read_again() {
    let temp = TempDir::new();
    let raw = temp.file("disk", &pattern(7, 1 << 20));
    ferry(["bench", "-w", text(&raw)]).refused();
    assert!(fs::read(&raw).unwrap() == pattern(7, 1 << 20));
    let image = temp.join("image");
    ferry(["create", "-q", "-f", "qcow2", text(&image), "1M"]).succeeded();
    let work = ["bench", "--json", "-w", "--verify", "-d", "4", "-s", "3000,64K", "-c", "300"];
    for (format, disk) in [("raw", &raw), ("qcow2", &image)] {
        let said = ferry([&work[..], &["--mix=30", "-f", format, text(disk)]].concat());
        let found = json(said.succeeded());
        for work in found["works"].as_array().unwrap() {
            assert!(work["verified-bytes"].as_u64() > Some(MIB / 2), "{found}");
            assert!(work["flush-seconds"].is_number());
        }
    }
    ferry(["check", "-f", "qcow2", text(&image)]).succeeded();
}

#[test]
fn a_disk_that_forgets_what_is_written_fails() {
    let work = ["bench", "-w", "--verify", "-f", "raw", "-d", "2", "-s", "4K", "-c", "10"];
    let said = ferry([&work[..], &["null:1M"]].concat());
    let line = said.failed();
    assert!(line.contains("the bytes read differ from the bytes written"), "{line}");
}

#[test]
fn a_request_that_fails_on_any_connection_ends_it_with_an_error() {
    let temp = TempDir::new();
    let disk = temp.sparse_file("disk", MIB);
    let slow = Serve::file(&disk).option("--filter=error?error-pread-rate=100%").start();
    ferry(["bench", "-d", "4", "-s", "4K", "-C", "3", &slow.uri("")]).failed();
}
