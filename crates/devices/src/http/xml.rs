//! The few things that are read in a store's answers, which are XML: the text of an element by its
//! name, wherever it is.

/// The text of the first element of that name, if it has no elements in it.
pub(super) fn text(xml: &[u8], name: &str) -> Option<String> {
    let xml = std::str::from_utf8(xml).ok()?;
    let mut rest = xml;
    loop {
        let (_, after) = rest.split_once('<')?;
        rest = after;
        let Some(within) = after.strip_prefix(name) else { continue };
        let (attributes, text) = within.split_once('>')?;
        if attributes.ends_with('/') || !attributes.is_empty() && !attributes.starts_with(' ') {
            continue;
        }
        let (text, after) = text.split_once('<')?;
        let is_its_end = after.strip_prefix('/').and_then(|after| after.strip_prefix(name));
        return is_its_end.filter(|after| after.starts_with('>')).map(|_| plain(text));
    }
}

/// What is in each element of that name, which has no attributes and none of its name in it.
pub(super) fn elements<'a>(xml: &'a [u8], name: &str) -> impl Iterator<Item = &'a [u8]> {
    let xml = std::str::from_utf8(xml).unwrap_or_default();
    let (start, end) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&start)?;
        let (within, after) = after.split_once(&end)?;
        rest = after;
        Some(within.as_bytes())
    })
}

/// A code in an answer, such as `NoSuchKey`: letters and digits only, so that it can be shown.
pub(super) fn code(xml: &[u8]) -> Option<String> {
    let code = text(xml, "Code")?;
    let plain = code.len() <= 64 && code.bytes().all(|b| b.is_ascii_alphanumeric());
    (plain && !code.is_empty()).then_some(code)
}

fn plain(text: &str) -> String {
    let entities =
        [("&quot;", "\""), ("&apos;", "'"), ("&#34;", "\""), ("&lt;", "<"), ("&gt;", ">")];
    let text =
        entities.iter().fold(text.trim().to_owned(), |text, (name, c)| text.replace(name, c));
    text.replace("&amp;", "&")
}

/// Text as it stands in XML.
pub(super) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_element_is_found_and_nothing_else_is() {
        let xml = br#"<?xml version="1.0"?><A x="1"><Codes>no</Codes><Code>Slow</Code><E>&quot;a&amp;b&quot;</E><N/><F><G>1</G></F></A>"#;
        assert_eq!(text(xml, "Code").as_deref(), Some("Slow"));
        assert_eq!(text(xml, "E").as_deref(), Some("\"a&b\""));
        assert_eq!(text(xml, "G").as_deref(), Some("1"));
        for none in ["N", "F", "A", "Cod", "X"] {
            assert_eq!(text(xml, none), None, "{none}");
        }
        assert_eq!(code(xml).as_deref(), Some("Slow"));
        assert_eq!(code(b"<Code>a b</Code>"), None);
        for broken in [&b"<Code"[..], b"<Code>", b"<Code>x", b"<Code>x</Cod", b"\xff"] {
            assert_eq!(code(broken), None);
        }
    }
}
