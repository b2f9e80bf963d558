//! Certificates that a client must not believe, though their chain holds.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::super::{Acceptor, Calling, CertificateFiles, Connector, Serving, TlsVersions, Trust};
use super::{shake_hands, sockets};
use crate::{Stream, Until};

/// See the text.
const CERTIFICATES: &str = include_str!("certificates.txt");

fn pem(name: &str) -> &str {
    let (_, found) = CERTIFICATES.split_once(&format!("\n= {name}: ")).unwrap();
    let found = found.split_once('\n').unwrap().1;
    found.split_once("\n\n").map_or(found, |(found, _)| found)
}

/// A directory with the files of a server and of its client. Removed in the end.
struct Files(PathBuf);

impl Files {
    /// `chain`: the server's certificate, and those that it sends with it.
    fn of(chain: &[&str], key: &str, authority: &str) -> Self {
        // Tests of one process make the same files, and each removes its own.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("diskferry-trust-{}-{number}", std::process::id());
        let made = Self(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&made.0).unwrap();
        let chain = chain.iter().map(|name| format!("{}\n", pem(name))).collect::<String>();
        for (file, text) in [
            ("server-cert.pem", &chain[..]),
            ("server-key.pem", pem(key)),
            ("ca-cert.pem", pem(authority)),
        ] {
            std::fs::write(made.0.join(file), text).unwrap();
        }
        made
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// What a client for NBD says to its server.
    fn nbd(&self, host: &str, verify_peer: bool) -> Result<(), String> {
        let (directory, host) = (Some(self.0.clone()), Some(host.to_owned()));
        let calling = Calling::Certificates { directory, host, verify_peer };
        self.meet(&Connector::new(&calling).unwrap())
    }

    /// And one for https.
    fn https(&self, host: &str, versions: TlsVersions) -> Result<(), String> {
        let files = https(&self.at("ca-cert.pem"), versions);
        self.meet(&Connector::of_files(&files).unwrap().for_host(host))
    }

    fn meet(&self, connector: &Connector) -> Result<(), String> {
        let directory = Some(self.0.clone());
        let serving = Serving::Certificates { directory, verify_peer: false };
        let mut other = Acceptor::new(&serving).unwrap().accept().unwrap();
        let (client, server) = sockets();
        let mut tls = connector.connect().unwrap();
        let met = shake_hands((&client, &mut tls), (&server, &mut other));
        assert_eq!(met.is_ok(), client.is_secure());
        met.map_err(|e| e.why.to_string())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn https(authority: &Path, versions: TlsVersions) -> CertificateFiles {
    CertificateFiles {
        trust: Trust::Named { file: Some(authority.to_owned()), directory: None },
        advice: "these words",
        ours: None,
        versions,
        protocol: "http/1.1",
    }
}

#[test]
fn a_certificate_is_for_a_host_only_by_a_name_of_the_right_kind() {
    let host = "victim.example";
    for (certificate, host, is) in [
        ("names", host, true),
        ("names", "Victim.Example.", true),
        ("names", "a.wild.example", true),
        ("names", "wild.example", false),
        ("names", "10.0.0.5", true),
        ("names", "::1", true),
        ("names", "10.0.0.6", false),
        ("names", "::2", false),
        ("names", "other.example", false),
        ("uris", host, false),
        ("uris", "10.0.0.5", false),
        ("dotted", "10.0.0.5", false),
        ("mail", host, false),
        ("mail", "a@victim.example", false),
        ("other-name", host, false),
        ("common", host, true),
        ("common", "other.example", false),
        ("common-address", "10.0.0.5", false),
    ] {
        let files = Files::of(&[certificate], "ec", certificate);
        for told in [
            files.nbd(host, true),
            files.https(host, TlsVersions::Both),
            files.https(host, TlsVersions::Only12),
        ] {
            assert_eq!(told.is_ok(), is, "{certificate} {host}: {told:?}");
            assert!(told.is_ok() || told.unwrap_err().contains("the peer is not trusted"));
        }
        assert_eq!(files.nbd(host, false), Ok(()), "no certificate is verified");
    }
    let told = Files::of(&["uris"], "ec", "uris").nbd(host, true).unwrap_err();
    assert!(told.ends_with("its certificate is not for victim.example"), "{told}");
}

#[test]
fn a_chain_holds_only_by_signatures_and_keys_that_cannot_be_forged() {
    for (chain, key, authority, why) in [
        (&["names"][..], "ec", "names", ""),
        (&["under-sha1-authority"], "ec", "sha1-authority", ""),
        (&["sha1"], "ec", "authority", "is signed with SHA-1"),
        (&["under-sha1-middle", "sha1-middle"], "ec", "authority", "is signed with SHA-1"),
        (&["short-key"], "rsa", "short-key", "a key of RSA of 1024 bits"),
        (&["under-short-middle", "short-middle"], "ec", "authority", "a key of RSA of 1024 bits"),
    ] {
        let files = Files::of(chain, key, authority);
        let host = "victim.example";
        for told in [files.nbd(host, true), files.https(host, TlsVersions::Both)] {
            assert_eq!(told.is_ok(), why.is_empty(), "{chain:?}: {told:?}");
            assert!(told.is_ok() || told.as_ref().unwrap_err().contains(why), "{told:?}");
        }
        assert_eq!(files.nbd(host, false), Ok(()), "no certificate is verified");
    }
}

#[test]
fn a_client_proves_nothing_by_such_a_chain_either() {
    for (chain, key, authority, why) in [
        (&["names"][..], "ec", "names", ""),
        (&["sha1"], "ec", "authority", "is signed with SHA-1"),
        (&["short-key"], "rsa", "short-key", "a key of RSA of 1024 bits"),
    ] {
        let files = Files::of(chain, key, authority);
        for end in ["cert.pem", "key.pem"] {
            let (theirs, ours) = (format!("server-{end}"), format!("client-{end}"));
            std::fs::copy(files.at(&theirs), files.at(&ours)).unwrap();
        }
        let directory = Some(files.0.clone());
        let calling =
            Calling::Certificates { directory: directory.clone(), host: None, verify_peer: false };
        let mut tls = Connector::new(&calling).unwrap().connect().unwrap();
        let serving = Serving::Certificates { directory, verify_peer: true };
        let mut other = Acceptor::new(&serving).unwrap().accept().unwrap();
        let (client, server) = sockets();
        let met = shake_hands((&client, &mut tls), (&server, &mut other));
        let told = met.map_err(|e| e.why.to_string());
        assert_eq!(
            (told.is_ok(), server.is_secure()),
            (why.is_empty(), why.is_empty()),
            "{told:?}"
        );
        assert!(told.is_ok() || told.unwrap_err().contains(why));
    }
}

/// A server of openssl's at a free port, killed in the end.
struct Openssl(std::process::Child, u16);

impl Openssl {
    /// `None`, after saying so, where it cannot be started.
    fn start(files: &Files, words: &[&str]) -> Option<Self> {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let started = Command::new("openssl")
            .args(["s_server", "-quiet", "-accept", &format!("127.0.0.1:{port}")])
            .arg("-cert")
            .arg(files.at("server-cert.pem"))
            .arg("-key")
            .arg(files.at("server-key.pem"))
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        started
            .map(|child| Self(child, port))
            .inspect_err(|e| println!("skipped: needs openssl: {e}"))
            .ok()
    }

    fn connect(&mut self) -> Stream {
        for _ in 0..1000 {
            if let Ok(socket) = std::net::TcpStream::connect(("127.0.0.1", self.1)) {
                return Stream::new(socket.into()).unwrap();
            }
            assert_eq!(self.0.try_wait().unwrap(), None, "openssl ended");
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("openssl does not listen");
    }
}

impl Drop for Openssl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_handshake_that_is_signed_with_sha1_is_refused() {
    let files = Files::of(&["names"], "ec", "names");
    for (hash, is) in [("SHA256", true), ("SHA1", false)] {
        let signed = format!("ECDSA+{hash}");
        let words = ["-tls1_2", "-cipher", "ECDHE+AESGCM:@SECLEVEL=0", "-sigalgs", &signed];
        let Some(mut server) = Openssl::start(&files, &words) else { return };
        let connector =
            Connector::of_files(&https(&files.at("ca-cert.pem"), TlsVersions::Only12)).unwrap();
        let connector = connector.for_host("victim.example");
        let stream = server.connect();
        let told = connector.encrypt(&stream, Until::within(Duration::from_secs(10)));
        assert_eq!(told.is_ok(), is, "{hash}: {told:?}");
        let why = told.map_or_else(|e| e.to_string(), |()| String::new());
        assert!(is || why.ends_with("signed the handshake with SHA-1"), "{why}");
    }
}

#[test]
fn what_is_wrong_with_files_is_said_with_their_names_and_the_callers_words() {
    let files = Files::of(&["names"], "ec", "names");
    let authority = files.at("ca-cert.pem");
    let told = |asked: &CertificateFiles| match Connector::of_files(asked) {
        Ok(_) => String::new(),
        Err(e) => e.to_string(),
    };
    // The certificate and the key of others.
    let mut asked = https(&authority, TlsVersions::Both);
    std::fs::write(files.at("client-key.pem"), pem("rsa")).unwrap();
    asked.ours = Some((authority.clone(), files.at("client-key.pem")));
    let why = told(&asked);
    assert!(why.starts_with(&format!("{}: ", authority.display())), "{why}");
    asked.ours = None;
    // A system's authorities may take more than a MiB.
    for (mib, is) in [(2, true), (17, false)] {
        let text = [pem("names").as_bytes(), &vec![b'\n'; mib << 20]].concat();
        std::fs::write(&authority, text).unwrap();
        let why = told(&asked);
        assert_eq!(why.is_empty(), is, "{why}");
        assert!(is || why.ends_with("longer than 16 MiB"), "{why}");
    }
    // Where nothing is trusted, the first reason is given.
    asked.trust = Trust::Named { file: None, directory: Some(files.at("absent")) };
    let why = told(&asked);
    assert!(why.contains(&format!("words: {}: ", files.at("absent").display())), "{why}");
    asked.trust = Trust::Named { file: None, directory: None };
    let why = told(&asked);
    assert!(why.ends_with("no certificate is trusted; name some with these words"), "{why}");
}
