//! Certificates and keys for a test, made by openssl: an authority that both sides believe, one
//! that nothing here trusts, and keys as psktool makes them.

use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::peers::peer;
use blackbox::run::run;
use blackbox::temp::TempDir;

/// The users of the file of keys; `alice` is the first.
pub(crate) const USERS: [&str; 2] = ["alice", "bob"];

/// A directory of certificates and keys, with nbdkit's, libnbd's and QEMU's names.
#[derive(Debug)]
pub(crate) struct Credentials {
    temp: TempDir,
    openssl: PathBuf,
}

impl Credentials {
    /// Makes all; `None`, after saying so, without openssl.
    pub(crate) fn make() -> Option<Self> {
        let made = Self { temp: TempDir::new(), openssl: peer("openssl")? };
        made.authority("ca", "/CN=Test authority");
        made.certificate("server", "/O=BigCo/CN=server", "DNS:localhost,IP:127.0.0.1,IP:::1", "ca");
        made.certificate("client", "/C=GB/O=BigCo/CN=alice", "DNS:alice", "ca");
        let keys: String = USERS.map(|user| format!("{user}:{}\n", key_of(user))).concat();
        made.temp.file("keys.psk", keys.as_bytes());
        Some(made)
    }

    /// A directory in which `ca-cert.pem` is of an authority that signed no certificate here.
    pub(crate) fn strangers(&self) -> PathBuf {
        let dir = self.temp.join("strangers");
        if !dir.exists() {
            std::fs::create_dir(&dir).unwrap();
            self.authority("strangers/ca", "/CN=Another authority");
            let subject = "/O=BigCo/CN=alice";
            self.certificate("strangers/client", subject, "DNS:alice", "strangers/ca");
            self.certificate("strangers/server", subject, "DNS:localhost", "strangers/ca");
        }
        dir
    }

    /// A directory that has the authority's certificate alone.
    pub(crate) fn without_client(&self) -> PathBuf {
        let dir = self.temp.join("anonymous");
        if !dir.exists() {
            std::fs::create_dir(&dir).unwrap();
            std::fs::copy(self.temp.join("ca-cert.pem"), dir.join("ca-cert.pem")).unwrap();
        }
        dir
    }

    /// A file with another key for this user.
    pub(crate) fn wrong_keys(&self, user: &str) -> PathBuf {
        self.temp.file(&format!("wrong-{user}"), format!("{user}:{}\n", "11".repeat(32)).as_bytes())
    }

    /// Where they are.
    pub(crate) fn directory(&self) -> &Path {
        self.temp.path()
    }

    /// The file of keys.
    pub(crate) fn keys(&self) -> PathBuf {
        self.temp.join("keys.psk")
    }

    /// Room for other files of the test.
    pub(crate) fn temp(&self) -> &TempDir {
        &self.temp
    }

    fn authority(&self, name: &str, subject: &str) {
        let mut command = self.request(name, subject);
        command.args(["-x509", "-days", "2", "-out"]).arg(self.path(name, "cert"));
        command.args(["-addext", "basicConstraints=critical,CA:TRUE"]);
        command.args(["-addext", "keyUsage=critical,keyCertSign"]);
        run(&mut command).succeeded();
    }

    fn certificate(&self, name: &str, subject: &str, names: &str, authority: &str) {
        let request = self.temp.join("request");
        run(self.request(name, subject).arg("-out").arg(&request)).succeeded();
        let extensions =
            format!("subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n");
        let extensions = self.temp.file("extensions", extensions.as_bytes());
        let mut command = Command::new(&self.openssl);
        command.args(["x509", "-req", "-days", "2", "-CAcreateserial", "-in"]).arg(request);
        command.arg("-CA").arg(self.path(authority, "cert"));
        command.arg("-CAkey").arg(self.path(authority, "key"));
        command.arg("-extfile").arg(extensions).arg("-out").arg(self.path(name, "cert"));
        run(&mut command).succeeded();
    }

    /// A command that makes a key, and asks for a certificate of it.
    fn request(&self, name: &str, subject: &str) -> Command {
        let mut command = Command::new(&self.openssl);
        command.args(["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
        command.args(["-subj", subject, "-keyout"]).arg(self.path(name, "key"));
        command
    }

    fn path(&self, name: &str, what: &str) -> PathBuf {
        self.temp.join(&format!("{name}-{what}.pem"))
    }
}

/// The key of a user, in hexadecimal.
pub(crate) fn key_of(user: &str) -> String {
    let byte = user.bytes().fold(7_u8, |all, b| all.wrapping_mul(31).wrapping_add(b));
    format!("{byte:02x}").repeat(32)
}
