//! The secret that opens a disk: a passphrase, or a file of any bytes. It is named, and never
//! written on a command line itself, where a list of processes would show it.

use base64ct::{Base64, Encoding as _};
use device::{Error, ErrorKind, Fault, Param, Params, Result, param, secret, values};
use zeroize::Zeroizing;

/// The parameters that name it.
pub(super) const PARAMS: [Param; 5] = [
    param(
        "passphrase",
        secret::NAMED,
        "the passphrase: the first line of a file (+FILE) or a descriptor (-FD), a variable (-env:NAME), a key of the kernel (-key:SERIAL), or typed (-)",
    ),
    param(
        "key-file",
        secret::KEY_FILE,
        "the key: all bytes of a file, as cryptsetup and QEMU have it",
    ),
    param(
        "key-serial",
        secret::KEY_SERIAL,
        "the key: all bytes of a key in the kernel's keyring, by its number",
    ),
    param("key-format", "raw|base64", "how the key is written there (raw)"),
    param("key-secret", "ID", "the secret that --object names, as QEMU has it"),
];

/// Refuses parameters that name no secret; nothing is read.
///
/// # Errors
/// `NeedsKey`: they name none.
pub(super) fn check_named(params: &Params) -> Result<()> {
    if ["passphrase", "key-file", "key-serial", "key-secret"]
        .iter()
        .any(|key| params.get(key).is_some())
    {
        return Ok(());
    }
    let why = "LUKS encrypts the disk: passphrase=+FILE or key-file=FILE names what opens it";
    Err(Error::new(ErrorKind::NeedsKey, Fault::User, why))
}

/// The secret that parameters name.
///
/// # Errors
/// `NeedsKey`: they name none. It cannot be read.
pub(super) fn of(params: &Params) -> Result<Zeroizing<Vec<u8>>> {
    check_named(params)?;
    let is_base64 = values::choice(params, "key-format", &["raw", "base64"])? == Some(1);
    let named = ["passphrase", "key-file", "key-serial"].map(|key| params.get(key));
    let found = match named {
        [None, None, None] => {
            let why =
                "there is no --object secret here; passphrase=+FILE or key-file=FILE names it";
            return Err(values::wrong("key-secret", why));
        }
        [Some(word), None, None] if !word.starts_with(['+', '-']) => {
            let why = "the process list would show it: name it by +FILE, -FD, -env:NAME, \
                       -key:SERIAL, or - to be asked";
            return Err(values::wrong("passphrase", why));
        }
        [Some(word), None, None] => {
            let text = secret::named(word, "passphrase")?;
            Zeroizing::new(text.as_bytes().to_vec())
        }
        [None, Some(path), None] => secret::of_file(path, "key-file")?,
        [None, None, Some(number)] => secret::of_key(number, "key-serial")?,
        _ => {
            return Err(Error::invalid("give only one of passphrase=, key-file= and key-serial="));
        }
    };
    let found = if is_base64 { decoded(&found)? } else { found };
    if found.is_empty() {
        return Err(Error::invalid("the passphrase or key is empty"));
    }
    Ok(found)
}

/// Base64, with line ends anywhere.
fn decoded(text: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
    // Room for all of it at once: what is left behind by a vector that grows is not zeroed.
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len()));
    bytes.extend(text.iter().filter(|byte| !byte.is_ascii_whitespace()));
    let len = Base64::decode_in_place(&mut bytes).map(<[u8]>::len);
    let len = len.map_err(|_| values::wrong("key-format", "it is not base64"))?;
    bytes.truncate(len);
    Ok(bytes)
}
