//! `ip`: lets clients in or not, by where they come from.
//!
//! Who is allowed is let in; else who is denied is refused; everybody else is let in. A client is
//! asked when it chooses an export. Bytes pass as if the filter were not there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use device::{
    Admitted, Client, Credentials, Done, Edge, Error, ErrorKind, Fault, Filter, Filtered, Info,
    Operation, Params, Passes, Peer, Result, Seat, repeated,
};

use crate::Kind;

const LIST: &str = "RULE[,RULE...]";

pub(crate) const KIND: Kind = Kind {
    word: "ip",
    summary: "lets clients in or not, by where they come from",
    reads_only: false,
    params: &[
        repeated(
            "allow",
            LIST,
            "who is let in: any, anyipv4, 10.0.0.0/8, ::1, uid:1000, pid:7 ...",
        ),
        repeated("deny", LIST, "who is refused unless allowed"),
    ],
    reaches: device::Reach::nothing,
    example: "serve --filter=ip memory 1M allow=anyunix deny=all --run 'nbdinfo --size \"$uri\"'",
    open: |params, below, _| {
        let lists = Arc::new(Lists::read(params)?);
        Ok(Filtered::device(Ip { info: Info::over(&below), below, lists }))
    },
};

#[derive(Debug)]
struct Lists {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
}

/// Who is meant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Rule {
    Any,
    AnyIpv4,
    AnyIpv6,
    AnyUnix,
    AnyVsock,
    /// A network: its address, and how many of its bits count.
    Ipv4(Ipv4Addr, u32),
    Ipv6(Ipv6Addr, u32),
    Pid(u32),
    Uid(u32),
    Gid(u32),
    VsockCid(u32),
    VsockPort(u32),
}

impl Lists {
    fn read(params: &Params) -> Result<Self> {
        let list = |key: &str| -> Result<Vec<Rule>> {
            let texts = params.iter().filter(|(k, text)| *k == key && !text.is_empty());
            texts.flat_map(|(_, text)| text.split(',')).map(|text| Rule::parse(key, text)).collect()
        };
        Ok(Self { allow: list("allow")?, deny: list("deny")? })
    }

    fn lets_in(&self, peer: &Peer) -> bool {
        let any = |rules: &[Rule]| rules.iter().any(|rule| rule.means(peer));
        any(&self.allow) || !any(&self.deny)
    }
}

impl Rule {
    fn parse(key: &str, text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::invalid(format!("{key}: `{text}`: {why}"));
        let word = match text {
            "" => return Err(wrong("a rule is empty")),
            "any" | "all" => Some(Self::Any),
            "anyipv4" | "allipv4" => Some(Self::AnyIpv4),
            "anyipv6" | "allipv6" => Some(Self::AnyIpv6),
            "anyunix" | "allunix" => Some(Self::AnyUnix),
            "anyvsock" | "allvsock" => Some(Self::AnyVsock),
            _ => None,
        };
        if let Some(rule) = word {
            return Ok(rule);
        }
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong("not a number"));
        match text.split_once(':') {
            Some(("pid", n)) => match number(n)? {
                0 => return Err(wrong("no process has this number")),
                n => return Ok(Self::Pid(n)),
            },
            Some(("uid", n)) => return number(n).map(Self::Uid),
            Some(("gid", n)) => return number(n).map(Self::Gid),
            Some(("vsock-cid", n)) => return number(n).map(Self::VsockCid),
            Some(("vsock-port", n)) => return number(n).map(Self::VsockPort),
            Some(("dn" | "issuer-dn" | "security", _)) => {
                let why = "certificates and security labels are not supported here yet";
                return Err(Error::unsupported(format!("{key}: `{text}`: {why}")));
            }
            _ => {}
        }
        Self::network(text).map_err(|why| wrong(&why))
    }

    fn network(text: &str) -> std::result::Result<Self, String> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let plain = address.strip_prefix('[').and_then(|a| a.strip_suffix(']')).unwrap_or(address);
        let address: IpAddr = plain.parse().map_err(|_| {
            "neither an address nor any, anyipv4, anyipv6, anyunix, anyvsock, pid:N, uid:N, gid:N, \
             vsock-cid:N, vsock-port:N"
                .to_owned()
        })?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = prefix.map_or(Ok(most), str::parse).ok().filter(|bits| *bits <= most);
        let bits = bits.ok_or_else(|| format!("the prefix is not a number from 0 to {most}"))?;
        Ok(match (address, address.to_canonical()) {
            (IpAddr::V4(address), _) => Self::Ipv4(address, bits),
            // IPv4 in the clothes of IPv6, as clients may be.
            (_, IpAddr::V4(address)) if bits >= 96 => Self::Ipv4(address, bits - 96),
            (IpAddr::V6(address), _) => Self::Ipv6(address, bits),
        })
    }

    fn means(self, peer: &Peer) -> bool {
        let unix = |is: &dyn Fn(&Credentials) -> bool| match peer {
            Peer::Unix { credentials } => credentials.as_ref().is_some_and(is),
            _ => false,
        };
        // An IPv4 client of a socket for both is an IPv4 client.
        let ip = match peer {
            Peer::Ip(address) => Some(address.ip().to_canonical()),
            _ => None,
        };
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
            Self::Pid(pid) => unix(&|c| c.pid == pid),
            Self::Uid(uid) => unix(&|c| c.uid == uid),
            Self::Gid(gid) => unix(&|c| c.gid == gid),
            Self::VsockCid(n) => matches!(peer, Peer::Vsock { cid, .. } if *cid == n),
            Self::VsockPort(n) => matches!(peer, Peer::Vsock { port, .. } if *port == n),
        }
    }
}

struct Ip {
    info: Info,
    below: Edge,
    lists: Arc<Lists>,
}

impl Filter for Ip {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> &Edge {
        &self.below
    }

    fn run(&self, operation: Operation, done: Done) {
        match operation {
            all @ (Operation::Flush
            | Operation::Prefetch { .. }
            | Operation::Read { .. }
            | Operation::Resolve { .. }
            | Operation::Status { .. }
            | Operation::Take { .. }
            | Operation::Trim { .. }
            | Operation::Write { .. }
            | Operation::Zero { .. }) => self.below.submit(all, done),
        }
    }

    fn for_client(&self, below: Edge, _client: &Client, _seat: Seat) -> Self {
        Self { info: Info::over(&below), below, lists: self.lists.clone() }
    }

    fn admit(&self, client: &Client, then: Admitted) {
        let action = "client not permitted to connect because of source address restriction";
        let refused = || Error::new(ErrorKind::PermissionDenied, Fault::User, action);
        then(if self.lists.lets_in(&client.peer) { Ok(Seat::free()) } else { Err(refused()) });
    }

    fn passes(&self) -> Passes {
        Passes::ALL
    }
}

#[cfg(test)]
mod tests {
    use device::model::Model;

    use super::*;
    use crate::kit::tested::put;

    fn ip(address: &str) -> Peer {
        Peer::Ip(std::net::SocketAddr::new(address.parse().unwrap(), 1234))
    }

    fn unix(pid: u32, uid: u32, gid: u32) -> Peer {
        Peer::Unix { credentials: Some(Credentials { pid, uid, gid }) }
    }

    /// Whether `peer` is let in, asked of the filter.
    fn lets_in(words: &[&str], peer: Peer) -> bool {
        let disk = put("ip", crate::kit::tested::simple(Arc::new(Model::new(512))), words).unwrap();
        let (tx, rx) = std::sync::mpsc::channel();
        let client = Client {
            number: 1,
            peer,
            export: String::new(),
            tls: false,
            presence: device::Presence::default(),
        };
        disk.device().connect(&client, Box::new(move |own| tx.send(own.is_ok()).unwrap()));
        rx.recv().unwrap()
    }

    #[test]
    fn who_is_allowed_is_let_in_then_who_is_denied_is_refused_and_the_rest_is_let_in() {
        assert!(lets_in(&[], ip("8.8.8.8")));
        assert!(lets_in(&["allow=127.0.0.1"], ip("8.8.8.8")));
        assert!(!lets_in(&["deny=8.0.0.0/8"], ip("8.8.8.8")));
        assert!(lets_in(&["deny=8.0.0.0/8"], ip("9.8.8.8")));
        assert!(lets_in(&["deny=all", "allow=127.0.0.1,::1"], ip("::1")));
        assert!(lets_in(&["deny=all", "allow=127.0.0.1", "allow=::1"], ip("::1")));
        assert!(!lets_in(&["deny=all", "allow=127.0.0.1,::1"], ip("::2")));
    }

    #[test]
    fn each_rule_means_whom_it_says() {
        let vsock = || Peer::Vsock { cid: 3, port: 99 };
        let cases: &[(&str, Peer, bool)] = &[
            ("any", Peer::Other, true),
            ("anyipv4", ip("1.2.3.4"), true),
            ("anyipv4", ip("::ffff:1.2.3.4"), true),
            ("anyipv4", ip("::1"), false),
            ("allipv6", ip("::1"), true),
            ("anyipv6", ip("::ffff:1.2.3.4"), false),
            ("anyunix", unix(1, 2, 3), true),
            ("anyunix", ip("1.2.3.4"), false),
            ("anyvsock", vsock(), true),
            ("anyvsock", unix(1, 2, 3), false),
            ("10.1.2.3/8", ip("10.255.0.1"), true),
            ("10.1.2.3/8", ip("11.1.2.3"), false),
            ("0.0.0.0/0", ip("11.1.2.3"), true),
            ("0.0.0.0/0", ip("::1"), false),
            ("1.2.3.4", ip("1.2.3.5"), false),
            ("1.2.3.4", ip("::ffff:1.2.3.4"), true),
            ("::ffff:1.2.3.4", ip("1.2.3.4"), true),
            ("::ffff:1.2.3.0/120", ip("::ffff:1.2.3.9"), true),
            ("::ffff:1.2.3.0/120", ip("1.2.4.4"), false),
            ("::ffff:0:0/96", ip("1.2.4.4"), true),
            ("::ffff:0:0/96", ip("::1"), false),
            ("fe80::/10", ip("fe80::1"), true),
            ("fe80::/10", ip("fc00::1"), false),
            ("::/0", ip("fc00::1"), true),
            ("[::1]/128", ip("::1"), true),
            ("pid:7", unix(7, 0, 0), true),
            ("pid:7", unix(8, 7, 7), false),
            ("uid:0", unix(1, 0, 9), true),
            ("uid:0", Peer::Unix { credentials: None }, false),
            ("uid:0", ip("127.0.0.1"), false),
            ("gid:9", unix(1, 0, 9), true),
            ("vsock-cid:3", vsock(), true),
            ("vsock-cid:4", vsock(), false),
            ("vsock-port:99", vsock(), true),
        ];
        for (rule, peer, means) in cases {
            let allow = format!("allow={rule}");
            assert_eq!(lets_in(&[&allow, "deny=all"], peer.clone()), *means, "{rule} {peer:?}");
        }
    }

    #[test]
    fn a_rule_that_makes_no_sense_is_refused_and_so_is_one_that_nobody_checks() {
        for rule in [
            "foo",
            "1.2.3.0/33",
            "::1/129",
            "1.2.3",
            "127.1",
            ",",
            "a,,b",
            "uid:root",
            "pid:0",
            "uid:",
            "1.2.3.4-1.2.3.9",
            "dn:CN=x",
            "issuer-dn:CN=x",
            "security:label",
        ] {
            let word = format!("deny={rule}");
            let refused =
                put("ip", crate::kit::tested::simple(Arc::new(Model::new(512))), &[&word]);
            let e = refused.err().unwrap_or_else(|| panic!("{rule}"));
            let later = rule.contains("dn:") || rule.contains("security:");
            assert_eq!(e.to_string().contains("not supported here yet"), later, "{e}");
        }
        assert!(
            put("ip", crate::kit::tested::simple(Arc::new(Model::new(512))), &["allow="]).is_ok()
        );
    }
}
