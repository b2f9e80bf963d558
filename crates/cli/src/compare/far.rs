//! A disk on another machine, of which only digests come here: `ssh` starts this program there,
//! which digests the disk, and prints a manifest.

use std::fs::File;
use std::io::BufReader;
use std::process::ExitStatus;

use clap::ArgMatches;
use device::text;
use programs::{Program, Running, StandardStreams};
use rustix::process::Signal;
use transfer::digest::DigestStep;
use transfer::{DigestKind, ManifestSteps};

use super::{NOT_OPEN, NOT_READ};
use crate::failure::Failure;
use crate::image;

/// What its name begins with.
const SCHEME: &str = "ssh://";
/// The environment variable that names another program than ssh, with its options, as a shell
/// reads them.
const SSH: &str = "DISKFERRY_SSH";
/// The variable of the script that has a number.
const SIZE: &str = "DISKFERRY_SIZE";
/// Exit statuses of the shell there, where it did not find the program, and of ssh.
const NOT_FOUND: i32 = 127;
const NO_WAY: i32 = 255;

/// A disk there that is named.
#[derive(Debug)]
pub(super) struct FarDisk {
    /// As the user named it.
    pub(super) name: String,
    program: Program,
}

/// One that is being digested there.
pub(super) struct FarDigests<'a> {
    disk: &'a FarDisk,
    running: Running,
    pub(super) steps: ManifestSteps<BufReader<File>>,
    /// Its bytes.
    pub(super) size: u64,
    ended: bool,
}

impl FarDisk {
    /// The disk, if `name` is of one there.
    pub(super) fn named(name: &str) -> Option<&str> {
        name.get(..SCHEME.len()).filter(|scheme| scheme.eq_ignore_ascii_case(SCHEME))?;
        name.get(SCHEME.len()..)
    }

    /// Reads what is behind the scheme.
    pub(super) fn of(matches: &ArgMatches, rest: &str, format: &str) -> Result<Self, Failure> {
        let name = format!("{SCHEME}{rest}");
        let wrong = |what: &str| Failure::usage(format!("{name}: {what}"));
        let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, place) = place.rsplit_once('@').map_or((None, place), |(u, p)| (Some(u), p));
        let (host, port) = host_and_port(place).ok_or_else(|| wrong("its port is not a number"))?;
        let user = user.map(|user| decoded(user).ok_or_else(|| wrong("its user is not text")));
        let user = user.transpose()?.map_or(String::new(), |user| format!("{user}@"));
        if host.is_empty() || path.is_empty() {
            return Err(wrong("write ssh://[USER@]HOST[:PORT]/PATH"));
        }
        // It would be an option of ssh.
        if host.starts_with('-') || user.starts_with('-') || user.starts_with('@') {
            return Err(wrong("this is not a valid host or user name"));
        }
        if path.contains(['?', '#']) {
            return Err(wrong("it has no parameters; in a path write %3F for ?, and %23 for #"));
        }
        let path =
            decoded(path).ok_or_else(|| wrong("its path is not text that ssh can pass on"))?;
        // A path of the home directory, so that it is neither an option nor a device there.
        let path = path.strip_prefix("~/").map_or(format!("/{path}"), |path| format!("./{path}"));
        let (before, after) = words(matches, &path, format);
        let ssh = std::env::var(SSH).unwrap_or_else(|_| "ssh".to_owned());
        // Whatever becomes of this process: it can only give a number.
        let script = format!(
            "case ${SIZE} in ''|*[!0-9]*) exit 2;; esac; before=$1 after=$2; shift 2; \
             exec {ssh} \"$@\" \"$before ${SIZE} $after\""
        );
        let mut program = Program::script(&script, &[SIZE]);
        program.words.extend(["diskferry".to_owned(), before, after]);
        program.words.extend(port.map(|port| format!("-p{port}")));
        program.words.push(format!("{user}{host}"));
        Ok(Self { name, program })
    }

    /// What is started for it.
    pub(super) fn program(&self) -> &Program {
        &self.program
    }

    /// Begins: waits until the size of the disk is known. A shorter one is digested as one of
    /// `size` bytes.
    pub(super) fn start(&self, size: u64) -> Result<FarDigests<'_>, Failure> {
        let failed = |e| Failure::new(format!("{}: start ssh: {e}", self.name)).with_code(NOT_OPEN);
        let (output, printed) = std::io::pipe().map_err(failed)?;
        let input = Some(programs::nothing().map_err(failed)?);
        let streams = StandardStreams { input, output: Some(printed.into()) };
        let size = size.to_string();
        let running = programs::start(&self.program, &[(SIZE, &size)], streams).map_err(failed)?;
        let output = File::from(std::os::fd::OwnedFd::from(output));
        let steps = match ManifestSteps::begin(BufReader::new(output)) {
            Ok(steps) => steps,
            Err(e) => return Err(self.ended(&running, &e, NOT_OPEN)),
        };
        let Some(size) = steps.disk() else {
            let what = "the program there is too old: it does not print the size of a disk";
            return Err(Failure::new(format!("{}: {what}", self.name)).with_code(NOT_OPEN));
        };
        Ok(FarDigests { disk: self, running, steps, size, ended: false })
    }

    /// Why there is no more, with the reason of the program there, which is on standard error.
    fn ended(&self, running: &Running, e: &device::Error, code: u8) -> Failure {
        let status = running.wait().ok().filter(|status| !status.success());
        let what = match status.and_then(|status| ExitStatus::code(&status)) {
            Some(NOT_FOUND) => {
                "the shell there did not find the program; --remote-program names it".to_owned()
            }
            Some(NO_WAY) => "ssh could not connect, or lost the connection".to_owned(),
            Some(status) => format!("the program there ended with status {status}"),
            None => e.to_string(),
        };
        Failure::new(format!("{}: {what}", self.name)).with_code(code)
    }
}

impl FarDigests<'_> {
    pub(super) fn kind(&self) -> DigestKind {
        self.steps.kind()
    }

    /// The next step.
    pub(super) fn step(&mut self) -> Result<DigestStep, Failure> {
        let step = self.steps.step();
        self.ended |= !matches!(step, Ok(DigestStep::Stretch { .. }));
        step.map_err(|e| self.disk.ended(&self.running, &e, NOT_READ))
    }
}

impl Drop for FarDigests<'_> {
    /// No more is wanted. There it ends at the next line that nobody takes.
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.running.signal(Signal::TERM);
        }
        let _ = self.running.wait();
    }
}

/// The command for the shell there, before and after the size.
fn words(matches: &ArgMatches, path: &str, format: &str) -> (String, String) {
    let program = image::word(matches, "remote-program").unwrap_or("diskferry");
    let kind = DigestKind::quick();
    let mut before = format!("{} digest -q -a {kind} --manifest -", quoted(program));
    if let Some(format) = image::word(matches, format) {
        before.push_str(&format!(" -f {}", quoted(format)));
    }
    if matches.get_flag("force-share") {
        before.push_str(" -U");
    }
    before.push_str(" --pad-to");
    (before, format!("-- {}", quoted(path)))
}

/// A word for any shell: in single quotes, which all of them know. A backslash is outside of them,
/// since in fish's it is not itself.
fn quoted(word: &str) -> String {
    let mut quoted = String::from("'");
    for c in word.chars() {
        match c {
            '\\' => quoted.push_str("'\\\\'"),
            '\'' => quoted.push_str("'\\''"),
            c => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}

/// `None`: the port is none.
fn host_and_port(place: &str) -> Option<(&str, Option<u16>)> {
    if let Some((host, rest)) = place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(port.parse().ok()?))),
            None => rest.is_empty().then_some((host, None)),
        };
    }
    match place.split_once(':') {
        Some((host, port)) => Some((host, Some(port.parse().ok()?))),
        None => Some((place, None)),
    }
}

/// The text that a part of a URI stands for; `None`: it is none, or has a letter that ends a line
/// or a text.
fn decoded(part: &str) -> Option<String> {
    let part = text::path(part).into_os_string().into_string().ok()?;
    let (bytes, is_sound) = wire::percent_decode(&part);
    let text = String::from_utf8(bytes).ok().filter(|_| is_sound)?;
    (!text.chars().any(char::is_control)).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_word_stays_one_in_a_shell() {
        for word in ["x", "", "a b", "it's", "$(id)", "`id`;|&", "\\", "a\\'b", "''", "-x", "*!~#"]
        {
            let script = format!("printf %s {}", quoted(word));
            let printed = Command::new("sh").args(["-c", &script]).output().unwrap().stdout;
            assert_eq!(String::from_utf8(printed).unwrap(), word);
        }
    }

    #[test]
    fn hosts_and_ports_are_told_apart() {
        for (place, wanted) in [
            ("h", Some(("h", None))),
            ("h:22", Some(("h", Some(22)))),
            ("[::1]", Some(("::1", None))),
            ("[::1]:22", Some(("::1", Some(22)))),
            ("h:", None),
            ("h:x", None),
            ("[::1]x", None),
        ] {
            assert_eq!(host_and_port(place), wanted, "{place}");
        }
    }
}
