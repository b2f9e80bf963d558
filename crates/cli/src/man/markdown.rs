//! The reference: pages in Markdown, for docs/reference. A test compares those there with these.

use std::fmt::Write as _;

use clap::{Arg, Command};
use disk::formats;

use super::PageFile;
use crate::page::{Page, ParamList, ROLES, pages_of};
use crate::topics::{self, ENVIRONMENT, FILES, SIGNALS};
use crate::verb::{STATUS, STATUS_OF_IMAGES, Verb};
use crate::verbs::{VERBS, built};

/// The beginning of every page, after its title.
const MADE: &str = "This page is printed by the program (`diskferry man --markdown docs/reference`): \
    change its tables, not the page.";

/// Every page.
pub(super) fn all() -> Vec<PageFile> {
    let [devices, filters, formats] = ROLES;
    let pages = [
        ("verbs", verbs()),
        ("devices", pages_page(devices, DEVICES, "", |_| String::new())),
        ("filters", pages_page(filters, FILTERS, "", |_| String::new())),
        ("formats", pages_page(formats, FORMATS, " made | written | checked |", abilities)),
        ("exit-status", statuses()),
        ("signals", topic("Signals", SIGNALS)),
        ("environment", topic("Environment", ENVIRONMENT)),
        ("files", topic("Files", FILES)),
        ("json", outputs()),
    ];
    pages.map(|(name, text)| (format!("{name}.md"), text.into_bytes())).into()
}

const DEVICES: &str = "A device is a disk. It is named as `DEVICE:ARG?key=value&key=value` wherever a disk is named, \
    or in nbdkit's words after `serve`: `serve DEVICE ARG key=value`.";

const FILTERS: &str = "A filter changes what a disk is or does. `serve --filter=NAME` takes parameters as \
    `key=value` after the device, or as `NAME?key=value&key=value`; `copy` takes the latter, as \
    `--source-filter` and `--target-filter`. Each filter has a page with examples in [filters](../filters).";

const FORMATS: &str = "A format is a disk in a file. `convert` and the other verbs with qemu-img's words guess it, for \
    reading only; `serve` and `copy` take a format only by its name. An image is written in \
    place where the table says so.";

/// A page with the common beginning.
fn begun(title: &str, text: &str) -> String {
    format!("# {title}\n\n{text}\n\n{MADE}\n")
}

fn verbs() -> String {
    let mut page = begun(
        "Verbs",
        "Every verb with its options. Times are in seconds or as `100ms`, `20us`; sizes are powers of two: `64K`, \
         `1.5G`, `1GiB`.",
    );
    line(&mut page, "\n| verb | what it does |\n|---|---|");
    for verb in VERBS {
        line(&mut page, &format!("| [{0}](#{0}) | {1} |", verb.name, cell(verb.summary)));
    }
    built().for_each(|(verb, command)| of_verb(verb, command, &mut page));
    page
}

fn of_verb(verb: &Verb, mut command: Command, page: &mut String) {
    let usage = command.render_usage().to_string();
    line(page, &format!("\n## {}\n\n{}. {}\n", verb.name, verb.summary, plain(verb.about)));
    line(page, &format!("    {}", usage.trim_start_matches("Usage: ").trim_end()));
    let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    let mut titles = vec![None];
    for arg in shown() {
        if !titles.contains(&arg.get_help_heading()) {
            titles.push(arg.get_help_heading());
        }
    }
    for title in titles {
        let args: Vec<_> = shown().filter(|arg| arg.get_help_heading() == title).collect();
        if args.is_empty() {
            continue;
        }
        line(page, &format!("\n| {} | |\n|---|---|", title.unwrap_or("arguments and options")));
        for arg in args {
            line(page, &format!("| {} | {} |", spelled(arg), meaning(arg)));
        }
    }
    line(page, &format!("\nExit status: {}\n\n```console", plain(&verb.statuses())));
    for example in verb.example.lines() {
        line(page, example.strip_prefix("  ").unwrap_or(example));
    }
    line(page, "```");
}

/// `-S`, `--sparse SIZE`, say.
fn spelled(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let value = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
    if arg.is_positional() {
        return code(&value);
    }
    let takes = arg.get_num_args().filter(|range| range.takes_values());
    let value = match takes {
        Some(range) if range.min_values() == 0 => format!("[={value}]"),
        Some(_) => format!(" {value}"),
        None => String::new(),
    };
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let mut names: Vec<String> = short.into_iter().chain(long).collect();
    if let Some(last) = names.last_mut() {
        last.push_str(&value);
    }
    let more = arg.get_visible_aliases().unwrap_or_default();
    names.extend(more.iter().map(|alias| format!("--{alias}")));
    names.iter().map(|name| code(name)).collect::<Vec<_>>().join(", ")
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or_else(|| arg.get_help());
    let mut text = plain(&help.map(ToString::to_string).unwrap_or_default());
    let values = arg.get_possible_values();
    if !values.is_empty() && !arg.is_hide_possible_values_set() {
        let words: Vec<_> = values.iter().map(|value| code(value.get_name())).collect();
        let _ = write!(text, " ({})", words.join(", "));
    }
    let defaults = arg.get_default_values();
    let takes = arg.get_num_args().is_some_and(|range| range.takes_values());
    if takes && !defaults.is_empty() && !arg.is_hide_default_value_set() {
        let words: Vec<_> = defaults.iter().map(|value| code(&value.to_string_lossy())).collect();
        let _ = write!(text, " [default: {}]", words.join(", "));
    }
    cell(&text)
}

/// The pages of one role, below a table of them to which `row` may add cells under `heads`.
fn pages_page(
    (role, title): (&str, &str),
    about: &str,
    heads: &str,
    row: fn(&str) -> String,
) -> String {
    let mut all = begun(title, about);
    let rule = "---|".repeat(heads.matches('|').count());
    line(&mut all, &format!("\n| {role} | what it is |{heads}\n|---|---|{rule}"));
    for Page { word, summary, .. } in pages_of(role) {
        line(&mut all, &format!("| [{word}](#{word}) | {} |{}", cell(summary), row(word)));
    }
    pages_of(role).for_each(|page| of_page(&page, &mut all));
    all
}

/// Whether a format can be made, and checked.
fn abilities(format: &str) -> String {
    let format = formats().iter().find(|known| known.word == format);
    let has = [
        format.is_some_and(|f| f.create.is_some()),
        format.is_some_and(|f| f.is_plain || f.write.is_some()),
        format.is_some_and(|f| f.check.is_some()),
    ];
    has.map(|has| if has { " yes |" } else { " – |" }).concat()
}

fn of_page(page: &Page, all: &mut String) {
    line(all, &format!("\n## {}\n\n{}.\n", page.word, upper(page.summary)));
    if page.role == "filter" {
        line(all, &format!("Page with examples: [{0}](../filters/{0}.md)\n", page.word));
    }
    for usage in &page.usage {
        line(all, &format!("    {usage}"));
    }
    for ParamList { titles: [.., title], params, magic } in &page.lists {
        line(all, &format!("\n| {title} | meaning |\n|---|---|"));
        for param in *params {
            let key = code(&format!("{}={}", param.key, param.value));
            let repeats = if param.repeats { "; may be repeated" } else { "" };
            let magic = if Some(param.key) == *magic { "; the key may be left out" } else { "" };
            line(all, &format!("| {key} | {}{repeats}{magic} |", cell(param.doc)));
        }
    }
    if page.any_param {
        line(all, "| `NAME=VALUE` | variables, with names of your choice |");
    }
}

fn statuses() -> String {
    let mut page = begun("Exit statuses", "The exit statuses of each verb.");
    line(&mut page, &format!("\nMost verbs: {}\n", plain(STATUS)));
    line(&mut page, &format!("Verbs with qemu-img's options: {}\n", plain(STATUS_OF_IMAGES)));
    line(&mut page, "Additional statuses:\n\n| verb | wrong usage | in addition |\n|---|---|---|");
    for verb in VERBS {
        let more = if verb.status.is_empty() { "–".to_owned() } else { cell(verb.status) };
        line(&mut page, &format!("| [{0}](verbs.md#{0}) | {1} | {more} |", verb.name, verb.usage));
    }
    page
}

/// The entries of one topic, once for all verbs with the same text.
fn topic(title: &str, topic: &str) -> String {
    let mut page = begun(title, "Entries for all verbs, and for single verbs.");
    let mut said: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for (verb, command) in built() {
        let topics = topics::of(verb, &command).into_iter().filter(|(title, _)| *title == topic);
        for (name, what) in topics.flat_map(|(_, entries)| entries) {
            match said.iter_mut().find(|(a, b, _)| (*a, *b) == (name, what)) {
                Some((_, _, verbs)) => verbs.push(verb.name),
                None => said.push((name, what, vec![verb.name])),
            }
        }
    }
    line(&mut page, "\n| name | what it does | verbs |\n|---|---|---|");
    for (name, what, verbs) in said {
        let names: Vec<_> = name.split(", ").map(code).collect();
        let verbs: Vec<_> = verbs.iter().map(|verb| format!("[{verb}](verbs.md#{verb})")).collect();
        line(
            &mut page,
            &format!("| {} | {} | {} |", names.join(", "), cell(what), verbs.join(", ")),
        );
    }
    page
}

/// The outputs for programs: their keys are written down, not declared, and a test compares what is
/// printed with this.
fn outputs() -> String {
    let mut page = begun(
        "JSON",
        "Output for programs. Output in diskferry's own format has a `version`: keys may be added \
         under the same number, \
         so readers must ignore unknown keys; the number grows when a key is removed or changes its meaning. Output in another program's format has no version, because that format has no such key.",
    );
    line(&mut page, "");
    page + include_str!("json.md")
}

fn line(page: &mut String, text: &str) {
    page.push_str(text);
    page.push('\n');
}

/// As code, also in a cell of a table.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

/// As text in a cell of a table, with code left as it is.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// As text in which nothing is taken for an HTML tag.
fn plain(text: &str) -> String {
    text.replace('<', "&lt;").replace('\n', " ")
}

fn upper(summary: &str) -> String {
    let mut letters = summary.chars();
    letters.next().map(|c| c.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
