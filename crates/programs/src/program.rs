//! A named program, and its settings.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// A program that may be started.
#[derive(Clone, Eq, PartialEq)]
pub struct Program {
    /// The program, looked for in PATH, and its arguments.
    pub words: Vec<String>,
    /// The environment variables that it gets.
    pub variables: Vec<String>,
    /// Whether it is in a process group of its own, and hears no interrupt of the terminal.
    pub is_apart: bool,
}

/// Its standard input and output; by default those of this process. Standard error is always this
/// process's.
#[derive(Debug, Default)]
pub struct StandardStreams {
    /// Its standard input.
    pub input: Option<OwnedFd>,
    /// Its standard output.
    pub output: Option<OwnedFd>,
}

/// `/dev/null`: empty to read, and accepts everything.
pub fn nothing() -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open("/dev/null")?.into())
}

/// Arguments may be secret.
impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({:?})", self.words.first())
    }
}

impl Program {
    /// A script of the shell.
    #[must_use]
    pub fn script(text: &str, variables: &[&str]) -> Self {
        Self {
            words: ["/bin/sh", "-c", text].map(str::to_owned).to_vec(),
            variables: variables.iter().map(|name| (*name).to_owned()).collect(),
            is_apart: false,
        }
    }

    /// The value of each of the variables.
    pub(crate) fn in_order<'a>(
        &self,
        values: &[(&str, &'a str)],
    ) -> io::Result<Vec<Option<&'a str>>> {
        let unnamed = values.iter().find(|(name, _)| !self.variables.iter().any(|own| own == name));
        if let Some((name, _)) = unnamed {
            let what = format!("the variable {name} was not named; a defect");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let value =
            |own: &String| values.iter().find(|(name, _)| own == name).map(|(_, value)| *value);
        Ok(self.variables.iter().map(value).collect())
    }

    /// How it is started, with the values in the order of its variables.
    pub(crate) fn command(&self, values: &[Option<&str>], streams: StandardStreams) -> Command {
        let mut words = self.words.iter();
        let mut command = Command::new(words.next().map_or("", String::as_str));
        command.args(words);
        for (name, value) in self.variables.iter().zip(values) {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(input) = streams.input {
            command.stdin(Stdio::from(input));
        }
        if let Some(output) = streams.output {
            command.stdout(Stdio::from(output));
        }
        if self.is_apart {
            command.process_group(0);
        }
        command
    }
}
