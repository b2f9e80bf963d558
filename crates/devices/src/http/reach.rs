//! What of the system a URL gets at: the network, the files of certificates and secrets, and scripts.

use std::path::PathBuf;

use device::{Params, Reach, Use, text};

/// Parameters that name files.
const FILES: [&str; 5] = ["cainfo", "capath", "netrc", "sslcert", "sslkey"];
/// Those that may, as `+FILE`.
const SECRETS: [&str; 4] = ["bearer", "cookie", "password", "proxy-password"];
/// Those that are commands.
const SCRIPTS: [&str; 2] = ["cookie-script", "header-script"];
/// Where the environment says that certificates are.
const TRUSTED: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// What these parameters name, and what the system trusts.
pub(crate) fn reaches(params: &Params) -> Reach {
    let secrets = SECRETS.iter().filter_map(|key| params.get(key)?.strip_prefix('+'));
    let secrets = secrets.map(text::path);
    let home = std::env::var_os("HOME").filter(|_| params.get("netrc") == Some(""));
    let netrc = home.map(|home| PathBuf::from(home).join(".netrc"));
    let trusted = TRUSTED.iter().filter_map(std::env::var_os).map(PathBuf::from);
    let asked = SECRETS.iter().any(|key| params.get(key) == Some("-"));
    let terminal = if asked { Reach::path("/dev/tty", Use::Write) } else { Reach::default() };
    let reads: Vec<PathBuf> = secrets.chain(netrc).chain(trusted).collect();
    let programs = SCRIPTS.iter().any(|key| params.get(key).is_some());
    let rest = Reach { reads, network: true, programs, ..Reach::default() };
    Reach::named(params, &FILES, Use::Read).and(rest).and(terminal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(query: &str) -> Reach {
        reaches(&Params::parse_query(query).unwrap())
    }

    #[test]
    fn secrets_in_files_and_certificates_are_read() {
        let reach = reach("password=+/run/secret&cainfo=/etc/ca.pem&user=a");
        assert!(reach.reads.contains(&"/run/secret".into()));
        assert!(reach.reads.contains(&"/etc/ca.pem".into()));
        assert!(reach.network && !reach.programs);
    }

    #[test]
    fn scripts_are_programs() {
        assert!(reach("header-script=date").programs);
    }
}
