//! The page of a device, a filter or a format, from its table entry: as help prints it; the manual
//! and the reference set the same page.

use device::Param;
use disk::{Format, ShownKind, StackRole, formats, kinds};

/// Columns of a line of help.
const WIDTH: usize = 80;

/// The page of a kind or a format.
pub(crate) struct Page {
    pub(crate) word: &'static str,
    /// `device`, `filter` or `format`.
    pub(crate) role: &'static str,
    pub(crate) summary: &'static str,
    /// Its forms on a command line.
    pub(crate) usage: Vec<String>,
    /// Those that are not empty.
    pub(crate) lists: Vec<ParamList>,
    /// Whether variables follow the parameters, with names of the user's choice.
    pub(crate) any_param: bool,
    /// The example as a command.
    pub(crate) command: String,
}

/// What may be given to a kind or a format.
pub(crate) struct ParamList {
    /// Its title in help, in the manual and in the reference.
    pub(crate) titles: [&'static str; 3],
    pub(crate) params: &'static [Param],
    /// The parameter whose key may be left out.
    pub(crate) magic: Option<&'static str>,
}

/// What there are pages of: the role, and its title.
pub(crate) const ROLES: [(&str, &str); 3] =
    [("device", "Devices"), ("filter", "Filters"), ("format", "Formats")];

/// All pages, by role, each in the order in which to show them.
pub(crate) fn pages() -> impl Iterator<Item = Page> {
    kinds().map(Page::from).chain(formats().iter().map(Page::from))
}

/// Those of one role.
pub(crate) fn pages_of(role: &str) -> impl Iterator<Item = Page> {
    pages().filter(move |page| page.role == role)
}

impl From<ShownKind> for Page {
    fn from(kind: ShownKind) -> Self {
        let ShownKind { role, word, summary, magic, params, any_param, example } = kind;
        let takes = params.len() > usize::from(role == StackRole::Device);
        let (more, query) =
            if takes { (" [key=value]...", "[?key=value&key=value]") } else { ("", "") };
        let (usage, command) = match role {
            StackRole::Device => {
                let param = params.iter().find(|p| Some(p.key) == magic);
                let value = param.map_or("", |p| p.value);
                let magic = param.map_or(String::new(), |p| format!(" [{}=]{}", p.key, p.value));
                let usage = vec![
                    format!("diskferry serve {word}{magic}{more}"),
                    format!("diskferry VERB '{word}:{value}{query}'"),
                ];
                (usage, format!("diskferry info '{example}'"))
            }
            StackRole::Filter => {
                let usage = vec![
                    format!("diskferry serve --filter={word} DISK{more}"),
                    format!("diskferry copy --source-filter='{word}{query}' SOURCE TARGET"),
                    format!("diskferry copy --target-filter='{word}{query}' SOURCE TARGET"),
                ];
                (usage, format!("diskferry {example}"))
            }
        };
        let list = ParamList { titles: ["Parameters:", "PARAMETERS", "parameter"], params, magic };
        let lists = if params.is_empty() { Vec::new() } else { vec![list] };
        Self { word, role: role.name(), summary, usage, lists, any_param, command }
    }
}

impl From<&Format> for Page {
    fn from(format: &Format) -> Self {
        let (word, summary) = (format.word, format.summary);
        let mut usage = vec![
            format!("diskferry serve --format {word} FILE"),
            format!("diskferry convert -f {word} FILE TARGET"),
        ];
        let mut command = format!("diskferry convert -f {word} -O raw disk.{word} disk.raw");
        if format.create.is_some() {
            usage.push(format!("diskferry convert -O {word} [-o KEY=VALUE,...] SOURCE FILE"));
            usage.push(format!("diskferry create -f {word} [-o KEY=VALUE,...] FILE SIZE"));
            command = format!("diskferry convert -f raw -O {word} pattern:8M disk.{word}");
        }
        let read =
            ["Parameters for reading:", "PARAMETERS, WHERE IT IS READ", "parameter for reading"];
        let made = [
            "Options (-o) for creating:",
            "OPTIONS, WHERE IT IS MADE",
            "option (`-o`) for creating",
        ];
        let options = format.create.map_or(&[][..], |create| create.options);
        let lists = [(read, format.params), (made, options)];
        let lists = lists.map(|(titles, params)| ParamList { titles, params, magic: None });
        let lists = lists.into_iter().filter(|list| !list.params.is_empty()).collect();
        Self { word, role: "format", summary, usage, lists, any_param: false, command }
    }
}

impl Page {
    /// As text for a terminal.
    pub(crate) fn text(&self) -> String {
        let title = format!("{} ({}): {}.", self.word, self.role, self.summary);
        let mut lines = wrap(&title, 0);
        lines.push(String::new());
        for (i, usage) in self.usage.iter().enumerate() {
            lines.push(format!("{} {usage}", if i == 0 { "Usage:" } else { "      " }));
        }
        for ParamList { titles: [title, ..], params, .. } in &self.lists {
            lines.extend([String::new(), (*title).to_owned()]);
            for Param { key, value, doc, repeats } in *params {
                let more = if *repeats { " ..." } else { "" };
                lines.push(format!("  {key}={value}{more}"));
                lines.extend(wrap(doc, 10));
            }
        }
        if self.any_param {
            lines.push("  NAME=VALUE".to_owned());
            lines.push("          variables, with names of your choice".to_owned());
        }
        lines.extend([String::new(), "Example:".to_owned(), format!("  {}", self.command)]);
        lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
    }
}

/// Breaks a text into lines that begin with `indent` spaces.
pub(crate) fn wrap(text: &str, indent: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("{:indent$}{word}", "")),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_fits_and_has_all_its_parameters() {
        for page in pages() {
            let text = page.text();
            let examples = text.split("Example:").next().unwrap();
            for line in examples.lines().filter(|l| !l.contains("diskferry")) {
                assert!(line.chars().count() <= WIDTH, "{}: {line}", page.word);
            }
            for param in page.lists.iter().flat_map(|list| list.params) {
                assert!(text.contains(&format!("  {}={}", param.key, param.value)), "{text}");
            }
            assert!(text.ends_with(&format!("{}\n", page.command)), "{text}");
        }
    }
}
