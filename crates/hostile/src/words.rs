//! Words of command lines, replies of HTTP servers, and files that others write.

use device::{Name, Params, format_size, parse_size};
use devices::{Named, parsers};
use disk::{Image, Stack};
use wire::Uri;

use crate::{line, said};

/// NBD URIs. What is printed means the same.
pub(crate) fn uri(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Uri::parse(&text) {
        Ok(uri) => assert_eq!(Uri::parse(&uri.to_string()).as_ref(), Ok(&uri), "{uri}"),
        Err(e) => assert!(e.to_string().len() < 8 << 10),
    }
}

/// Names of disks, filters and formats, a line each: what they mean is found out, and nothing
/// opened.
pub(crate) fn names(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for word in text.lines() {
        if let Ok(Name::Device { kind, arg, params }) = Name::parse(word) {
            assert!(
                word.starts_with(&format!("{kind}:{arg}")) && params.iter().count() <= word.len()
            );
        }
        if let Ok(named) = Named::parse(word) {
            assert!(!named.to_string().is_empty());
        }
        let _ = (Image::of(word).and_then(|image| image.check()), Params::parse_query(word));
    }
    let _ = Stack::parse(text.lines());
}

/// Sizes. One that is printed exactly means the same.
pub(crate) fn sizes(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match parse_size(&text) {
        Ok(size) => {
            assert!(i64::try_from(size).is_ok());
            assert_eq!(parse_size(&size.to_string()).unwrap(), size);
            assert!(format_size(size).len() < 16);
        }
        Err(e) => assert!(e.to_string().contains(&*text)),
    }
}

/// The language of `data`.
pub(crate) fn data(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    said(parsers::data(&text).map_err(|e| {
        // The user's own words are shown as they are.
        if e.to_string().chars().any(char::is_control) { device::Error::invalid("data") } else { e }
    }));
}

/// What an HTTP server sends on one connection.
pub(crate) fn http(bytes: &[u8]) {
    parsers::http(bytes).iter().for_each(|e| line(&e.to_string()));
}

/// A `.netrc`.
pub(crate) fn netrc(bytes: &[u8]) {
    parsers::netrc(&String::from_utf8_lossy(bytes));
}
