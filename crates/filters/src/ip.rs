//! `ip`: allows or denies clients by address, user and TLS identity.
//!
//! A client on the allow list is admitted; else one on the deny list is refused; all others are
//! admitted. The check comes when a client chooses an export. Bytes pass as if the filter were not
//! there.

use device::access::Rules;
use device::{
    Admission, Admitted, Client, Error, ErrorKind, Fault, Filter, Filtered, Over, Params, Passes,
    Result, repeated,
};

use crate::FilterKind;

const LIST: &str = "RULE[,RULE...]";

pub(crate) const KIND: FilterKind = FilterKind {
    word: "ip",
    summary: "allows or denies clients by address, user, TLS key or certificate",
    keeps_disk: false,
    params: &[
        repeated(
            "allow",
            LIST,
            "allowed clients: any, anyipv4, 10.0.0.0/8, ::1, uid:1000, tls, psk-user:NAME, dn:PATTERN ...",
        ),
        repeated("deny", LIST, "clients that are refused unless allowed"),
    ],
    example: "serve --filter=ip memory 1M allow=anyunix deny=all --run 'nbdinfo --size \"$uri\"'",
    open: |params, below, _| Ok(Filtered::device(Ip::read(params)?, below)),
    ..FilterKind::PLAIN
};

#[derive(Debug)]
struct Ip {
    allow: Rules,
    deny: Rules,
}

impl Ip {
    fn read(params: &Params) -> Result<Self> {
        let list = |key: &str| -> Result<Rules> {
            let mut rules = Rules::default();
            for (_, text) in params.iter().filter(|(k, text)| *k == key && !text.is_empty()) {
                rules.add(text).map_err(|why| Error::invalid(format!("{key}: {why}")))?;
            }
            Ok(rules)
        };
        Ok(Self { allow: list("allow")?, deny: list("deny")? })
    }

    fn lets_in(&self, client: &Client) -> bool {
        let means = |rules: &Rules| rules.mean(&client.peer, client.tls.as_deref());
        means(&self.allow) || !means(&self.deny)
    }
}

impl Filter for Ip {
    fn describe(&self, over: &mut Over) {
        over.passes = Passes::ALL;
    }

    fn admit(&self, client: &Client, then: Admitted) {
        let action = "client not permitted to connect because of source address restriction";
        let refused = || Error::new(ErrorKind::PermissionDenied, Fault::User, action);
        then(if self.lets_in(client) { Ok(Admission::free()) } else { Err(refused()) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::{Credentials, Identity, Peer};

    use super::*;
    use crate::kit::tested::{blank, put};

    fn ip(address: &str) -> Peer {
        Peer::Ip(std::net::SocketAddr::new(address.parse().unwrap(), 1234))
    }

    fn unix(pid: u32, uid: u32, gid: u32) -> Peer {
        Peer::Unix { credentials: Some(Credentials { pid, uid, gid }) }
    }

    /// Whether the filter admits `peer`.
    fn lets_in(words: &[&str], peer: Peer) -> bool {
        lets_in_as(words, peer, None)
    }

    /// The same, for a client with that TLS identity.
    fn lets_in_as(words: &[&str], peer: Peer, identity: Option<Identity>) -> bool {
        let disk = put("ip", blank(512), words).unwrap();
        let (tx, rx) = std::sync::mpsc::channel();
        let client = Client {
            number: 1,
            peer,
            export: String::new(),
            tls: identity.map(Arc::new),
            presence: device::Presence::default(),
        };
        disk.device().connect(&client, Box::new(move |own| tx.send(own.is_ok()).unwrap()));
        rx.recv().unwrap()
    }

    #[test]
    fn allowed_clients_are_accepted_then_denied_ones_refused_and_the_rest_accepted() {
        assert!(lets_in(&[], ip("8.8.8.8")));
        assert!(lets_in(&["allow=127.0.0.1"], ip("8.8.8.8")));
        assert!(!lets_in(&["deny=8.0.0.0/8"], ip("8.8.8.8")));
        assert!(lets_in(&["deny=8.0.0.0/8"], ip("9.8.8.8")));
        assert!(lets_in(&["deny=all", "allow=127.0.0.1,::1"], ip("::1")));
        assert!(lets_in(&["deny=all", "allow=127.0.0.1", "allow=::1"], ip("::1")));
        assert!(!lets_in(&["deny=all", "allow=127.0.0.1,::1"], ip("::2")));
    }

    #[test]
    fn each_rule_matches_the_clients_that_it_names() {
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
    fn names_of_certificates_have_commas_and_are_patterns() {
        let alice = || Identity {
            subject: Some("CN=alice,O=BigCo,C=GB".into()),
            issuer: Some("CN=The CA".into()),
            user: None,
        };
        for (rule, is) in [
            ("dn:CN=alice,O=BigCo,C=GB", true),
            ("dn:*,O=BigCo,*", true),
            ("dn:*,O=Big,*", false),
            ("issuer-dn:CN=The CA", true),
            ("issuer-dn:CN=alice*", false),
            ("tls", true),
            ("psk-user:alice", false),
        ] {
            let words = [format!("allow={rule}"), "deny=all".into()];
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            assert_eq!(lets_in_as(&words, ip("1.2.3.4"), Some(alice())), is, "{rule}");
            assert!(!lets_in(&words, ip("1.2.3.4")), "{rule} without TLS");
        }
    }
}
