//! The files that TLS is set up with, by nbdkit's and libnbd's names.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use device::{Error, ErrorKind, Fault, Result, secret};

/// Longest file that is read, in bytes: a file of keys or certificates is far shorter.
pub(super) const LONGEST: u64 = 1 << 20;
/// Users in a file of keys, at most: each costs every handshake of the server.
const MOST_USERS: usize = 1024;
/// What is done with a file of a directory or of keys.
const READ: &str = "read for TLS";
/// Shortest key, in bytes (RFC 9257, section 6).
const SHORTEST_KEY: usize = 16;

/// A user, and the key that is shared with it. Has no `Debug` that shows it.
pub(super) struct Key {
    pub(super) user: String,
    pub(super) secret: Vec<u8>,
}

runtime::debug_as!(Key, |it| "Key({})", it.user);

/// A file of `dir`, if it is there.
pub(super) fn optional(dir: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    match read(&dir.join(name), READ, LONGEST) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// A file of `dir` that has to be there.
pub(super) fn required(dir: &Path, name: &str) -> Result<Vec<u8>> {
    read(&dir.join(name), READ, LONGEST)
}

/// A client's certificate and its key: both, or neither.
pub(super) fn pair(dir: &Path) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
    let (certificate, key) = ("client-cert.pem", "client-key.pem");
    Ok(match (optional(dir, certificate)?, optional(dir, key)?) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate, key)),
        // One is missing, unless it has come meanwhile.
        _ => Some((required(dir, certificate)?, required(dir, key)?)),
    })
}

/// Revocation lists are not checked, so one that exists must not be silently ignored.
///
/// # Errors
/// There is one.
pub(super) fn refuse_revocations(dir: &Path) -> Result<()> {
    let path = dir.join("ca-crl.pem");
    if !path.exists() {
        return Ok(());
    }
    let action = "TLS: revocation lists are not supported, and this one would be ignored; remove it \
                  if no certificate has to be refused";
    Err(Error::unsupported(action).on(path.display()))
}

/// The first of the places for `program` that has certificates.
///
/// # Errors
/// There is none.
pub(super) fn directory(program: &str) -> Result<PathBuf> {
    let places = super::places(program);
    let found = places.iter().find(|place| place.join("ca-cert.pem").exists());
    found.cloned().ok_or_else(|| {
        let looked: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        let action =
            format!("TLS: no certificates were named, and none are in {}", looked.join(" or "));
        Error::new(ErrorKind::NotFound, Fault::User, action)
    })
}

/// The keys of a file of lines `user:hexadecimal key`, or of a variable of the environment
/// (`-env:NAME`).
///
/// # Errors
/// It cannot be read, or a line makes no sense.
pub(super) fn keys(path: &Path) -> Result<Vec<Key>> {
    let text = match path.to_str().and_then(secret::of_environment) {
        Some(value) => value?,
        None => String::from_utf8(read(path, READ, LONGEST)?)
            .map_err(|_| wrong(path, 0, "it is not text"))?,
    };
    let mut keys: Vec<Key> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = key(line).map_err(|why| wrong(path, number, why))?;
        if keys.iter().any(|other| other.user == key.user) {
            return Err(wrong(path, number, "the user is listed twice"));
        }
        keys.push(key);
        if keys.len() > MOST_USERS {
            return Err(wrong(path, number, "more than 1024 users"));
        }
    }
    if keys.is_empty() {
        return Err(wrong(path, 0, "it contains no key"));
    }
    Ok(keys)
}

fn key(line: &str) -> std::result::Result<Key, &'static str> {
    let (user, hex) = line.split_once(':').ok_or("it is not `user:key`")?;
    if user.is_empty() {
        return Err("the user has no name");
    }
    let secret = unhex(hex).ok_or("the key is not hexadecimal")?;
    if secret.len() < SHORTEST_KEY {
        return Err("the key is shorter than 16 bytes");
    }
    Ok(Key { user: user.to_owned(), secret })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|n| u8::try_from(n).ok());
    let digits: Option<Vec<u8>> = text.as_bytes().iter().map(digit).collect();
    let pairs = digits?;
    let mut pairs = pairs.chunks_exact(2);
    let bytes = pairs.by_ref().map(|pair| pair.iter().fold(0, |all, digit| all << 4 | digit));
    let bytes = bytes.collect();
    pairs.remainder().is_empty().then_some(bytes)
}

/// What is wrong with a file of keys; never its contents.
fn wrong(path: &Path, line: u32, why: &str) -> Error {
    let at = if line == 0 { String::new() } else { format!("line {line}: ") };
    let action = format!("read the keys of TLS: {at}{why}");
    Error::new(ErrorKind::InvalidInput, Fault::File, action).on(path.display())
}

/// Whether others than the owner may read a file of secrets.
pub(super) fn is_open_to_all(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o004 != 0)
}

/// A file of at most `longest` bytes, which is read for `doing`.
///
/// # Errors
/// It cannot be read, or is longer.
pub(super) fn read(path: &Path, doing: &str, longest: u64) -> Result<Vec<u8>> {
    let say = |e: std::io::Error| Error::os(doing, e).on(path.display());
    let mut bytes = Vec::new();
    let file = programs::names::read(path).map(fs::File::from).map_err(say)?;
    file.take(longest + 1).read_to_end(&mut bytes).map_err(say)?;
    if bytes.len() as u64 > longest {
        let action = format!("{doing}: longer than {} MiB", longest >> 20);
        return Err(Error::new(ErrorKind::Limit, Fault::File, action).on(path.display()));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_from_its_line_and_every_mistake_is_refused() {
        let hex = "00ff".repeat(8);
        let read = key(&format!("alice:{hex}")).unwrap();
        assert_eq!((read.user.as_str(), read.secret.len()), ("alice", 16));
        assert_eq!(read.secret.get(..2), Some(&[0, 255][..]));
        assert_eq!(format!("{read:?}"), "Key(alice)");
        for line in ["alice", ":00", "alice:", "alice:0", "alice:00", "alice:zz", "a:0x00"] {
            assert!(key(line).is_err(), "{line}");
        }
        assert!(key(&format!("alice:{hex}0")).is_err(), "half a byte");
    }

    #[test]
    fn a_file_of_keys_has_comments_and_no_user_twice() {
        let path = std::env::temp_dir().join(format!("diskferry-keys-{}", std::process::id()));
        let hex = "ab".repeat(32);
        fs::write(&path, format!("# comment\n\nalice:{hex}\nbob:{hex}\n")).unwrap();
        assert_eq!(keys(&path).unwrap().len(), 2);
        fs::write(&path, format!("alice:{hex}\nalice:{hex}\n")).unwrap();
        let told = keys(&path).unwrap_err().to_string();
        assert!(told.contains("line 2") && !told.contains(&hex), "{told}");
        fs::write(&path, "# no user\n").unwrap();
        assert!(keys(&path).is_err());
        fs::remove_file(&path).unwrap();
    }
}
