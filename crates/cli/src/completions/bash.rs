//! The script for bash: what may follow each verb and each of its options, from the table.
//!
//! bash cuts words at `=` and `:`, so `--filter=de` arrives as three words and `file:/tmp/x` too.
//! Where files are wanted and nothing else fits, the script offers nothing, and readline completes
//! the file names itself, with its own quoting.

use clap::{Arg, ArgAction, Command};
use disk::{StackRole, kinds_of};

use crate::verbs::{VERBS, command};

const HEAD: &str = r#"# bash completion for diskferry, made by `diskferry completions bash`.
_diskferry() {
    local cur="${COMP_WORDS[COMP_CWORD]}" before="" option="" words="" devices="" i verb=""
    local options="" valued="" joined="" files="" schemes
    COMPREPLY=()
    (( COMP_CWORD > 1 )) && verb="${COMP_WORDS[1]}"
    (( COMP_CWORD > 0 )) && before="${COMP_WORDS[COMP_CWORD-1]}"
"#;

const TAIL: &str = r#"    # `--option=value` comes as three words, the last of which may be missing.
    if [[ $cur == "=" ]]; then
        option="$before" cur=""
    elif [[ $before == "=" ]]; then
        option="${COMP_WORDS[COMP_CWORD-2]}"
    elif [[ " $valued " == *" $before "* && " $joined " != *" $before "* ]]; then
        option="$before"
    fi
    case "$verb:$option" in
@VALUES@        :) if [[ $cur == -* ]]; then words="--help --version"; else words="@VERBS@"; fi ;;
        *:) if [[ $cur == -* ]]; then words="$options"; else words="$devices"; fi ;;
    esac
    [[ -n $words ]] && COMPREPLY=( $(compgen -W "$words" -- "$cur") )
    # Behind a device or a key the rest is typed; files stand beside the devices.
    (( ${#COMPREPLY[@]} )) || return
    for i in "${COMPREPLY[@]}"; do
        [[ $i == *: || $i == */ || $i == *= ]] && compopt -o nospace 2>/dev/null
    done
    if [[ -n $option || $cur == -* || -z $devices ]]; then
        return
    fi
    if [[ -n $files ]]; then
        local IFS=$'\n'
        COMPREPLY+=( $(compgen -f -- "$cur") )
    fi
}
complete -o bashdefault -o default -F _diskferry diskferry
"#;

/// The script.
pub(super) fn script() -> String {
    let mut script = HEAD.to_owned();
    let whole = command();
    let mut values = String::new();
    script += &format!("    schemes=\"{}\"\n    case \"$verb\" in\n", schemes().join(" "));
    for verb in VERBS {
        let Some(command) = whole.find_subcommand(verb.name) else { continue };
        script += &of_verb(command);
        values += &values_of(command);
    }
    script += "    esac\n";
    let verbs: Vec<_> = VERBS.iter().map(|verb| verb.name).collect();
    script + &TAIL.replace("@VALUES@", &values).replace("@VERBS@", &verbs.join(" "))
}

/// How the name of a disk that is not a file may begin.
pub(super) fn schemes() -> Vec<String> {
    let devices = kinds_of(StackRole::Device);
    let mut all: Vec<_> = devices.map(|kind| format!("{}:", kind.word)).collect();
    all.extend(["nbd://", "nbd+unix:///", "nbd+vsock://"].map(str::to_owned));
    all
}

/// What may stand where a word is expected, and the options.
fn of_verb(command: &Command) -> String {
    let name = command.get_name();
    let options: Vec<String> = command.get_arguments().flat_map(spellings).collect();
    let taking = |joined: bool| -> String {
        let args = command.get_arguments().filter(move |arg| takes_value(arg));
        let args = args.filter(move |arg| !joined || arg.is_require_equals_set());
        args.flat_map(spellings).collect::<Vec<_>>().join(" ")
    };
    let mut words = String::new();
    let files = if command.get_positionals().any(is_disk) { "1" } else { "" };
    for arg in command.get_positionals() {
        let known: Vec<_> =
            arg.get_possible_values().iter().map(|v| v.get_name().to_owned()).collect();
        if is_disk(arg) {
            "$schemes".clone_into(&mut words);
        }
        words += &known.join(" ");
    }
    if name == "serve" {
        // nbdkit's form: the device's word on its own.
        let devices = kinds_of(StackRole::Device).map(|kind| kind.word);
        words = devices.collect::<Vec<_>>().join(" ");
    }
    let (options, valued, joined) = (options.join(" "), taking(false), taking(true));
    format!(
        "        {name})\n            options=\"{options} --help\"\n            \
         valued=\"{valued}\"\n            joined=\"{joined}\"\n            \
         devices=\"{words}\" files={files} ;;\n"
    )
}

/// The values that options take, where they are known.
fn values_of(command: &Command) -> String {
    let mut cases = String::new();
    for arg in command.get_arguments().filter(|arg| takes_value(arg)) {
        let mut known = arg.get_possible_values();
        known.retain(|value| !value.is_hide_set());
        let spelled: Vec<_> =
            spellings(arg).iter().map(|s| format!("{}:{s}", command.get_name())).collect();
        if !known.is_empty() && !spelled.is_empty() {
            let known: Vec<_> = known.iter().map(|v| v.get_name().to_owned()).collect();
            let (spelled, known) = (spelled.join("|"), known.join(" "));
            cases += &format!("        {spelled}) words=\"{known}\" ;;\n");
        }
    }
    cases
}

fn spellings(arg: &Arg) -> Vec<String> {
    if arg.is_hide_set() {
        return Vec::new();
    }
    let long = arg.get_long_and_visible_aliases().unwrap_or_default();
    let short = arg.get_short_and_visible_aliases().unwrap_or_default();
    let long = long.into_iter().map(|name| format!("--{name}"));
    long.chain(short.into_iter().map(|name| format!("-{name}"))).collect()
}

fn takes_value(arg: &Arg) -> bool {
    !arg.is_positional() && matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Whether an argument names a disk.
pub(super) fn is_disk(arg: &Arg) -> bool {
    ["disk", "source", "target"].contains(&arg.get_id().as_str())
}
