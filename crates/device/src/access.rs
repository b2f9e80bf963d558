//! Which clients a list of rules matches: by address, and by the identity shown under TLS.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Credentials, Identity, Peer};

/// What a rule may be, for messages and help.
pub const RULES: &str = "any, anyipv4, anyipv6, anyunix, anyvsock, an address or a network (10.0.0.0/8), pid:N, \
                         uid:N, gid:N, vsock-cid:N, vsock-port:N, tls, dn:PATTERN, issuer-dn:PATTERN, psk-user:NAME";

/// Which clients match.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Rule {
    /// All clients.
    Any,
    /// Clients over IPv4.
    AnyIpv4,
    /// Clients over IPv6.
    AnyIpv6,
    /// Clients over a Unix socket.
    AnyUnix,
    /// Clients in a virtual machine, or its host.
    AnyVsock,
    /// A network: its address, and how many of its bits count.
    Ipv4(Ipv4Addr, u32),
    /// The same.
    Ipv6(Ipv6Addr, u32),
    /// A process.
    Pid(u32),
    /// A user of this machine.
    Uid(u32),
    /// A group of this machine.
    Gid(u32),
    /// A virtual machine.
    VsockCid(u32),
    /// A port of one.
    VsockPort(u32),
    /// Clients under TLS.
    Tls,
    /// Clients whose certificate has a name like this; `*` matches any text, `?` one character,
    /// which may be escaped.
    Subject(String),
    /// Clients whose certificate is by an authority with a name like this.
    Issuer(String),
    /// Clients that used this user's key.
    User(String),
}

/// Several rules: a client that matches one of them matches.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Adds the rules of a text, separated by commas. Names of certificates have commas in them, so
    /// such a rule has to be a text of its own.
    ///
    /// # Errors
    /// The rule that makes no sense, and why.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        let alone = text.starts_with("dn:") || text.starts_with("issuer-dn:");
        let parts: Vec<&str> = if alone { vec![text] } else { text.split(',').collect() };
        for part in parts {
            let rule = Rule::parse(part).map_err(|why| format!("`{part}`: {why}"))?;
            self.0.push(rule);
        }
        Ok(())
    }

    /// Whether a client matches.
    #[must_use]
    pub fn mean(&self, peer: &Peer, identity: Option<&Identity>) -> bool {
        self.0.iter().any(|rule| rule.means(peer, identity))
    }

    /// Whether a client may match under TLS that does not match without it.
    #[must_use]
    pub fn look_at_tls(&self) -> bool {
        let tls = |rule: &Rule| {
            matches!(rule, Rule::Tls | Rule::Subject(_) | Rule::Issuer(_) | Rule::User(_))
        };
        self.0.iter().any(tls)
    }
}

impl Rule {
    /// Reads one.
    ///
    /// # Errors
    /// Why it makes no sense.
    pub fn parse(text: &str) -> Result<Self, String> {
        let word = match text {
            "" => return Err("a rule is empty".to_owned()),
            "any" | "all" => Some(Self::Any),
            "anyipv4" | "allipv4" => Some(Self::AnyIpv4),
            "anyipv6" | "allipv6" => Some(Self::AnyIpv6),
            "anyunix" | "allunix" => Some(Self::AnyUnix),
            "anyvsock" | "allvsock" => Some(Self::AnyVsock),
            "tls" => Some(Self::Tls),
            _ => None,
        };
        if let Some(rule) = word {
            return Ok(rule);
        }
        let number = |text: &str| text.parse::<u32>().map_err(|_| "not a number".to_owned());
        let name = |text: &str| {
            let named = Some(text.to_owned()).filter(|text| !text.is_empty());
            named.ok_or_else(|| "it names nothing".to_owned())
        };
        match text.split_once(':') {
            Some(("pid", n)) => match number(n)? {
                0 => Err("no process has this number".to_owned()),
                n => Ok(Self::Pid(n)),
            },
            Some(("uid", n)) => number(n).map(Self::Uid),
            Some(("gid", n)) => number(n).map(Self::Gid),
            Some(("vsock-cid", n)) => number(n).map(Self::VsockCid),
            Some(("vsock-port", n)) => number(n).map(Self::VsockPort),
            Some(("dn", text)) => name(text).map(Self::Subject),
            Some(("issuer-dn", text)) => name(text).map(Self::Issuer),
            Some(("psk-user", text)) => name(text).map(Self::User),
            Some(("security", _)) => Err("security labels are not supported here".to_owned()),
            _ => Self::network(text),
        }
    }

    fn network(text: &str) -> Result<Self, String> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let plain = address.strip_prefix('[').and_then(|a| a.strip_suffix(']')).unwrap_or(address);
        let address: IpAddr = plain.parse().map_err(|_| format!("it is not one of {RULES}"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = prefix.map_or(Ok(most), str::parse).ok().filter(|bits| *bits <= most);
        let bits = bits.ok_or_else(|| format!("the prefix is not a number from 0 to {most}"))?;
        Ok(match (address, address.to_canonical()) {
            (IpAddr::V4(address), _) => Self::Ipv4(address, bits),
            // An IPv4 address mapped into IPv6, as clients may have.
            (_, IpAddr::V4(address)) if bits >= 96 => Self::Ipv4(address, bits - 96),
            (IpAddr::V6(address), _) => Self::Ipv6(address, bits),
        })
    }

    /// Whether a client matches that comes from `peer` and has shown `identity` under TLS.
    #[must_use]
    pub fn means(&self, peer: &Peer, identity: Option<&Identity>) -> bool {
        let unix = |is: &dyn Fn(&Credentials) -> bool| match peer {
            Peer::Unix { credentials } => credentials.as_ref().is_some_and(is),
            _ => false,
        };
        // An IPv4 client on a socket for both families is an IPv4 client.
        let ip = match peer {
            Peer::Ip(address) => Some(address.ip().to_canonical()),
            _ => None,
        };
        let fits =
            |pattern: &str, name: Option<&String>| name.is_some_and(|name| fits(pattern, name));
        match self {
            Self::Any => true,
            Self::AnyIpv4 => ip.is_some_and(|ip| ip.is_ipv4()),
            Self::AnyIpv6 => ip.is_some_and(|ip| ip.is_ipv6()),
            Self::AnyUnix => matches!(peer, Peer::Unix { .. }),
            Self::AnyVsock => matches!(peer, Peer::Vsock { .. }),
            Self::Ipv4(net, bits) => {
                let shift = 32 - bits;
                let same = |ip: Ipv4Addr| (net.to_bits() ^ ip.to_bits()).checked_shr(shift);
                matches!(ip, Some(IpAddr::V4(ip)) if same(ip).unwrap_or(0) == 0)
            }
            Self::Ipv6(net, bits) => {
                let shift = 128 - bits;
                let same = |ip: Ipv6Addr| (net.to_bits() ^ ip.to_bits()).checked_shr(shift);
                matches!(ip, Some(IpAddr::V6(ip)) if same(ip).unwrap_or(0) == 0)
            }
            Self::Pid(pid) => unix(&|c| c.pid == *pid),
            Self::Uid(uid) => unix(&|c| c.uid == *uid),
            Self::Gid(gid) => unix(&|c| c.gid == *gid),
            Self::VsockCid(n) => matches!(peer, Peer::Vsock { cid, .. } if cid == n),
            Self::VsockPort(n) => matches!(peer, Peer::Vsock { port, .. } if port == n),
            Self::Tls => identity.is_some(),
            Self::Subject(pattern) => fits(pattern, identity.and_then(|i| i.subject.as_ref())),
            Self::Issuer(pattern) => fits(pattern, identity.and_then(|i| i.issuer.as_ref())),
            Self::User(user) => identity.is_some_and(|i| i.user.as_ref() == Some(user)),
        }
    }
}

/// Whether a name matches a pattern: `*` matches any text, `?` one character. A character that is
/// escaped in the name is one by itself, so a comma within a part of it is never one between two
/// parts. The work grows with the product of both lengths at most.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (characters(pattern), characters(name));
    let (mut p, mut n) = (0, 0);
    // Where the last star is, and how much of the name it matches so far.
    let mut star: Option<(usize, usize)> = None;
    while let Some(one) = name.get(n) {
        match (pattern.get(p), star) {
            (Some(&"*"), _) => {
                star = Some((p, n));
                p += 1;
            }
            (Some(wanted), _) if *wanted == "?" || wanted == one => (p, n) = (p + 1, n + 1),
            (_, Some((at, taken))) => {
                star = Some((at, taken + 1));
                (p, n) = (at + 1, taken + 1);
            }
            _ => return false,
        }
    }
    pattern.get(p..).unwrap_or_default().iter().all(|one| *one == "*")
}

/// The characters of a text, those that a backslash escapes together with it.
fn characters(text: &str) -> Vec<&str> {
    let mut rest = text;
    let mut all = Vec::new();
    while let Some(first) = rest.chars().next() {
        let escaped = if first == '\\' { rest.chars().nth(1).map_or(0, char::len_utf8) } else { 0 };
        let Some((one, after)) = rest.split_at_checked(first.len_utf8() + escaped) else { break };
        all.push(one);
        rest = after;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_fits_as_in_a_shell() {
        for (pattern, name, is) in [
            ("CN=a,O=b", "CN=a,O=b", true),
            ("CN=a", "CN=a,O=b", false),
            ("*,O=BigCo,*", "CN=a,O=BigCo,C=GB", true),
            ("*,O=BigCo,*", "CN=a,O=BigCo", false),
            ("*O=BigCo*", "CN=a,O=BigCo", true),
            ("*", "", true),
            ("**", "x", true),
            ("?", "", false),
            ("C?=a", "CN=a", true),
            ("*a*b", "aaab", true),
            ("*a*b", "aaba", false),
            ("", "", true),
            ("", "x", false),
            ("CN=?", "CN=ü", true),
        ] {
            assert_eq!(fits(pattern, name), is, "{pattern} {name}");
        }
    }

    #[test]
    fn a_comma_within_a_part_of_a_name_is_not_one_between_two_parts() {
        for (pattern, name, is) in [
            ("*,O=BigCo", r"O=Evil,CN=x\,O=BigCo", false),
            ("*,O=BigCo,*", r"CN=x\,O=BigCo,O=Evil", false),
            ("*,O=BigCo", r"CN=x\\,O=BigCo", true),
            ("*,O=BigCo", r"CN=x\\\,O=BigCo", false),
            ("CN=*,O=BigCo", r"CN=a\,b,O=BigCo", true),
            (r"CN=a\,b,*", r"CN=a\,b,O=BigCo", true),
            ("CN=a,b,*", r"CN=a\,b,O=BigCo", false),
            ("CN=x?O=BigCo", r"CN=x\,O=BigCo", true),
            ("x\\", "x\\", true),
        ] {
            assert_eq!(fits(pattern, name), is, "{pattern} {name}");
        }
    }

    #[test]
    fn a_client_that_proves_nothing_matches_no_certificate_or_key() {
        let mut rules = Rules::default();
        rules.add("dn:*,O=BigCo").unwrap();
        rules.add("psk-user:alice,psk-user:bob").unwrap();
        rules.add("issuer-dn:CN=The CA").unwrap();
        let means = |identity: Option<&Identity>| rules.mean(&Peer::Other, identity);
        assert!(!means(None) && !means(Some(&Identity::default())));
        let of = |subject: Option<&str>, issuer: Option<&str>, user: Option<&str>| Identity {
            subject: subject.map(str::to_owned),
            issuer: issuer.map(str::to_owned),
            user: user.map(str::to_owned),
        };
        assert!(means(Some(&of(Some("CN=x,O=BigCo"), Some("CN=y"), None))));
        assert!(!means(Some(&of(Some("CN=x,O=Other"), Some("CN=y"), None))));
        assert!(means(Some(&of(Some("CN=x"), Some("CN=The CA"), None))));
        assert!(means(Some(&of(None, None, Some("bob")))));
        assert!(!means(Some(&of(None, None, Some("bobby")))));
        assert!(!means(Some(&of(Some("psk-user:bob"), None, None))));
        assert!(rules.look_at_tls());
    }
}
