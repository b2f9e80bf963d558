//! Where a server listens: TCP, any free port, addresses, private sockets, vsock.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use blackbox::MIB;
use blackbox::peers::{peer, skip_environment};
use blackbox::run::{Job, ours};

use super::peer_ok;

/// A server whose standard output names its address.
fn printing(options: &[&str]) -> (Job, String) {
    let job = Job::start(ours(["serve", "--print-uri"]).args(options).args(["memory", "1M"]));
    let uri = job.first_line();
    (job, uri)
}

#[test]
fn a_private_socket_is_printed() {
    let Some(nbdinfo) = peer("nbdinfo") else { return };
    let (_server, uri) = printing(&["-U", "-"]);
    assert_eq!(peer_ok(&nbdinfo, ["--size", &uri]).trim(), MIB.to_string());
    let path = uri.split_once("socket=").unwrap().1;
    let metadata = std::fs::metadata(std::path::Path::new(path).parent().unwrap()).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
    assert_eq!(mode & 0o077, 0, "others can reach the private socket: {mode:o}");
}

#[test]
fn tcp_listens_on_the_given_address_and_any_free_port_is_printed() {
    let Some(nbdinfo) = peer("nbdinfo") else { return };
    for (address, name) in [("127.0.0.1", "127.0.0.1:"), ("::1", "[::1]:")] {
        if TcpListener::bind((address, 0)).is_err() {
            skip_environment("no IPv6 here");
            continue;
        }
        let (server, uri) = printing(&["-p", "0", "-i", address]);
        assert!(uri.starts_with(&format!("nbd://{name}")), "{uri}");
        assert_eq!(peer_ok(&nbdinfo, ["--size", &uri]).trim(), MIB.to_string());
        server.stop();
    }
}

#[test]
fn vsock_listens_on_a_port() {
    let script = "
import socket, sys
s = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
s.bind((1, socket.VMADDR_PORT_ANY)); s.listen()
c = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
c.connect((1, s.getsockname()[1]))
";
    let Some(python) = peer("python3") else { return };
    let loopback = Command::new(&python).args(["-c", script]).stderr(Stdio::null()).status();
    if !loopback.is_ok_and(|s| s.success()) {
        skip_environment("no vsock loopback in this kernel");
        return;
    }
    let port = 20_000 + std::process::id() % 10_000;
    let text = port.to_string();
    let job = Job::start(&mut ours(["serve", "--vsock", "-p", &text, "memory", "1M"]));
    let client = format!(
        "
import socket, time
for n in range(1000):
    c = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    try: c.connect((1, {port}))
    except OSError: time.sleep(0.02); continue
    break
assert c.recv(18).startswith(b'NBDMAGICIHAVEOPT')
"
    );
    peer_ok(&python, ["-c", &client]);
    job.stop();
}
