//! The page of a device, a filter or a format, as help prints it and as the manual sets it, from the tables.

use device::Param;
use disk::{Format, ShownKind, StackRole};

/// Columns of a line of help.
const WIDTH: usize = 80;

/// The page of a kind or a format.
pub(crate) trait Page {
    /// Its forms on a command line, one a line.
    fn usage(&self) -> Vec<String>;

    /// The example as a command.
    fn command(&self) -> String;

    /// As text for a terminal.
    fn text(&self) -> String;
}

impl Page for ShownKind {
    fn usage(&self) -> Vec<String> {
        let word = self.word;
        match self.role {
            StackRole::Device => {
                let magic = self.params.iter().find(|p| Some(p.key) == self.magic);
                let value = magic.map_or("", |p| p.value);
                let magic = magic.map_or(String::new(), |p| format!(" [{}=]{}", p.key, p.value));
                let more = if self.params.len() > 1 { " [key=value]..." } else { "" };
                let query = if self.params.len() > 1 { "[?key=value&key=value]" } else { "" };
                vec![
                    format!("diskferry serve {word}{magic}{more}"),
                    format!("diskferry VERB '{word}:{value}{query}'"),
                ]
            }
            StackRole::Filter => {
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

    fn command(&self) -> String {
        match self.role {
            StackRole::Device => format!("diskferry info '{}'", self.example),
            StackRole::Filter => format!("diskferry {}", self.example),
        }
    }

    fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |text: &str| {
            out.push_str(text.trim_end());
            out.push('\n');
        };
        for part in wrap(&format!("{} ({}): {}.", self.word, self.role.name(), self.summary), 0) {
            line(&part);
        }
        line("");
        for (i, usage) in self.usage().iter().enumerate() {
            line(&format!("{} {usage}", if i == 0 { "Usage:" } else { "      " }));
        }
        params("Parameters:", self.params, &mut line);
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

impl Page for Format {
    fn usage(&self) -> Vec<String> {
        let word = self.word;
        let mut forms = vec![
            format!("diskferry serve --format {word} FILE"),
            format!("diskferry convert -f {word} FILE TARGET"),
        ];
        if self.create.is_some() {
            forms.push(format!("diskferry convert -O {word} [-o KEY=VALUE,...] SOURCE FILE"));
            forms.push(format!("diskferry create -f {word} [-o KEY=VALUE,...] FILE SIZE"));
        }
        forms
    }

    fn command(&self) -> String {
        let word = self.word;
        match self.create {
            Some(_) => format!("diskferry convert -f raw -O {word} pattern:8M disk.{word}"),
            None => format!("diskferry convert -f {word} -O raw disk.{word} disk.raw"),
        }
    }

    fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |text: &str| {
            out.push_str(text.trim_end());
            out.push('\n');
        };
        for part in wrap(&format!("{} (format): {}.", self.word, self.summary), 0) {
            line(&part);
        }
        line("");
        for (i, usage) in self.usage().iter().enumerate() {
            line(&format!("{} {usage}", if i == 0 { "Usage:" } else { "      " }));
        }
        params("Parameters for reading:", self.params, &mut line);
        let made = self.create.map_or(&[][..], |create| create.options);
        params("Options (-o) for creating:", made, &mut line);
        line("");
        line("Example:");
        line(&format!("  {}", self.command()));
        out
    }
}

/// Parameters, below a title, if there are any.
fn params(title: &str, params: &[Param], line: &mut impl FnMut(&str)) {
    if !params.is_empty() {
        line("");
        line(title);
    }
    for Param { key, value, doc, repeats } in params {
        let more = if *repeats { " ..." } else { "" };
        line(&format!("  {key}={value}{more}"));
        wrap(doc, 10).iter().for_each(|part| line(part));
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
    use disk::kinds;

    use super::*;

    #[test]
    fn every_page_fits_and_has_all_its_parameters() {
        for page in kinds() {
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
