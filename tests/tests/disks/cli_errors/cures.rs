//! The mistakes of a first day: each line names what helps.

use blackbox::launch::Serve;
use blackbox::temp::TempDir;

use super::{fails_saying, ferry};

#[test]
fn a_time_of_nothing_is_refused_with_what_to_do() {
    let outcome = ferry(["serve", "--idle-timeout", "0", "memory", "1M"]);
    assert!(outcome.refused().contains("must be more than 0; leave it out"), "{outcome:#?}");
}

#[test]
fn two_disks_for_a_server_need_names() {
    let temp = TempDir::new();
    let [one, two] = ["one", "two"].map(|name| temp.sparse_file(name, 1 << 20));
    let (one, two) = (one.to_str().unwrap(), two.to_str().unwrap());
    fails_saying(&["serve", one, two], &[one, &format!("--export NAME={two}")]);
}

#[test]
fn a_port_that_is_taken_is_told_from_one_that_is_not_allowed() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let words = ["serve", "-i", "127.0.0.1", "-p", &port, "memory", "1M"];
    fails_saying(&words, &[&port, "another program has the port; choose another, or 0"]);
}

#[test]
fn a_range_beyond_the_end_names_the_option() {
    let temp = TempDir::new();
    let disk = temp.sparse_file("disk", 1 << 20);
    let disk = disk.to_str().unwrap();
    for verb in ["zero", "trim"] {
        let end = "beyond the end of the disk (1048576 bytes)";
        fails_saying(&[verb, "--offset", "2M", disk], &[disk, "--offset", end]);
        fails_saying(&[verb, "--offset", "4K", "--length", "1M", disk], &[disk, "--length", end]);
    }
    fails_saying(&["copy", "-f", "qcow2", disk, "null:"], &[disk, "no qcow2 header"]);
}

#[test]
fn an_export_that_is_not_there_leads_to_the_list() {
    let server = Serve::memory("1M").start();
    let uri = server.uri("missing");
    fails_saying(&["info", &uri], &["no such export", "`diskferry list URI`"]);
}
