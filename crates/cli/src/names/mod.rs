//! The tools that people call by name. Called as one of them (by a link of that name, or as
//! `diskferry as NAME …`), the program takes its words, and its messages begin with its name.
//!
//! Each becomes the verb that does the same: a name changes words, and adds nothing that can be
//! done. What is safe under our own name is as safe under another ([docs/security.md]).

mod nbd;
mod qemu_img;
mod qemu_nbd;

pub(crate) use nbd::NBDKIT as NBDKIT_VERSION;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::failure::{self, Failure};

/// A tool by its name.
struct ToolName {
    name: &'static str,
    /// The words behind the name, in our own.
    becomes: fn(&[OsString]) -> Result<Called, Failure>,
}

/// What a command line comes to.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Called {
    /// A verb, and its words.
    Verb(Vec<OsString>),
    /// A text on standard output.
    Says(String),
}

static TOOLS: &[ToolName] = &[
    ToolName { name: "qemu-img", becomes: qemu_img::becomes },
    ToolName { name: "qemu-nbd", becomes: qemu_nbd::becomes },
    ToolName { name: "nbdkit", becomes: nbd::nbdkit },
    ToolName { name: "nbdcopy", becomes: nbd::nbdcopy },
    ToolName { name: "nbdinfo", becomes: nbd::nbdinfo },
    ToolName { name: "nbdsh", becomes: nbd::nbdsh },
];

/// The names, for help.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    TOOLS.iter().map(|tool| tool.name)
}

/// Whether it was called as qemu-img: most of its callers name no format.
pub(crate) fn is_qemu_img() -> bool {
    failure::program() == "qemu-img"
}

/// Whether the program was called as nbdinfo.
pub(crate) fn is_nbdinfo() -> bool {
    failure::program() == "nbdinfo"
}

/// Whether the program was called as nbdkit: what a command line leaves open is then as there.
pub(crate) fn is_nbdkit() -> bool {
    failure::program() == "nbdkit"
}

/// The words of a command line, the name of the program first, in our own.
pub(crate) fn called(mut words: Vec<OsString>) -> Result<Called, Failure> {
    let first = words.first().and_then(|word| Path::new(word).file_name()).map(OsStr::to_owned);
    if words.get(1).is_some_and(|word| word == "as") {
        let Some(tool) = words.get(2).and_then(|word| find(word)) else {
            let known = names().collect::<Vec<_>>().join(", ");
            return Err(Failure::usage(format!("as: which tool? there is {known}")));
        };
        return tool.call(words.get(3..).unwrap_or_default());
    }
    match first.as_deref().and_then(find) {
        Some(tool) => tool.call(words.get(1..).unwrap_or_default()),
        None => {
            if let Some(name) = words.first_mut() {
                *name = "diskferry".into();
            }
            Ok(Called::Verb(words))
        }
    }
}

fn find(word: &OsStr) -> Option<&'static ToolName> {
    TOOLS.iter().find(|tool| word == tool.name)
}

impl ToolName {
    fn call(&self, words: &[OsString]) -> Result<Called, Failure> {
        failure::name_program(self.name);
        (self.becomes)(words)
    }
}

/// Which files images may name under QEMU's names, for callers whose words cannot be changed.
const ALLOW_EXTERNAL: &str = "DISKFERRY_ALLOW_EXTERNAL";

/// The option for the files that images name: those that the environment allows, or those beside
/// an image whose format was named.
fn external() -> String {
    let said = std::env::var(ALLOW_EXTERNAL).ok().filter(|word| !word.is_empty());
    format!("--allow-external={}", said.as_deref().unwrap_or("beside"))
}

/// A verb with these words.
fn verb<W: Into<OsString>>(name: &str, words: impl IntoIterator<Item = W>) -> Called {
    let ours = ["diskferry", name].map(OsString::from).into_iter();
    Called::Verb(ours.chain(words.into_iter().map(Into::into)).collect())
}

/// The first line of `--version`.
pub(crate) fn version(name: &str, theirs: &str) -> String {
    format!("{name} {theirs} (diskferry {})\n", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn becomes(line: &str) -> String {
        match called(words(line)) {
            Ok(Called::Verb(words)) => {
                words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
            }
            Ok(Called::Says(text)) => text.lines().next().unwrap_or_default().to_owned(),
            Err(e) => e.line(),
        }
    }

    #[test]
    fn a_name_is_the_programs_or_comes_behind_as() {
        for (line, wanted) in [
            ("diskferry copy a b", "diskferry copy a b"),
            ("/usr/bin/diskferry copy a b", "diskferry copy a b"),
            ("df as qemu-img check x", "diskferry check --allow-external=beside x"),
            (
                "df as",
                "as: which tool? there is qemu-img, qemu-nbd, nbdkit, nbdcopy, nbdinfo, nbdsh",
            ),
            ("/usr/bin/nbdcopy -p a b", "diskferry copy -p a b"),
            ("nbdinfo --size nbd://a", "diskferry info --size nbd://a"),
            ("nbdkit -f memory 1G", "diskferry serve -f memory 1G"),
            ("nbdsh -c pass", "diskferry shell -c pass"),
            ("qemu-img map x", "diskferry map --output=human --allow-external=beside x"),
            (
                "qemu-img map --output=json x",
                "diskferry map --allow-external=beside --output=json x",
            ),
            ("qemu-img -T help convert a b", "diskferry convert --allow-external=beside a b"),
            ("qemu-img frobnicate", "Command not found: frobnicate"),
            ("qemu-img --version", "qemu-img version 11.0.0 (diskferry 0.1.0)"),
            ("nbdkit memory --version", "diskferry serve memory --version"),
            ("nbdcopy --long-options", "--allocated"),
            ("nbdinfo --short-options", "-L"),
            ("nbdcopy --version", "nbdcopy 1.24.0 (diskferry 0.1.0)"),
            (
                "qemu-nbd -r -f qcow2 -k /s -x vm -t --fork --pid-file p d.qcow2",
                "diskferry serve --readonly --format=qcow2 --unix=/s --daemon --pidfile=p --max-connections=1 \
                 --allow-external=beside --export=vm=file:d.qcow2",
            ),
            (
                "qemu-nbd -f raw -p 1234 -b ::1 -e 5 -o 512 d",
                "diskferry serve --format=raw --port=1234 --ipaddr=::1 --foreground --max-connections=5 \
                 --filter=exitlast --filter=offset?offset=512 --allow-external=beside file:d",
            ),
            (
                "qemu-nbd -t -x e --tls-creds t --object tls-creds-psk,id=t,endpoint=server,dir=/k json:{}",
                "diskferry serve --foreground --max-connections=1 --allow-external=beside --tls=require \
                 --tls-psk=/k/keys.psk --object=tls-creds-psk,id=t,endpoint=server,dir=/k --exportname=e --image-opts \
                 -- json:{}",
            ),
            ("qemu-nbd -c /dev/none d", "Failed to open /dev/none: No such file or directory"),
            (
                "qemu-nbd -L --tls-creds t --object tls-creds-psk,id=t,dir=/k -p 1",
                "diskferry list nbd:nbd://localhost:1?tls=require&tls-psk=/k/keys.psk",
            ),
            ("qemu-nbd -L -k /s", "diskferry list nbd+unix:///?socket=/s"),
        ] {
            assert_eq!(becomes(line), wanted, "{line}");
        }
    }
}
