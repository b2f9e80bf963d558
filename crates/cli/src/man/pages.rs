//! The manual pages.

use std::io;

use clap::{Arg, ArgAction, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::PageFile;
use crate::page::{Page, ParamList, ROLES, pages, pages_of};
use crate::topics;
use crate::verb::{STATUS, Verb};
use crate::verbs::{VERBS, built, command};

/// The foot of each page.
const SOURCE: &str = concat!("diskferry ", env!("CARGO_PKG_VERSION"));

/// Every page.
pub(super) fn all() -> io::Result<Vec<PageFile>> {
    let mut all = vec![root()?];
    for (verb, command) in built() {
        all.push(of_verb(verb, command)?);
    }
    all.extend(pages().map(|page| of_page(&page)));
    Ok(all)
}

/// `diskferry.1`.
fn root() -> io::Result<PageFile> {
    let man = Man::new(command()).title("diskferry").source(SOURCE);
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    section("NAME", "diskferry - serve, copy and inspect disks", &mut out)?;
    section("SYNOPSIS", "diskferry VERB [OPTION]... [DISK]...", &mut out)?;
    man.render_description_section(&mut out)?;
    let verbs = VERBS.iter().map(|verb| (format!("diskferry-{}", verb.name), verb.summary));
    list("VERBS", verbs.map(|(name, summary)| (reference(name), summary)), &mut out)?;
    for (role, title) in ROLES {
        let pages = pages_of(role).map(|page| (reference(name_of(&page)), page.summary));
        list(&title.to_uppercase(), pages, &mut out)?;
    }
    section("EXIT STATUS", STATUS, &mut out)?;
    let others = ["qemu-img", "nbdcopy", "nbdinfo", "nbdkit"].map(str::to_owned);
    see_also(others.into_iter(), &mut out)?;
    Ok(("diskferry.1".to_owned(), out))
}

/// `diskferry-copy.1`, say.
fn of_verb(verb: &Verb, mut command: Command) -> io::Result<PageFile> {
    let name = format!("diskferry-{}", verb.name);
    let usage = command.render_usage().to_string();
    let command = command.name(name.clone());
    let topics = topics::of(verb, &command);
    let mut out = Vec::new();
    let man = Man::new(command.clone()).title(name.clone()).source(SOURCE);
    man.render_title(&mut out)?;
    section("NAME", &format!("{name} - {}", lower(verb.summary)), &mut out)?;
    synopsis(&usage, &command, &mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    section("EXIT STATUS", &verb.statuses(), &mut out)?;
    for (title, entries) in topics {
        list(title, entries.into_iter().map(|(name, what)| (vec![bold(name)], what)), &mut out)?;
    }
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    roff.control("nf", []);
    roff.text([roman(verb.example)]);
    roff.control("fi", []);
    roff.to_writer(&mut out)?;
    let others = VERBS.iter().filter(|other| other.name != verb.name);
    let others = others.map(|other| format!("diskferry-{}", other.name));
    see_also(std::iter::once("diskferry".to_owned()).chain(others), &mut out)?;
    Ok((format!("{name}.1"), out))
}

/// All options with their values, where the usage says that there are some.
fn synopsis(usage: &str, command: &Command, out: &mut Vec<u8>) -> io::Result<()> {
    let usage = usage.trim_start_matches("Usage: ");
    let cut = ["[OPTIONS]", "[OPTION]..."].iter().find_map(|word| usage.split_once(word));
    let (before, after) = cut.unwrap_or((usage, ""));
    let mut line = vec![bold(before.trim_end())];
    let options = command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set());
    for option in options.filter(|_| cut.is_some()) {
        line.push(roman(" ["));
        line.extend(spelled(option));
        let repeats = matches!(option.get_action(), ArgAction::Append);
        line.push(roman(if repeats { "]..." } else { "]" }));
    }
    line.push(roman(after.trim_end()));
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    roff.control("nh", []);
    roff.control("ad", ["l"]);
    roff.text(line);
    roff.control("ad", ["b"]);
    roff.control("hy", []);
    roff.to_writer(out)
}

/// `-S|--sparse SIZE`, say.
fn spelled(option: &Arg) -> Vec<Inline> {
    let mut line = Vec::new();
    if let Some(short) = option.get_short() {
        line.push(bold(format!("-{short}")));
    }
    if let Some(long) = option.get_long() {
        if !line.is_empty() {
            line.push(roman("|"));
        }
        line.push(bold(format!("--{long}")));
    }
    let Some(range) = option.get_num_args().filter(|range| range.takes_values()) else {
        return line;
    };
    let names = option.get_value_names().unwrap_or_default();
    let value = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
    if range.min_values() == 0 {
        line.extend([roman("[="), italic(value), roman("]")]);
    } else {
        line.extend([roman(" "), italic(value)]);
    }
    line
}

/// A summary as it stands in a line of NAME.
fn lower(summary: &str) -> String {
    let mut letters = summary.chars();
    letters.next().map(|c| c.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

fn section(title: &str, text: &str, out: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    roff.text([roman(text)]);
    roff.to_writer(out)
}

/// Names, and what each is about.
fn list<'a>(
    title: &str,
    entries: impl IntoIterator<Item = (Vec<Inline>, &'a str)>,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    for (name, what) in entries {
        roff.control("TP", []);
        roff.text(name);
        roff.text([roman(what)]);
    }
    roff.to_writer(out)
}

/// The name of a manual page.
fn reference(page: String) -> Vec<Inline> {
    vec![bold(page), roman("(1)")]
}

fn see_also(pages: impl Iterator<Item = String>, out: &mut Vec<u8>) -> io::Result<()> {
    let mut line = Vec::new();
    for page in pages {
        if !line.is_empty() {
            line.push(roman(", "));
        }
        line.extend(reference(page));
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    roff.control("nh", []);
    roff.control("ad", ["l"]);
    roff.text(line);
    roff.to_writer(out)
}

fn name_of(page: &Page) -> String {
    format!("diskferry-{}-{}", page.role, page.word)
}

/// `diskferry-device-memory.1`, say.
fn of_page(page: &Page) -> PageFile {
    let (name, mut roff) = (name_of(page), Roff::new());
    roff.control("TH", [&name, "1", "", SOURCE]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {}", page.summary))]);
    roff.control("SH", ["SYNOPSIS"]);
    for usage in &page.usage {
        roff.text([roman(usage.as_str())]);
        roff.control("br", []);
    }
    for ParamList { titles: [_, title, _], params, magic } in &page.lists {
        roff.control("SH", [*title]);
        for param in *params {
            roff.control("TP", []);
            roff.text([bold(param.key), roman("="), italic(param.value)]);
            roff.text([roman(param.doc)]);
            if Some(param.key) == *magic {
                roff.text([roman(format!("{}= may be left out.", param.key))]);
            }
        }
    }
    if page.any_param {
        roff.control("TP", []);
        roff.text([italic("NAME"), roman("="), italic("VALUE")]);
        roff.text([roman("Variables, with names of your choice.")]);
    }
    roff.control("SH", ["EXAMPLE"]);
    roff.text([roman(page.command.as_str())]);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("diskferry"), roman("(1), "), bold("diskferry-serve"), roman("(1)")]);
    (format!("{name}.1"), roff.to_roff().into_bytes())
}
