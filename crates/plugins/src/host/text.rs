//! Texts that plugins get or want to keep: paths, passwords, names.
#![expect(unsafe_code, reason = "the interface is C's")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use crate::abi::set_errno;
use crate::call;
use crate::numbers;
use crate::system;

super::functions!(
    nbdkit_absolute_path,
    nbdkit_realpath,
    nbdkit_stdio_safe,
    nbdkit_read_password,
    nbdkit_strdup_intern,
    nbdkit_strndup_intern,
    diskferry_plugin_keep,
    nbdkit_name,
    nbdkit_timestamp,
);

/// Bytes of a password at most.
const LONGEST: u64 = 64 << 10;

/// The bytes of a text; `None`: there is none.
fn bytes(given: *const c_char) -> Option<Vec<u8>> {
    // SAFETY: by the plugin's promise it is null or a text that lives until we return.
    (!given.is_null()).then(|| unsafe { CStr::from_ptr(given) }.to_bytes().to_vec())
}

/// A text that the plugin frees by free(3).
fn own(text: Vec<u8>) -> *mut c_char {
    let Ok(text) = CString::new(text) else { return null_mut() };
    // SAFETY: a text that lives until it was copied.
    unsafe { libc::strdup(text.as_ptr()) }
}

fn path(given: *const c_char, why: &str) -> Option<PathBuf> {
    let path = bytes(given).filter(|path| !path.is_empty());
    if path.is_none() {
        call::say(why);
    }
    path.map(|path| PathBuf::from(std::ffi::OsString::from_vec(path)))
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_absolute_path(given: *const c_char) -> *mut c_char {
    let why = "cannot convert null or empty path to an absolute path";
    let Some(path) = path(given, why) else { return null_mut() };
    match std::env::current_dir() {
        // The path as written: no part of it need exist.
        Ok(directory) => own(directory.join(path).into_os_string().into_vec()),
        Err(_) if path.is_absolute() => own(path.into_os_string().into_vec()),
        Err(e) => {
            call::say(&format!("get_current_dir_name: {e}"));
            null_mut()
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_realpath(given: *const c_char) -> *mut c_char {
    let Some(path) = path(given, "cannot resolve a null or empty path") else {
        return null_mut();
    };
    match path.canonicalize() {
        Ok(path) => own(path.into_os_string().into_vec()),
        Err(e) => {
            call::say(&format!("realpath: {}: {e}", path.display()));
            set_errno(e.raw_os_error().unwrap_or(libc::EIO));
            null_mut()
        }
    }
}

/// Whether the plugin may read standard input while it gets its parameters.
#[unsafe(no_mangle)]
extern "C" fn nbdkit_stdio_safe() -> c_int {
    c_int::from(crate::running::may_read_input())
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_read_password(given: *const c_char, to: *mut *mut c_char) -> c_int {
    let read = match bytes(given).unwrap_or_default().as_slice() {
        b"-" => asked(),
        [b'-', number @ ..] => from_descriptor(number),
        [b'+', file @ ..] => {
            let file = Path::new(std::ffi::OsStr::from_bytes(file));
            let opened = File::open(file).map_err(|e| format!("open {}: {e}", file.display()));
            opened.and_then(first_line)
        }
        password => Ok(password.to_vec()),
    };
    let read = read.map_err(|why| call::say(&why)).ok();
    if to.is_null() {
        return -1;
    }
    let password = read.map_or(null_mut(), own);
    // SAFETY: by the plugin's promise there is room for it.
    unsafe { to.write(password) }
    if password.is_null() { -1 } else { 0 }
}

fn from_descriptor(number: &[u8]) -> Result<Vec<u8>, String> {
    let text = String::from_utf8_lossy(number);
    let number = numbers::fitting::<c_int>("password file descriptor", &text, true)?;
    if number <= libc::STDERR_FILENO {
        return Err("cannot use password -FD for stdin/stdout/stderr".to_owned());
    }
    let file = system::open_again(number);
    first_line(file.map_err(|e| format!("could not read password from {number}: {e}"))?)
}

fn first_line(file: File) -> Result<Vec<u8>, String> {
    let mut line = Vec::new();
    let read = BufReader::new(file.take(LONGEST)).read_until(b'\n', &mut line);
    read.map_err(|e| format!("could not read password: {e}"))?;
    line.pop_if(|last| *last == b'\n');
    Ok(line)
}

/// Asks the user, without echo.
fn asked() -> Result<Vec<u8>, String> {
    if !crate::running::may_read_input() {
        return Err("stdin is not available for reading password".to_owned());
    }
    let terminal = File::options().read(true).write(true).open("/dev/tty");
    let mut terminal = terminal.map_err(|e| format!("cannot read password interactively: {e}"))?;
    // A prompt that cannot be shown stops nothing.
    let _ = terminal.write_all(b"password: ");
    let before = attributes(&terminal);
    let quiet =
        before.map(|before| libc::termios { c_lflag: before.c_lflag & !libc::ECHO, ..before });
    set_attributes(&terminal, quiet);
    let line = terminal.try_clone().map_err(|e| e.to_string()).and_then(first_line);
    set_attributes(&terminal, before);
    let _ = terminal.write_all(b"\n");
    line
}

fn attributes(terminal: &File) -> Option<libc::termios> {
    // SAFETY: all its fields are numbers.
    let mut now: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: an open file, and room for the answer.
    (unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut now) } == 0).then_some(now)
}

fn set_attributes(terminal: &File, wanted: Option<libc::termios>) {
    if let Some(wanted) = wanted {
        // SAFETY: an open file, and attributes that it had, but for one.
        unsafe { libc::tcsetattr(terminal.as_raw_fd(), libc::TCSAFLUSH, &wanted) };
    }
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_strdup_intern(given: *const c_char) -> *const c_char {
    nbdkit_strndup_intern(given, usize::MAX)
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_strndup_intern(given: *const c_char, most: usize) -> *const c_char {
    if given.is_null() {
        call::say("nbdkit_strdup_intern: no string given");
        set_errno(libc::EINVAL);
        return null_mut();
    }
    // SAFETY: by the plugin's promise there are `most` bytes, or a 0 before that.
    let len = unsafe { libc::strnlen(given, most) };
    // SAFETY: so many bytes are there.
    let bytes = unsafe { std::slice::from_raw_parts(given.cast::<u8>(), len) };
    CString::new(bytes).map_or(null_mut(), |text| call::keep(text).cast_mut())
}

/// Keeps a copy of a text from our own C code, and frees the original.
#[unsafe(no_mangle)]
extern "C" fn diskferry_plugin_keep(text: *mut c_char) -> *const c_char {
    let kept = nbdkit_strdup_intern(text);
    // SAFETY: it was made by vasprintf(3), and is only here.
    unsafe { libc::free(text.cast()) };
    kept
}

/// The name of the program.
#[unsafe(no_mangle)]
extern "C" fn nbdkit_name() -> *const c_char {
    c"diskferry".as_ptr()
}

thread_local! {
    static NOW: std::cell::RefCell<CString> = std::cell::RefCell::default();
}

/// The time, for logs; the text is valid until this thread's next call.
#[unsafe(no_mangle)]
extern "C" fn nbdkit_timestamp() -> *const c_char {
    let now = CString::new(device::timestamp(std::time::SystemTime::now())).unwrap_or_default();
    let at = NOW.try_with(|kept| {
        let mut kept = kept.try_borrow_mut().ok()?;
        *kept = now;
        Some(kept.as_ptr())
    });
    at.ok().flatten().unwrap_or(c"".as_ptr())
}
