//! The examples of the documentation, and a shell in which they run: with our binary on the path,
//! as it is or always in a sandbox.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::peers::diskferry;
use crate::temp::TempDir;

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The blocks of a page: the word after the fence, and the text.
pub fn blocks(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(word), None) => open = Some((word.to_owned(), String::new())),
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some((_, text))) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    found
}

/// A shell with our binary on the path, and nbdsh's Python before others.
pub fn shell(directory: &Path, script: &str) -> Command {
    shell_with(diskferry().canonicalize().unwrap().parent().unwrap(), directory, script)
}

fn shell_with(programs: &Path, directory: &Path, script: &str) -> Command {
    let path = std::env::var("PATH").unwrap();
    let mut shell = Command::new("bash");
    shell.args(["-euc", script]).current_dir(directory);
    shell.env("PATH", format!("{}:/usr/bin:{path}", programs.display()));
    shell
}

/// A `diskferry` that does its work under `--sandbox=require`, in all verbs that have the option,
/// and counts.
#[derive(Debug)]
pub struct Confined(TempDir);

impl Default for Confined {
    fn default() -> Self {
        let temp = TempDir::new();
        let real = diskferry().canonicalize().unwrap();
        let (real, count) = (real.display(), temp.join("count"));
        let script = format!(
            "#!/bin/sh\n\
             case \"${{1-}}\" in ''|-*) exec '{real}' \"$@\" ;; esac\n\
             '{real}' \"$1\" --help 2>/dev/null </dev/null | grep -q -e '--sandbox ' || exec '{real}' \"$@\"\n\
             verb=$1; shift; echo \"$verb\" >>'{}'\n\
             exec '{real}' \"$verb\" --sandbox=require \"$@\"\n",
            count.display()
        );
        let program = temp.file("diskferry", script.as_bytes());
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Self(temp)
    }
}

impl Confined {
    /// As [`shell`], with this one.
    pub fn shell(&self, directory: &Path, script: &str) -> Command {
        shell_with(self.0.path(), directory, script)
    }

    /// How often it was run in a sandbox.
    pub fn count(&self) -> usize {
        fs::read_to_string(self.0.join("count")).map_or(0, |text| text.lines().count())
    }
}
