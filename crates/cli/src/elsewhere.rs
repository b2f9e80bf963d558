//! Words of other tools that are not here, and what to use for each of them. A word that means
//! something here is in none of these tables.

use crate::failure::Failure;

/// First words that are no verbs, and what to do.
const VERBS: &[(&[&str], &str)] = &[
    (
        &["connect", "mount", "nbdfuse"],
        "`diskferry attach DISK FILE` makes a disk a file, and `diskferry attach DISK /dev/nbd0` a block device",
    ),
    (
        &["disconnect", "umount", "unmount"],
        "`diskferry detach FILE` does it, or `diskferry detach /dev/nbd0`",
    ),
    (&["diff", "cmp"], "`diskferry compare FIRST SECOND` does it"),
    (
        &["hash", "blksum", "checksum", "md5sum", "sha1sum", "sha256sum", "sha512sum"],
        "`diskferry digest DISK` does it",
    ),
    (&["cp", "nbdcopy"], "`diskferry copy SOURCE TARGET` does it"),
    (&["nbdinfo"], "`diskferry info DISK`, `diskferry list URI` and `diskferry map DISK` do it"),
    (&["nbdkit", "nbd-server", "qemu-nbd"], "`diskferry serve DISK` does it"),
    (&["nbdsh"], "`diskferry shell` does it"),
    (&["qemu-img"], "its words are verbs here: `diskferry convert`, `diskferry info`"),
];

/// Options of other tools that a verb lacks: the verb, the options, and what to do.
const OPTIONS: &[(&str, &[&str], &str)] = &[
    ("serve", &["-c", "--connect"], "here it is a verb: `diskferry attach DISK /dev/nbd0`"),
    ("serve", &["-d", "--disconnect"], "here it is a verb: `diskferry detach /dev/nbd0`"),
    ("serve", &["-k", "--socket"], "here it is -U, --unix"),
    ("serve", &["--shared"], "here it is --max-connections"),
    (
        "serve",
        &["--persistent"],
        "leave it out: the server keeps running when the last client leaves",
    ),
    ("serve", &["-x"], "here it is --export NAME=DISK"),
    ("serve", &["--fork"], "here it is --daemon"),
    ("serve", &["--snapshot"], "here it is --filter=cow"),
    (
        "serve",
        &["--load-snapshot"],
        "here it is a parameter: serve DISK format=qcow2 snapshot=NAME",
    ),
    (
        "serve",
        &["-B", "--bitmap", "-A", "--allocation-depth"],
        "leave it out: an image's bitmaps and layers are offered as contexts",
    ),
    (
        "serve",
        &["--nocache", "--cache"],
        "here it is a parameter of the device: serve file DISK cache=none",
    ),
    ("serve", &["--aio"], "leave it out: the program uses whatever the kernel offers"),
    ("serve", &["--discard"], "leave it out: trims are always passed on"),
    ("serve", &["--detect-zeroes"], "leave it out: zeroes that a client writes are written"),
    ("copy", &["-n", "--no-create"], "leave it out: an existing target is overwritten"),
];

/// Verbs that the table has on Linux alone.
const ON_LINUX: &[&str] = &["serve", "attach", "detach", "attached", "cache"];

/// The failure for a first word that is a verb elsewhere.
pub(crate) fn verb(word: &str) -> Option<Failure> {
    if !cfg!(target_os = "linux") && ON_LINUX.contains(&word) {
        return Some(Failure::usage(format!(
            "there is no verb '{word}' on this system: it needs Linux"
        )));
    }
    let (_, cure) = VERBS.iter().find(|(words, _)| words.contains(&word))?;
    let what = format!("there is no verb '{word}': {cure} (see `diskferry --help`)");
    Some(Failure::usage(what))
}

/// What to do about an `option` that `verb` lacks and another tool has.
pub(crate) fn option(verb: &str, option: &str) -> Option<&'static str> {
    let of =
        |(name, options, _): &&(&str, &[&str], &str)| *name == verb && options.contains(&option);
    OPTIONS.iter().find(of).map(|(_, _, cure)| *cure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::command;

    #[test]
    fn what_is_here_is_not_said_to_be_elsewhere() {
        let mut all = command();
        all.build();
        for word in VERBS.iter().flat_map(|(words, _)| *words) {
            assert!(all.find_subcommand(word).is_none(), "{word}");
        }
        for (name, options, _) in OPTIONS {
            let verb = all.find_subcommand(name).unwrap();
            for option in *options {
                let is_it = |arg: &clap::Arg| match option.strip_prefix("--") {
                    Some(long) => {
                        arg.get_long() == Some(long)
                            || arg.get_all_aliases().unwrap_or_default().contains(&long)
                    }
                    None => arg.get_short() == option.chars().nth(1),
                };
                assert!(!verb.get_arguments().any(is_it), "{name} {option}");
            }
        }
    }
}
