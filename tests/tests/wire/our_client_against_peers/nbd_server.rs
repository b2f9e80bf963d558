//! The reference server, nbd-server: no contexts, in old versions no structured replies,
//! requests of at most 32 MiB.

use std::fs;

use blackbox::MIB;
use blackbox::nbd_server::NbdServer;
use blackbox::run::{ours, run};
use blackbox::temp::TempDir;

use super::{disk, fetch, size, there_and_back};

/// With the exports `disk` (writable) and `fixed` (read-only).
fn start() -> Option<NbdServer> {
    let exports = "[disk]\nexportname = %T/disk\nflush = true\nfua = true\ntrim = true\n\
                   [fixed]\nexportname = %T/fixed\nreadonly = true\n";
    NbdServer::start(false, "", exports, |temp| {
        temp.sparse_file("disk", 6 * MIB);
        temp.file("fixed", &disk());
    })
}

#[test]
fn nbd_server_is_listed_read_written_and_refused() {
    let Some(server) = start() else { return };
    let list = run(&mut ours(["list", &server.uri("")]));
    assert!(list.succeeded().contains("disk") && list.stdout.contains("fixed"), "{list:?}");
    // Version 3.24 answers INFO before it opens the disk, with a size of 0; GO is right.
    assert_eq!(size(&server.uri("disk")), 6 * MIB);
    there_and_back(&server.uri("disk"), &disk());
    assert!(fs::read(server.temp.join("disk")).unwrap() == disk());
    assert!(fetch(&server.uri("fixed")) == disk());
    let temp = TempDir::new();
    let source = temp.file("source", &vec![1; disk().len()]);
    run(ours(["copy"]).arg(&source).arg(server.uri("fixed"))).failed();
    run(&mut ours(["info", &server.uri("nowhere")])).failed();
    // It still serves the others, as they were.
    assert!(fs::read(server.temp.join("fixed")).unwrap() == disk());
    assert!(fetch(&server.uri("fixed")) == disk());
}
