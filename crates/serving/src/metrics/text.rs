//! OpenMetrics 1.0, as text.

use std::fmt::{Display, Write as _};

/// A text that grows. Families must not be mixed; names are used as they are.
#[derive(Debug)]
pub(super) struct Text(String);

impl Text {
    pub(super) fn new() -> Self {
        Self(String::with_capacity(4096))
    }

    /// Begins a family of samples.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# TYPE {name} {kind}\n# HELP {name} {}", escaped(help));
    }

    /// A sample of the family.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let before = if i == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{}\"", escaped(text));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{after} {value}");
    }

    pub(super) fn end(mut self) -> String {
        self.0.push_str("# EOF\n");
        self.0
    }
}

/// Escapes a label. Names come from users: none may break a line.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push(char::REPLACEMENT_CHARACTER),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_no_line_and_no_label() {
        let mut text = Text::new();
        text.family("a", "gauge", "What it is");
        text.sample("a", &[("x", "1\"2\\3\n4\r5"), ("y", "")], 7);
        text.sample("a", &[], 1.5);
        let wanted = "# TYPE a gauge\n# HELP a What it is\n\
                      a{x=\"1\\\"2\\\\3\\n4\u{fffd}5\",y=\"\"} 7\na 1.5\n# EOF\n";
        assert_eq!(text.end(), wanted);
    }
}
