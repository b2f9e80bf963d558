//! nginx with a configuration of the test's own.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use blackbox::eventually;
use blackbox::peers::peer;
use blackbox::run::{program, run};
use blackbox::temp::TempDir;

/// A running nginx. Its files are in `root`, and `%ROOT%` in a configuration is their directory.
pub(crate) struct Nginx {
    child: Child,
    temp: TempDir,
    port: u16,
}

impl Nginx {
    /// Starts it with these directives of its server; `None` if it is not installed.
    pub(crate) fn start(server: &str) -> Option<Self> {
        Self::start_with("", "", server)
    }

    /// The same with words behind the port it listens on, and directives outside the server.
    pub(crate) fn start_with(listen: &str, outside: &str, server: &str) -> Option<Self> {
        let nginx = peer("nginx")?;
        // A port that was just free may be taken by the time nginx wants it.
        let mut tries = (0..10).map(|_| Self::try_start(&nginx, listen, outside, server));
        let started = tries.find_map(|started| started);
        Some(started.expect("nginx starts"))
    }

    /// `None` if it ended at once.
    fn try_start(nginx: &Path, listen: &str, outside: &str, server: &str) -> Option<Self> {
        let temp = TempDir::new();
        fs::create_dir(temp.join("root")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let directory = temp.path().display().to_string();
        let root = temp.join("root").display().to_string();
        let mut paths = String::new();
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            paths += &format!("{kind}_temp_path {directory}/{kind};\n");
        }
        let config = format!(
            "daemon off; user root; worker_processes 1; pid {directory}/pid;\n\
             error_log {directory}/error.log;\nevents {{ worker_connections 256; }}\n\
             http {{\n{paths}\nlog_format t '$request_method $status $body_bytes_sent $http_range';\n\
             access_log {directory}/access.log t;\n{outside}\n\
             server {{ listen 127.0.0.1:{port} {listen}; root {root};\n{server}\n}} }}\n"
        );
        let config = config.replace("%ROOT%", &root).replace("%TEMP%", &directory);
        let config = temp.file("nginx.conf", config.as_bytes());
        // A certificate that some tests serve with.
        if listen.contains("ssl") {
            certificate(&temp);
        }
        let log = temp.join("error.log");
        let child = Command::new(nginx)
            .arg("-e")
            .arg(&log)
            .arg("-c")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut started = Self { child, temp, port };
        // It writes its number down when it has the port.
        let is_ready = eventually("nginx is ready", || {
            let pid = fs::read_to_string(started.temp.join("pid")).unwrap_or_default();
            let has_ended = started.child.try_wait().unwrap().is_some();
            (has_ended || !pid.is_empty()).then_some(!has_ended)
        });
        if !is_ready {
            println!("nginx: {}", fs::read_to_string(&log).unwrap_or_default());
        }
        is_ready.then_some(started)
    }

    /// Puts a file where it is served.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        self.temp.file(&format!("root/{name}"), content)
    }

    pub(crate) fn temp(&self) -> &TempDir {
        &self.temp
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Requests so far: method, status, bytes of the body, and range.
    pub(crate) fn requests(&self) -> Vec<(String, u16, u64, String)> {
        let text = fs::read_to_string(self.temp.join("access.log")).unwrap_or_default();
        let lines = text.lines().map(|line| {
            let mut words = line.splitn(4, ' ');
            let mut word = || words.next().unwrap_or_default().to_owned();
            let (method, status, bytes, range) = (word(), word(), word(), word());
            (method, status.parse().unwrap(), bytes.parse().unwrap(), range)
        });
        lines.collect()
    }

    /// Bytes of bodies that it has sent.
    pub(crate) fn sent(&self) -> u64 {
        self.requests().iter().map(|(_, _, bytes, _)| bytes).sum()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Gently, for its workers go with it only then.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let pid = rustix::process::Pid::from_child(&self.child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// Makes `cert.pem`, `key.pem` (for localhost and 127.0.0.1, trusted by itself).
fn certificate(temp: &TempDir) {
    let Some(openssl) = peer("openssl") else { return };
    let (key, cert) = (temp.join("key.pem"), temp.join("cert.pem"));
    let mut command = program(
        &openssl,
        [
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ],
    );
    run(command.arg("-keyout").arg(key).arg("-out").arg(cert)).succeeded();
}
