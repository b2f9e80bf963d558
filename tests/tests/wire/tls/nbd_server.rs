//! Our client against nbd-server, the protocol's reference. It has certificates and no keys, TLS
//! 1.2 by default, and always asks for the client's certificate: without an authority to believe
//! (`cacertfile`) it lets no client in.

use std::fs;
use std::path::Path;

use blackbox::nbd_server::NbdServer;
use blackbox::run::{Outcome, ours, run};
use blackbox::temp::pattern;

use super::certificates::Credentials;

const SIZE: usize = 3 << 20;
const BELIEVES: &str = "cacertfile = %D/ca-cert.pem\n";

/// On the export `disk`, and with this in the general section of its configuration.
fn start(credentials: &Credentials, general: &str) -> Option<NbdServer> {
    let shown = "keyfile = %D/server-key.pem\ncertfile = %D/server-cert.pem\n";
    let general = format!("{shown}{general}");
    let general = general.replace("%D", credentials.directory().to_str().unwrap());
    let exports = "[disk]\nexportname = %T/disk\nflush = true\n";
    NbdServer::start(true, &general, exports, |temp| {
        temp.file("disk", &pattern(0, SIZE));
    })
}

fn uri(server: &NbdServer, certificates: &Path) -> String {
    format!("nbds://localhost:{}/disk?tls-certificates={}", server.port, certificates.display())
}

fn info(uri: &str) -> Outcome {
    run(&mut ours(["info", uri]))
}

#[test]
fn nbd_server_with_certificates_of_both() {
    let Some(credentials) = Credentials::make() else { return };
    for more in ["", "force_tls = true", "tlsprio = NORMAL:-VERS-TLS-ALL:+VERS-TLS1.3"] {
        let Some(server) = start(&credentials, &format!("{BELIEVES}{more}")) else { return };
        let secure = uri(&server, credentials.directory());
        let told = info(&secure);
        assert!(told.succeeded().contains("with TLS"), "{more}: {told:?}");
        let copy = server.temp.join("copy");
        run(ours(["copy", &secure]).arg(&copy)).succeeded();
        assert!(fs::read(&copy).unwrap() == pattern(0, SIZE), "{more}");
        fs::write(&copy, pattern(7, SIZE)).unwrap();
        run(ours(["copy"]).arg(&copy).arg(&secure)).succeeded();
        assert!(fs::read(server.temp.join("disk")).unwrap() == pattern(7, SIZE), "{more}");
        let listed = run(&mut ours(["list", &secure]));
        assert!(listed.succeeded().contains("export=\"disk\""), "{more}: {listed:?}");
        // A server without a trusted certificate gets none of our bytes, nor does one in clear text
        // where TLS is required.
        assert!(info(&uri(&server, &credentials.strangers())).failed().contains("TLS"), "{more}");
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
        let Some(server) = start(&credentials, general) else { return };
        let outcome = info(&uri(&server, certificates));
        assert!(outcome.failed().contains("it may not trust us"), "{general}: {outcome:?}");
    }
}
