//! What a URL needs of the system: the network, the files of certificates and secrets, and scripts.

use std::path::PathBuf;

use device::{Params, Reach, Use};

use super::credentials::Script;
use super::secret;

/// Parameters that name files.
const FILES: [&str; 5] = ["cainfo", "capath", "netrc", "sslcert", "sslkey"];
/// Secrets, which may be named instead.
const SECRETS: [&str; 5] = ["bearer", "cookie", "header", "password", "proxy-password"];
/// Those that are commands.
const SCRIPTS: [&str; 2] = ["cookie-script", "header-script"];

/// The files that these parameters name, and those of the system's trust.
pub(crate) fn reaches(params: &Params) -> Reach {
    let secrets = SECRETS.iter().flat_map(|key| params.all(key)).map(secret::reach);
    let secrets = secrets.fold(Reach::default(), Reach::and);
    let home = std::env::var_os("HOME").filter(|_| params.get("netrc") == Some(""));
    let netrc = home.map(|home| PathBuf::from(home).join(".netrc"));
    let trusted = net::tls::authority_places();
    let reads: Vec<PathBuf> = netrc.into_iter().chain(trusted).collect();
    let programs = SCRIPTS.iter().filter_map(|key| params.get(key)).map(Script::program).collect();
    let rest = Reach { reads, programs, ..Reach::network() };
    Reach::named(params, &FILES, Use::Read).and(rest).and(secrets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(query: &str) -> Reach {
        reaches(&Params::parse_query(query).unwrap())
    }

    #[test]
    fn secrets_in_files_and_certificates_are_read() {
        let reach = reach(
            "password=+/run/secret&cainfo=/etc/ca.pem&user=a&header=A: b&header=-7&bearer=-key:9",
        );
        assert!(reach.reads.contains(&"/proc/self/fd/7".into()));
        assert!(reach.reads.contains(&"/run/secret".into()));
        assert!(reach.reads.contains(&"/etc/ca.pem".into()));
        assert_eq!(reach.keys, [9]);
        assert!(reach.network == [device::Endpoint::Anywhere] && reach.programs.is_empty());
    }

    #[test]
    fn scripts_are_programs() {
        assert_eq!(reach("header-script=date").programs, [Script::program("date")]);
    }
}
