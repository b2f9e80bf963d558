//! Colours of what `info` and `map` print: nbdinfo's, where they are asked for, and at a terminal
//! under its name.

use std::io::{self, IsTerminal, Write};

use clap::ArgMatches;

use crate::names::is_nbdinfo;

/// Whether lines are to have colours.
pub(crate) fn are_wanted(matches: &ArgMatches) -> bool {
    // Another verb may not have these options.
    let asked = |flag: &str| matches.try_get_one(flag).ok().flatten() == Some(&true);
    if asked("json") || asked("no-color") {
        return false;
    }
    let is_seen = || is_nbdinfo() && io::stdout().is_terminal();
    asked("color") || is_seen() && std::env::var_os("NO_COLOR").is_none()
}

/// Prints with `print`, each line in its colour if `wanted`.
pub(crate) fn print<T, E: From<io::Error>>(
    wanted: bool,
    out: &mut dyn Write,
    print: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    if !wanted {
        return print(out);
    }
    let mut lines = Lines { out, line: Vec::new() };
    let printed = print(&mut lines)?;
    lines.end()?;
    Ok(printed)
}

/// Collects a line, and writes it in its colour.
struct Lines<'a> {
    out: &'a mut dyn Write,
    line: Vec<u8>,
}

impl Lines<'_> {
    fn end(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        match color(&line) {
            Some(code) => {
                write!(self.out, "\x1b[{code}m")?;
                self.out.write_all(&line)?;
                self.out.write_all(b"\x1b[0m")
            }
            None => self.out.write_all(&line),
        }
    }
}

impl Write for Lines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(rest) => {
                    self.line.extend(rest);
                    self.end()?;
                    self.out.write_all(b"\n")?;
                }
                None => self.line.extend(piece),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The number of a line's colour: bold what is looked for first, green what it can, grey the rest
/// of what few ask for.
fn color(line: &[u8]) -> Option<&'static str> {
    let begins = |words: &[&str]| words.iter().any(|word| line.starts_with(word.as_bytes()));
    if begins(&["export=", "disk=", "\texport-size:", "\tcontent:"]) || line.ends_with(b" data") {
        return Some("1");
    }
    if begins(&["\tcan_"]) && line.ends_with(b": true") {
        return Some("32");
    }
    begins(&["protocol:", "device:", "\tcontexts:", "\t\t", "\tis_rotational:"]).then_some("90")
}
