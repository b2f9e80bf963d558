//! The authorities that a client trusts, and the certificates that it shows, from files in PEM.

use std::collections::HashSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use device::{Error, ErrorKind, Fault, Result};
use s2n_tls::config::Builder;

use super::Trust;
use super::credentials::{LONGEST, read};

/// Longest file of authorities that is read, in bytes: a system's has hundreds of them.
const LONGEST_BUNDLE: u64 = 16 << 20;

/// Where systems keep all authorities that they trust in one file.
const BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Where they keep them one by one.
const DIRECTORIES: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];

/// Makes `builder` trust these authorities. One that the library does not understand is not
/// trusted. `advice`: the parameters that name others.
///
/// # Errors
/// A file that was named cannot be read or holds none; or none at all is trusted.
pub(super) fn trust(builder: &mut Builder, wanted: &Trust, advice: &str) -> Result<()> {
    let (file, directories) = match wanted {
        Trust::Anyone => return Ok(()),
        Trust::System => system(),
        Trust::Named { file, directory } => (file.clone(), directory.iter().cloned().collect()),
    };
    let mut failed = None;
    let mut texts = Vec::new();
    match file.as_deref().map(text) {
        // One that was named has to be there.
        Some(Err(e)) if matches!(wanted, Trust::Named { .. }) => return Err(e),
        read => texts.extend(read.and_then(|read| noted(read, &mut failed))),
    }
    for directory in &directories {
        let entries = fs::read_dir(directory)
            .map_err(|e| Error::os("read certificates", e).on(directory.display()));
        // Links to what has been read, and what is no certificate, do no harm.
        let files = noted(entries, &mut failed).into_iter().flatten().flatten();
        let files = files.map(|entry| entry.path()).filter(|path| path.is_file());
        texts.extend(files.filter_map(|path| noted(text(&path), &mut failed)));
    }
    let all: HashSet<&str> = texts.iter().flat_map(|text| certificates(text)).collect();
    let trusted = all.iter().filter(|one| builder.trust_pem(one.as_bytes()).is_ok()).count();
    if trusted == 0 {
        let action = format!("TLS: no certificate is trusted; name some with {advice}");
        let none = Error::new(ErrorKind::NotFound, Fault::User, action);
        return Err(failed.into_iter().fold(none, Error::with_source));
    }
    Ok(())
}

/// What was read; else its error is kept, if it is the first.
fn noted<T>(read: Result<T>, failed: &mut Option<Error>) -> Option<T> {
    read.map_err(|e| failed.get_or_insert(e).kind()).ok()
}

/// The system's file and directories; those of OpenSSL's variables come first.
fn system() -> (Option<PathBuf>, Vec<PathBuf>) {
    let file = env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let directories = env::var_os("SSL_CERT_DIR");
    let directories: Vec<_> = directories.iter().flat_map(env::split_paths).collect();
    if file.is_some() || !directories.is_empty() {
        return (file, directories);
    }
    let bundle = BUNDLES.iter().map(PathBuf::from).find(|path| path.exists());
    (bundle, DIRECTORIES.iter().map(PathBuf::from).collect())
}

/// The certificates of a file, and the key of another or the same.
///
/// # Errors
/// A file cannot be read, or has none.
pub(super) fn pair(certificate: &Path, key: &Path) -> Result<(Vec<u8>, Vec<u8>)> {
    let secret = read(key, "read the client's key", LONGEST)?;
    let secret = String::from_utf8_lossy(&secret);
    let secret =
        blocks(&secret, |label| label.ends_with("PRIVATE KEY")).next().ok_or_else(|| {
            let action = "read the client's key: there is none in the file";
            Error::new(ErrorKind::NotFound, Fault::User, action).on(key.display())
        })?;
    let chain = text(certificate)?;
    let chain: Vec<_> = certificates(&chain).collect();
    Ok((chain.join("\n").into_bytes(), secret.as_bytes().to_vec()))
}

/// A file with at least one certificate in it.
fn text(path: &Path) -> Result<String> {
    let bytes = read(path, "read certificates", LONGEST_BUNDLE)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if certificates(&text).next().is_none() {
        let action = "read certificates: there is none in the file";
        return Err(Error::new(ErrorKind::NotFound, Fault::User, action).on(path.display()));
    }
    Ok(text)
}

/// Never `TRUSTED CERTIFICATE`, which says for what one is trusted: that would be ignored.
fn certificates(text: &str) -> impl Iterator<Item = &str> {
    blocks(text, |label| label == "CERTIFICATE")
}

/// The blocks of PEM with such a label, as they stand in `text`.
fn blocks(mut text: &str, is_wanted: fn(&str) -> bool) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        loop {
            let (_, behind) = text.split_once("-----BEGIN ")?;
            let begun = text.get(text.len() - behind.len() - "-----BEGIN ".len()..)?;
            text = behind;
            let Some((label, _)) = behind.split_once("-----") else { continue };
            let end = format!("-----END {label}-----");
            let Some(len) = begun.find(&end).filter(|_| is_wanted(label)) else { continue };
            return begun.get(..len + end.len());
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_by_their_label_and_nothing_else_is_taken_for_one() {
        let one = "-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----";
        let key = "-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----";
        let other = one.replace("CERTIFICATE", "TRUSTED CERTIFICATE");
        let cut = "-----BEGIN CERTIFICATE-----\nMII=\n-----BEGIN -----END CERT";
        let text = format!("CN=ä\n{one}\r\n{other}\n{key}{one}\n{cut}");
        assert_eq!(certificates(&text).collect::<Vec<_>>(), [one, one]);
        let keys = blocks(&text, |label| label.ends_with("PRIVATE KEY"));
        assert_eq!(keys.collect::<Vec<_>>(), [key]);
        for text in ["", "-----BEGIN ", "-----BEGIN CERTIFICATE-----", cut] {
            assert!(certificates(text).next().is_none(), "{text}");
        }
    }
}
