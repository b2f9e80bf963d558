//! Secrets that are named on a command line and not written there, where a list of processes would
//! show them: in a file (`+FILE`), in a descriptor that we were given (`-FD`), in a variable of the
//! environment (`-env:NAME`), in a keyring of the kernel (`-key:SERIAL`), or typed (`-`). Those
//! that are read are zeroed when they are dropped.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::PathBuf;

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::{
    Error, ErrorKind, Fault, Param, Params, Reach, Result, Serial, Use, keyring, text, values,
};

/// How tables mark a parameter whose value names a secret, as [`named`] reads it.
pub const NAMED: &str = "SECRET";
/// How they mark one whose value is a file that is a secret as a whole, as [`of_file`] reads it.
pub const KEY_FILE: &str = "KEY-FILE";
/// How they mark one whose value is the serial number of a key, which [`of_key`] reads.
pub const KEY_SERIAL: &str = "KEY-SERIAL";

/// The prefix of a variable's name. In parameters for secrets, `-` was only followed by the number
/// of a descriptor, so no old value changes its meaning.
const ENVIRONMENT: &str = "-env:";
/// The prefix of the serial number of a key.
const KEYRING: &str = "-key:";
/// Bytes of a secret, at most.
pub(crate) const LONGEST: usize = 64 << 10;
/// Bytes of a file that is one as a whole, at most: what cryptsetup takes.
const LONGEST_FILE: u64 = 8 << 20;
/// The terminal of the user.
const TERMINAL: &str = "/dev/tty";

/// The value of the variable of the environment that the word names; `None` if it names none.
/// Errors show its name alone.
#[must_use]
pub fn of_environment(word: &str) -> Option<Result<String>> {
    let name = word.strip_prefix(ENVIRONMENT)?;
    let wrong = |why: &str| {
        let action = format!("read a secret from the environment: {why}");
        Error::new(ErrorKind::NotFound, Fault::User, action).on(name)
    };
    Some(match std::env::var(name) {
        Ok(value) => Ok(value),
        Err(std::env::VarError::NotPresent) => Err(wrong("there is no such variable")),
        Err(std::env::VarError::NotUnicode(_)) => Err(wrong("its value is not text")),
    })
}

/// The secret that a word is, or names, as the value of `key`.
///
/// # Errors
/// The file, descriptor, variable or key cannot be read, or there is no terminal.
pub fn named(word: &str, key: &str) -> Result<Zeroizing<String>> {
    if let Some(value) = of_environment(word) {
        return value.map(Zeroizing::new);
    }
    if let Some(number) = word.strip_prefix(KEYRING) {
        let bytes = of_key(number, key)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| values::wrong(key, "it is not text"))?;
        return Ok(first_line(text));
    }
    let text = match (word.strip_prefix('+'), word.strip_prefix('-')) {
        (Some(path), _) => {
            let failed = |e| Error::os(format!("read {key}= from a file"), e).on(path);
            contents(File::open(path).map_err(failed)?, key)?
        }
        (None, Some("")) => typed(key)?,
        (None, Some(number)) => {
            let number = number.parse::<RawFd>().ok().filter(|fd| *fd > 2);
            let fd = number.ok_or_else(|| {
                let why = "- must be followed by the number of a descriptor, 3 or more";
                values::wrong(key, why)
            })?;
            // By its path in /proc, and so an opening of our own: the owner keeps the descriptor.
            let failed = |e| Error::os(format!("read {key}= from a descriptor"), e);
            contents(File::open(descriptor(fd)).map_err(failed)?, key)?
        }
        (None, None) => Zeroizing::new(word.to_owned()),
    };
    Ok(text)
}

/// A file that is a secret as a whole, the value of `key`.
///
/// # Errors
/// It cannot be read, or is longer than 8 MiB.
pub fn of_file(path: &str, key: &str) -> Result<Zeroizing<Vec<u8>>> {
    let failed = |e| Error::os(format!("read {key}= from a file"), e).on(path);
    let file = File::open(text::path(path)).map_err(failed)?;
    // Room for all of it at once: what is left behind by a vector that grows is not zeroed. A pipe
    // has no length.
    let len = file.metadata().map_err(failed)?.len().clamp(LONGEST as u64, LONGEST_FILE);
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(len).unwrap_or(0) + 1));
    file.take(LONGEST_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(values::wrong(key, "the file is longer than 8 MiB"));
    }
    Ok(bytes)
}

/// A key of the kernel's keyrings as a whole, the value of `key`: its serial number, decimal or
/// hexadecimal.
///
/// # Errors
/// It cannot be read, or is longer than 64 KiB.
pub fn of_key(number: &str, key: &str) -> Result<Zeroizing<Vec<u8>>> {
    let serial = serial(number).ok_or_else(|| {
        values::not_a(key, number, "the serial number of a key, as keyctl shows it")
    })?;
    let bytes = keyring::read(serial).map_err(|e| unread(e, key, number))?;
    if bytes.len() > LONGEST {
        return Err(values::wrong(key, "the key is longer than 64 KiB"));
    }
    Ok(bytes)
}

/// Why a key could not be read.
fn unread(error: std::io::Error, key: &str, number: &str) -> Error {
    let action = format!("read {key}= from the kernel's keyring");
    let Some((kind, why)) = keyring::why(&error) else {
        return Error::os(action, error).on(number);
    };
    Error::new(kind, Fault::User, format!("{action}: {why}")).on(number)
}

/// The number of a key; `None`: it is none.
fn serial(number: &str) -> Option<Serial> {
    let found = match number.strip_prefix("0x") {
        Some(digits) => Serial::from_str_radix(digits, 16),
        None => number.parse(),
    };
    found.ok().filter(|serial| *serial > 0)
}

/// The files and keys of the secrets among `given`, by how the parameters are declared. A terminal
/// is also written to.
#[must_use]
pub fn reaches<'a>(given: &Params, declared: impl IntoIterator<Item = &'a Param>) -> Reach {
    let is_secret = |param: &&Param| matches!(param.value, NAMED | KEY_FILE | KEY_SERIAL);
    let declared: Vec<_> = declared.into_iter().filter(is_secret).collect();
    let reached = given.iter().filter_map(|(key, word)| {
        let param = declared.iter().find(|param| param.key == key)?;
        Some(match param.value {
            KEY_FILE => Reach::path(text::path(word), Use::Read),
            KEY_SERIAL => Reach { keys: serial(word).into_iter().collect(), ..Reach::default() },
            _ => reach(word),
        })
    });
    reached.fold(Reach::default(), Reach::and)
}

/// What a word for a secret reaches. A terminal is also written to.
#[must_use]
pub fn reach(word: &str) -> Reach {
    let path = file(word).map(|path| {
        let how = if path.starts_with(TERMINAL) { Use::Write } else { Use::Read };
        Reach::path(path, how)
    });
    let keys = word.strip_prefix(KEYRING).and_then(serial).into_iter().collect();
    path.unwrap_or_default().and(Reach { keys, ..Reach::default() })
}

/// The file that is opened for a word, if there is one.
fn file(word: &str) -> Option<PathBuf> {
    let number = || word.strip_prefix('-')?.parse().ok().map(descriptor);
    match word {
        "-" => Some(TERMINAL.into()),
        word => word.strip_prefix('+').map(text::path).or_else(number),
    }
}

fn descriptor(number: RawFd) -> PathBuf {
    format!("/proc/self/fd/{number}").into()
}

/// The first line of a file.
fn contents(file: File, key: &str) -> Result<Zeroizing<String>> {
    // Room for all of it at once, as in `of_file`.
    let room = LONGEST + 1;
    let mut text = Zeroizing::new(String::with_capacity(room));
    let read = file.take(room as u64).read_to_string(&mut text);
    read.map_err(|e| Error::os(format!("read {key}="), e))?;
    if text.len() > LONGEST {
        return Err(values::wrong(key, "the file is longer than 64 KiB"));
    }
    Ok(first_line(&text))
}

fn first_line(text: &str) -> Zeroizing<String> {
    Zeroizing::new(text.lines().next().unwrap_or_default().to_owned())
}

/// A line from the user's terminal, which does not show it.
fn typed(key: &str) -> Result<Zeroizing<String>> {
    let terminal = File::options().read(true).write(true).open(TERMINAL);
    let terminal = terminal.map_err(|e| Error::os(format!("ask for {key}= at a terminal"), e))?;
    let failed = |e| Error::os(format!("ask for {key}="), e);
    (&terminal).write_all(format!("{key}: ").as_bytes()).map_err(failed)?;
    let quiet = Quiet::new(terminal.as_fd());
    let line = line_of(&terminal);
    drop(quiet);
    (&terminal).write_all(b"\n").map_err(failed)?;
    let line = line.map_err(failed)?;
    let text = std::str::from_utf8(&line).map_err(|_| values::wrong(key, "it is not text"))?;
    Ok(Zeroizing::new(text.trim_end_matches(['\r', '\n']).to_owned()))
}

/// What is read up to the end of a line, through no buffer that would keep it.
fn line_of(mut terminal: &File) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(vec![0; LONGEST]);
    let mut len = 0;
    while let Some(rest) = line.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match terminal.read(rest) {
            Ok(0) => break,
            Ok(count) if rest.get(count - 1) == Some(&b'\n') => {
                len += count;
                break;
            }
            Ok(count) => len += count,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    line.truncate(len);
    Ok(line)
}

/// A terminal without echo, until dropped.
struct Quiet<'a>(BorrowedFd<'a>, Option<rustix::termios::Termios>);

impl<'a> Quiet<'a> {
    fn new(terminal: BorrowedFd<'a>) -> Self {
        let before = tcgetattr(terminal).ok();
        if let Some(mut now) = before.clone() {
            now.local_modes.remove(LocalModes::ECHO);
            let _ = tcsetattr(terminal, OptionalActions::Now, &now);
        }
        Self(terminal, before)
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        if let Some(before) = &self.1 {
            let _ = tcsetattr(self.0, OptionalActions::Now, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn read(value: &str) -> Result<String> {
        named(value, "password").map(|secret| secret.to_string())
    }

    #[test]
    fn what_is_opened_for_a_secret_is_told_before() {
        let found = ["+/a", "-7", "-", "a", "-env:A", ""]
            .map(|word| file(word).map(|path| path.display().to_string()).unwrap_or_default());
        assert_eq!(found, ["/a", "/proc/self/fd/7", "/dev/tty", "", "", ""]);
    }

    #[test]
    fn what_parameters_reach_is_what_they_are_declared_to_name() {
        let declared = [
            crate::param("a", NAMED, ""),
            crate::param("b", KEY_FILE, ""),
            crate::param("c", "FILE", ""),
            crate::param("d", KEY_SERIAL, ""),
        ];
        let reach = |words: &[&str]| {
            let given = Params::parse(words.iter().copied()).unwrap();
            let found = reaches(&given, &declared);
            (found.reads.len(), found.writes.len(), found.keys)
        };
        assert_eq!(reach(&["a=+/x", "b=/y", "c=/z"]), (2, 0, vec![]));
        assert_eq!(reach(&["a=-", "b=+y"]), (1, 1, vec![]));
        assert_eq!(reach(&["a=-env:X", "d=0"]), (0, 0, vec![]));
        assert_eq!(reach(&["a=-key:7", "d=0x1f", "c=8"]), (0, 0, vec![7, 31]));
    }

    #[test]
    fn a_secret_comes_as_it_is_from_a_file_or_from_a_descriptor() {
        assert_eq!(read("pass word").unwrap(), "pass word");
        assert_eq!(read("").unwrap(), "");
        let path = std::env::temp_dir().join(format!("diskferry-secret-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        file.write_all(b"from a file\nmore\n").unwrap();
        assert_eq!(read(&format!("+{}", path.display())).unwrap(), "from a file");
        let path_text = path.to_str().unwrap();
        assert_eq!(**of_file(path_text, "key").unwrap(), *b"from a file\nmore\n");
        let file = File::open(&path).unwrap();
        assert_eq!(read(&format!("-{}", file.as_raw_fd())).unwrap(), "from a file");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read("-env:PATH").unwrap(), std::env::var("PATH").unwrap());
        for wrong in [
            "+/nonexistent",
            "-x",
            "-0",
            "-99999999999",
            "-env:NO_SUCH_VARIABLE",
            "-key:",
            "-key:x",
            "-key:0",
            "-key:-3",
            "-key:0x80000000",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_variable_is_named_and_anything_else_is_not() {
        let path = std::env::var("PATH").unwrap();
        assert_eq!(of_environment("-env:PATH").unwrap().unwrap(), path);
        for other in ["PATH", "-3", "-", "env:PATH", "+env:PATH", ""] {
            assert!(of_environment(other).is_none(), "{other}");
        }
        for wrong in ["-env:", "-env:NO_SUCH_VARIABLE", "-env:A=B"] {
            assert!(of_environment(wrong).unwrap().is_err(), "{wrong}");
        }
    }
}
