//! Keys of the kernel's keyrings, by their serial numbers (keyctl(2)). A key is only read here:
//! none is made, changed or searched for.
//!
//! A sandboxed process may not ask for keys at all, so those that it was told to read are read
//! before ([`keep`]), and zeroed when they are dropped. Uses `unsafe` because no crate that is here
//! wraps the call, and libkeyutils would be another library for that one.
#![expect(unsafe_code, reason = "see above")]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use zeroize::Zeroizing;

use crate::ErrorKind;

/// The number that the kernel has given a key: 1 or more.
pub type Serial = i32;

/// The command of keyctl(2) that reads a key.
const READ: libc::c_int = 11;

/// What came of reading a key: its bytes, or the number of the error.
type Kept = Result<Zeroizing<Vec<u8>>, Option<i32>>;

/// Keys that were read before they are asked for.
static KEPT: Mutex<BTreeMap<Serial, Kept>> = Mutex::new(BTreeMap::new());

/// Reads these keys now, for a process that will not be allowed to. What cannot be read is told by
/// who asks for it.
pub fn keep(serials: &[Serial]) {
    for serial in serials {
        let found = call(*serial).map_err(|e| e.raw_os_error());
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(*serial, found);
    }
}

/// The bytes of a key, up to one more than `LONGEST` of them.
///
/// # Errors
/// As of keyctl(2): there is none, it has expired, we may not read it, or the kernel has no keys.
pub(crate) fn read(serial: Serial) -> io::Result<Zeroizing<Vec<u8>>> {
    match KEPT.lock().unwrap_or_else(PoisonError::into_inner).get(&serial) {
        Some(Ok(bytes)) => Ok(bytes.clone()),
        Some(Err(number)) => Err(io::Error::from_raw_os_error(number.unwrap_or(libc::EIO))),
        None => call(serial),
    }
}

/// Why a key could not be read, where more can be said than the system does.
pub(crate) fn why(error: &io::Error) -> Option<(ErrorKind, &'static str)> {
    Some(match error.raw_os_error()? {
        libc::ENOKEY => (ErrorKind::NotFound, "there is no such key"),
        libc::EKEYEXPIRED => (ErrorKind::NotFound, "it has expired"),
        libc::EKEYREVOKED => (ErrorKind::NotFound, "it was revoked"),
        libc::EACCES => (ErrorKind::PermissionDenied, "this process may not read it"),
        libc::ENOSYS => (ErrorKind::Unsupported, "this kernel has no keyrings"),
        _ => return None,
    })
}

fn call(serial: Serial) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(vec![0u8; crate::secret::LONGEST + 1]);
    // SAFETY: the kernel writes no more than `len` bytes to `bytes`, which has so many, is borrowed
    // for ourselves until the call returns, and holds bytes of any value.
    let len = unsafe {
        libc::syscall(libc::SYS_keyctl, READ, serial, bytes.as_mut_ptr(), bytes.len(), 0)
    };
    // It is that of the key, also where the key is longer than the buffer.
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    bytes.truncate(len);
    Ok(bytes)
}
