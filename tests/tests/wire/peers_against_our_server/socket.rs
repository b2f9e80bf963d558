//! Where a server listens: TCP, any free port, addresses, private sockets, vsock.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use blackbox::haggle::Haggler;
use blackbox::peers::{diskferry, peer, skip_environment};
use blackbox::run::{ours, run};
use blackbox::socket::Socket;
use blackbox::{GUARD, MIB};

use super::peer_ok;

/// A server whose standard output names its address; killed when dropped.
struct Printing {
    child: Child,
    line: String,
}

impl Printing {
    fn start(options: &[&str]) -> Self {
        let mut command = Command::new(diskferry());
        command.arg("serve").args(options).args(["memory", "1M"]).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut line = Vec::new();
        let mut byte = [0];
        let stdout = child.stdout.as_mut().unwrap();
        while stdout.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
            line.push(byte[0]);
        }
        let line = String::from_utf8(line).unwrap();
        Self { child, line }
    }
}

impl Drop for Printing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn port_0_is_any_free_port_and_is_printed() {
    let Some(nbdinfo) = peer("nbdinfo") else { return };
    let server = Printing::start(&["--port", "0", "--ipaddr", "127.0.0.1", "--print-uri"]);
    let uri = server.line.split_whitespace().find(|w| w.starts_with("nbd://"));
    let uri = uri.unwrap_or_else(|| panic!("no URI in {:?}", server.line));
    assert_eq!(peer_ok(&nbdinfo, ["--size", uri]).trim(), MIB.to_string());
}

#[test]
fn a_private_socket_is_printed() {
    let Some(nbdinfo) = peer("nbdinfo") else { return };
    let server = Printing::start(&["-U", "-", "--print-uri"]);
    let uri = server.line.split_whitespace().find(|w| w.starts_with("nbd+unix://"));
    let uri = uri.unwrap_or_else(|| panic!("no URI in {:?}", server.line));
    assert_eq!(peer_ok(&nbdinfo, ["--size", uri]).trim(), MIB.to_string());
    let path = uri.split_once("socket=").unwrap().1;
    let metadata = std::fs::metadata(std::path::Path::new(path).parent().unwrap()).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
    assert_eq!(mode & 0o077, 0, "others can reach the private socket: {mode:o}");
}

/// A port that was free a moment ago.
fn free_port(address: IpAddr) -> Option<u16> {
    Some(TcpListener::bind((address, 0)).ok()?.local_addr().ok()?.port())
}

#[test]
fn tcp_listens_on_the_given_address() {
    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let Some(port) = free_port(address) else { continue };
        let (port_text, address_text) = (port.to_string(), address.to_string());
        let mut command = ours(["serve", "-p", &port_text, "-i", &address_text, "memory", "1M"]);
        let job = blackbox::run::Job::start(&mut command);
        let begun = Instant::now();
        let socket = loop {
            match Socket::tcp(SocketAddr::new(address, port)) {
                Ok(socket) => break socket,
                Err(e) => assert!(begun.elapsed() < GUARD, "{address}: {e}"),
            }
            thread::sleep(Duration::from_millis(10));
        };
        let mut session = Haggler::new(socket).go("");
        session.assert_alive();
        session.disconnect();
        job.signal(rustix::process::Signal::TERM);
        job.wait().succeeded();
    }
}

#[test]
fn a_port_in_use_is_named_in_the_error() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let outcome = run(&mut ours(["serve", "-p", &port, "-i", "127.0.0.1", "memory", "1M"]));
    let line = outcome.failed();
    assert!(line.contains(&port), "{line}");
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
    let job =
        blackbox::run::Job::start(&mut ours(["serve", "--vsock", "-p", &text, "memory", "1M"]));
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
    job.signal(rustix::process::Signal::TERM);
    job.wait().succeeded();
}
