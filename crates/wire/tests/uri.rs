//! URIs: the meaning of each form, and the words with which wrong ones are refused.

use proptest::prelude::*;
use wire::{Transport, Uri, UriError};

fn parse(text: &str) -> Uri {
    Uri::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn tcp(host: &str, port: u16) -> Transport {
    Transport::Tcp { host: host.into(), port }
}

#[test]
fn tcp_forms() {
    for (text, host, port, export) in [
        ("nbd://example.com", "example.com", 10809, ""),
        ("nbd://example.com/", "example.com", 10809, ""),
        ("NBD://example.com:10/x", "example.com", 10, "x"),
        ("nbd+tcp://127.0.0.1:1234/disk", "127.0.0.1", 1234, "disk"),
        ("nbd://[::1]:1234/disk", "::1", 1234, "disk"),
        ("nbd://[::1]", "::1", 10809, ""),
        ("nbd://[fe80::1%25eth0]/x", "fe80::1%eth0", 10809, "x"),
        ("nbd://[fe80::1%eth0]/x", "fe80::1%eth0", 10809, "x"),
        ("nbd://localhost//absolute", "localhost", 10809, "/absolute"),
        ("nbd:///name", "localhost", 10809, "name"),
        ("nbd://:99/name", "localhost", 99, "name"),
        ("nbd://host:/name", "host", 10809, "name"),
        ("nbd://host/a%20b%2Fc+d", "host", 10809, "a b/c+d"),
        ("nbd://host/%E2%82%AC", "host", 10809, "€"),
        ("nbd://host/a%3Fb", "host", 10809, "a?b"),
    ] {
        let uri = parse(text);
        assert_eq!(uri.transport, tcp(host, port), "{text}");
        assert_eq!((uri.tls, uri.export.as_str()), (false, export));
    }
}

#[test]
fn tls_users_and_parameters() {
    let uri = parse("nbds://alice@host/x?tls-type=psk&tls-psk-file=%2Fkeys&x-mine=1&&tls-hostname");
    assert!(uri.tls);
    assert_eq!(uri.user.as_deref(), Some("alice"));
    assert_eq!(uri.param("tls-psk-file"), Some("/keys"));
    assert_eq!(uri.param("tls-hostname"), Some(""));
    assert_eq!(uri.param("x-mine"), None);
}

#[test]
fn unix_forms() {
    let uri = parse("nbd+unix:///disk?socket=/run/a%20b.sock");
    assert_eq!(uri.transport, Transport::Unix { path: b"/run/a b.sock".to_vec() });
    assert_eq!(uri.export, "disk");
    let uri = parse("nbds+unix://?socket=relative");
    assert_eq!(uri.transport, Transport::Unix { path: b"relative".to_vec() });
    assert!(uri.tls);
    let uri = parse("nbd+unix:///?socket=%00name");
    assert_eq!(uri.transport, Transport::UnixAbstract { name: b"name".to_vec() });
    let uri = parse("nbd+unix:///?socket=%ff%fe");
    assert_eq!(uri.transport, Transport::Unix { path: vec![0xff, 0xfe] });
}

#[test]
fn vsock_forms() {
    for (text, cid, port) in [
        ("nbd+vsock://", 2, 10809),
        ("nbd+vsock://3", 3, 10809),
        ("nbds+vsock://4294967295:4294967295/x", u32::MAX, u32::MAX),
        ("nbd+vsock://:99", 2, 99),
    ] {
        assert_eq!(parse(text).transport, Transport::Vsock { cid, port }, "{text}");
    }
}

#[test]
fn mistakes_are_named() {
    for (text, message) in [
        ("", "not an NBD URI: no // after the scheme"),
        ("disk.img", "not an NBD URI: no // after the scheme"),
        ("nbd:localhost:10809", "not an NBD URI: no // after the scheme"),
        ("nbd:/x", "not an NBD URI: no // after the scheme"),
        ("nbd://host/x#y", "NBD URIs have no fragment (write # as %23)"),
        ("nbd://host/%", "% is not followed by two hexadecimal digits (write % as %25)"),
        ("nbd://host/%4", "% is not followed by two hexadecimal digits (write % as %25)"),
        ("nbd://host/%+1", "% is not followed by two hexadecimal digits (write % as %25)"),
        ("nbd://host/%gg", "% is not followed by two hexadecimal digits (write % as %25)"),
        ("nbd://host/a%00b", "export name contains NUL"),
        ("nbd://host/%ff", "export name is not UTF-8"),
        ("nbd://ho%00st/", "text contains NUL"),
        ("nbd://ho st/", "host contains a character that no host name has"),
        ("nbd://ho%3Ast/", "host contains a character that no host name has"),
        ("nbd://host:0", "port is not a number from 1 to 65535"),
        ("nbd://host:65536", "port is not a number from 1 to 65535"),
        ("nbd://host:+80", "port is not a number from 1 to 65535"),
        ("nbd://::1/", "port is not a number from 1 to 65535"),
        ("nbd://[::1/", "address has no closing ]"),
        ("nbd://[::1]x/", "text between ] and the port"),
        ("nbd://[host]/", "address in brackets is not an IPv6 address"),
        ("nbd://host/?colour=red", "unknown parameter \"colour\""),
        ("nbd://host/?tls-type=none", "parameter \"tls-type\" must be anon, x509 or psk"),
        ("nbd://host/?tls-verify-peer=yes", "parameter \"tls-verify-peer\" must be 0 or 1"),
        ("nbd://host/?tls-hostname=a&tls-hostname=b", "parameter \"tls-hostname\" is given twice"),
        ("nbd://host/?socket=/x", "parameter \"socket\" belongs to nbd+unix and nbds+unix only"),
        ("nbd+vsock:///?socket=/x", "parameter \"socket\" belongs to nbd+unix and nbds+unix only"),
        ("nbd+unix:///", "parameter \"socket\" is missing"),
        ("nbd+unix:///?socket=", "parameter \"socket\" is empty"),
        ("nbd+unix:///?socket=%00", "parameter \"socket\" is empty"),
        ("nbd+unix:///?socket=/a%00b", "parameter \"socket\" contains NUL"),
        ("nbd+unix:///?socket=/a&socket=/b", "parameter \"socket\" is given twice"),
        ("nbd+unix://host/?socket=/x", "a Unix socket has no host (write nbd+unix:///…)"),
        ("nbd+vsock://host", "vsock context id is not a number"),
        ("nbd+vsock://4294967296", "vsock context id is not a number"),
        ("nbd+vsock://3:x", "vsock port is not a number"),
    ] {
        assert_eq!(Uri::parse(text).expect_err(text).to_string(), message, "{text}");
    }
    assert!(
        matches!(Uri::parse("http://host/"), Err(UriError::Scheme(scheme)) if scheme == "http")
    );
}

#[test]
fn known_schemes_are_recognised_without_parsing() {
    assert!(Uri::has_known_scheme("NBDS+unix://anything%"));
    assert!(!Uri::has_known_scheme("https://host/nbd://"));
    assert!(!Uri::has_known_scheme("nbd:host"));
}

#[test]
fn the_canonical_form_is_short() {
    for (text, canonical) in [
        ("NBD+TCP://host:10809", "nbd://host/"),
        ("nbd://[0:0::1]:99//x", "nbd://[0:0::1]:99//x"),
        ("nbd:///x", "nbd://localhost/x"),
        (
            "nbd+unix:///a%20b?tls-type=x509&socket=/a+b",
            "nbd+unix:///a%20b?socket=/a%2Bb&tls-type=x509",
        ),
        ("nbd+unix://?socket=%00x", "nbd+unix:///?socket=%00x"),
        ("nbds+vsock://:10809/x?y", "nbds+vsock://2/x"),
        ("nbd://[fe80::1%eth0]/", "nbd://[fe80::1%25eth0]/"),
    ] {
        let text = text.replace("?y", "");
        assert_eq!(parse(&text).to_string(), canonical);
    }
}

fn transport() -> impl Strategy<Value = Transport> {
    let bytes = prop::collection::vec(1_u8.., 1..40);
    prop_oneof![
        ("[a-z0-9.-]{1,20}", 1_u16..).prop_map(|(host, port)| tcp(&host, port)),
        (any::<[u8; 16]>(), 1_u16..)
            .prop_map(|(address, port)| tcp(&std::net::Ipv6Addr::from(address).to_string(), port)),
        bytes.clone().prop_map(|path| Transport::Unix { path }),
        bytes.prop_map(|name| Transport::UnixAbstract { name }),
        any::<(u32, u32)>().prop_map(|(cid, port)| Transport::Vsock { cid, port }),
    ]
}

proptest! {
    #[test]
    fn the_canonical_form_parses_to_the_same(
        transport in transport(), tls: bool,
        export in "[^\0]{0,20}",
        user in prop::option::of("[^\0]{0,10}"),
        hostname in prop::option::of("[^\0]{0,10}"),
    ) {
        let params = hostname.map(|name| ("tls-hostname".to_owned(), name)).into_iter().collect();
        let uri = Uri { transport, tls, export, user, params };
        let text = uri.to_string();
        prop_assert!(text.is_ascii());
        prop_assert_eq!(Uri::parse(&text), Ok(uri));
    }
}
