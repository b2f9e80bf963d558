//! The reference server, nbd-server: no contexts, in old versions no structured replies,
//! requests of at most 32 MiB.

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use blackbox::MIB;
use blackbox::launch::Server;
use blackbox::peers::peer;
use blackbox::run::{ours, run};
use blackbox::temp::TempDir;

use super::{disk, fetch, size, there_and_back};

/// nbd-server on a Unix socket with the exports `disk` (writable) and `fixed` (read-only).
fn start() -> Option<Server> {
    let path = peer("nbd-server")?;
    let temp = TempDir::new();
    let socket = temp.join("s");
    let image = temp.sparse_file("disk", 6 * MIB);
    let fixed = temp.file("fixed", &disk());
    // It insists on a TCP port as well.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let config = format!(
        "[generic]\nunixsock = {}\nlistenaddr = 127.0.0.1\nport = {port}\nallowlist = true\n\
         [disk]\nexportname = {}\nflush = true\nfua = true\ntrim = true\n\
         [fixed]\nexportname = {}\nreadonly = true\n",
        socket.display(),
        image.display(),
        fixed.display(),
    );
    let config = temp.file("config", config.as_bytes());
    let mut command = Command::new(path);
    command.args(["-d", "-C"]).arg(config);
    let mut server = Server::start(command, temp, socket);
    assert!(server.is_running());
    server.tolerate_end();
    Some(server)
}

#[test]
fn nbd_server_there_and_back() {
    let Some(server) = start() else { return };
    assert_eq!(size(&server.uri("disk")), 6 * MIB);
    there_and_back(&server.uri("disk"), &disk());
    assert!(fs::read(server.temp().join("disk")).unwrap() == disk());
}

#[test]
fn nbd_server_read_only_export() {
    let Some(server) = start() else { return };
    assert!(fetch(&server.uri("fixed")) == disk());
    let temp = TempDir::new();
    let source = temp.file("source", &vec![1; disk().len()]);
    run(ours(["copy"]).arg(&source).arg(server.uri("fixed"))).failed();
    assert!(fs::read(server.temp().join("fixed")).unwrap() == disk());
}

#[test]
fn nbd_server_lists_its_exports() {
    let Some(server) = start() else { return };
    let outcome = run(&mut ours(["list", &server.uri("")]));
    let text = outcome.succeeded();
    assert!(text.contains("disk") && text.contains("fixed"), "{text}");
}

#[test]
fn nbd_server_does_not_know_an_export() {
    let Some(server) = start() else { return };
    run(&mut ours(["info", &server.uri("nowhere")])).failed();
    // It still serves the others.
    assert_eq!(size(&server.uri("disk")), 6 * MIB);
}
