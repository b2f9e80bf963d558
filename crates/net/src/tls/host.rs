//! Whether a certificate is for the host that was meant.
//!
//! The library asks its callback for each name, whatever it is a name of: so the certificate is
//! asked again once the handshake has ended, by [`is_named`].

use std::net::IpAddr;

use der::asn1::ObjectIdentifier;
use der::{Reader, SliceReader, Tag, TagNumber, Tagged};
use s2n_tls::callbacks::VerifyHostNameCallback;

use super::certificate::{Certificate, any, inside};
use super::names;

const ALTERNATIVE_NAMES: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");
const DNS_NAME: Tag = Tag::ContextSpecific { constructed: false, number: TagNumber(2) };
const IP_ADDRESS: Tag = Tag::ContextSpecific { constructed: false, number: TagNumber(7) };

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

/// Whether a certificate is for the host `wanted`: an address by an address among its alternative
/// names, a name by a name of DNS among them, or by the common name if it has none of any kind.
/// `None`: it is not understood.
pub(super) fn is_named(wanted: &str, leaf: &Certificate<'_>) -> Option<bool> {
    let address = wanted.parse::<IpAddr>().ok();
    let all = match leaf.extensions(ALTERNATIVE_NAMES)?[..] {
        [all] => all,
        [] if address.is_some() => return Some(false),
        [] => return Some(names::common(leaf.subject)?.iter().any(|told| is_for(wanted, told))),
        _ => return None,
    };
    let mut all = inside(&mut SliceReader::new(all).ok()?, Tag::Sequence)?;
    let mut is = false;
    while !all.is_finished() {
        let told = any(&mut all)?;
        is |= match (address, told.tag()) {
            (Some(wanted), IP_ADDRESS) => address_of(told.value()) == Some(wanted),
            (None, DNS_NAME) => is_for(wanted, std::str::from_utf8(told.value()).ok()?),
            _ => false,
        };
    }
    Some(is)
}

fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
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
