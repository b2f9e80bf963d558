//! Whether a certificate is for the host that was meant.

use std::net::IpAddr;

use s2n_tls::callbacks::VerifyHostNameCallback;

/// The host to check for, by its name or address.
#[derive(Debug)]
pub(super) struct ExpectedHost(pub(super) String);

/// Any host: only the chain is checked.
#[derive(Debug)]
pub(super) struct AnyHost;

impl VerifyHostNameCallback for ExpectedHost {
    fn verify_host_name(&self, name: &str) -> bool {
        is_for(&self.0, name)
    }
}

impl VerifyHostNameCallback for AnyHost {
    fn verify_host_name(&self, _name: &str) -> bool {
        true
    }
}

/// Whether `told`, a name of a certificate, matches the host `wanted` (RFC 6125): addresses and
/// names separately, `*` for one whole label in front of at least two.
fn is_for(wanted: &str, told: &str) -> bool {
    let address = |text: &str| text.parse::<IpAddr>().ok();
    if let Some(wanted) = address(wanted) {
        return address(told) == Some(wanted);
    }
    let (wanted, told) = (wanted.trim_end_matches('.'), told.trim_end_matches('.'));
    if wanted.is_empty() || told.is_empty() {
        return false;
    }
    let Some(domain) = told.strip_prefix("*.") else { return wanted.eq_ignore_ascii_case(told) };
    let Some((label, rest)) = wanted.split_once('.') else { return false };
    !label.is_empty() && domain.contains('.') && rest.eq_ignore_ascii_case(domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_for_the_host_that_it_names_and_for_no_other() {
        for (wanted, told, is) in [
            ("localhost", "localhost", true),
            ("LocalHost", "localHOST", true),
            ("localhost.", "localhost", true),
            ("localhost", "localhost.example.org", false),
            ("", "", false),
            ("localhost", "", false),
            ("", "localhost", false),
            ("a.example.org", "*.example.org", true),
            ("a.b.example.org", "*.example.org", false),
            ("example.org", "*.example.org", false),
            ("a.org", "*.org", false),
            ("a.example.org", "*", false),
            ("a.example.org", "a*.example.org", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.2", "127.0.0.1", false),
            ("::1", "0:0:0:0:0:0:0:1", true),
            ("1.2.3.4", "*.2.3.4", false),
            ("127.0.0.1", "localhost", false),
        ] {
            assert_eq!(is_for(wanted, told), is, "{wanted} {told}");
        }
    }
}
