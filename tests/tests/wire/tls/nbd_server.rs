//! Our client against nbd-server, the protocol's reference. It has certificates and no keys, TLS
//! 1.2 by default, and always asks for the client's certificate: without an authority to believe
//! (`cacertfile`) it lets no client in.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use blackbox::GUARD;
use blackbox::peers::peer;
use blackbox::run::{Outcome, ours, run};
use blackbox::socket::Socket;
use blackbox::temp::{TempDir, pattern};
use rustix::process::{Pid, Signal, kill_process};

use super::certificates::Credentials;

const SIZE: usize = 3 << 20;
const BELIEVES: &str = "cacertfile = %D/ca-cert.pem\n";

/// A daemon, stopped by its pid file.
struct Daemon {
    temp: TempDir,
    port: u16,
}

impl Daemon {
    /// On the export `disk`, and with this in the general section of its configuration.
    fn start(credentials: &Credentials, general: &str) -> Option<Self> {
        let path = peer("nbd-server")?;
        let temp = TempDir::new();
        let disk = temp.file("disk", &pattern(0, SIZE));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let dir = credentials.directory().display().to_string();
        let config = format!(
            "[generic]\nlistenaddr = 127.0.0.1\nport = {port}\nallowlist = true\n\
             keyfile = {dir}/server-key.pem\ncertfile = {dir}/server-cert.pem\n{}\n\
             [disk]\nexportname = {}\nflush = true\n",
            general.replace("%D", &dir),
            disk.display(),
        );
        let config = temp.file("config", config.as_bytes());
        let mut command = Command::new(path);
        command.arg("-C").arg(config).arg("-p").arg(temp.join("pid"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(command.status().unwrap().success(), "nbd-server does not start");
        let begun = Instant::now();
        while Socket::tcp(([127, 0, 0, 1], port).into()).is_err() || !temp.join("pid").exists() {
            assert!(begun.elapsed() < GUARD, "nbd-server is not ready");
            sleep(Duration::from_millis(10));
        }
        Some(Self { temp, port })
    }

    fn uri(&self, certificates: &std::path::Path) -> String {
        let dir = certificates.display();
        format!("nbds://localhost:{}/disk?tls-certificates={dir}", self.port)
    }

    fn disk(&self) -> PathBuf {
        self.temp.join("disk")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = fs::read_to_string(self.temp.join("pid")).ok();
        if let Some(pid) = pid.and_then(|p| Pid::from_raw(p.trim().parse().ok()?)) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

fn info(uri: &str) -> Outcome {
    run(&mut ours(["info", uri]))
}

#[test]
fn nbd_server_with_certificates_of_both() {
    let Some(credentials) = Credentials::make() else { return };
    for more in ["", "force_tls = true", "tlsprio = NORMAL:-VERS-TLS-ALL:+VERS-TLS1.3"] {
        let Some(server) = Daemon::start(&credentials, &format!("{BELIEVES}{more}")) else {
            return;
        };
        let uri = server.uri(credentials.directory());
        let told = info(&uri);
        assert!(told.succeeded().contains("with TLS"), "{more}: {told:?}");
        let copy = server.temp.join("copy");
        run(ours(["copy", &uri]).arg(&copy)).succeeded();
        assert!(fs::read(&copy).unwrap() == pattern(0, SIZE), "{more}");
        fs::write(&copy, pattern(7, SIZE)).unwrap();
        run(ours(["copy"]).arg(&copy).arg(&uri)).succeeded();
        assert!(fs::read(server.disk()).unwrap() == pattern(7, SIZE), "{more}");
        let listed = run(&mut ours(["list", &uri]));
        assert!(listed.succeeded().contains("export=\"disk\""), "{more}: {listed:?}");
        // A server without a trusted certificate gets none of our bytes, nor does one in clear text
        // where TLS is required.
        assert!(info(&server.uri(&credentials.strangers())).failed().contains("TLS"), "{more}");
        let clear = info(&format!("nbd://localhost:{}/disk", server.port));
        assert_eq!(clear.status.success(), !more.contains("force_tls"), "{more}: {clear:?}");
    }
}

/// It sends no reason, and closes after our first message: the error names the likely reason.
#[test]
fn an_nbd_server_that_does_not_trust_us_is_reported() {
    let Some(credentials) = Credentials::make() else { return };
    let anonymous = credentials.without_client();
    for (general, certificates) in [("", credentials.directory()), (BELIEVES, &anonymous)] {
        let Some(server) = Daemon::start(&credentials, general) else { return };
        let outcome = info(&server.uri(certificates));
        assert!(outcome.failed().contains("it may not trust us"), "{general}: {outcome:?}");
    }
}
