//! The page of a device or a filter, as help prints it and as the manual sets it, from the tables.

use device::Param;

/// Columns of a line of help.
const WIDTH: usize = 80;

/// What is known of a device or a filter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub(crate) thing: Thing,
    pub(crate) word: &'static str,
    pub(crate) summary: &'static str,
    /// The parameter whose key may be left out.
    pub(crate) magic: Option<&'static str>,
    pub(crate) params: &'static [Param],
    /// Whether it takes parameters with names of the user's choice.
    pub(crate) any_param: bool,
    /// A command that runs as it stands, or nearly.
    pub(crate) example: &'static str,
}

/// What a page is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Thing {
    Device,
    Filter,
}

impl Thing {
    /// The word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Filter => "filter",
        }
    }
}

impl From<&'static devices::Kind> for Page {
    fn from(kind: &'static devices::Kind) -> Self {
        Self {
            thing: Thing::Device,
            word: kind.word,
            summary: kind.summary,
            magic: kind.magic,
            params: kind.params,
            any_param: kind.any_param,
            example: kind.example,
        }
    }
}

impl From<&'static filters::Kind> for Page {
    fn from(kind: &'static filters::Kind) -> Self {
        Self {
            thing: Thing::Filter,
            word: kind.word,
            summary: kind.summary,
            magic: None,
            params: kind.params,
            any_param: false,
            example: kind.example,
        }
    }
}

/// All pages: the devices', then the filters'.
pub(crate) fn pages() -> impl Iterator<Item = Page> {
    let devices = devices::kinds().iter().map(Page::from);
    devices.chain(filters::kinds().iter().map(Page::from))
}

impl Page {
    /// How it is named on a command line, one form a line.
    pub(crate) fn usage(&self) -> Vec<String> {
        let word = self.word;
        match self.thing {
            Thing::Device => {
                let magic = self
                    .magic_value()
                    .map_or(String::new(), |(key, value)| format!(" [{key}=]{value}"));
                let more = if self.params.len() > 1 { " [key=value]..." } else { "" };
                let value = self.magic_value().map_or("", |(_, value)| value);
                let query = if self.params.len() > 1 { "[?key=value&key=value]" } else { "" };
                vec![
                    format!("diskferry serve {word}{magic}{more}"),
                    format!("diskferry VERB '{word}:{value}{query}'"),
                ]
            }
            Thing::Filter => {
                let more = if self.params.is_empty() { "" } else { " [key=value]..." };
                let query = if self.params.is_empty() { "" } else { "[?key=value&key=value]" };
                vec![
                    format!("diskferry serve --filter={word} DISK{more}"),
                    format!("diskferry copy --source-filter='{word}{query}' SOURCE TARGET"),
                    format!("diskferry copy --target-filter='{word}{query}' SOURCE TARGET"),
                ]
            }
        }
    }

    fn magic_value(&self) -> Option<(&'static str, &'static str)> {
        let magic = self.magic?;
        self.params.iter().find(|p| p.key == magic).map(|p| (p.key, p.value))
    }

    /// The example as a command.
    pub(crate) fn command(&self) -> String {
        match self.thing {
            Thing::Device => format!("diskferry info '{}'", self.example),
            Thing::Filter => format!("diskferry {}", self.example),
        }
    }

    /// As text for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |text: &str| {
            out.push_str(text.trim_end());
            out.push('\n');
        };
        for part in wrap(&format!("{} ({}): {}.", self.word, self.thing.name(), self.summary), 0) {
            line(&part);
        }
        line("");
        for (i, usage) in self.usage().iter().enumerate() {
            line(&format!("{} {usage}", if i == 0 { "Usage:" } else { "      " }));
        }
        if !self.params.is_empty() {
            line("");
            line("Parameters:");
        }
        for Param { key, value, doc, repeats } in self.params {
            let more = if *repeats { " ..." } else { "" };
            line(&format!("  {key}={value}{more}"));
            wrap(doc, 10).iter().for_each(|part| line(part));
        }
        if self.any_param {
            line("  NAME=VALUE");
            line("          variables, with names of your choice");
        }
        line("");
        line("Example:");
        line(&format!("  {}", self.command()));
        out
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
            for param in page.params {
                assert!(text.contains(&format!("  {}={}", param.key, param.value)), "{text}");
            }
            assert!(text.ends_with(&format!("{}\n", page.command())), "{text}");
        }
    }
}
