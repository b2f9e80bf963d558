//! `file:///path`: a file of this machine, as RFC 8089 has it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use device::{Error, Result, text};
use wire::percent_decode;

/// The path that a URI names.
///
/// # Errors
/// It is a file of another machine, has no absolute path, or more than a path.
pub(crate) fn of_uri(uri: &str) -> Result<String> {
    let wrong = |why: &str| Error::invalid(format!("the URI {why}")).on(uri);
    let (_, rest) = uri.split_once("://").ok_or_else(|| wrong("has no ://"))?;
    let slash = rest.find('/').ok_or_else(|| wrong("has no path; write file:///PATH"))?;
    let (host, path) = rest.split_at(slash);
    if !host.is_empty() && !host.eq_ignore_ascii_case("localhost") {
        return Err(wrong("names a file of another machine; write file:///PATH"));
    }
    if path.contains(['?', '#']) {
        return Err(wrong("has more than a path; ? is %3F and # is %23 in a file's name"));
    }
    let (bytes, is_sound) = percent_decode(path);
    if !is_sound || bytes.contains(&0) {
        return Err(wrong("has a % without two digits, or a zero byte"));
    }
    Ok(text::carry(OsStr::from_bytes(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_file_of_this_machine_byte_for_byte() {
        assert_eq!(of_uri("file:///a/b%20c%25").unwrap(), "/a/b c%");
        assert_eq!(of_uri("FILE://localhost/a").unwrap(), "/a");
        let odd = of_uri("file:///%ff").unwrap();
        assert_eq!(text::path(&odd).as_os_str().as_bytes(), b"/\xff");
        for wrong in [
            "file://",
            "file://a",
            "file://host/a",
            "file:///a?b",
            "file:///a#b",
            "file:///%4",
            "file:///%zz",
            "file:///%00",
            "file:///%+1",
        ] {
            assert!(of_uri(wrong).is_err(), "{wrong}");
        }
    }
}
