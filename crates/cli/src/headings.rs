//! Help in groups: the heading of each option, for all verbs alike, and what the short help leaves
//! out.
//!
//! An option that a verb has put under a heading stays there; one that is in no group is under
//! "Options".

use clap::{Arg, Command};

/// Headings, and the options of each, by their ids.
const GROUPS: &[(&str, &str)] = &[
    (
        "Formats",
        "source-format target-format format second-format options compress backing \
         backing-format backing-unsafe snapshot image-opts target-image-opts",
    ),
    ("Filters", "source-filter target-filter"),
    (
        "What is written",
        "no-create target-is-zero sparse sparse-size allocated preallocate wipe reflink \
         salvage flush no-flush force keep-partial journal",
    ),
    ("Proof", "blkhash blkhash-file digest manifest"),
    ("Progress", "progress quiet"),
    (
        "Load",
        "connections requests request-size threads queue-size no-extents rate rate-limit \
         synchronous",
    ),
    ("Servers", "open-timeout reconnect-delay request-timeout"),
    ("Safety", "force-share allow-external sandbox"),
    (
        "Ignored, for command lines of qemu-img",
        "parallel oob-writes copy-range-offloading target-cache source-cache aio native",
    ),
];

/// Headings whose options `-h` leaves out.
const LEFT_OUT: [&str; 8] = [
    "Load",
    "Servers",
    "Safety",
    "Ignored, for command lines of qemu-img",
    "Other servers, behind this one",
    "Limits",
    "Protocol, for tests",
    "Information",
];

/// What the short help says where it leaves something out.
pub(crate) const MORE: &str = "There are more options: see --help.\n\n";

/// Puts options under their headings.
pub(crate) fn group(command: Command) -> Command {
    command.mut_args(|arg| match title(&arg) {
        Some(title) if arg.get_help_heading().is_none() => arg.help_heading(title),
        _ => arg,
    })
}

/// Leaves options out of the short help, and answers with whether there were any.
pub(crate) fn shorten(command: Command) -> (Command, bool) {
    let mut any = false;
    let command = command.mut_args(|arg| {
        let is_out = arg.get_help_heading().is_some_and(|title| LEFT_OUT.contains(&title));
        any |= is_out && !arg.is_hide_set();
        if is_out { arg.hide_short_help(true) } else { arg }
    });
    (command, any)
}

fn title(arg: &Arg) -> Option<&'static str> {
    let has = |ids: &str| ids.split(' ').any(|id| arg.get_id() == id);
    let found = GROUPS.iter().find(|(_, ids)| has(ids)).map(|(title, _)| *title);
    found.filter(|_| !arg.is_positional())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{command, command_for};

    #[test]
    fn every_group_has_options_of_some_verb_and_no_option_two_groups() {
        let all = command();
        let has = |id: &str| {
            all.get_subcommands().any(|verb| verb.get_arguments().any(|arg| arg.get_id() == id))
        };
        let mut seen = std::collections::BTreeSet::new();
        for id in GROUPS.iter().flat_map(|(_, ids)| ids.split(' ')) {
            assert!(has(id), "no verb has {id}");
            assert!(seen.insert(id), "{id} is in two groups");
        }
    }

    #[test]
    fn the_short_help_of_a_long_verb_is_much_shorter() {
        let lines = |text: clap::builder::StyledStr| text.to_string().lines().count();
        for verb in ["serve", "copy", "convert"] {
            let mut all = command_for(crate::verbs::verb(verb));
            all.build();
            let sub = all.find_subcommand_mut(verb).unwrap();
            let (short, long) = (lines(sub.render_help()), lines(sub.render_long_help()));
            assert!(short * 5 < long * 3, "{verb}: {short} lines of {long}");
        }
    }
}
