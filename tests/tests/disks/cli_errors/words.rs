//! Messages about more than the words: what is there, and what it would cost.

use blackbox::launch::Serve;
use blackbox::run::{measured, ours, run};

use super::fails_saying;

#[test]
fn a_data_bomb_is_refused_quickly() {
    // Repetition of repetition: 10^12 bytes from thirty.
    let bomb = "data:((((1*1000)*1000)*1000)*1000)";
    let outcome = measured(&ours(["copy", bomb, "null:"]));
    outcome.fits_in(512 * blackbox::MIB);
    if !outcome.status.success() {
        outcome.failed();
    }
}

#[test]
fn too_few_descriptors_are_reported_with_the_cure() {
    let ours = blackbox::peers::diskferry();
    let script = format!("ulimit -n 10; exec {} copy memory:1M null:", ours.display());
    let outcome = run(std::process::Command::new("sh").args(["-c", &script]));
    if !outcome.status.success() {
        assert!(outcome.failed().contains("ulimit -n"), "{outcome:?}");
    }
}

#[test]
fn a_port_that_is_taken_is_told_from_one_that_is_not_allowed() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let words = ["serve", "-i", "127.0.0.1", "-p", &port, "memory", "1M"];
    fails_saying(&words, &[&port, "another program has the port; choose another, or 0"]);
}

#[test]
fn an_export_that_is_not_there_leads_to_the_list() {
    let server = Serve::memory("1M").start();
    let uri = server.uri("missing");
    fails_saying(&["info", &uri], &["no such export", "`diskferry list URI`"]);
}
