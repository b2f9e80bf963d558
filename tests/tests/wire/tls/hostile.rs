//! Peers that do not do what a peer under TLS should. Whatever they do, their connection ends
//! within its bounds, and all others are served meanwhile and afterwards.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use blackbox::haggle::option_bytes;
use blackbox::launch::{Serve, Server};
use blackbox::nbd::{opt, rep};
use blackbox::peers::peer;
use blackbox::run::{Outcome, ours, run};
use blackbox::{GUARD, wait_for};

use super::certificates::Credentials;

/// A server of both kinds of clients.
fn server(credentials: &Credentials) -> Server {
    serve(credentials).start()
}

fn serve(credentials: &Credentials) -> Serve {
    let keys = format!("--tls-psk={}", credentials.keys().display());
    Serve::memory("1M").option("--tls=on").option(keys)
}

/// Another client is served.
fn assert_serves(server: &Server, credentials: &Credentials) {
    server.haggle().assert_alive();
    let (socket, keys) = (server.socket().display(), credentials.keys());
    let uri = format!("nbds+unix://alice@/?socket={socket}&tls-psk-file={}", keys.display());
    run(&mut ours(["info", &uri])).succeeded();
}

#[test]
fn server_check_42_plain_text_behind_starttls_ends_the_connection_unanswered() {
    let Some(credentials) = Credentials::make() else { return };
    let server = server(&credentials);
    for injected in [option_bytes(opt::STRUCTURED_REPLY, &[]), vec![0x16], vec![0; 70_000]] {
        let mut haggler = server.haggle();
        let both = [option_bytes(opt::STARTTLS, &[]), injected].concat();
        haggler.socket.offer(&both);
        assert_eq!(haggler.socket.drain(), b"", "not even the agreement");
    }
    assert_serves(&server, &credentials);
}

#[test]
fn server_check_45_plain_text_instead_of_tls_ends_the_connection() {
    let Some(credentials) = Credentials::make() else { return };
    let server = server(&credentials);
    let go = option_bytes(opt::GO, &[0; 6]);
    let all = [go, b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0; 100], vec![0xff; 5000]];
    let begun = all.map(|instead| {
        let mut haggler = server.haggle();
        assert_eq!(haggler.outcome(opt::STARTTLS, &[]), rep::ACK);
        haggler.socket.offer(&instead);
        haggler
    });
    for mut haggler in begun {
        let told = haggler.socket.drain();
        assert!(told.len() < 100 && !told.windows(8).any(|w| w == b"NBDMAGIC"), "{told:?}");
    }
    assert_serves(&server, &credentials);
}

#[test]
fn server_check_45_a_client_that_does_not_go_on_with_the_handshake_is_closed() {
    let Some(credentials) = Credentials::make() else { return };
    // Long enough for those that do go on, however busy the machine is.
    let server = serve(&credentials).option("--handshake-timeout=5").start();
    let [mut waits, mut sends_on] = [(); 2].map(|()| {
        let mut haggler = server.haggle();
        assert_eq!(haggler.outcome(opt::STARTTLS, &[]), rep::ACK);
        // The beginning of a ClientHello of 512 bytes.
        haggler.socket.send(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]);
        haggler
    });
    let since = Instant::now();
    while sends_on.socket.offer(&[7]) && since.elapsed() < GUARD {
        assert_serves(&server, &credentials);
        std::thread::sleep(Duration::from_millis(50));
    }
    sends_on.socket.drain();
    waits.socket.drain();
    assert_serves(&server, &credentials);
}

#[test]
fn many_clients_that_begin_and_leave_cost_nothing_that_stays() {
    let Some(credentials) = Credentials::make() else { return };
    let server = server(&credentials);
    assert_serves(&server, &credentials);
    let (memory, descriptors) = (server.anonymous_memory(), server.open_descriptors());
    for _ in 0..300 {
        let mut haggler = server.haggle();
        assert_eq!(haggler.outcome(opt::STARTTLS, &[]), rep::ACK);
        haggler.socket.send(&[0x16, 3, 1, 2, 0, 1, 0, 1]);
    }
    // The client before them may have been counted, too, while it was leaving.
    let are_gone = || server.open_descriptors() <= descriptors;
    wait_for("they are gone", are_gone);
    assert_serves(&server, &credentials);
    wait_for("the last one is gone", are_gone);
    let grown = server.anonymous_memory().saturating_sub(memory);
    assert!(grown < 16 << 20, "{grown} bytes");
}

#[test]
fn a_flood_of_new_keys_ends_the_connection() {
    let Some(credentials) = Credentials::make() else { return };
    let server = server(&credentials);
    let Some(told) = gnutls(&server, &credentials, "flood") else { return };
    assert!(told.succeeded().contains("closed"), "{told:?}");
    assert_serves(&server, &credentials);
}

#[test]
fn new_keys_now_and_then_are_answered_with_new_keys() {
    let Some(credentials) = Credentials::make() else { return };
    let server = server(&credentials);
    let Some(told) = gnutls(&server, &credentials, "renew") else { return };
    assert!(told.succeeded().contains("served"), "{told:?}");
}

#[test]
fn a_client_that_leaves_without_disc_has_left() {
    let Some(credentials) = Credentials::make() else { return };
    let server = server(&credentials);
    for _ in 0..20 {
        let Some(told) = gnutls(&server, &credentials, "leave") else { return };
        told.succeeded();
    }
    assert_serves(&server, &credentials);
}

#[test]
fn nothing_is_negotiated_a_second_time() {
    let Some(credentials) = Credentials::make() else { return };
    let certificates = format!("--tls-certificates={}", credentials.directory().display());
    let server = Serve::memory("1M").option("--tls=on").option(certificates).start();
    let Some(told) = gnutls(&server, &credentials, "renegotiate") else { return };
    assert!(told.succeeded().contains("refused"), "{told:?}");
    server.haggle().assert_alive();
}

#[test]
fn bytes_changed_on_the_way_are_never_passed_on() {
    let Some(credentials) = Credentials::make() else { return };
    let server = server(&credentials);
    let Some(told) = gnutls(&server, &credentials, "tamper") else { return };
    assert!(told.succeeded().contains("closed"), "{told:?}");
    assert_serves(&server, &credentials);
}

/// A server that agrees to STARTTLS, and then sends `next` and waits, or hangs up.
fn info_of_a_server_that(next: &'static [u8], waits: bool, credentials: &Credentials) -> Outcome {
    let socket = credentials.temp().join("server");
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
        client.read_exact(&mut [0; 4 + 16]).unwrap();
        let ack =
            [&0x0003_e889_0455_65a9_u64.to_be_bytes()[..], &[0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0]];
        // In one piece: what is behind the agreement is read with it.
        client.write_all(&[&ack.concat(), next].concat()).unwrap();
        let mut rest = Vec::new();
        if waits {
            let _ = client.read_to_end(&mut rest);
        }
        rest
    });
    let keys = credentials.keys();
    let device = format!(
        "nbd:?socket={}&tls=require&tls-username=alice&timeout=1&tls-psk={}",
        socket.display(),
        keys.display()
    );
    let outcome = run(&mut ours(["info", &device]));
    let said = server.join().unwrap();
    let told = said.windows(8).any(|words| words == b"IHAVEOPT");
    assert!(!told, "an option in clear text after STARTTLS");
    outcome
}

#[test]
fn client_check_19_a_server_that_does_not_begin_tls_is_told_apart_and_nothing_is_sent_in_clear_text()
 {
    let Some(credentials) = Credentials::make() else { return };
    for (next, waits, why) in [
        (&b""[..], true, "within 1 seconds"),
        (b"", false, "TLS"),
        (b"\0\x03\xe8\x89\x04\x55\x65\xa9 an answer in clear text", true, "clear text"),
        (b"\x16\x03\x03\x00\x02\xff\xff", true, "clear text"),
    ] {
        let outcome = info_of_a_server_that(next, waits, &credentials);
        let line = outcome.failed();
        assert!(line.contains(why) || line.contains("STARTTLS") || line.contains("TLS"), "{line}");
    }
}

/// A client of GnuTLS that does what `deed` says.
fn gnutls(server: &Server, credentials: &Credentials, deed: &str) -> Option<Outcome> {
    let python = peer("python3")?;
    let script: &Path = &credentials.temp().join("client.py");
    fs::write(script, CLIENT).unwrap();
    let mut command = Command::new(python);
    command.arg(script).arg(server.socket()).arg(deed).arg(super::certificates::key_of("alice"));
    Some(run(&mut command))
}

const CLIENT: &str = r#"
import ctypes, socket, struct, sys
g = ctypes.CDLL("libgnutls.so.30")
path, deed, key = sys.argv[1:]
s = socket.socket(socket.AF_UNIX)
s.settimeout(30)
s.connect(path)
def exactly(n):
    data = b""
    while len(data) < n:
        more = s.recv(n - len(data))
        if not more: sys.exit("closed in clear text")
        data += more
    return data
assert exactly(18)[:16] == b"NBDMAGICIHAVEOPT"
s.sendall(struct.pack(">I", 3))
def option(number, data=b""):
    return b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data
def kind():
    _, _, kind, length = struct.unpack(">QIII", exactly(20))
    exactly(length)
    return kind
s.sendall(option(5))
assert kind() == 1
s.settimeout(None)
session, creds = ctypes.c_void_p(), ctypes.c_void_p()
g.gnutls_init(ctypes.byref(session), 2)
if deed == "renegotiate":
    g.gnutls_certificate_allocate_credentials(ctypes.byref(creds))
    g.gnutls_credentials_set(session, 1, creds)
    priority = b"NORMAL:-VERS-ALL:+VERS-TLS1.2"
else:
    class Datum(ctypes.Structure):
        _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_uint)]
    g.gnutls_psk_allocate_client_credentials(ctypes.byref(creds))
    g.gnutls_psk_set_client_credentials(creds, b"alice", ctypes.byref(Datum(key.encode(), len(key))), 1)
    g.gnutls_credentials_set(session, 4, creds)
    priority = b"NORMAL:-KX-ALL:+ECDHE-PSK:+DHE-PSK:+PSK"
assert g.gnutls_priority_set_direct(session, priority, None) == 0
g.gnutls_transport_set_int2(session, s.fileno(), s.fileno())
g.gnutls_record_send.restype = g.gnutls_record_recv.restype = ctypes.c_ssize_t
g.gnutls_record_send.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
g.gnutls_record_recv.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
assert g.gnutls_handshake(session) == 0
def send(data): return g.gnutls_record_send(session, data, len(data))
def receive(n):
    data = b""
    while len(data) < n:
        room = ctypes.create_string_buffer(n - len(data))
        got = g.gnutls_record_recv(session, room, n - len(data))
        # GNUTLS_E_AGAIN and E_INTERRUPTED: what came were no data.
        if got in (-28, -52): continue
        if got <= 0: return None
        data += room.raw[:got]
    return data
def reply():
    head = receive(20)
    if head is None: return None, b""
    _, _, kind, length = struct.unpack(">QIII", head)
    return kind, receive(length) if length else b""
def go():
    send(option(7, struct.pack(">IH", 0, 0)))
    flags = None
    while True:
        kind, body = reply()
        if kind is None: return None
        if kind == 1: return flags
        assert kind == 3, kind
        if body[:2] == b"\0\0": flags = struct.unpack(">H", body[10:])[0]
def read(cookie):
    send(struct.pack(">IHHQQI", 0x25609513, 0, 0, cookie, 0, 4096))
    head = receive(16)
    return head and receive(4096)
if deed == "flood":
    assert go() and read(1)
    for n in range(1000000):
        if g.gnutls_session_key_update(session, 0) < 0: break
    print("closed after", n)
elif deed == "renew":
    assert go()
    # GnuTLS itself takes eight in a second.
    for cookie in range(6):
        assert g.gnutls_session_key_update(session, 1) == 0
        assert read(cookie) is not None
    print("served")
elif deed == "leave":
    assert go() and read(1)
    send(struct.pack(">IHHQQI", 0x25609513, 0, 1, 2, 0, 4096) + b"half a payload")
    s.close()
elif deed == "renegotiate":
    assert go()
    again = g.gnutls_handshake(session)
    print("refused" if again < 0 or read(1) is None else "negotiated")
elif deed == "tamper":
    assert go() and read(1)
    s.sendall(b"\x17\x03\x03\x00\x40" + bytes(64))
    print("closed" if read(2) is None else "believed")
"#;
