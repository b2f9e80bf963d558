//! https: what TLS changes for a server that answers, and for one that lies.
#![cfg(feature = "tls")]

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use trial::Scratch;

use ::device::ErrorKind;
use net::tls::{Acceptor, HandshakeProgress, Serving};
use net::{Received, Stream, Until};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::set_socket_send_buffer_size;

use super::hostile::hastens;
use super::site::{Asked, Reply, Site, Step, content, good, plain};
use super::tests::{MIB, is_all, open, read};

/// For localhost and 127.0.0.1, signed by itself, until 2120.
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBbjCCARSgAwIBAgIBATAKBggqhkjOPQQDAjAZMRcwFQYDVQQDDA5kaXNrZmVy
cnktdGVzdDAgFw0yMDAxMDEwMDAwMDBaGA8yMTIwMDEwMTAwMDAwMFowGTEXMBUG
A1UEAwwOZGlza2ZlcnJ5LXRlc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASU
mgjTijO1YBBLmtGcqIHYiz51E9+//k4cCwsGEZNuzvKit5n+BA1Squvr+l2mkran
vIMkdvbU6SrH7Cr9//fao0swSTAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEw
DAYDVR0TAQH/BAIwADAdBgNVHQ4EFgQUmOV16JGhEB1UsyGvwjnklPSh+rwwCgYI
KoZIzj0EAwIDSAAwRQIgWFA+Pzw+W4n9IVzu0AvhZjVkdH5KeI/8gvppn4BJaqYC
IQC91wG3KRi+qOae39TNl3qq+pFLpNkfeQOJasXad/j+Pw==
-----END CERTIFICATE-----
";
/// Its key, which guards nothing.
const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgyIDNo/toxoHyeN+K
1CjvnKdUjeBKiVaK7GB899TYB4mhRANCAASUmgjTijO1YBBLmtGcqIHYiz51E9+/
/k4cCwsGEZNuzvKit5n+BA1Squvr+l2mkranvIMkdvbU6SrH7Cr9//fa
-----END PRIVATE KEY-----
";

/// A site behind TLS. Its certificate is in a directory of its own.
struct Secure {
    port: u16,
    acceptor: Acceptor,
    directory: Scratch,
}

/// What a connection ends with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ending {
    Announced,
    Cut,
}

impl Secure {
    fn new(ending: Ending, answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let directory = Scratch::new("/tmp");
        for (file, text) in [("server-cert.pem", CERTIFICATE), ("server-key.pem", KEY)] {
            directory.file(file, text.as_bytes());
        }
        let serving =
            Serving::Certificates { directory: Some(directory.path("")), verify_peer: false };
        let (acceptor, site) = (Acceptor::new(&serving).unwrap(), Arc::new(Site::new(answer)));
        let of_connections = acceptor.clone();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // The threads end with the process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (acceptor, site) = (of_connections.clone(), site.clone());
                std::thread::spawn(move || carry(client, &acceptor, &site, ending));
            }
        });
        Self { port, acceptor, directory }
    }

    fn url(&self, host: &str) -> String {
        format!("https://{host}:{}/", self.port)
    }

    /// The parameter that makes its certificate trusted.
    fn trust(&self) -> String {
        format!("cainfo={}", self.directory.path("server-cert.pem").display())
    }
}

fn encrypt(client: &Stream, acceptor: &Acceptor) -> Option<()> {
    let until = Until::within(Duration::from_secs(10));
    let mut handshake = acceptor.accept().unwrap();
    loop {
        match handshake.advance(client).ok()? {
            HandshakeProgress::Done => return Some(()),
            HandshakeProgress::Waits { room: true } => until.writable(client).ok()?,
            HandshakeProgress::Waits { room: false } => until.readable(client).ok()?,
        }
    }
}

/// Encrypts a connection, and carries it to the site.
fn carry(client: TcpStream, acceptor: &Acceptor, site: &Site, ending: Ending) -> Option<()> {
    let client = Stream::new(client.into()).unwrap();
    // Records are longer than what it takes at once: they arrive in parts.
    set_socket_send_buffer_size(&client, 4096).unwrap();
    encrypt(&client, acceptor)?;
    let server = Stream::new(TcpStream::connect(&site.address).unwrap().into()).unwrap();
    let (mut asked, mut answered) = (vec![0; 4096], vec![0; 100_000]);
    loop {
        let came = client.receive(&mut asked).ok()?;
        match came {
            Received::Bytes(n) => put(&server, asked.get(..n)?)?,
            Received::End => return Some(()),
            Received::Nothing => {}
        }
        match (server.receive(&mut answered).ok()?, came) {
            (Received::Bytes(n), _) => put(&client, answered.get(..n)?)?,
            (Received::End, _) => break,
            (Received::Nothing, Received::Nothing) => {
                let mut both = [&client, &server].map(|s| PollFd::new(s, PollFlags::IN));
                poll(&mut both, None).unwrap();
            }
            (Received::Nothing, _) => {}
        }
    }
    match ending {
        Ending::Announced => client.end(),
        Ending::Cut => client.close(),
    }
    Some(())
}

fn put(stream: &Stream, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        match stream.send(bytes).ok()? {
            0 => Until::within(Duration::from_secs(10)).writable(stream).ok()?,
            n => bytes = bytes.get(n..)?,
        }
    }
    Some(())
}

#[test]
fn a_disk_is_read_whole_though_records_come_in_parts() {
    let bytes = content(3 * MIB + 12_345);
    let all = bytes.clone();
    let site = Secure::new(Ending::Announced, move |asked| good(asked, &all, &["ETag: \"1\""]));
    let trust = site.trust();
    for words in [&[][..], &["ssl-version=tlsv1.3"], &["ssl-version=max-tlsv1.2", "connections=1"]]
    {
        let words = [&[trust.as_str()], words].concat();
        is_all(&open(&site.url("localhost"), &words).unwrap(), &bytes, 100_000);
    }
}

#[test]
fn only_a_certificate_that_is_trusted_and_for_the_host_will_do() {
    let site = Secure::new(Ending::Announced, move |asked| good(asked, b"bytes", &[]));
    let (trust, elsewhere) =
        (site.trust(), format!("resolve=other.example:{}:127.0.0.1", site.port));
    let own = format!("capath={}", site.directory.path("").display());
    for (host, words, why) in [
        ("localhost", &[&trust[..]][..], ""),
        ("127.0.0.1", &[&trust], ""),
        ("localhost", &[&own], ""),
        ("other.example", &[&elsewhere, "sslverify=false"], ""),
        ("other.example", &["sslverify=false", "cainfo=/nonexistent", &elsewhere], ""),
        ("localhost", &[], "not trusted"),
        ("other.example", &[&trust, &elsewhere], "not trusted"),
        ("localhost", &["cainfo=/nonexistent"], "/nonexistent: read certificates: No such file"),
        ("localhost", &["cainfo=/dev/null"], "read certificates: there is none in the file"),
        ("localhost", &["cainfo="], "no certificate is trusted; name some with cainfo= or capath="),
        ("localhost", &["capath=/nonexistent"], "no certificate is trusted"),
    ] {
        let words = [&["retry=0"], words].concat();
        match open(&site.url(host), &words) {
            Ok(disk) => assert!(why.is_empty() && disk.info().size == 5, "{words:?}"),
            Err(e) => assert!(!why.is_empty() && e.to_string().contains(why), "{words:?}: {e}"),
        }
    }
}

#[test]
fn a_body_that_ends_early_is_an_error_whether_the_end_was_announced_or_not() {
    for ending in [Ending::Announced, Ending::Cut] {
        // With a length, and in chunks, the last of which is missing.
        for in_chunks in [false, true] {
            let site = Secure::new(ending, move |asked| {
                let (start, end) = asked.range.unwrap();
                let size = 4 * MIB;
                if asked.number == 0 {
                    return good(asked, &content(size), &["ETag: \"1\""]);
                }
                let range = format!("Content-Range: bytes {start}-{}/{size}", end - 1);
                let length = format!("Content-Length: {}", end - start);
                let (how, body) = match in_chunks {
                    true => ("Transfer-Encoding: chunked", &b"3e8\r\n"[..]),
                    false => (&*length, &[][..]),
                };
                let body = [body, &[7; 1000], b"\r\n"].concat();
                let head = ["ETag: \"1\"", &range, how];
                [plain("206 Partial Content", &head, &body), vec![Step::Close]].concat()
            });
            let trust = site.trust();
            let disk = open(&site.url("localhost"), &[&trust, "retry=0", "connections=1"]).unwrap();
            let error = read(&disk, 3 * MIB, 1000).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Disconnected, "{ending:?} {in_chunks}: {error}");
        }
    }
}

#[test]
fn only_an_announced_end_is_the_end_of_a_body_without_a_length() {
    for ending in [Ending::Announced, Ending::Cut] {
        // Such a body is the whole object, and its length the size of the disk.
        let site = Secure::new(ending, |_| {
            [plain("200 OK", &[], &content(100_000)), vec![Step::Close]].concat()
        });
        let disk = open(&site.url("localhost"), &[&site.trust(), "retry=0"]);
        match ending {
            Ending::Announced => is_all(&disk.unwrap(), &content(100_000), 30_000),
            Ending::Cut => {
                let error = disk.err().unwrap();
                assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
            }
        }
    }
}

#[test]
fn an_encrypted_connection_is_not_used_again_whose_request_was_answered_before_it_had_left() {
    let site = Secure::new(Ending::Announced, |_| Vec::new());
    let (path, trust, acceptor) =
        (site.directory.path("socket"), site.trust(), site.acceptor.clone());
    hastens(&path, "https://localhost/", &[&trust], move |client| {
        let client = Stream::new(client.into()).unwrap();
        encrypt(&client, &acceptor).unwrap();
        client
    });
}
