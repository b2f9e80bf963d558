//! Secrets as parameters name them: as they are, in a file (`+FILE`), in a descriptor that we were
//! given (`-FD`), in a variable of the environment (`-env:NAME`), or typed (`-`).

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::PathBuf;

use device::{Error, Params, Result, secret, text, values};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use super::credentials::Secret;

/// Bytes of a secret, at most.
const LONGEST: u64 = 64 << 10;
/// The terminal of the user.
const TERMINAL: &str = "/dev/tty";

/// The value of `key` as a secret. Errors do not show it.
///
/// # Errors
/// As of [`named`].
pub(super) fn secret(params: &Params, key: &str) -> Result<Option<Secret>> {
    params.get(key).map(|word| named(word, key)).transpose()
}

/// The secret that a word is, or names, as the value of `key`.
///
/// # Errors
/// The file, descriptor or variable cannot be read, or there is no terminal.
pub(super) fn named(word: &str, key: &str) -> Result<Secret> {
    if let Some(value) = secret::of_environment(word) {
        return value.map(Secret);
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
        (None, None) => word.to_owned(),
    };
    Ok(Secret(text))
}

/// The file that is opened for a word, if there is one.
pub(super) fn file(word: &str) -> Option<PathBuf> {
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
fn contents(file: File, key: &str) -> Result<String> {
    let mut text = String::new();
    let read = file.take(LONGEST + 1).read_to_string(&mut text);
    read.map_err(|e| Error::os(format!("read {key}="), e))?;
    if text.len() as u64 > LONGEST {
        return Err(values::wrong(key, "the file is longer than 64 KiB"));
    }
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// A line from the user's terminal, which does not show it.
fn typed(key: &str) -> Result<String> {
    let terminal = File::options().read(true).write(true).open(TERMINAL);
    let terminal = terminal.map_err(|e| Error::os(format!("ask for {key}= at a terminal"), e))?;
    let failed = |e| Error::os(format!("ask for {key}="), e);
    let mut line = String::new();
    (&terminal).write_all(format!("{key}: ").as_bytes()).map_err(failed)?;
    let quiet = Quiet::new(terminal.as_fd());
    let read = BufReader::new((&terminal).take(LONGEST)).read_line(&mut line);
    drop(quiet);
    (&terminal).write_all(b"\n").map_err(failed)?;
    read.map_err(failed)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
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
        let params = Params::parse([format!("password={value}").as_str()]).unwrap();
        secret(&params, "password").map(|secret| secret.unwrap().0)
    }

    #[test]
    fn what_is_opened_for_a_secret_is_told_before() {
        let found = ["+/a", "-7", "-", "a", "-env:A", ""]
            .map(|word| file(word).map(|path| path.display().to_string()).unwrap_or_default());
        assert_eq!(found, ["/a", "/proc/self/fd/7", "/dev/tty", "", "", ""]);
    }

    #[test]
    fn a_secret_comes_as_it_is_from_a_file_or_from_a_descriptor() {
        assert_eq!(read("pass word").unwrap(), "pass word");
        assert_eq!(read("").unwrap(), "");
        let path = std::env::temp_dir().join(format!("diskferry-secret-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        file.write_all(b"from a file\nmore\n").unwrap();
        assert_eq!(read(&format!("+{}", path.display())).unwrap(), "from a file");
        let file = File::open(&path).unwrap();
        assert_eq!(read(&format!("-{}", file.as_raw_fd())).unwrap(), "from a file");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read("-env:PATH").unwrap(), std::env::var("PATH").unwrap());
        for wrong in ["+/nonexistent", "-x", "-0", "-99999999999", "-env:NO_SUCH_VARIABLE"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
