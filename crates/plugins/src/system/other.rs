//! Systems that are not Linux: macOS.

use std::fs::{File, remove_file};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where errno of this thread is.
pub(crate) use libc::__error as errno_location;

/// Where nbdkit puts its plugins if it is not told another place.
pub(crate) fn directory() -> PathBuf {
    "/usr/local/lib/nbdkit/plugins".into()
}

/// A file that was removed.
pub(crate) fn scratch() -> io::Result<File> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".diskferry-printed-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        match File::options().read(true).write(true).create_new(true).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                let made = made?;
                remove_file(&path)?;
                return Ok(made);
            }
        }
    }
}

/// Opens a file that is open, by its number: the same description, so where it was read to is where
/// it is read on from.
pub(crate) fn open_again(number: i32) -> io::Result<File> {
    File::open(format!("/dev/fd/{number}"))
}

/// The address of a Unix socket without a name, as in `struct sockaddr`: it begins with its length.
pub(crate) fn unnamed_socket() -> Vec<u8> {
    vec![2, u8::try_from(libc::AF_UNIX).unwrap_or_default()]
}
